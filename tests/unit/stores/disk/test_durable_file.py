from __future__ import annotations

from pathlib import Path

import pytest

from haclient_stores.disk.durable_file import DurabilityOptions, DurableFile, check_durability
from haclient_stores.errors import StoreError, UsageError
from support.recording import Event, RecordingDisk, Synced, Write, failing_sync

PATH = Path("/stores/file")
DATA = bytes(range(256)) * 10_000


def opened(events: list[Event], *, rewrite: bool) -> tuple[RecordingDisk, DurableFile]:
    disk = RecordingDisk(events, image={PATH: DATA})
    return disk, DurableFile(disk.open(PATH), rewrite_before_fsync=rewrite)


@pytest.mark.parametrize(("begin", "end"), [(0, len(DATA)), (8, 9), (5, 2_000_000), (7, 7)])
def test_the_bytes_of_a_range_are_written_again_in_pieces(begin: int, end: int) -> None:
    events: list[Event] = []
    _, durable = opened(events, rewrite=True)
    durable.sync((begin, end))
    written = [(each.offset, each.data) for each in events if isinstance(each, Write)]
    assert b"".join(data for _, data in written) == DATA[begin:end]
    assert all(data == DATA[at : at + len(data)] for at, data in written)
    assert all(len(data) <= 2**20 for _, data in written)
    assert isinstance(events[-1], Synced)
    assert durable.file.pread(len(DATA), 0) == DATA


@pytest.mark.row("PS21", "PS22")
def test_after_a_failed_sync_what_it_may_have_lost_is_written_again_once() -> None:
    events: list[Event] = []
    disk, durable = opened(events, rewrite=False)
    durable.sync((0, 100))
    assert [type(event) for event in events] == [Synced]
    with failing_sync(disk):
        durable.sync((0, 100))
    assert durable.rewrite_before_fsync
    events.clear()
    durable.sync((0, 100), (200, 201))
    assert [type(event) for event in events] == [Write, Write, Synced]
    events.clear()
    durable.sync((0, 100))
    assert [type(event) for event in events] == [Synced]


def test_a_rewrite_that_fails_is_made_again() -> None:
    events: list[Event] = []
    disk, durable = opened(events, rewrite=True)

    def fail(_: Event) -> None:
        raise StoreError("no")

    disk.before = fail
    with pytest.raises(StoreError):
        durable.sync((0, 10))
    disk.before = None
    durable.sync((0, 10))
    assert [type(event) for event in events] == [Write, Synced]


@pytest.mark.row("PS20")
def test_only_three_durabilities_exist_and_groups_are_apart() -> None:
    for durability in ("process", "group", "fsync"):
        check_durability(durability, 0.01)
    with pytest.raises(UsageError, match="one of process, group, fsync, not 'always'"):
        check_durability("always", 0.01)
    for interval in (0.0, -1.0, float("nan")):
        with pytest.raises(
            UsageError, match="group_interval_s is a finite number of seconds, above 0"
        ):
            DurabilityOptions("group", interval)
