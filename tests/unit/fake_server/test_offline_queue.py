"""What a slow client has not read, in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from haclient_fake_server.offline_queue import BLOCK_BYTES, OfflineQueue
from haclient_stores.disk.files import File, RealDisk
from haclient_stores.errors import StoreError, StoreFull
from support.disks import WatchedDisk
from support.recording import RecordingDisk

CAPACITY = 4 * BLOCK_BYTES
PATH = Path("offline.1")


def chunk(number: int, blocks: float = 1.0) -> bytes:
    return (b"%d " % number) * int(blocks * BLOCK_BYTES / len(b"%d " % number))


@pytest.mark.row("AD8", "OP14")
@given(st.lists(st.one_of(st.none(), st.sampled_from([0.001, 0.5, 1.0, 1.7])), max_size=60))
def test_it_is_first_in_first_out_and_its_file_stays_small(steps: list[float | None]) -> None:
    """Each step adds a chunk of so many blocks, or takes."""
    file = RecordingDisk().create_new(PATH)
    queue = OfflineQueue(file, capacity=CAPACITY)
    added, taken = b"", b""
    for number, blocks in enumerate(steps):
        if blocks is None:
            taken += queue.take()
        elif queue.size + len(chunk(number, blocks)) <= CAPACITY:
            queue.append(chunk(number, blocks))
            added += chunk(number, blocks)
        assert queue.size == len(added) - len(taken)
    while block := queue.take():
        taken += block
    assert (taken, queue.size) == (added, 0)
    assert file.size() <= CAPACITY + 1024


@pytest.mark.row("AD8")
def test_its_file_has_no_name_and_ends_with_it(tmp_path: Path) -> None:
    planted = tmp_path / "target"
    planted.write_text("mine")
    (tmp_path / PATH).symlink_to(planted)
    disk = WatchedDisk()
    queue = OfflineQueue.create(disk, tmp_path / PATH, capacity=CAPACITY)
    queue.append(chunk(1))
    assert [each.name for each in tmp_path.iterdir()] == ["target"]
    assert (queue.take(), planted.read_text()) == (chunk(1), "mine")
    queue.close()
    assert disk.open_files == 0


def test_a_file_that_cannot_be_made_without_a_name_is_none(tmp_path: Path) -> None:
    class Stuck(WatchedDisk):
        @override
        def remove(self, path: Path) -> None:
            raise StoreError(f"{path}: cannot remove")

        @override
        def create_new(self, path: Path, *, locked: bool = False) -> File:
            del locked
            return self.open(path, create=True)

    disk = Stuck()
    with pytest.raises(StoreError, match="cannot remove"):
        OfflineQueue.create(disk, tmp_path / PATH, capacity=CAPACITY)
    assert disk.open_files == 0


@pytest.mark.row("AD8")
def test_more_than_it_holds_is_refused() -> None:
    queue = OfflineQueue(RecordingDisk().create_new(PATH), capacity=CAPACITY)
    for number in range(4):
        queue.append(chunk(number))
    with pytest.raises(StoreFull, match="more waits for a client than the queue holds"):
        queue.append(chunk(5, 1.1))


@pytest.mark.row("AD8")
@pytest.mark.parametrize(("at", "byte"), [(0, b"\xff"), (3, b"\x7f"), (5, b"\0"), (1000, b"\0")])
def test_a_damaged_block_is_refused(at: int, byte: bytes, tmp_path: Path) -> None:
    file = RealDisk().create_new(tmp_path / PATH)
    queue = OfflineQueue(file, capacity=CAPACITY)
    queue.append(chunk(1))
    queue.append(chunk(2))
    file.pwrite(byte, at)
    with pytest.raises(StoreError, match=r"offline\.1: what waited for a client is damaged"):
        queue.take()
    queue.close()


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    queue = OfflineQueue(RealDisk().create_new(tmp_path / PATH), capacity=CAPACITY)
    queue.append(chunk(1))
    with (tmp_path / PATH).open("wb"):
        pass
    with pytest.raises(StoreError, match="damaged"):
        queue.take()
    queue.close()
