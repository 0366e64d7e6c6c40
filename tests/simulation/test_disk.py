"""The disk of the simulation does what disks do, and no more."""

from __future__ import annotations

import errno
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.disk.files import File
from haclient_stores.errors import StoreError, StoreFull, StoreLocked
from haclient_stores.publish_stores.file import FilePublishStore
from simulation.disk import SimulatedDisk

FILE = Path("/d/file")
PAGE = 4096


def written(disk: SimulatedDisk, data: bytes, *, synced: bool) -> None:
    file = disk.open(FILE, create=True)
    file.pwrite(data, 0)
    if synced:
        file.fsync()
        disk.fsync_dir(FILE.parent)
    file.close()


def survivors(disk: SimulatedDisk, runs: int = 200) -> list[SimulatedDisk]:
    return [disk.after_power_loss(Random(run)) for run in range(runs)]


@pytest.mark.row("FI3")
def test_a_killed_process_loses_nothing_and_a_dead_one_writes_nothing() -> None:
    disk = SimulatedDisk()
    file = disk.open(FILE, create=True)
    file.allocate(2 * PAGE)
    region = file.map(0, 2 * PAGE)
    region.view[0:3] = b"abc"
    after = disk.after_kill()
    region.view[0:3] = b"xyz"
    file.pwrite(b"late", PAGE)
    assert after.content(FILE) == b"abc".ljust(2 * PAGE, b"\0")
    assert after.boot_id() == disk.boot_id()


@pytest.mark.row("FI3")
def test_a_loss_of_power_keeps_what_was_synced_and_any_of_the_rest() -> None:
    disk = SimulatedDisk()
    written(disk, b"a" * PAGE + b"b" * PAGE, synced=True)
    written(disk, b"A" * PAGE + b"B" * PAGE, synced=False)
    found = {after.content(FILE) for after in survivors(disk)}
    ways = {(data[:1], data[PAGE : PAGE + 1]) for data in found}
    assert ways == {(b"a", b"b"), (b"A", b"b"), (b"a", b"B"), (b"A", b"B")}
    torn = {data for data in found if len(set(data[:PAGE])) > 1}
    assert torn
    assert all(data.index(b"a") % 512 == 0 for data in torn)
    assert disk.after_power_loss(Random(1)).boot_id() != disk.boot_id()


def test_a_name_survives_a_loss_of_power_when_its_directory_was_synced() -> None:
    disk = SimulatedDisk()
    written(disk, b"old", synced=True)
    other = FILE.with_name("other")
    disk.replace(other, b"whole or not at all")
    assert all(after.content(other) == b"whole or not at all" for after in survivors(disk))
    disk.rename(other, FILE)
    found = {(after.exists(other), after.content(FILE)) for after in survivors(disk)}
    assert found == {(True, b"old"), (False, b"whole or not at all")}
    disk.remove(FILE)
    assert {after.exists(FILE) for after in survivors(disk)} == {True, False}


@pytest.mark.row("FI3")
@pytest.mark.parametrize("operation", ["open", "allocate", "pwrite", "fsync", "map", "pread"])
def test_an_armed_fault_is_met_once(operation: str) -> None:
    def work() -> None:
        file = disk.open(FILE, create=True)
        file.allocate(PAGE)
        file.pwrite(b"data", 0)
        file.map(0, PAGE).close()
        file.fsync()
        file.pread(4, 0)

    disk = SimulatedDisk()
    disk.arm(operation, errno.EIO)
    with pytest.raises(StoreError, match=f"cannot {operation}: Input/output error"):
        work()
    work()
    assert disk.failures == {operation: 1}


def test_a_write_without_room_has_written_its_first_part() -> None:
    disk = SimulatedDisk()
    written(disk, bytes(8), synced=True)
    disk.arm("pwrite", errno.ENOSPC)
    with pytest.raises(StoreFull):
        disk.open(FILE).pwrite(b"abcdefgh", 0)
    assert disk.content(FILE) == b"abcd\0\0\0\0"
    disk.arm("fsync", errno.EIO)
    disk.disarm()
    disk.open(FILE).fsync()


@pytest.mark.row("FI3")
@pytest.mark.parametrize("again", ["not", "pwrite", "mapped", "after a kill"])
def test_what_a_failed_sync_has_lost_is_on_the_disk_only_after_it_was_written_again(
    again: str,
) -> None:
    disk = SimulatedDisk()
    written(disk, b"a" * PAGE + b"b" * PAGE + b"c" * PAGE, synced=True)
    file = disk.open(FILE)
    file.pwrite(b"A" * PAGE + b"B" * PAGE + b"C" * PAGE + b"D", 0)
    disk.arm("fsync", errno.EIO)
    with pytest.raises(StoreError):
        file.fsync()
    assert {each.content(FILE)[: 3 * PAGE : PAGE] for each in survivors(disk)} == {b"abc"}
    if again == "after a kill":
        disk = disk.after_kill()
        file = disk.open(FILE)
    if again in ("pwrite", "after a kill"):
        file.pwrite(b"B", 2 * PAGE - 1)  # the bytes are the same
    elif again == "mapped":
        file.map(0, PAGE * 2).view[PAGE] = ord("x")
    found = {each.content(FILE)[1 : 3 * PAGE : PAGE] for each in survivors(disk)}
    assert found == ({b"abc"} if again == "not" else {b"abc", b"aBc"})
    file.fsync()
    file.fsync()
    expected = b"abc\0" if again == "not" else b"aBc\0"
    (data,) = {each.content(FILE) for each in survivors(disk)}
    assert data[1::PAGE] + data[3 * PAGE :] == expected
    assert disk.content(FILE)[1::PAGE] == b"ABC"


def test_a_lock_is_the_open_file_s() -> None:
    disk = SimulatedDisk()
    file = disk.open_locked(FILE)
    with pytest.raises(StoreLocked):
        disk.open_locked(FILE)
    disk.after_kill().open_locked(FILE)
    file.close()
    disk.open_locked(FILE).close()


def test_a_lock_is_on_the_file_that_the_path_names() -> None:
    disk = SimulatedDisk()
    owner = disk.open_locked(FILE)
    other = FILE.with_name("other")

    def replace() -> None:
        held.append(disk.open_locked(other))
        disk.rename(other, FILE)
        owner.close()

    held: list[File] = []
    disk.meanwhile["lock"] = replace
    with pytest.raises(StoreLocked):
        disk.open_locked(FILE)
    held[0].close()
    disk.open_locked(FILE).close()


def test_another_process_comes_once_right_after_a_rename() -> None:
    disk = SimulatedDisk()
    came: list[bool] = []
    disk.meanwhile["rename"] = lambda: came.append(disk.exists(FILE))
    for name in ("a", "b"):
        disk.open(FILE.with_name(name), create=True)
        disk.rename(FILE.with_name(name), FILE)
    assert came == [True]


def test_a_thread_makes_files_while_others_list_and_sync_the_directory() -> None:
    disk = SimulatedDisk()

    def make_files() -> None:
        for number in range(200):
            disk.open(FILE.with_name(f"{number}.new"), create=True).close()
            disk.rename(FILE.with_name(f"{number}.new"), FILE.with_name(f"{number % 20}"))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns in the midst of everything
    try:
        with ThreadPoolExecutor(1) as thread:
            making = thread.submit(make_files)
            while not making.done():
                disk.fsync_dir(FILE.parent)
                disk.listdir(FILE.parent)
        making.result()
    finally:
        sys.setswitchinterval(interval)
    assert len(disk.listdir(FILE.parent)) == 20


def test_production_stores_work_on_it() -> None:
    disk = SimulatedDisk()
    publishes = FilePublishStore("/c/publish", disk=disk)
    bookmarks = LoggedBookmarkStore("/c/bookmarks", disk=disk)
    publishes.append(b'{"s":', b"}", b"body")
    bookmarks.discard("sub", bookmarks.log("sub", "1|1|"))
    bookmarks.prune()
    disk = disk.after_kill()
    assert FilePublishStore("/c/publish", disk=disk).unpersisted_count == 1
    assert LoggedBookmarkStore("/c/bookmarks", disk=disk).is_discarded("sub", "1|1|")
