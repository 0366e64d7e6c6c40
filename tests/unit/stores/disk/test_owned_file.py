from __future__ import annotations

from pathlib import Path

import pytest

from haclient_stores.disk.files import RealDisk
from haclient_stores.disk.owned_file import check_path, check_process, not_the_owner, open_owned
from haclient_stores.errors import StoreLocked, UsageError

pytestmark = pytest.mark.row("BS21")


def test_a_file_that_somebody_has_open_is_refused_with_its_owner(tmp_path: Path) -> None:
    disk, path = RealDisk(), tmp_path / "file"
    file = open_owned(disk, path)
    with pytest.raises(StoreLocked, match="in use by another process as client ''"):
        open_owned(disk, path)
    file.close()
    open_owned(disk, path).close()


def test_another_client_and_a_fork_are_told_what_to_do() -> None:
    error = not_the_owner(Path("f"), "me", "you")
    assert error.owner == "me"
    assert str(error) == (
        "f: belongs to the client 'me', not to 'you': use a store of its own for each client name"
    )
    check_process(Path("f"), 1, 1)
    with pytest.raises(UsageError, match="start workers with spawn"):
        check_process(Path("f"), 1, 2)


def test_a_path_is_a_text_or_a_path_and_not_empty() -> None:
    assert check_path("a/b", "a file") == check_path(Path("a/b"), "a file") == Path("a/b")
    for wrong in ("", None, 5, b"a", "a\0b"):
        with pytest.raises(UsageError, match="path is the file of the store, not"):
            check_path(wrong, "the file of the store")  # type: ignore[arg-type]  # wrong on purpose
