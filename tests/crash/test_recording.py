"""The recording disk itself: what it says about a crash is what a disk may do, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from haclient_stores.disk.files import File
from haclient_stores.errors import StoreError, StoreLocked
from support.recording import Crash, Event, RecordingDisk, Write, kills, power_cuts

A, B = Path("/d/a"), Path("/d/b")
PAGE = 4096


def written(events: list[Event]) -> tuple[RecordingDisk, File]:
    disk = RecordingDisk(events)
    file = disk.open(A, create=True)
    file.allocate(2 * PAGE)
    return disk, file


def synced(events: list[Event]) -> tuple[RecordingDisk, File]:
    """Ten pages of zeros that no loss of power takes."""
    disk = RecordingDisk(events)
    file = disk.open(A, create=True)
    file.allocate(10 * PAGE)
    file.fsync()
    disk.fsync_dir(A.parent)
    return disk, file


def contents(crashes: list[Crash], offset: int, count: int) -> set[bytes | None]:
    """What the crashes have left of some bytes; None where there is no file."""
    return {
        crash.image[A][offset : offset + count] if A in crash.image else None for crash in crashes
    }


def test_writes_into_mapped_memory_are_recorded_whatever_form_they_have() -> None:
    events: list[Event] = []
    _, file = written(events)
    view = file.map(0, 2 * PAGE).view
    view[10:14] = b"abcd"
    view[PAGE:][4:6] = b"xy"
    words = view.cast("Q")
    words[1] = 2**64 - 1
    view[0] = 7
    data = [(each.offset, each.data) for each in events if isinstance(each, Write)]
    assert data == [(10, b"abcd"), (PAGE + 4, b"xy"), (8, b"\xff" * 8), (0, b"\x07")]
    assert file.pread(2, PAGE + 4) == b"xy"
    assert (bytes(view[10:14]), words[1], view[0], len(view)) == (b"\xff" * 4, 2**64 - 1, 7, 8192)


def test_a_killed_process_leaves_every_prefix_and_torn_long_writes() -> None:
    events: list[Event] = []
    _, file = written(events)
    file.pwrite(b"1234567890", 0)
    file.pwrite(b"ab", 0)
    left = contents(list(kills(events)), 0, 10)
    zeros = bytes(10)
    halves = {b"12345" + zeros[:5], zeros[:5] + b"67890"}
    assert left == {None, b"", zeros, *halves, b"1234567890", b"ab34567890"}


def test_a_stop_of_power_leaves_what_was_synced_and_any_of_the_pages_since() -> None:
    events: list[Event] = []
    disk, file = written(events)
    file.pwrite(b"1", 0)
    file.pwrite(b"1", PAGE)
    file.fsync()
    disk.fsync_dir(A.parent)
    disk.note("synced")
    file.pwrite(b"2", 0)
    file.pwrite(b"2", PAGE)
    after = [crash for crash in power_cuts(events) if crash.notes]
    assert {(image[A][:1], image[A][PAGE : PAGE + 1]) for image in (c.image for c in after)} == {
        (b"1", b"1"),
        (b"2", b"1"),
        (b"1", b"2"),
        (b"2", b"2"),
    }


def test_without_a_sync_of_the_directory_a_file_may_not_be_there() -> None:
    events: list[Event] = []
    disk, file = written(events)
    file.pwrite(b"1", 0)
    file.fsync()
    assert contents(list(power_cuts(events)), 0, 1) >= {None, b"1"}
    disk.fsync_dir(A.parent)
    disk.note("there")
    disk.rename(A, B)
    names = {frozenset(crash.image) for crash in power_cuts(events) if crash.notes}
    assert names == {frozenset({A}), frozenset({B})}
    disk.remove(B)
    names = {frozenset(crash.image) for crash in power_cuts(events) if crash.notes}
    assert names == {frozenset({A}), frozenset({B}), frozenset()}


def test_many_unsynced_pages_are_sampled_with_contents_in_between() -> None:
    events: list[Event] = []
    disk, file = synced(events)
    for value in (b"1", b"2", b"3"):
        for page in range(10):
            file.pwrite(value, page * PAGE)
    disk.note("written")
    crashes = [crash for crash in power_cuts(events) if crash.notes]
    assert len(crashes) == 14
    assert {
        crash.image[A][page * PAGE : page * PAGE + 1] for crash in crashes for page in range(10)
    } == {
        b"\0",
        b"1",
        b"2",
        b"3",
    }


def test_a_page_of_a_sample_may_be_torn_at_a_sector() -> None:
    events: list[Event] = []
    disk, file = synced(events)
    for _ in range(20):
        file.pwrite(b"1" * 10 * PAGE, 0)
        disk.note("written")
    torn = {
        page.index(b"\0")
        for crash in power_cuts(events)
        for page in (crash.image.get(A, b"")[at : at + PAGE] for at in range(0, 10 * PAGE, PAGE))
        if b"1" in page and b"\0" in page
    }
    assert torn == set(range(512, PAGE, 512))


def test_a_second_crash_begins_with_what_the_first_has_left() -> None:
    events: list[Event] = []
    _, file = written(events)
    file.pwrite(b"1", 0)
    (first,) = [crash for crash in kills(events) if crash.at == len(events)]
    again: list[Event] = []
    first.disk(again).open(A).pwrite(b"2", 1)
    assert contents(list(kills(again, base=first.image)), 0, 2) == {b"1\0", b"12"}


def test_a_lock_is_held_by_one() -> None:
    disk = RecordingDisk()
    file = disk.open_locked(A)
    with pytest.raises(StoreLocked):
        disk.open_locked(A)
    file.close()
    disk.open_locked(A).close()
    with pytest.raises(StoreError, match="no such file"):
        disk.open(B)
