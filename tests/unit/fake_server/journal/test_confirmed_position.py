"""The number that survives a killed broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from haclient_fake_server.journal.confirmed_position import FILE_NAME, ConfirmedPosition
from haclient_stores.disk.files import RealDisk


def opened(path: Path) -> ConfirmedPosition:
    return ConfirmedPosition(path, RealDisk())


@pytest.mark.row("RE11")
def test_what_was_written_is_found_again(tmp_path: Path) -> None:
    file = opened(tmp_path)
    assert file.position is None
    for position in (0, 5, 5, 2**40):
        file.write(position)
    file.close()
    assert opened(tmp_path).position == 2**40
    assert (tmp_path / FILE_NAME).stat().st_size == 16


@pytest.mark.parametrize("damage", [b"\xff", bytes(15), bytes(7) + b"\1" + bytes(8), b"\0" * 16])
def test_a_damaged_file_promises_nothing(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(damage)
    assert opened(tmp_path).position == 0
