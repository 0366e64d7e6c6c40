"""What was written is written once more, in pieces, and is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from haclient_stores.disk.rewriting import write_again
from support.recording import Event, RecordingDisk, Write

DATA = bytes(range(256)) * 10_000


@pytest.mark.parametrize(("begin", "end"), [(0, len(DATA)), (8, 9), (5, 2_000_000), (7, 7)])
def test_the_bytes_of_a_range_are_written_again(begin: int, end: int) -> None:
    path = Path("/stores/file")
    events: list[Event] = []
    disk = RecordingDisk(events, image={path: DATA})
    file = disk.open(path)
    write_again(file, begin, end)
    written = [(each.offset, each.data) for each in events if isinstance(each, Write)]
    assert b"".join(data for _, data in written) == DATA[begin:end]
    assert all(data == DATA[at : at + len(data)] for at, data in written)
    assert all(len(data) <= 2**20 for _, data in written)
    assert file.pread(len(DATA), 0) == DATA
