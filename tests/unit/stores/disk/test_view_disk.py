from __future__ import annotations

from pathlib import Path

import pytest

from haclient_stores.disk.view_disk import ViewDisk
from haclient_stores.errors import StoreError

pytestmark = pytest.mark.row("PS23")


def test_what_is_written_stays_in_the_view(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    disk = ViewDisk()
    file = disk.open_locked(path)
    region = file.map(4096, 904)
    region.view[:3] = b"abc"
    file.pwrite(b"def", 0)
    assert file.pread(4, 0) == b"defx"
    assert file.pread(9999, 4096)[:4] == b"abcx"
    file.allocate(6000)
    file.pwrite(b"ghi", 5998)
    assert (file.size(), file.pread(10, 5996)) == (6001, b"\0\0ghi")
    file.fsync()
    file.close()
    region.close()
    assert path.read_bytes() == b"x" * 5000


def test_what_is_written_as_it_was_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 9000)
    file = ViewDisk().open(path)
    file.pwrite(b"x" * 8192, 0)
    with path.open("r+b") as real:
        real.write(b"new")
    assert file.pread(4, 0) == b"newx"  # the page is the file's, no copy


def test_names_change_in_the_view_only(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"")
    disk = ViewDisk()
    assert disk.open(tmp_path / "b").size() == 0
    disk.remove(tmp_path / "b")
    disk.open(tmp_path / "c", create=True)
    disk.replace(tmp_path / "d", b"d")
    disk.rename(tmp_path / "d", tmp_path / "e")
    assert disk.listdir(tmp_path) == ["a", "c", "e"]
    assert disk.exists(tmp_path / "a")
    assert not disk.exists(tmp_path / "b")
    assert disk.open(tmp_path / "e").pread(9, 0) == b"d"
    disk.fsync_dir(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    disk = ViewDisk()
    disk.make_directory(tmp_path)
    with pytest.raises(StoreError, match="no such directory"):
        disk.make_directory(tmp_path / "x")
    with pytest.raises(StoreError, match="No such file"):
        disk.open(tmp_path / "x")
