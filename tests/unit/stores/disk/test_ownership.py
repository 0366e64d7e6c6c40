from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from haclient_stores import header_page
from haclient_stores.disk.files import PAGE_BYTES, RealDisk
from haclient_stores.disk.ownership import Ownership, check_client_name, check_path
from haclient_stores.errors import StoreLocked, UsageError
from support.disks import WatchedDisk

pytestmark = pytest.mark.row("BS21", "PS12")


def owned_by(path: Path, name: str) -> None:
    page = bytearray(PAGE_BYTES)
    header_page.write_owner(memoryview(page), name)
    path.write_bytes(page)


def test_a_store_that_is_open_twice_in_one_process_says_so_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    owned_by(path, "orders-1")
    first = Ownership(RealDisk(), path)
    with pytest.raises(StoreLocked) as caught:
        Ownership(RealDisk(), path, store=tmp_path)
    assert caught.value.in_this_process
    assert caught.value.owner == "orders-1"
    assert str(caught.value) == (
        f"{tmp_path}: open already in this process, as client 'orders-1': close that store first, "
        "or use the one that is open"
    )
    first.close()
    first.close()
    Ownership(RealDisk(), path).close()


def test_a_store_that_another_process_has_open_says_so_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    owned_by(path, "orders-1")
    hold = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1])\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(StoreLocked, match="in use by another process as client 'orders-1'") as (
            caught
        ):
            Ownership(RealDisk(), path)
        process.kill()
    assert not caught.value.in_this_process


def test_the_first_client_is_noted_and_another_one_is_refused(tmp_path: Path) -> None:
    ownership = Ownership(RealDisk(), tmp_path / "file")
    assert ownership.check_client("me")
    ownership.client_name = "me"
    assert not ownership.check_client("me")
    with pytest.raises(StoreLocked, match="file: belongs to the client 'me', not to 'you'"):
        ownership.check_client("you")
    with pytest.raises(UsageError, match="client_name is a text"):
        ownership.check_client("")
    ownership.close()
    with pytest.raises(UsageError, match="the store is closed; open it again"):
        ownership.check_client("me")


def test_the_refusal_of_another_client_says_why_and_what_to_do() -> None:
    check_client_name("store", "", "b")
    check_client_name("store", "b", "b")
    with pytest.raises(StoreLocked, match="store: belongs to the client 'a', not to 'b'") as caught:
        check_client_name("store", "a", "b")
    assert caught.value.owner == "a"
    assert "a store of its own for each" in str(caught.value)


def test_a_fork_is_told_what_to_do(tmp_path: Path) -> None:
    disk = WatchedDisk()
    ownership = Ownership(disk, tmp_path / "file")
    ownership.check_usable()
    disk.process = 1
    with pytest.raises(UsageError, match="and used by its fork 1: start workers with spawn"):
        ownership.check_usable()
    disk.process = None
    ownership.close()


def test_a_file_that_takes_the_place_of_another_one_keeps_the_lock(tmp_path: Path) -> None:
    disk, path = RealDisk(), tmp_path / "file"
    ownership = Ownership(disk, path)
    new = disk.open_locked(tmp_path / "file.new")
    disk.rename(tmp_path / "file.new", path)
    ownership.replace_file(new).close()
    with pytest.raises(StoreLocked):
        Ownership(disk, path)
    ownership.close()
    Ownership(disk, path).close()


def test_a_path_is_a_text_or_a_path_and_not_empty() -> None:
    assert check_path("a/b", "a file") == check_path(Path("a/b"), "a file") == Path("a/b")
    for wrong in ("", None, 5, b"a", "a\0b"):
        with pytest.raises(UsageError, match="path is the file of the store, not"):
            check_path(wrong, "the file of the store")  # type: ignore[arg-type]  # wrong on purpose
