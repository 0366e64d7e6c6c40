from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from haclient_stores.errors import StoreCorrupt, UsageError
from haclient_stores.file_publish import FilePublishStore
from haclient_stores.file_space import HEADER_BYTES, FileSpace
from haclient_stores.files import RealDisk
from haclient_stores.memory_publish import MemoryPublishStore
from haclient_stores.segment import MIN_SEGMENT_BYTES, PAGE_BYTES


def space_in(path: Path) -> FileSpace:
    control = RealDisk().open(path / "control", create=True)
    control.allocate(PAGE_BYTES)
    return FileSpace(RealDisk(), control, segment_bytes=MIN_SEGMENT_BYTES)


def store_with(path: Path, count: int) -> FilePublishStore:
    store = FilePublishStore(path, segment_bytes=MIN_SEGMENT_BYTES)
    for _ in range(count):
        store.append(b'{"s":', b"}", bytes(1000))
    return store


def numbers(store: FilePublishStore) -> list[int]:
    return [sequence for sequence, _ in store.replay()]


def test_files_that_were_made_and_never_used_are_kept_as_spare_or_removed(tmp_path: Path) -> None:
    path = tmp_path / "p"
    store_with(path, 1).close()
    for number in (5, 6, 7):
        (path / f"0000000{number}.seg").write_bytes(bytes(MIN_SEGMENT_BYTES))
    (path / "00000009.seg").write_bytes(b"")
    (path / "README").write_text("not ours")
    store = store_with(path, 0)
    assert sorted(file.name for file in path.glob("*.seg")) == [
        "00000001.seg",
        "00000005.seg",
        "00000006.seg",
    ]
    for _ in range(100):
        store.append(b'{"s":', b"}", bytes(1000))
    assert (path / "00000010.seg").exists()
    assert numbers(store) == list(range(1, 102))
    store.close()


def test_two_segments_with_the_same_sequences_are_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "p"
    store_with(path, 3).close()
    shutil.copyfile(path / "00000001.seg", path / "00000002.seg")
    with pytest.raises(StoreCorrupt, match="repeats the sequences"):
        store_with(path, 0)


@pytest.mark.row("PS21")
def test_a_seal_beyond_the_file_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "p"
    store_with(path, 3).close()
    file = path / "00000001.seg"
    data = bytearray(file.read_bytes())
    data[256 + 16 : 256 + 32] = (MIN_SEGMENT_BYTES).to_bytes(4, "little") + bytes([1] * 12)
    file.write_bytes(data)
    with pytest.raises(StoreCorrupt, match="beyond the file"):
        store_with(path, 0)


@pytest.mark.row("PS21")
def test_a_frame_without_its_number_is_a_torn_tail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "p"
    store = store_with(path, 2)
    shutil.copytree(path, tmp_path / "q")
    store.close()
    file = tmp_path / "q" / "00000001.seg"
    data = bytearray(file.read_bytes())
    at = data.index(b'"s":2}')
    data[at + 4] = ord("7")
    file.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        store = store_with(tmp_path / "q", 1)
    assert "a torn frame" in caplog.text
    assert numbers(store) == [1, 2]
    store.close()


def test_a_segment_that_disappears_while_it_is_synced_is_no_fault_if_it_was_persisted(
    tmp_path: Path,
) -> None:
    space = space_in(tmp_path)
    segment = space.create(1, 3 * MIN_SEGMENT_BYTES)
    space.sync(segment)
    segment.released = True
    (tmp_path / "00000001.seg").unlink()
    space.sync(None)
    space.close([segment])
    with pytest.raises(UsageError, match="is closed"):
        space.create(1, MIN_SEGMENT_BYTES)


def test_a_segment_that_was_synced_is_not_used_again_before_the_disk_knows(tmp_path: Path) -> None:
    space = space_in(tmp_path)
    first = space.create(1, MIN_SEGMENT_BYTES)
    space.sync(first)
    first.released = True
    space.release(first)
    second = space.create(2, MIN_SEGMENT_BYTES)
    assert len(list(tmp_path.glob("*.seg"))) == 2
    space.sync(second)
    third = space.create(3, MIN_SEGMENT_BYTES)
    assert len(list(tmp_path.glob("*.seg"))) == 2
    assert bytes(third.view[HEADER_BYTES : HEADER_BYTES + 4]) == bytes(4)
    space.close([second, third])


def test_a_segment_of_another_space_is_refused(tmp_path: Path) -> None:
    store = MemoryPublishStore()
    store.append(b"H", b"T", b"")
    space = space_in(tmp_path)
    with pytest.raises(UsageError, match="no segment of a file store"):
        space.park(store._segments[0])
    space.close([])


@pytest.mark.row("PS11")
def test_the_segment_that_is_continued_stays_mapped_however_many_follow(tmp_path: Path) -> None:
    store_with(tmp_path / "p", 3).close()
    store = store_with(tmp_path / "p", 600)
    assert numbers(store) == list(range(1, 604))
    store.close()


def test_looking_at_single_messages_keeps_few_segments_mapped(tmp_path: Path) -> None:
    store = store_with(tmp_path / "p", 600)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert all(store.replay_single(sequence) for sequence in range(1, 600, 20))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4
    store.close()
