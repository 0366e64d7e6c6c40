from __future__ import annotations

import resource
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread

import pytest
from typing_extensions import override

from haclient_stores.audit_log import (
    COLLECTED_EVENTS,
    AuditLog,
    AuditLogReader,
    DeliveryRecord,
    PublishRecord,
)
from haclient_stores.disk.files import File, RealDisk, Region
from haclient_stores.errors import StoreCorrupt, StoreError, StoreLocked, UsageError
from haclient_stores.open_publishes import OpenPublishes
from support.disks import WatchedDisk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def opened(path: Path, now_us: int = 100, *, segments: int = 0) -> AuditLog:
    """A log of one client; with so many segments of 4 KiB, if any."""
    if segments:
        log = AuditLog(path, segment_bytes=4096, max_bytes=segments * 4096)
    else:
        log = AuditLog(path)
    log.open_for("c", 7, now_us)
    return log


def publishes(path: Path) -> list[PublishRecord]:
    return list(AuditLogReader(path).publishes())


def deliveries(path: Path) -> list[DeliveryRecord]:
    return list(AuditLogReader(path).deliveries())


@pytest.mark.row("AU2")
def test_a_publish_has_the_times_of_its_publish_and_of_the_ack_that_covers_it(path: Path) -> None:
    log = opened(path)
    log.published(1, "orders", 101)
    log.published(2, "quotes", 102)
    log.published(2, "quotes", 999)  # the same publish, told twice
    log.published(5, "orders", 103)
    log.acknowledged(2, 110)
    log.close()
    assert publishes(path) == [
        PublishRecord("c", 7, 1, "orders", 101, 110, None),
        PublishRecord("c", 7, 2, "quotes", 102, 110, None),
        PublishRecord("c", 7, 5, "orders", 103, None, None),
    ]


def test_a_refused_publish_is_not_acknowledged_by_a_later_ack(path: Path) -> None:
    log = opened(path)
    for sequence in (1, 2, 3):
        log.published(sequence, "t", 100 + sequence)
    log.refused(2, 110)
    log.acknowledged(3, 120)
    log.close()
    found = {each.sequence: (each.acked_us, each.refused_us) for each in publishes(path)}
    assert found == {1: (120, None), 2: (None, 110), 3: (120, None)}


@pytest.mark.row("AU2")
def test_a_delivery_has_the_times_of_its_receipt_and_discard(path: Path) -> None:
    log = opened(path)
    log.received("s", [("7|1|", 1), ("8|4|", 2), ("", 3)], 200)
    log.received("other", [("7|1|,9|12|", 1)], 201)
    log.discarded("s", 2, 210)
    log.discarded("other", 9, 211)  # of a delivery that is not in this log
    log.close()
    assert sorted(deliveries(path), key=lambda each: each.ordinal) == [
        DeliveryRecord("c", "s", 7, 1, 200, None, 0),
        DeliveryRecord("c", "s", 8, 4, 200, 210, 1),
        DeliveryRecord("c", "other", 9, 12, 201, None, 2),
    ]


def test_a_delivery_that_came_again_under_its_number_is_another_record(path: Path) -> None:
    with closing(AuditLog(path)) as log:
        log.open_for("reader", 7, 1000)
        for time_us in (1001, 1002):
            log.received("s", [("11|5|", 1)], time_us)
        log.discarded("s", 1, 1003)
    found = [(each.received_us, each.discarded_us) for each in AuditLogReader(path).deliveries()]
    assert found == [(1001, None), (1002, 1003)]


def test_a_later_run_acknowledges_what_an_earlier_one_published(path: Path) -> None:
    for now_us in (100, 200):
        log = opened(path, now_us)
        if now_us == 100:
            log.published(1, "t", 101)
            log.received("s", [("7|1|", 1)], 105)
        else:
            log.acknowledged(1, 201)
            log.received("s", [("7|1|", 1)], 205)
            log.discarded("s", 1, 206)
        log.close()
    assert publishes(path) == [PublishRecord("c", 7, 1, "t", 101, 201, None)]
    # Numbers are of one run: a discard belongs to the delivery of its own.
    assert [(each.received_us, each.discarded_us) for each in deliveries(path)] == [
        (105, None),
        (205, 206),
    ]
    assert [each.name for each in path.glob("*.log")] == ["audit-00000001.log"]


def test_deliveries_are_in_the_file_before_the_log_is_flushed(path: Path) -> None:
    log = opened(path)
    log.received("s", [("7|1|", 1)], 200)
    assert [each.sequence for each in deliveries(path)] == [1]
    log.close()


def test_publishes_and_discards_are_collected_and_written_together(path: Path) -> None:
    log = opened(path)
    log.received("s", [(f"7|{n}|", n) for n in range(1, COLLECTED_EVENTS + 2)], 1)
    for sequence in range(1, COLLECTED_EVENTS + 2):
        log.published(sequence, "t", sequence)
        log.discarded("s", sequence, sequence)
    assert len(publishes(path)) == COLLECTED_EVENTS
    assert sum(each.discarded_us is None for each in deliveries(path)) == 1
    log.close()
    assert len(publishes(path)) == COLLECTED_EVENTS + 1
    assert all(each.discarded_us is not None for each in deliveries(path))


def test_discards_of_other_threads_are_written_without_further_messages(path: Path) -> None:
    log = opened(path)
    count = 20 * COLLECTED_EVENTS
    log.received("s", [(f"7|{n}|", n) for n in range(1, count + 1)], 1)

    def discard(first: int) -> None:
        for number in range(first, count + 1, 4):
            log.discarded("s", number, number)

    threads = [Thread(target=discard, args=(first,)) for first in range(1, 5)]
    for thread in threads:
        thread.start()
    for number in range(1, 2001):
        log.published(number, "t", number)
        log.acknowledged(number, number)
    for thread in threads:
        thread.join()
    # What a killed process leaves behind.
    assert sum(each.discarded_us is None for each in deliveries(path)) < COLLECTED_EVENTS
    assert sum(each.acked_us is not None for each in publishes(path)) == 2000
    log.close()
    assert all(each.discarded_us is not None for each in deliveries(path))


def test_an_ack_of_a_later_run_covers_only_what_that_run_can_have_sent(path: Path) -> None:
    log = opened(path)
    for sequence in range(1, 11):
        log.published(sequence, "t", sequence)
    log.acknowledged(5, 20)
    log.close()  # 7 to 10 were never sent, and their store was in memory
    log = opened(path, 101)
    log.published(1000, "t", 102)
    log.acknowledged(6, 103)  # of the logon: the server has 6 of the earlier run
    log.acknowledged(1000, 104)
    log.close()
    log = opened(path, 200)
    log.acknowledged(1000, 201)
    log.published(9, "t", 202)  # by a program that numbers its messages itself
    log.published(2000, "t", 203)
    log.acknowledged(2000, 204)
    log.close()
    acked = {each.sequence: each.acked_us for each in publishes(path)}
    assert acked == (
        dict.fromkeys(range(1, 6), 20)
        | {6: 103, 7: None, 8: None, 9: 204, 10: None, 1000: 104, 2000: 204}
    )


def test_an_ack_of_a_later_run_covers_what_its_publish_store_has_kept(path: Path) -> None:
    log = opened(path)
    for sequence in range(1, 11):
        log.published(sequence, "t", sequence)
    log.close()
    log = opened(path, 101)
    log.kept(4, 8)
    log.published(11, "t", 102)
    log.refused(5, 103)
    log.acknowledged(11, 104)
    log.close()
    found = {each.sequence: (each.acked_us, each.refused_us) for each in publishes(path)}
    assert found == (
        dict.fromkeys((1, 2, 3, 9, 10), (None, None))
        | dict.fromkeys((4, 6, 7, 8, 11), (104, None))
        | {5: (None, 103)}
    )


def test_what_is_lost_with_a_connection_is_acknowledged_by_no_later_ack(path: Path) -> None:
    log = opened(path)
    for sequence in range(1, 6):
        log.published(sequence, "t", sequence)
    log.received("s", [("7|1|", 1)], 6)
    log.acknowledged(1, 10)
    log.lost(11)
    log.acknowledged(2, 12)  # of the logon: only its ack was lost
    log.published(5, "t", 13)  # the same again
    log.published(6, "t", 14)
    log.acknowledged(6, 15)
    log.lost(16)  # of nothing
    log.discarded("s", 1, 17)  # deliveries outlive a connection
    log.acknowledged(6, 18)
    log.close()
    acked = {each.sequence: each.acked_us for each in publishes(path)}
    assert acked == {1: 10, 2: 12, 3: None, 4: None, 5: 15, 6: 15}
    assert [each.discarded_us for each in deliveries(path)] == [17]


def test_publishes_that_were_lost_cost_later_acks_and_publishes_nothing() -> None:
    publishes, losses = OpenPublishes(), 4000
    start = time.process_time()
    for loss in range(losses):
        publishes.in_session("s", loss)
        for sequence in (3 * loss + 1, 3 * loss + 2, 3 * loss + 3):
            publishes.add(PublishRecord("c", 1, sequence, "orders", loss, None, None))
        acked = [each.sequence for each in publishes.take_acknowledged(3 * loss + 1)]
        assert acked == [3 * loss + 1]
    assert time.process_time() - start < 1.0  # 3 s where each of them is asked again
    assert len(list(publishes.records())) == 2 * losses


def test_a_new_segment_is_no_loss_and_forgets_none(path: Path) -> None:
    log = opened(path, segments=256)
    log.published(1, "t", 1)
    log.lost(2)
    for sequence in range(2, 1002):
        log.published(sequence, "t", sequence)
        log.flush()
    log.acknowledged(1001, 2000)
    log.close()
    assert len(list(path.glob("*.log"))) > 1
    acked = {each.sequence: each.acked_us for each in publishes(path)}
    assert acked == {1: None} | dict.fromkeys(range(2, 1002), 2000)


def test_lower_numbers_tell_of_a_loss_that_an_older_log_does_not_record(path: Path) -> None:
    log = opened(path)
    for sequence in (10, 11, 5, 6):
        log.published(sequence, "t", sequence)
    log.acknowledged(6, 20)
    log.close()
    acked = {each.sequence: each.acked_us for each in publishes(path)}
    assert acked == {10: None, 11: None, 5: 20, 6: 20}


def test_a_delete_is_told_from_a_publish(path: Path) -> None:
    log = opened(path)
    for sequence in range(1, 6):
        log.published(sequence, "t", sequence, is_delete=sequence in {2, 3})
    log.acknowledged(3, 10)
    log.close()
    found = [(each.sequence, each.is_delete, each.acked_us) for each in publishes(path)]
    assert found == [
        (1, False, 10), (2, True, 10), (3, True, 10), (4, False, None), (5, False, None)
    ]  # fmt: skip


def test_old_discards_are_written_with_the_next_chunk(path: Path) -> None:
    log = opened(path)
    log.received("s", [("7|1|", 1)], 200)
    log.discarded("s", 1, 210)
    log.flush_when_due(211)
    assert deliveries(path)[0].discarded_us is None
    log.flush_when_due(2_000_000)
    assert deliveries(path)[0].discarded_us == 210
    log.close()


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_tail_is_cut_and_overwritten(path: Path, cut: int) -> None:
    log = opened(path)
    log.published(1, "t", 101)
    log.flush()
    log.received("s", [("7|1|", 1)], 102)
    log.close()
    segment = path / "audit-00000001.log"
    segment.write_bytes(segment.read_bytes()[:-cut])
    assert len(publishes(path)) == 1
    assert deliveries(path) == []
    log = opened(path, 300)
    log.received("s", [("7|2|", 1)], 301)
    log.close()
    assert [each.sequence for each in deliveries(path)] == [2]
    assert len(publishes(path)) == 1


def log_of_five_deliveries(path: Path, *, disk: WatchedDisk | None = None) -> tuple[Path, int]:
    """A log whose last five blocks are 56 bytes each; its segment, and where they begin."""
    log = AuditLog(path, disk=disk)
    log.open_for("c", 7, 100)
    for number in range(1, 6):
        log.received("s", [(f"7|{number}|", number)], number)
    log.close()
    segment = path / "audit-00000001.log"
    return segment, segment.stat().st_size - 5 * BLOCK


BLOCK = 56
"""Bytes of a block with one delivery: a header of 28, a name and three numbers."""


@pytest.mark.parametrize("at", [0, 5, 8, 13, 16, 21, 30, BLOCK - 1])
@pytest.mark.parametrize("number", [0, 2, 3])
def test_damage_with_whole_blocks_behind_it_is_an_error_with_its_place(
    path: Path, number: int, at: int
) -> None:
    segment, begin = log_of_five_deliveries(path)
    offset = begin + number * BLOCK
    data = bytearray(segment.read_bytes())
    data[offset + at] ^= 1
    segment.write_bytes(data)
    for read in (publishes, deliveries):
        with pytest.raises(StoreCorrupt, match=r"corrupt at byte \d+: .* whole block") as error:
            read(path)
        assert (error.value.path, error.value.offset) == (segment, offset)
    log = AuditLog(path)
    with pytest.raises(StoreCorrupt, match=f"corrupt at byte {offset}: "):
        log.open_for("c", 7, 200)
    assert not log.is_open
    log.close()
    assert segment.read_bytes() == data  # nothing was written over


def test_a_page_of_zeros_with_whole_blocks_behind_it_is_an_error(path: Path) -> None:
    segment, begin = log_of_five_deliveries(path)
    data = bytearray(segment.read_bytes())
    data[begin + 10 : begin + 3 * BLOCK + 10] = bytes(3 * BLOCK)
    segment.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=f"corrupt at byte {begin}: "):
        deliveries(path)


@pytest.mark.parametrize("at", [0, 5, 8, 13, 16, 21, 30, BLOCK - 1])
def test_a_last_block_that_is_not_whole_is_a_torn_tail(path: Path, at: int) -> None:
    segment, begin = log_of_five_deliveries(path)
    data = bytearray(segment.read_bytes())
    data[begin + 4 * BLOCK + at] ^= 1
    segment.write_bytes(data)
    assert [each.sequence for each in deliveries(path)] == [1, 2, 3, 4]


def test_a_segment_that_ends_torn_before_another_one_is_an_error(path: Path) -> None:
    log = opened(path, segments=256)
    for number in range(1, 501):
        log.received("s", [(f"7|{number}|", number)], number)
    log.close()
    segment = path / "audit-00000002.log"
    segment.write_bytes(segment.read_bytes()[:-1])
    with pytest.raises(StoreCorrupt, match=r"and the log goes on in audit-00000003\.log"):
        deliveries(path)


@pytest.mark.parametrize(
    ("before", "after"), [(b"first boot......", b"the boot after.."), (bytes(16), bytes(16))]
)
def test_blocks_that_power_took_from_the_middle_end_the_log_at_the_next_run(
    path: Path, caplog: pytest.LogCaptureFixture, before: bytes, after: bytes
) -> None:
    segment, begin = log_of_five_deliveries(path, disk=WatchedDisk(boot=before))
    data = bytearray(segment.read_bytes())
    data[begin + BLOCK : begin + 2 * BLOCK] = bytes(BLOCK)
    segment.write_bytes(data)
    log = AuditLog(path, disk=WatchedDisk(boot=after))
    log.open_for("c", 7, 200)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{segment}: byte {begin + BLOCK}: ")
    log.received("s", [("7|9|", 1)], 201)
    # What was behind it is cleared, so it is never taken for a block behind a damaged one.
    assert [each.sequence for each in deliveries(path)] == [1, 9]
    log.close()


class LateFile(File):
    """A file whose first read ends before its last blocks: these are written just after it."""

    def __init__(self, file: File, size: int) -> None:
        self.file = file
        self.seen = size
        self.path = file.path

    @override
    def size(self) -> int:
        return self.file.size()

    @override
    def pread(self, count: int, offset: int) -> bytes:
        data = self.file.pread(min(count, max(self.seen - offset, 0)), offset)
        self.seen = self.file.size()
        return data

    @override
    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self.file.pwrite(data, offset)

    @override
    def allocate(self, size: int) -> None:
        self.file.allocate(size)

    @override
    def map(self, offset: int, length: int) -> Region:
        return self.file.map(offset, length)

    @override
    def fsync(self) -> None:
        self.file.fsync()

    @override
    def close(self) -> None:
        self.file.close()


class LateDisk(RealDisk):
    """Opens files that are written while they are read; the first read sees so many bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    @override
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        return LateFile(super().open(path, create=create, writable=writable), self.size)


def test_a_block_that_is_written_while_it_is_read_is_no_damage(path: Path) -> None:
    segment, begin = log_of_five_deliveries(path)
    for size in range(segment.stat().st_size):
        reader = AuditLogReader(path, disk=LateDisk(size))
        found = [each.sequence for each in reader.deliveries()]
        # Only the last block may be taken for a torn tail.
        assert found == [1, 2, 3, 4, 5] or (size >= begin + 4 * BLOCK and found == [1, 2, 3, 4])


def test_segments_are_rotated_and_the_oldest_removed(path: Path) -> None:
    log = opened(path, segments=3)
    for number in range(1, 2001):
        log.received("s", [(f"7|{number}|", number)], number)
    log.close()
    assert len(list(path.glob("*.log"))) == 3
    assert sum(each.stat().st_size for each in path.glob("*.log")) < 3 * 4096 + 3 * 200
    reader = AuditLogReader(path)
    assert not reader.is_complete
    found = [each.sequence for each in reader.deliveries()]
    assert found == list(range(found[0], 2001))
    assert [each.ordinal for each in reader.deliveries()] == list(range(len(found)))


def test_discards_find_their_delivery_across_segments(path: Path) -> None:
    log = opened(path, segments=256)
    for number in range(1, 501):
        log.received("s", [(f"7|{number}|", number)], number)
    for number in range(1, 501):
        log.discarded("s", number, 1000 + number)
    log.close()
    assert len(list(path.glob("*.log"))) > 1
    reader = AuditLogReader(path)
    assert reader.is_complete
    assert [each.discarded_us for each in reader.deliveries()] == list(range(1001, 1501))


@contextmanager
def files_limited_to(size: int) -> Generator[None]:
    """The size that files of this process may have; pytest itself may write to one later."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_error_of_the_disk_ends_the_log_and_not_its_user(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened(path)
    log.received("s", [("7|1|", 1)], 101)
    segment = path / "audit-00000001.log"
    with files_limited_to(segment.stat().st_size):
        log.received("s", [("7|2|", 2)], 102)
        log.received("s", [("7|3|", 3)], 103)
    assert not log.is_open
    (record,) = caplog.records
    assert record.message.startswith(
        f"{path}: the audit log ends here, the client goes on: {segment}: cannot write: "
    )
    log.close()
    assert [each.sequence for each in deliveries(path)] == [1]


def test_a_log_has_one_writer(path: Path) -> None:
    log = opened(path)
    (path / "lock").unlink()
    with pytest.raises(StoreLocked):
        AuditLog(path)
    with pytest.raises(UsageError, match="belongs to one client at a time"):
        log.open_for("d", 8, 200)
    log.close()
    log.close()
    opened(path).close()


def test_a_log_of_a_newer_version_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("haclient_stores.audit_log.VERSION", 2)
    opened(path).close()
    monkeypatch.undo()
    with pytest.raises(StoreError, match=r"format version 2, where .* reads version 1"):
        publishes(path)


@pytest.mark.parametrize("sizes", [(1, 2**20), (2**20, 2**19)])
def test_sizes_that_can_never_work_are_refused(path: Path, sizes: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="segment_bytes of 4096 to max_bytes"):
        AuditLog(path, segment_bytes=sizes[0], max_bytes=sizes[1])


def test_a_directory_that_is_not_there_cannot_be_read(path: Path) -> None:
    with pytest.raises(StoreError, match="cannot list"):
        AuditLogReader(path)


@pytest.mark.parametrize(
    ("boot", "is_cut"), [(b"the boot after..", True), (b"first boot......", False)]
)
def test_the_ends_of_segments_that_power_took_are_cut_although_others_follow(
    path: Path, boot: bytes, *, is_cut: bool
) -> None:
    log = AuditLog(path, segment_bytes=4096, disk=WatchedDisk(boot=b"first boot......"))
    log.open_for("me", 1, 100)
    for number in range(1, 241):
        log.received("sub", [(f"9|{number}|", number)], number)
    log.close()
    *earlier, last = sorted(path.glob("audit-*.log"))[-3:]
    for each in earlier:
        each.write_bytes(each.read_bytes()[:-10])
    log = AuditLog(path, disk=WatchedDisk(boot=boot))
    log.open_for("me", 1, 200)
    log.close()
    assert last.exists()
    if is_cut:
        assert len(deliveries(path)) == 238
    else:
        with pytest.raises(StoreCorrupt, match="the log goes on in"):
            deliveries(path)
