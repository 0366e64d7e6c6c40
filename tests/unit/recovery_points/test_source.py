from __future__ import annotations

import asyncio  # noqa: TID251  # one of its clients publishes
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest

from haclient import aio, blocking
from haclient.errors import StoreError, UsageError
from haclient.recovery_points.source import NOTE, ResumePoint, SourcePosition
from haclient.stores import FilePublishStore, MemoryPublishStore
from simulation.disk import SimulatedDisk
from support.broker_thread import BrokerThread, broker_thread
from support.disks import WatchedDisk
from support.frames import put
from support.lengths import length


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FilePublishStore]:
    with_store = FilePublishStore(tmp_path / "store")
    yield with_store
    with_store.close()


def publish(store: FilePublishStore, count: int) -> None:
    for _ in range(count):
        put(store)


def test_a_new_source_begins_at_its_beginning_and_goes_on_by_counting(
    store: FilePublishStore,
) -> None:
    publish(store, 5)  # before the store was given to this source
    assert SourcePosition(store, "a").resume() == ResumePoint("", 0)
    publish(store, 3)
    assert SourcePosition(store, "a").resume() == ResumePoint("", 3)


def test_what_was_noted_is_not_counted_again(store: FilePublishStore, tmp_path: Path) -> None:
    position = SourcePosition(store, "a")
    position.resume()
    publish(store, 3)
    position.note("row 3")
    assert position.resume() == ResumePoint("row 3", 0)
    publish(store, 2)
    store.close()
    again = FilePublishStore(tmp_path / "store")
    assert SourcePosition(again, "a").resume() == ResumePoint("row 3", 2)
    again.close()


CLOCK: Final = 1_700_000_000_000_000


def after_start_of_machine(path: Path, boot: str, *, seen: int = 0) -> FilePublishStore:
    """The store of the next process, logged on, on a machine that was started or is another one."""
    store = FilePublishStore(path, disk=WatchedDisk(boot=boot.ljust(16).encode()))
    store.reconcile(seen=seen, persisted=0, clock_us=CLOCK + int(boot) * 10**9)
    return store


def test_numbers_that_are_skipped_after_the_machine_was_started_are_no_records(
    tmp_path: Path,
) -> None:
    for boot, expected in enumerate((ResumePoint("", 0), ResumePoint("4", 1), ResumePoint("4", 4))):
        store = after_start_of_machine(tmp_path / "store", str(boot))
        position = SourcePosition(store, "a")
        assert position.resume() == position.resume() == expected
        if boot == 0:
            publish(store, 4)
            position.note("4")
            publish(store, 1)
        publish(store, 3 * boot)
        store.close()


def test_a_kill_between_the_logon_and_the_count_changes_nothing(tmp_path: Path) -> None:
    store = after_start_of_machine(tmp_path / "store", "0")
    SourcePosition(store, "a").resume()
    publish(store, 5)
    store.close()
    after_start_of_machine(tmp_path / "store", "1").close()  # numbers above the clock from here on
    store = after_start_of_machine(tmp_path / "store", "1")
    assert SourcePosition(store, "a").resume() == ResumePoint("", 5)
    publish(store, 2)
    store.close()
    store = after_start_of_machine(tmp_path / "store", "1")
    assert SourcePosition(store, "a").resume() == ResumePoint("", 7)
    store.close()


def test_what_only_the_server_has_after_a_loss_of_power_is_counted(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = FilePublishStore(tmp_path / "store", disk=disk)
    store.reconcile(seen=0, persisted=0, clock_us=CLOCK)
    position = SourcePosition(store, "a")
    position.resume()
    publish(store, 3)
    position.note("3")
    publish(store, 5)
    disk.lose_power(
        tmp_path / "store", tmp_path / "after", pages=lambda name, _page: name == "notes.json"
    )
    store.close()
    again = after_start_of_machine(tmp_path / "after", "1", seen=CLOCK + 6)
    assert SourcePosition(again, "a").resume() == ResumePoint("3", 3)
    again.close()


def test_records_that_a_loss_of_power_took_before_others_are_an_error_that_names_them(
    tmp_path: Path,
) -> None:
    disk = WatchedDisk()
    store = FilePublishStore(tmp_path / "store", segment_bytes=32768, disk=disk)
    store.reconcile(seen=0, persisted=0, clock_us=CLOCK)
    position = SourcePosition(store, "a")
    position.resume()
    publish(store, 3)
    position.note("3")
    while not (tmp_path / "store" / "00000004.seg").exists():
        publish(store, 1)
    last = store.last_sequence - 1 - CLOCK - 3  # the only one in the segment after it is lost
    written_back = {"notes.json", "00000003.seg"}  # not the one before it
    disk.lose_power(
        tmp_path / "store", tmp_path / "after", pages=lambda name, _page: name in written_back
    )
    store.close()
    again = after_start_of_machine(tmp_path / "after", "1", seen=CLOCK + 3)
    position = SourcePosition(again, "a")
    with pytest.raises(StoreError, match=rf"records 1 to \d+ .*'3' are missing.*record {last}\b"):
        position.resume()
    position.note("published by hand")
    assert position.resume() == ResumePoint("published by hand", 0)
    again.close()


class _Server:
    """What one server has received of the publisher."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.persisted = 0

    @property
    def seen(self) -> int:
        return max(self.records, default=0)

    def receive(self, store: FilePublishStore, count: int) -> None:
        for sequence, frame in list(store.replay(self.seen))[:count]:
            self.records[sequence] = frame[-6:]


@pytest.mark.parametrize("seed", range(length(40)))
def test_no_record_is_left_out_or_published_twice_whatever_a_crash_takes(seed: int) -> None:
    chance, server, disk = random.Random(seed), _Server(), SimulatedDisk()
    path, clock, lost = Path("/store"), CLOCK, 0
    for _ in range(12):
        clock += 10**9
        store = FilePublishStore(path, segment_bytes=32768, disk=disk)
        store.reconcile(seen=server.seen, persisted=server.persisted, clock_us=clock)
        known = {int(record) for record in server.records.values()}
        known |= {int(frame[-6:]) for _, frame in store.replay()}
        position = SourcePosition(store, "a")
        try:
            start = position.resume()
        except StoreError:
            lost += 1
            assert known != set(range(len(known)))
            break
        number = int(start.position or 0) + start.skip
        assert (number, known) == (len(known), set(range(len(known))))
        for _ in range(chance.randrange(60)):
            put(store, b"x" * 1500 + b"%06d" % number)
            number += 1
            if chance.random() < 0.1:
                position.note(str(number))
            if chance.random() < 0.3:
                server.receive(store, chance.randrange(20))
            if chance.random() < 0.3 and server.seen:
                server.persisted = server.seen
                store.discard_up_to(server.persisted)
            if chance.random() < 0.05:
                store.sync()
        died = disk
        disk = disk.after_power_loss(chance) if chance.random() < 0.5 else disk.after_kill()
        del died, store


def test_another_source_is_refused(store: FilePublishStore) -> None:
    SourcePosition(store, "a").resume()
    with pytest.raises(StoreError, match="publishes the source 'a', not 'b'"):
        SourcePosition(store, "b").resume()


def test_a_note_of_something_else_is_refused(store: FilePublishStore) -> None:
    store.set_note(NOTE, "7")
    with pytest.raises(StoreError, match="cannot be read"):
        SourcePosition(store, "a").resume()


def test_a_note_that_is_newer_than_its_store_is_refused(store: FilePublishStore) -> None:
    store.set_note(NOTE, '{"source":"a","position":"","sequence":7}')
    with pytest.raises(StoreError, match="is below the noted 7"):
        SourcePosition(store, "a").resume()


def test_what_can_never_work_is_refused(store: FilePublishStore) -> None:
    with pytest.raises(UsageError, match="not MemoryPublishStore"):
        SourcePosition(cast("FilePublishStore", MemoryPublishStore()), "a")
    with pytest.raises(UsageError, match="must not be empty"):
        SourcePosition(store, "")


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with broker_thread() as running:
        yield running


def test_a_blocking_client_is_given_for_its_store(tmp_path: Path, broker: BrokerThread) -> None:
    def opened() -> blocking.HAClient:
        store = FilePublishStore(tmp_path / "store")
        return blocking.HAClient("lines", servers=[broker.uri], publish_store=store)

    with opened() as client:
        position = SourcePosition(client, "lines")
        assert position.resume() == ResumePoint("", 0)
        for number in range(5):
            client.publish("lines", str(number))
            if number == 2:
                position.note("3")
    with opened() as client:
        assert SourcePosition(client, "lines").resume() == ResumePoint("3", 2)


def test_a_client_of_asyncio_is_given_for_its_store(tmp_path: Path, broker: BrokerThread) -> None:
    async def main() -> ResumePoint:
        store = FilePublishStore(tmp_path / "store")
        async with aio.HAClient("lines", servers=[broker.uri], publish_store=store) as client:
            position = SourcePosition(client, "lines")
            position.resume()
            position.note("7")
            await client.publish("lines", "8")
            return position.resume()

    assert asyncio.run(main()) == ResumePoint("7", 1)


def test_a_client_without_such_a_store_is_refused(broker: BrokerThread) -> None:
    with (
        blocking.HAClient.memory_backed("lines", servers=[broker.uri]) as client,
        pytest.raises(UsageError, match="which keeps notes, not MemoryPublishStore"),
    ):
        SourcePosition(client, "lines")
