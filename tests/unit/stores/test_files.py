from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from haclient_stores.errors import StoreError, StoreFull, StoreLocked
from haclient_stores.files import RealDisk, anonymous_region


def test_what_is_written_is_read(tmp_path: Path) -> None:
    disk = RealDisk()
    path = tmp_path / "deep" / "er"
    disk.make_directory(path)
    disk.make_directory(path)
    file = disk.open(path / "f", create=True)
    assert file.size() == 0
    file.pwrite(b"hello", 3)
    assert file.pread(100, 0) == b"\0\0\0hello"
    assert file.path == path / "f"
    file.fsync()
    file.close()
    file.close()
    disk.fsync_dir(path)
    assert disk.listdir(path) == ["f"]
    assert disk.exists(path / "f")
    disk.rename(path / "f", path / "g")
    assert disk.listdir(path) == ["g"]
    disk.remove(path / "g")
    disk.remove(path / "g")
    assert not disk.exists(path / "g")


def test_an_allocated_file_is_mapped_and_what_is_mapped_is_in_the_file(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk.open(tmp_path / "f", create=True)
    file.allocate(8192)
    file.allocate(4096)
    assert file.size() == 8192
    region = file.map(4096, 4096)
    region.view[:3] = b"abc"
    slice_in_use = region.view[:3]
    region.close()
    assert bytes(slice_in_use) == b"abc"
    assert file.pread(3, 4096) == b"abc"
    file.close()


def test_a_read_only_file_is_not_written(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.replace(tmp_path / "f", b"x" * 4096)
    file = disk.open(tmp_path / "f", writable=False)
    assert file.map(0, 4096).view.readonly
    with pytest.raises(StoreError, match="cannot write"):
        file.pwrite(b"y", 0)
    file.close()


def test_a_replaced_file_is_new_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.replace(tmp_path / "f", b"old")
    (tmp_path / "f.new").write_bytes(b"from a process that was killed")
    disk.replace(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert disk.listdir(tmp_path) == ["f"]


def test_errors_name_the_file_and_what_was_tried(tmp_path: Path) -> None:
    disk = RealDisk()
    with pytest.raises(StoreError, match=r"nothing: cannot open: No such file"):
        disk.open(tmp_path / "nothing")
    with pytest.raises(StoreError, match="cannot list"):
        disk.listdir(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot create the directory"):
        disk.make_directory(tmp_path / "file")


def test_no_space_is_a_full_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = RealDisk().open(tmp_path / "f", create=True)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreFull, match="cannot reserve 4096 bytes"):
        file.allocate(4096)
    monkeypatch.delattr(os, "posix_fallocate")
    file.allocate(100_000)  # where the system has no such call, zeros are written
    assert file.pread(100_000, 0) == bytes(100_000)
    file.close()


@pytest.mark.row("PS12", "BS21")
def test_a_lock_is_held_by_one_and_ends_with_the_file(tmp_path: Path) -> None:
    disk = RealDisk()
    first = disk.open_locked(tmp_path / "f")
    with pytest.raises(StoreLocked, match="in use by another process"):
        disk.open_locked(tmp_path / "f")
    first.close()
    disk.open_locked(tmp_path / "f").close()


def rename_over_when_opened(monkeypatch: pytest.MonkeyPatch, path: Path, *, times: int) -> None:
    """Somebody renames over the file between opening and locking."""
    really_open = os.open
    left = [times]

    def opened(name: Path, *arguments: int) -> int:
        descriptor = really_open(name, *arguments)
        if name == path and left[0]:
            left[0] -= 1
            path.with_name("other").write_bytes(b"renamed")
            path.with_name("other").replace(path)
        return descriptor

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.row("PS12", "BS21")
def test_a_lock_is_on_the_file_that_the_path_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename_over_when_opened(monkeypatch, tmp_path / "f", times=3)
    file = RealDisk().open_locked(tmp_path / "f")
    assert file.pread(100, 0) == b"renamed"
    file.close()
    rename_over_when_opened(monkeypatch, tmp_path / "f", times=10**6)
    with pytest.raises(StoreLocked, match="replaced all the time"):
        RealDisk().open_locked(tmp_path / "f")


def test_a_file_that_was_removed_while_it_was_locked_is_made_anew(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk._open(tmp_path / "f", create=True, writable=True)
    (tmp_path / "f").unlink()
    assert not file.is_what_the_path_names()
    file.close()


def test_memory_is_zero_and_writable() -> None:
    region = anonymous_region(8192)
    assert bytes(region.view) == bytes(8192)
    region.view[0] = 1
    region.close()


def test_the_boot_id_is_sixteen_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(RealDisk().boot_id()) == 16
    assert RealDisk().process_id() == os.getpid()
    monkeypatch.setattr("haclient_stores.files._BOOT_ID", tmp_path / "nothing")
    assert RealDisk().boot_id() == bytes(16)
