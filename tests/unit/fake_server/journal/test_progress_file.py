"""The file that tells the next start how far replication is."""

from __future__ import annotations

from pathlib import Path

import pytest

from haclient_fake_server.engine.replication.durability import (
    DestinationProgress,
    ReplicationProgress,
)
from haclient_fake_server.journal.progress_file import PROGRESS_NAME, ProgressFile
from haclient_stores.disk.files import RealDisk

WEST = DestinationProgress("tcp://west:1", "west", 2**40)
NORTH = DestinationProgress("tcp://north:1", "n\u00f6rd\udcff", 0)


def opened(path: Path) -> ProgressFile:
    return ProgressFile(path, RealDisk())


@pytest.mark.row("RE11")
def test_what_was_written_is_found_again(tmp_path: Path) -> None:
    file = opened(tmp_path)
    assert file.progress is None
    for progress in (
        ReplicationProgress(0),
        ReplicationProgress(5, (WEST, NORTH)),
        ReplicationProgress(2**40, (WEST,)),
        ReplicationProgress(None, (NORTH,)),
        ReplicationProgress(None),
    ):
        for _ in range(2):
            file.write(progress)
            assert opened(tmp_path).progress == progress
    file.close()


@pytest.mark.parametrize("damage", [b"\xff", bytes(15), bytes(16), bytes(7) + b"\1" + bytes(8)])
def test_a_damaged_file_promises_nothing(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / PROGRESS_NAME).write_bytes(damage)
    assert opened(tmp_path).progress == ReplicationProgress(0)


def test_no_byte_can_be_changed_or_lost_unnoticed(tmp_path: Path) -> None:
    file, path = opened(tmp_path), tmp_path / PROGRESS_NAME
    file.write(ReplicationProgress(7, (WEST,)))
    file.close()
    whole = path.read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x40
        for damaged in (bytes(changed), whole[:at]):
            path.write_bytes(damaged)
            wanted = ReplicationProgress(0) if damaged else None
            assert opened(tmp_path).progress == wanted
