"""The directory of a publish store, and its segments after a kill or a loss of power."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import threading
from pathlib import Path

import pytest

from haclient_fake_server.journal.files import JournalFiles
from haclient_stores import header_page
from haclient_stores.disk.durable_file import DurabilityOptions
from haclient_stores.disk.files import PAGE_BYTES, RealDisk
from haclient_stores.errors import (
    HAClientError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    UsageError,
)
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from haclient_stores.publish_stores.segment_file import (
    HEADER_BYTES,
    SEAL_BYTES,
    SEGMENT_MAGIC,
    Seal,
    write_seal,
)
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES
from haclient_stores.publish_stores.store_directory import CONTROL_MAGIC, StoreDirectory
from support.disks import WatchedDisk, tiny_file_system
from support.frames import BASE, fill, frame_of, kept, put, put_until_full, take_all
from support.recording import Created, Event, NamesSynced, RecordingDisk, Synced

PATH = Path("/stores/p")
SMALL = MIN_SEGMENT_BYTES
KIB = b"k" * 1000
IN_SEGMENT = 27  # so many frames of it fill a small segment
LIMIT_S = 300.0
LAST_SEAL_AT = SMALL - SEAL_BYTES  # of the first seal: they are written downwards


def directory_on(disk: RecordingDisk) -> StoreDirectory:
    return StoreDirectory(PATH, disk, DurabilityOptions(), segment_bytes=MIN_SEGMENT_BYTES)


def opened(
    path: Path, disk: WatchedDisk | None = None, *, segment_bytes: int = SMALL
) -> FilePublishStore:
    store = FilePublishStore(path, segment_bytes=segment_bytes, disk=disk)
    if not store.last_sequence:
        store.reconcile(seen=0, persisted=0, clock_us=BASE)
    return store


def killed(store: FilePublishStore, path: Path) -> Path:
    """The files as a process leaves them that is killed now."""
    shutil.copytree(store.path, path)
    return path


def segments(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("*.seg"))


def persist_all(store: FilePublishStore) -> None:
    take_all(store)
    store.discard_up_to(store.last_sequence)


# -- files ------------------------------------------------------------------------------------


@pytest.mark.row("PS11")
def test_files_are_recycled_and_never_grow_beyond_the_backlog(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    for turn in range(30):
        numbers = fill(store, 30, bytes([turn]) * 1000)
        assert list(store.replay()) == [(n, frame_of(n, bytes([turn]) * 1000)) for n in numbers]
        persist_all(store)
    assert len(segments(store.path)) <= 4
    assert all((store.path / name).stat().st_size == SMALL for name in segments(store.path))
    store.close()


@pytest.mark.row("PS11")
def test_a_backlog_is_given_back_to_the_file_system(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    fill(store, 300, KIB)
    assert len(segments(store.path)) == 300 // IN_SEGMENT + 1
    persist_all(store)
    assert len(segments(store.path)) <= 3
    store.close()


def test_a_large_frame_has_a_file_of_its_own_that_goes_away(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    put(store)
    put(store, bytes(5 * SMALL))
    put(store)
    assert (store.path / "00000002.seg").stat().st_size == HEADER_BYTES + 5 * SMALL + PAGE_BYTES
    fill(store, 40, KIB)
    persist_all(store)
    assert "00000002.seg" not in segments(store.path)
    store.close()


@pytest.mark.row("PS11")
def test_a_long_backlog_keeps_few_files_open(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = opened(tmp_path / "p", disk)
    fill(store, 600, KIB)
    assert len(segments(store.path)) == 600 // IN_SEGMENT + 1
    assert disk.open_files <= 12
    assert len(kept(store)) == 600
    assert disk.open_files <= 12
    store.rewind(0)
    assert len(take_all(store)) == 600 * len(frame_of(1001, KIB))
    assert disk.open_files <= 12
    store.close()
    assert disk.open_files == 0
    again = opened(tmp_path / "p", disk)
    assert disk.open_files <= 12
    assert kept(again) == list(range(1001, 1601))
    assert disk.open_files <= 12
    again.close()


@pytest.mark.row("PS11")
def test_a_backlog_of_more_files_than_may_be_open_is_read_back(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    fill(store, 60 * IN_SEGMENT, KIB)
    store.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(entry.name) for entry in Path("/dev/fd").iterdir()}
    unused = [number for number in range(len(used) + 100) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (unused[40], hard))
    try:
        again = opened(tmp_path / "p")
        assert len(kept(again)) == 60 * IN_SEGMENT
        again.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_segments_of_another_size_are_read_and_used_up(tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "p", segment_bytes=3 * SMALL)
    store.reconcile(seen=0, persisted=0, clock_us=BASE)
    fill(store, 100, KIB)
    store.close()
    again = opened(tmp_path / "p")
    fill(again, 100, KIB)
    assert kept(again) == list(range(1001, 1201))
    persist_all(again)
    fill(again, 20, KIB)
    assert {(again.path / name).stat().st_size for name in segments(again.path)} == {SMALL}
    again.close()


def test_files_that_are_none_of_ours_are_left_alone(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    put(store)
    store.close()
    for name in ("readme.txt", "00000001.seg.bak", "control~"):
        (tmp_path / "p" / name).write_text("mine")
    again = opened(tmp_path / "p")
    assert kept(again) == [1001]
    again.close()
    assert (tmp_path / "p" / "readme.txt").read_text() == "mine"


def test_a_strange_segment_is_corrupt_and_not_removed(tmp_path: Path) -> None:
    opened(tmp_path / "p").close()
    strange = tmp_path / "p" / "strange.seg"
    strange.write_bytes(b"what is this")
    with pytest.raises(StoreCorrupt, match=r"strange\.seg: corrupt at byte 0: not a HAPUBSEG"):
        opened(tmp_path / "p")
    assert strange.read_bytes() == b"what is this"


def test_names_are_never_used_twice(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    fill(store, 100, KIB)
    store.close()
    (tmp_path / "p" / "00000123.seg").write_bytes(b"")  # made by a process that was killed then
    again = opened(tmp_path / "p")
    assert "00000123.seg" not in segments(again.path)
    fill(again, 20, KIB)
    assert "00000124.seg" in segments(again.path)
    assert kept(again) == list(range(1001, 1121))
    again.close()


def test_files_that_were_made_and_never_used_are_kept_as_spare_or_removed(tmp_path: Path) -> None:
    opened(tmp_path / "p").close()
    for number in (5, 6, 7):
        (tmp_path / "p" / f"0000000{number}.seg").write_bytes(bytes(SMALL))
    store = opened(tmp_path / "p")
    assert segments(store.path) == ["00000005.seg", "00000006.seg"]
    fill(store, 100, KIB)
    assert "00000008.seg" in segments(store.path)
    assert kept(store) == list(range(1001, 1101))
    store.close()


def test_an_open_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = opened(tmp_path / "p", disk)
    fill(store, 60, KIB)
    store.close()
    last = tmp_path / "p" / segments(tmp_path / "p")[-1]
    whole = last.read_bytes()
    for offset in (0, 20, HEADER_BYTES + 50, LAST_SEAL_AT):
        damaged = bytearray(whole)
        damaged[offset] ^= 1
        last.write_bytes(damaged)
        with pytest.raises(StoreCorrupt):
            opened(tmp_path / "p", disk)
        assert disk.open_files == 0
    for size in (100, HEADER_BYTES + 10):
        last.write_bytes(whole[:size])
        with pytest.raises(StoreCorrupt):
            opened(tmp_path / "p", disk)
        assert disk.open_files == 0


# -- a full disk ------------------------------------------------------------------------------


@pytest.mark.row("PS1", "PS11", "PS22")
def test_a_full_disk_is_a_full_store_that_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with tiny_file_system(tmp_path / "tiny", 8 * SMALL) as root:
        store = opened(root / "p")
        error = put_until_full(store, KIB)
        assert isinstance(error, StoreFull)
        assert "free some space" in str(error)
        count = store.unpersisted_count
        assert count > 50
        files = segments(store.path)
        with pytest.raises(StoreFull):
            put(store, KIB)
        assert segments(store.path) == files  # no half made file is left
        assert store.unpersisted_count == count
        store.sync()
        store.close()
        again = opened(root / "p")
        assert list(again.replay()) == [
            (1000 + n, frame_of(1000 + n, KIB)) for n in range(1, count + 1)
        ]
        take_all(again)
        again.discard_up_to(1030)
        assert put(again, KIB) == 1001 + count
        again.close()


def test_a_disk_that_is_full_from_the_start_is_no_store_yet(tmp_path: Path) -> None:
    with tiny_file_system(tmp_path / "tiny", 8 * SMALL) as root:
        with (root / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(bytes(PAGE_BYTES)) == PAGE_BYTES:
                if os.statvfs(root).f_bfree == 0:
                    break
        with pytest.raises(StoreFull):
            opened(root / "p")
        (root / "ballast").unlink()
        store = opened(root / "p")
        assert put(store) == 1001
        store.close()


# -- damage -----------------------------------------------------------------------------------


def opened_or_corrupt(path: Path) -> FilePublishStore | StoreCorrupt:
    try:
        return FilePublishStore(path, segment_bytes=SMALL)
    except StoreCorrupt as error:
        return error


def check_damage(path: Path, whole: dict[int, bytes], caplog: pytest.LogCaptureFixture) -> str:
    """Open a damaged store: "corrupt", "whole" or, with a warning, "torn"; else it fails."""
    caplog.clear()
    store = opened_or_corrupt(path)
    if isinstance(store, StoreCorrupt):
        assert store.path.parent == path
        assert 0 <= store.offset <= SMALL
        return "corrupt"
    found = dict(store.replay())
    count, last = store.unpersisted_count, store.last_sequence
    store.close()
    assert count == len(found)
    if found == whole:
        assert last == max(whole)
        return "whole"
    assert found == dict(list(whole.items())[: len(found)])
    assert "cut" in caplog.text
    return "torn"


@pytest.mark.row("PS21", "PS22")
def test_no_damaged_byte_of_a_closed_store_goes_unnoticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "p"
    store = opened(path)
    put(store, b"one")
    store.sync()
    put(store, b"two")
    put(store, b"three")
    whole = dict(store.replay())
    store.close()
    segment = path / "00000001.seg"
    good = segment.read_bytes()
    end = HEADER_BYTES + sum(map(len, whole.values()))
    outcomes: dict[str, list[int]] = {"corrupt": [], "whole": [], "torn": []}
    seals = range(SMALL - 5 * SEAL_BYTES, SMALL)
    for offset in [*range(300), *range(HEADER_BYTES, end + 8), *seals]:
        damaged = bytearray(good)
        damaged[offset] ^= 0xFF
        segment.write_bytes(damaged)
        outcomes[check_damage(path, whole, caplog)].append(offset)
        segment.write_bytes(good)
    sealed = {*range(36), *range(HEADER_BYTES, end), *seals[-2 * SEAL_BYTES :]}
    assert sealed <= set(outcomes["corrupt"])
    assert set(outcomes["torn"]) <= set(range(end, end + 4))  # the zero length behind the last


@pytest.mark.row("PS21")
@pytest.mark.parametrize("bit", range(0, 64, 3))
def test_the_number_in_a_seal_is_under_its_checksum(tmp_path: Path, bit: int) -> None:
    path = tmp_path / "p"
    store = opened(path)
    fill(store, 3)
    store.close()
    segment = path / "00000001.seg"
    damaged = bytearray(segment.read_bytes())
    damaged[LAST_SEAL_AT + 8 + bit // 8] ^= 1 << bit % 8
    segment.write_bytes(damaged)
    with pytest.raises(StoreCorrupt):
        FilePublishStore(path, segment_bytes=SMALL)


@pytest.mark.row("PS21")
def test_no_damaged_byte_of_the_control_page_loses_a_message(tmp_path: Path) -> None:
    path = tmp_path / "p"
    store = opened(path)
    store.open_for("orders")
    fill(store, 3)
    store.discard_up_to(1001)
    wanted = dict(store.replay())
    store.close()
    control = path / "control"
    good = control.read_bytes()
    for offset in range(200):
        damaged = bytearray(good)
        damaged[offset] ^= 0xFF
        control.write_bytes(damaged)
        again = opened_or_corrupt(path)
        if isinstance(again, StoreCorrupt):
            assert again.path == control
            assert offset < 36 or 128 <= offset < 142
            continue
        assert wanted.items() <= dict(again.replay()).items()
        assert again.client_name == "orders"
        assert again.last_sequence >= 1003
        again.close()


@pytest.mark.row("PS21")
@pytest.mark.parametrize("size", [1, 7, 8, 35, 36, 100, PAGE_BYTES - 1])
def test_a_control_page_that_ends_early_is_corrupt(tmp_path: Path, size: int) -> None:
    opened(tmp_path / "p").close()
    control = tmp_path / "p" / "control"
    control.write_bytes(control.read_bytes()[:size])
    with pytest.raises(StoreCorrupt):
        opened(tmp_path / "p")


@pytest.mark.row("PS21", "PS22")
def test_a_closed_segment_cut_anywhere_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "p"
    store = opened(path)
    fill(store, 3)
    store.close()
    segment = path / "00000001.seg"
    good = segment.read_bytes()
    end = HEADER_BYTES + 3 * len(frame_of(1001, b"body"))
    for size in [*range(1, 300), *range(HEADER_BYTES - 3, end + 5), SMALL - 16, SMALL - 1]:
        segment.write_bytes(good[:size])
        with pytest.raises(StoreCorrupt) as caught:
            FilePublishStore(path, segment_bytes=SMALL)
        assert caught.value.path == segment
        assert caught.value.offset <= size


def test_a_seal_that_points_beyond_the_file_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "p"
    store = opened(path)
    fill(store, 3)
    store.close()
    segment = path / "00000001.seg"
    data = bytearray(segment.read_bytes())
    write_seal(memoryview(data), LAST_SEAL_AT, Seal(SMALL + 1, 0, 2000))
    segment.write_bytes(data)
    with pytest.raises(StoreCorrupt, match="more frames than there is room for") as caught:
        FilePublishStore(path, segment_bytes=SMALL)
    assert caught.value.offset == LAST_SEAL_AT


def test_the_same_numbers_twice_are_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "p"
    store = opened(path)
    fill(store, 3)
    store.close()
    shutil.copyfile(path / "00000001.seg", path / "00000009.seg")
    with pytest.raises(StoreCorrupt, match="repeats the sequences of another segment"):
        FilePublishStore(path, segment_bytes=SMALL)


# -- killed processes -------------------------------------------------------------------------


@pytest.mark.row("PS11", "PS22")
def test_a_killed_process_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    frames: dict[int, bytes] = {}
    for count in range(60):
        body = bytes([count]) * (37 * count)
        number = put(store, body)
        frames[number] = frame_of(number, body)
        if count % 7 == 0:
            again = opened(killed(store, tmp_path / str(count)))
            assert dict(again.replay()) == frames
            assert put(again) == number + 1
            again.close()
    store.close()


@pytest.mark.row("PS22")
def test_frames_of_a_segments_earlier_life_are_never_found(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    for turn in range(8):  # each life ends a frame of the same size before the life before it
        fill(store, 30, KIB)
        persist_all(store)
        numbers = fill(store, 9 - turn, KIB)
        again = opened(killed(store, tmp_path / str(turn)))
        assert list(again.replay()) == [(n, frame_of(n, KIB)) for n in numbers]
        again.close()
        persist_all(store)
    store.close()


@pytest.mark.row("PS21", "PS22")
def test_a_frame_that_does_not_carry_the_next_number_ends_a_segment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path / "p")
    fill(store, 2)
    stale = killed(store, tmp_path / "q") / "00000001.seg"
    store.close()
    with stale.open("r+b") as file:
        file.seek(HEADER_BYTES + 2 * len(frame_of(1001, b"body")))
        file.write(frame_of(1777, b"of an earlier life"))
    again = opened(tmp_path / "q")
    assert kept(again) == [1001, 1002]
    assert "torn frame" in caplog.text
    assert put(again) == 1003
    assert dict(again.replay())[1003] == frame_of(1003, b"body")
    again.close()


@pytest.mark.row("PS8", "PS11")
def test_a_jump_in_the_numbering_survives_with_and_without_frames(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    fill(store, 2)
    store.reconcile(seen=5000, persisted=1001, clock_us=0)
    again = opened(killed(store, tmp_path / "a"))
    assert (again.last_sequence, again.last_persisted) == (5000, 1001)
    assert put(again) == 5001
    again.close()
    put(store)
    again = opened(killed(store, tmp_path / "b"))
    assert kept(again) == [1002, 5001]
    persist_all(again)
    again.close()
    again = opened(tmp_path / "b")
    assert (kept(again), put(again)) == ([], 5002)
    again.close()
    store.close()


@pytest.mark.row("PS22")
def test_an_empty_segment_that_was_made_before_the_kill_is_no_hindrance(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = opened(tmp_path / "p", disk)
    fill(store, IN_SEGMENT, KIB)

    def kill(action: str, name: str) -> None:
        if action == "create":
            shutil.copytree(store.path, tmp_path / f"before {name}")

    disk.before = kill
    fill(store, IN_SEGMENT + 4, KIB)
    for copy, count in (
        ("before 00000002.seg", IN_SEGMENT),
        ("before 00000003.seg", 2 * IN_SEGMENT),
    ):
        again = opened(tmp_path / copy, WatchedDisk())
        assert kept(again) == list(range(1001, 1001 + count))
        assert put(again) == 1001 + count
        again.close()
    path = killed(store, tmp_path / "q")
    empty = bytearray((path / segments(path)[0]).read_bytes()[:HEADER_BYTES].ljust(SMALL, b"\0"))
    identity = header_page.Identity(SEGMENT_MAGIC, HEADER_BYTES, SMALL, 1010)
    header_page.write_identity(memoryview(empty), identity, disk.boot)
    (path / "00000099.seg").write_bytes(empty)
    again = opened(path, WatchedDisk())
    assert kept(again) == list(range(1001, 1005 + 2 * IN_SEGMENT))
    again.close()
    store.close()


@pytest.mark.row("PS8", "PS22")
def test_an_empty_last_segment_makes_way_for_a_jump_in_the_numbering(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    fill(store, 3)
    store.close()
    empty = bytearray(SMALL)
    identity = header_page.Identity(SEGMENT_MAGIC, HEADER_BYTES, SMALL, 1004)
    header_page.write_identity(memoryview(empty), identity, b"another boot....")
    (tmp_path / "p" / "00000002.seg").write_bytes(empty)
    again = opened(tmp_path / "p")
    again.reconcile(seen=2000, persisted=1001, clock_us=0)
    assert put(again) == 2001
    assert kept(again) == [1002, 1003, 2001]
    again.close()
    again = opened(tmp_path / "p")
    assert kept(again) == [1002, 1003, 2001]
    again.close()


@pytest.mark.row("PS18", "PS20")
def test_a_store_that_syncs_each_message_holds_nearly_as_many(tmp_path: Path) -> None:
    store = opened(tmp_path / "p", segment_bytes=4 * SMALL)
    rough = frame_of(1001, KIB[:100])
    for _ in range(5000):
        put(store, KIB[:100])
        store.checkpoint()
    most = 5000 * (len(rough) + SEAL_BYTES)
    assert len(segments(store.path)) <= most // (4 * SMALL - HEADER_BYTES - 1000) + 1
    again = opened(killed(store, tmp_path / "q"))
    assert kept(again) == list(range(1001, 6001))
    again.close()
    store.close()


@pytest.mark.row("PS22")
def test_frames_that_arrive_while_the_last_seal_is_written_are_sealed_too(tmp_path: Path) -> None:
    """Checksums are computed beside the appends: one that is under way still sees the old limit."""
    store = opened(tmp_path / "p", segment_bytes=4 * SMALL)
    while len(segments(store.path)) <= 1:
        put(store, b"")
        assert store._active is not None
        limit = store._active.frame_limit
        store.checkpoint()
        store._limit = max(store._limit, limit)  # an append had looked at it before
    store.sync()
    disk = WatchedDisk(boot=b"second boot.....")
    again = opened(killed(store, tmp_path / "q"), disk, segment_bytes=4 * SMALL)
    assert kept(again) == list(range(1001, store.last_sequence + 1))
    again.close()
    store.close()


# -- sync -------------------------------------------------------------------------------------


@pytest.mark.row("PS20")
def test_a_sync_covers_each_file_that_was_written_since_the_last(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = opened(tmp_path / "p", disk)
    fill(store, 40, KIB)
    disk.events.clear()
    store.sync()
    assert {name for action, name in disk.events if action == "sync"} == {
        *segments(store.path),
        "control",
    }
    assert ("sync names", "p") in disk.events
    disk.events.clear()
    put(store)
    store.sync()
    assert disk.events == [("sync", segments(store.path)[-1])]
    store.close()


@pytest.mark.row("PS20", "PS22")
def test_a_segment_begun_while_a_sync_waits_is_synced_by_the_next(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = opened(tmp_path / "p", disk)
    fill(store, IN_SEGMENT, KIB)
    lock = TellingLock()
    store._lock = lock  # type: ignore[assignment]  # a lock that tells when somebody waits
    syncing = threading.Thread(target=store.sync)

    def sync_meanwhile(action: str, _: str) -> None:
        if action == "create" and not syncing.ident:
            syncing.start()
            assert lock.awaited.wait(LIMIT_S)

    disk.before = sync_meanwhile
    put(store, KIB)  # begins the second segment, and holds the lock meanwhile
    syncing.join(LIMIT_S)
    put(store, b"the last one")
    store.sync()
    second = store.path / segments(store.path)[-1]
    assert second.name == "00000002.seg"
    last = 1002 + IN_SEGMENT
    assert frame_of(last, b"the last one") in disk.synced[second]
    assert store.synced_sequence == last
    store.close()


class TellingLock:
    """A lock that tells when a thread has to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.awaited = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.awaited.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.row("PS20")
def test_syncs_may_overlap_and_one_serves_all_that_wait(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = opened(tmp_path / "p", disk)
    fill(store, 40, KIB)
    store.sync()
    persist_all(store)  # segments that were synced are unused now, and the disk must know that
    put(store)
    lock = TellingLock()
    store._files._sync_lock = lock  # type: ignore[assignment]  # a lock that tells when somebody waits
    others = [threading.Thread(target=store.sync) for _ in range(3)]

    def others_come(action: str, _: str) -> None:
        if action == "sync" and not others[0].ident:
            put(store)  # too late for the sync that is under way
            for thread in others:
                lock.awaited.clear()
                thread.start()
                assert lock.awaited.wait(LIMIT_S)

    disk.before = others_come
    disk.events.clear()
    store.sync()
    for thread in others:
        thread.join(LIMIT_S)
    assert store.synced_sequence == store.last_sequence == 1042
    active = segments(store.path)[-1]
    assert disk.events.count(("sync", active)) == 2
    fill(store, 60, KIB)
    assert len(kept(store)) == 62
    store.close()


@pytest.mark.row("PS20")
@pytest.mark.parametrize("failing", ["00000001.seg", "control", "p"])
def test_what_a_failed_sync_did_not_reach_is_synced_by_the_next(
    tmp_path: Path, failing: str
) -> None:
    disk = WatchedDisk()
    store = opened(tmp_path / "p", disk)
    fill(store, 40, KIB)

    def fail(action: str, name: str) -> None:
        if action.startswith("sync") and name == failing:
            raise StoreError("the disk is gone")

    disk.before = fail
    disk.events.clear()
    with pytest.raises(StoreError, match="the disk is gone"):
        store.sync()
    assert store.needs_sync
    disk.before = None
    store.sync()
    assert not store.needs_sync
    done = set(disk.events)
    assert {("sync", "00000001.seg"), ("sync", "00000002.seg"), ("sync", "control")} <= done
    assert ("sync names", "p") in done
    store.close()


@pytest.mark.row("PS20")
def test_segments_may_go_away_during_a_sync(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = opened(tmp_path / "p", disk)
    fill(store, 100, KIB)

    def ack_meanwhile(action: str, _: str) -> None:
        if action == "sync":
            disk.before = None
            persist_all(store)

    disk.before = ack_meanwhile
    store.sync()
    fill(store, 100, KIB)
    store.sync()
    again = opened(killed(store, tmp_path / "q"))
    assert kept(again) == list(range(1101, 1201))
    again.close()
    store.close()


def test_a_segment_that_somebody_removed_is_missed_by_a_sync(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    put(store)
    (store.path / "00000001.seg").rename(tmp_path / "away")
    with pytest.raises(StoreError, match=r"00000001\.seg: cannot open"):
        store.sync()
    (tmp_path / "away").rename(store.path / "00000001.seg")
    store.close()


# -- loss of power ----------------------------------------------------------------------------

PATTERNS = [0, 1, 0b0101_0101_0101, 0b1010_1010_1010, 0b1111, 0b1111_0000, 0b1111_1111_0000, 2**60]


@pytest.mark.row("PS20", "PS21", "PS22")
@pytest.mark.parametrize("written_back", PATTERNS)
@pytest.mark.parametrize("unsynced", [0, 3, 12, 40])
def test_power_loss_takes_nothing_that_was_synced(
    tmp_path: Path, unsynced: int, written_back: int
) -> None:
    disk = WatchedDisk()
    store = opened(tmp_path / "p", disk)
    fill(store, 40, KIB)
    store.sync()
    persist_all(store)
    store.sync()
    synced = fill(store, 20, KIB)
    store.sync()
    later = fill(store, unsynced, KIB)
    store.checkpoint()
    disk.lose_power(
        store.path,
        tmp_path / "q",
        pages=lambda name, index: bool(written_back >> (index + hash_of(name)) & 1),
    )
    store.close()
    again = opened(tmp_path / "q", WatchedDisk(boot=b"second boot....."))
    found = dict(again.replay())
    assert all(found[number] == frame_of(number, KIB) for number in synced)
    assert all(found[number] == frame_of(number, KIB) for number in found)
    assert set(found) <= {*range(1001, 1041), *synced, *later}
    assert put(again) > max(synced)
    again.close()


def hash_of(name: str) -> int:
    return sum(name.encode()) % 5


@pytest.mark.row("PS21", "PS22")
@pytest.mark.parametrize("restart", [False, True])
def test_a_synced_segment_is_not_overwritten_before_the_disk_knows_that_it_is_unused(
    tmp_path: Path, *, restart: bool
) -> None:
    """Else its old header on the disk would vouch for frames that are overwritten."""
    disk = WatchedDisk()
    store = opened(tmp_path / "p", disk)
    fill(store, 40, KIB)
    store.sync()
    disk.write_back(store.path)
    persist_all(store)
    if restart:  # killed; the next process finds unused files
        path = killed(store, tmp_path / "r")
        disk.synced |= {path / file.name: data for file, data in disk.synced.items()}
        store.close()
        store = opened(path, disk)
    fill(store, 40, b"x" * 1000)
    disk.lose_power(store.path, tmp_path / "q", pages=lambda _, index: index > 3)
    store.close()
    again = opened(tmp_path / "q", WatchedDisk(boot=b"second boot....."))
    again.close()


@pytest.mark.row("PS21")
def test_a_synced_frame_that_is_damaged_after_a_start_of_the_machine_is_corrupt(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path / "p", WatchedDisk())
    fill(store, 3)
    store.sync()
    put(store)
    store.sync()
    store.close()
    segment = tmp_path / "p" / "00000001.seg"
    data = bytearray(segment.read_bytes())
    data[HEADER_BYTES + 30] ^= 1
    segment.write_bytes(data)
    with pytest.raises(StoreCorrupt, match="do not match their checksum") as caught:
        opened(tmp_path / "p", WatchedDisk(boot=b"second boot....."))
    assert caught.value.offset == HEADER_BYTES


# -- use after the end ------------------------------------------------------------------------


def test_a_closed_store_refuses_to_work(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    put(store)
    store.close()
    for use in (
        lambda: put(store),
        lambda: store.discard_up_to(1001),
        store.sync,
        lambda: store.open_for("orders"),
        lambda: store.set_note("a", "b"),
        lambda: store.reconcile(seen=0, persisted=0, clock_us=1),
    ):
        with pytest.raises(UsageError, match="the store is closed"):
            use()
    assert kept(store) == []


@pytest.mark.row("PS12")
def test_a_fork_is_refused(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = opened(tmp_path / "p", disk)
    put(store)
    disk.process = os.getpid() + 1
    for use in (
        lambda: fill(store, 100, KIB),
        lambda: store.discard_up_to(1001),
        store.sync,
        lambda: store.open_for("orders"),
        lambda: store.set_note("a", "b"),
        store.close,
    ):
        with pytest.raises(UsageError, match="used by its fork"):
            use()
    assert disk.open_files == 0


def test_a_segment_of_another_kind_of_store_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    memory = MemoryPublishStore()
    put(memory)
    segment = memory.detach()[0]
    with pytest.raises(UsageError, match="no segment of a file store"):
        store._files.release(segment)
    store.close()


# -- the directory ------------------------------------------------------------------------------


@pytest.mark.row("PS11", "PS22")
def test_a_new_directory_is_on_disk_before_it_is_used() -> None:
    events: list[Event] = []
    directory = directory_on(RecordingDisk(events))
    kinds = [type(event) for event in events]
    assert kinds.index(Created) < kinds.index(Synced) < kinds.index(NamesSynced)
    assert bytes(directory._control[:8]) == CONTROL_MAGIC
    directory.close([])


@pytest.mark.row("PS12")
def test_an_owner_and_notes_stay() -> None:
    disk = RecordingDisk()
    directory = directory_on(disk)
    directory.bind("orders-1")
    directory.set_note("line", "7")
    with pytest.raises(StoreLocked, match="in use by another process as client 'orders-1'"):
        directory_on(disk)
    directory.close([])
    again = directory_on(disk)
    assert (again.client_name, again.notes) == ("orders-1", {"line": "7"})
    with pytest.raises(StoreLocked, match="belongs to the client"):
        again.bind("orders-2")
    again.close([])
    with pytest.raises(UsageError, match="the store is closed"):
        again.set_note("line", "8")


@pytest.mark.row("PS20")
def test_a_sync_covers_what_its_checkpoint_says() -> None:
    directory = directory_on(RecordingDisk([]))
    directory.sync(lambda: 7)
    directory.sync(lambda: 5)
    assert directory.synced_sequence == 7
    directory.close([])


def test_what_cannot_be_opened_is_not_locked() -> None:
    disk = RecordingDisk()
    disk.open(PATH / "notes.json", create=True).pwrite(b"[]", 0)
    with pytest.raises(StoreCorrupt, match="not a JSON object of texts"):
        directory_on(disk)
    disk.remove(PATH / "notes.json")
    directory_on(disk).close([])


def test_a_note_that_could_not_be_read_back_is_refused() -> None:
    disk = RecordingDisk()
    directory = directory_on(disk)
    for key, value in (("lines", 1), (1, "lines"), (None, None)):
        with pytest.raises(UsageError, match="a note is a text under a text, not"):
            directory.set_note(key, value)  # type: ignore[arg-type]  # wrong on purpose
    directory.close([])
    directory_on(disk).close([])


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    given: list[tuple[str | Path, str]] = [("", "path is the directory of the store, not ''")]
    given.append((5, "path is the directory of the store, not 5"))  # type: ignore[arg-type]  # wrong on purpose
    given.append((tmp_path / ("n" * 300), "cannot create the directory: File name too long"))
    (tmp_path / "file").write_bytes(b"x")
    given.append((tmp_path / "file", "is a file, where a directory is wanted"))
    JournalFiles(tmp_path / "log", RealDisk(), segment_bytes=2**16, instance_id=1).close()
    given.append((tmp_path / "log", "the data directory of a broker"))
    for path, what in given:
        with pytest.raises(HAClientError, match=what):
            StoreDirectory(path, None, DurabilityOptions(), segment_bytes=MIN_SEGMENT_BYTES)
    assert not (tmp_path / "log" / "control").exists()


@pytest.mark.row("PS11")
@pytest.mark.parametrize("names", [["etc"], ["control", "readme"], ["00000001.seg", "a.txt"]])
def test_a_directory_that_holds_anything_else_is_refused_and_left_alone(
    tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(StoreError, match="and is no publish store: give the store a new or an em"):
        FilePublishStore(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert not any(path.stat().st_size for path in tmp_path.iterdir())


@pytest.mark.row("PS11")
def test_the_file_of_another_program_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "control").write_bytes(b"Package: haclient")
    with pytest.raises(StoreCorrupt, match="not a HAPUBCTL file"):
        FilePublishStore(tmp_path)
    assert (tmp_path / "control").read_bytes() == b"Package: haclient"


@pytest.mark.row("PS11")
@pytest.mark.parametrize("names", [[], ["lost+found"], ["control"], ["control", "notes.json.new"]])
def test_a_directory_that_is_empty_or_was_just_begun_becomes_a_store(
    tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        (tmp_path / name).touch()
    FilePublishStore(tmp_path).close()
    (tmp_path / "readme").touch()  # ours for good now, whatever else is put there
    FilePublishStore(tmp_path).close()
