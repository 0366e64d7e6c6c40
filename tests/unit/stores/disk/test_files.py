from __future__ import annotations

import errno
import fcntl
import mmap
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haclient_stores.disk.files import FileAccess, RealDisk, anonymous_region
from haclient_stores.errors import StoreError, StoreFull, StoreLocked
from support.disks import tiny_file_system
from support.holder import holding

FULL = Path("/dev/full")  # each write to it finds no room

HOLDER = """
import sys
from pathlib import Path
from haclient_stores.disk.files import RealDisk, anonymous_region
file = RealDisk().open_locked(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def disk() -> RealDisk:
    return RealDisk()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of tmp_path / "f"."""
    with holding(HOLDER, tmp_path / "f") as process:
        yield process


def test_what_is_written_is_read_back(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.pwrite(b"hello", 3)
    file.pwrite(memoryview(b"HE"), 3)
    file.pwrite(bytearray(), 100)
    assert file.path == tmp_path / "f"
    assert file.size() == 8
    assert file.pread(100, 0) == b"\0\0\0HEllo"
    assert file.pread(2, 4) == b"El"
    assert file.pread(2, 8) == b""
    file.fsync()
    file.close()
    file.close()


def test_a_missing_file_is_an_error_with_its_path(disk: RealDisk, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere: cannot open: No such file") as caught:
        disk.open(tmp_path / "nowhere")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_closed_file_is_an_error_not_somebody_elses_file(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.close()
    for use in (file.size, file.fsync, lambda: file.pread(1, 0), lambda: file.pwrite(b"x", 0)):
        with pytest.raises(StoreError, match="f: cannot"):
            use()


def test_a_file_opened_for_reading_is_not_written(disk: RealDisk, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(4096))
    file = disk.open(tmp_path / "f", writable=False)
    with pytest.raises(StoreError, match="cannot write"):
        file.pwrite(b"x", 0)
    region = file.map(0, 4096)
    assert region.view.readonly
    region.close()
    file.close()


def test_allocating_only_adds_zeros(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.pwrite(b"x" * 100, 0)
    file.allocate(50)
    assert file.size() == 100
    file.allocate(8192)
    assert file.pread(9000, 0) == b"x" * 100 + bytes(8092)
    assert (tmp_path / "f").stat().st_blocks * 512 >= 8192
    file.close()


def test_zeros_are_written_where_space_cannot_be_allocated(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    file = disk.open(tmp_path / "f", create=True)
    file.pwrite(b"x", 0)
    file.allocate(200_000)
    assert file.pread(300_000, 0) == b"x" + bytes(199_999)
    assert (tmp_path / "f").stat().st_blocks * 512 >= 200_000
    file.close()


def test_a_mapping_and_the_file_are_the_same_bytes(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.allocate(3 * mmap.PAGESIZE)
    region = file.map(mmap.PAGESIZE, mmap.PAGESIZE)
    region.view[:5] = b"hello"
    assert len(region.view) == mmap.PAGESIZE
    assert file.pread(5, mmap.PAGESIZE) == b"hello"
    file.close()
    region.view[:5] = b"HELLO"  # a mapping outlives its file
    region.close()
    assert (tmp_path / "f").read_bytes()[mmap.PAGESIZE :][:5] == b"HELLO"


def test_a_mapping_has_whole_pages(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.allocate(8192)
    with pytest.raises(StoreError, match="cannot map 10 bytes at 1"):
        file.map(1, 10)
    file.close()


def test_bytes_in_use_outlive_their_region() -> None:
    region = anonymous_region(8192)
    held = region.view[100:200]
    held[:] = b"x" * 100
    region.close()
    assert bytes(held) == b"x" * 100
    held.release()
    region.close()


def test_anonymous_memory_is_zero() -> None:
    region = anonymous_region(8192)
    assert region.view == bytes(8192)
    region.close()
    region.close()


def test_no_room_is_an_error_of_its_own(disk: RealDisk) -> None:
    file = disk.open(FULL)
    with pytest.raises(StoreFull, match=r"/dev/full: cannot write: .*free some space"):
        file.pwrite(b"x", 0)
    file.close()


def test_space_is_allocated_before_it_is_used(disk: RealDisk, tmp_path: Path) -> None:
    with tiny_file_system(tmp_path / "tiny", 256 * 1024) as path:
        file = disk.open(path / "f", create=True)
        with pytest.raises(StoreFull, match="reserve 1048576 bytes"):
            file.allocate(2**20)
        file.allocate(4096)
        file.close()


def test_a_quota_that_is_used_up_counts_as_a_full_disk(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    file = disk.open(tmp_path / "f", create=True)
    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(StoreFull, match="quota"):
        file.pwrite(b"x", 0)
    file.close()


def test_a_write_goes_on_where_the_kernel_stopped(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, read = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, bytes(data[:3]), at))
    monkeypatch.setattr(os, "pread", lambda fd, count, at: read(fd, min(count, 4), at))
    file = disk.open(tmp_path / "f", create=True)
    file.pwrite(b"0123456789", 5)
    assert file.pread(10, 5) == b"0123456789"
    file.close()


# -- locks ------------------------------------------------------------------------------------


@pytest.mark.row("PS12", "BS21")
def test_a_lock_that_another_process_holds_is_refused_at_once(
    disk: RealDisk, tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(StoreLocked, match="in use by another process") as caught:
        disk.open_locked(tmp_path / "f")
    assert caught.value.path == tmp_path / "f"
    disk.open(tmp_path / "f", writable=False).close()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    disk.open_locked(tmp_path / "f").close()


@pytest.mark.row("PS12")
def test_a_lock_is_refused_within_the_process_too(disk: RealDisk, tmp_path: Path) -> None:
    first = disk.open_locked(tmp_path / "f")
    with pytest.raises(StoreLocked):
        disk.open_locked(tmp_path / "f")
    first.close()
    disk.open_locked(tmp_path / "f").close()


@pytest.mark.row("PS12")
@pytest.mark.parametrize("removed", [False, True])
def test_a_lock_is_on_the_file_that_the_path_names(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, removed: bool
) -> None:
    path, flock, calls = tmp_path / "f", fcntl.flock, list[int]()
    path.write_bytes(b"old")

    def replaced_meanwhile(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1 and removed:
            path.unlink()
        elif len(calls) == 1:
            (tmp_path / "new").write_bytes(b"new")
            (tmp_path / "new").replace(path)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", replaced_meanwhile)
    file = disk.open_locked(path)
    assert len(calls) == 2
    assert file.pread(10, 0) == (b"" if removed else b"new")
    file.close()


@pytest.mark.row("PS12")
def test_a_file_that_is_replaced_all_the_time_is_given_up(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: (tmp_path / "f").unlink())
    with pytest.raises(StoreLocked, match="being replaced all the time"):
        disk.open_locked(tmp_path / "f")


def test_a_lock_that_the_system_cannot_give_is_an_error(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError, match="cannot lock: No locks available"):
        disk.open_locked(tmp_path / "f")


# -- names ------------------------------------------------------------------------------------


def test_directories_are_made_listed_and_synced(disk: RealDisk, tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    disk.make_directory(deep)
    disk.make_directory(deep)
    for name in ("2", "10", "1"):
        (deep / name).touch()
    assert disk.listdir(deep) == ["1", "10", "2"]
    assert disk.exists(deep / "1")
    disk.rename(deep / "1", deep / "2")
    disk.remove(deep / "10")
    disk.remove(deep / "10")
    disk.fsync_dir(deep)
    assert disk.listdir(deep) == ["2"]
    assert not disk.exists(deep / "1")


def test_what_cannot_be_done_to_names_is_said_with_the_path(disk: RealDisk, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file: is a file, where a directory is wanted"):
        disk.make_directory(tmp_path / "file")
    with pytest.raises(StoreError, match="nowhere: cannot list"):
        disk.listdir(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="nowhere: cannot sync the directory"):
        disk.fsync_dir(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"nowhere: cannot rename to .*file"):
        disk.rename(tmp_path / "nowhere", tmp_path / "file")
    with pytest.raises(StoreError, match="cannot remove"):
        disk.remove(tmp_path)


def test_a_file_is_replaced_as_a_whole(disk: RealDisk, tmp_path: Path) -> None:
    path = tmp_path / "f"
    (tmp_path / "f.new").write_bytes(b"left behind by a process that was killed" * 10)
    disk.replace(path, b"one")
    assert path.read_bytes() == b"one"
    disk.replace(path, b"")
    assert path.read_bytes() == b""
    assert disk.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to])
@pytest.mark.parametrize("locked", [False, True])
def test_a_new_file_never_is_one_that_somebody_has_planted(
    disk: RealDisk, tmp_path: Path, plant: Callable[[Path, Path], None], *, locked: bool
) -> None:
    victim, path = tmp_path / "victim", tmp_path / "f"
    victim.write_bytes(b"precious")
    plant(path, victim)
    file = disk.create_new(path, locked=locked)
    file.pwrite(b"new", 0)
    file.close()
    assert victim.read_bytes() == b"precious"
    assert (path.read_bytes(), path.is_symlink()) == (b"new", False)


def test_a_new_file_that_somebody_else_makes_meanwhile_is_refused(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    remove = Path.unlink

    def remove_and_plant(self: Path, *, missing_ok: bool = False) -> None:
        remove(self, missing_ok=missing_ok)
        path.symlink_to(victim)

    monkeypatch.setattr(Path, "unlink", remove_and_plant)
    with pytest.raises(StoreError, match="File exists"):
        disk.create_new(path)
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to])
def test_a_file_is_not_replaced_through_one_that_somebody_has_planted(
    disk: RealDisk, tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    victim, path = tmp_path / "victim", tmp_path / "f"
    victim.write_bytes(b"precious")
    plant(tmp_path / "f.new", victim)
    disk.replace(path, b"new")
    assert victim.read_bytes() == b"precious"
    assert (path.read_bytes(), path.is_symlink()) == (b"new", False)


def test_the_lock_of_a_directory_outlives_its_file(disk: RealDisk, tmp_path: Path) -> None:
    held = disk.lock_directory(tmp_path, "lock")
    (tmp_path / "lock").unlink()
    with pytest.raises(StoreLocked, match="open already in this process"):
        disk.lock_directory(tmp_path, "lock")
    for file in held:
        file.close()
    for file in disk.lock_directory(tmp_path, "lock"):
        file.close()


def test_where_a_directory_cannot_be_locked_its_file_is(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS, only what is open for writing can."""
    lock = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    held = disk.lock_directory(tmp_path, "lock")
    with pytest.raises(StoreLocked):
        disk.lock_directory(tmp_path, "lock")
    for file in held:
        file.close()


def test_owner_and_mode_are_carried_over(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []

    def give(_: int, user: int, group: int) -> None:
        given.append((user, group))

    monkeypatch.setattr(os, "fchown", give)
    (tmp_path / "old").write_bytes(b"")
    (tmp_path / "old").chmod(0o640)
    old = disk.open(tmp_path / "old")
    new = disk.open(tmp_path / "new", create=True)
    access = old.access()
    assert access is not None
    assert (access.user, access.mode) == (os.geteuid(), 0o640)
    new.set_access(access)
    assert new.access() == access
    assert not given
    new.set_access(FileAccess(access.user + 1, access.group, 0o600))
    assert given == [(access.user + 1, access.group)]
    old.close()
    new.close()


@pytest.mark.parametrize("is_permitted", [False, True])
def test_a_file_that_is_replaced_keeps_its_mode_and_where_permitted_its_owner(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_permitted: bool
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(0o640)
    given: list[int] = []
    true_status = os.fstat

    def status(descriptor: int) -> os.stat_result:  # the old file belongs to somebody else
        found = true_status(descriptor)
        is_old = found.st_ino == path.stat().st_ino
        return os.stat_result((*found[:4], found.st_uid + is_old, *found[5:10]))

    def give(_: int, user: int, _group: int) -> None:
        if not is_permitted:
            raise PermissionError(1, "Operation not permitted")
        given.append(user)

    monkeypatch.setattr(os, "fstat", status)
    monkeypatch.setattr(os, "fchown", give)
    disk.replace(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert given == [os.geteuid() + 1] * is_permitted


def test_a_replacement_without_room_leaves_the_old_file(disk: RealDisk, tmp_path: Path) -> None:
    with tiny_file_system(tmp_path / "tiny", 256 * 1024) as root:
        path = root / "f"
        disk.replace(path, b"old")
        with pytest.raises(StoreFull):
            disk.replace(path, bytes(2**20))
        assert path.read_bytes() == b"old"
        disk.replace(path, b"new")
        assert path.read_bytes() == b"new"


def test_the_boot_has_an_id(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(disk.boot_id()) == 16
    assert disk.boot_id() == RealDisk().boot_id() != bytes(16)
    monkeypatch.setattr("haclient_stores.disk.files._BOOT_ID", tmp_path / "another system has none")
    assert disk.boot_id() == bytes(16)


def test_the_process_is_this_one(disk: RealDisk) -> None:
    assert disk.process_id() == os.getpid()
