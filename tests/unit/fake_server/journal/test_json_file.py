"""The small files next to the journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from haclient_fake_server.journal.json_file import read_json_file, write_json_file
from haclient_stores.disk.files import RealDisk
from haclient_stores.errors import StoreError


def read(path: Path, version: int = 2) -> int | None:
    return read_json_file(
        RealDisk(), path, version, lambda content: int(content["count"]), without="counting anew"
    )


def test_what_was_written_is_read_by_this_version_and_newer_ones(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for count in (3, 4):
        write_json_file(RealDisk(), path, 2, count=count)
        assert (read(path), read(path, version=3)) == (count, count)


def test_the_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    write_json_file(RealDisk(), tmp_path / "file", 2, count=3)
    with pytest.raises(StoreError, match=r"file: version 2, but .* reads up to 1: use the newer"):
        read(tmp_path / "file", version=1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":2}',
        b'{"format":2,"count":"x"}',
        b"{",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_ignored_with_a_warning(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(data)
    assert read(tmp_path / "file") is None
    (warning,) = caplog.messages
    assert "ignored, since it is damaged (" in warning
    assert warning.endswith("): counting anew")
