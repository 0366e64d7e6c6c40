"""A publish store with more segments than it keeps mapped."""

from __future__ import annotations

from pathlib import Path

import pytest

from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES

pytestmark = [pytest.mark.row("PS11"), pytest.mark.row("PS21")]


def store_with(path: Path, count: int) -> FilePublishStore:
    store = FilePublishStore(path, segment_bytes=MIN_SEGMENT_BYTES)
    for _ in range(count):
        store.append(b'{"s":', b"}", bytes(1000))
    return store


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_segment_that_is_continued_stays_mapped_however_many_follow(tmp_path: Path) -> None:
    store_with(tmp_path / "p", 3).close()
    store = store_with(tmp_path / "p", 600)
    assert [sequence for sequence, _ in store.replay()] == list(range(1, 604))
    store.close()


def test_looking_at_single_messages_keeps_few_segments_mapped(tmp_path: Path) -> None:
    store = store_with(tmp_path / "p", 600)
    before = descriptors()
    assert all(store.replay_single(sequence) for sequence in range(1, 600, 20))
    assert descriptors() <= before + 4
    store.close()
