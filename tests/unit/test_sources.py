from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from haclient.errors import StoreError, UsageError
from haclient.sources import NOTE, ResumePoint, SourcePosition
from haclient.stores import FilePublishStore, MemoryPublishStore
from support.frames import put


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FilePublishStore]:
    with_store = FilePublishStore(tmp_path / "store")
    yield with_store
    with_store.close()


def publish(store: FilePublishStore, count: int) -> None:
    for _ in range(count):
        put(store)


def test_a_new_source_begins_at_its_beginning_and_goes_on_by_counting(
    store: FilePublishStore,
) -> None:
    publish(store, 5)  # before the store was given to this source
    assert SourcePosition(store, "a").resume() == ResumePoint("", 0)
    publish(store, 3)
    assert SourcePosition(store, "a").resume() == ResumePoint("", 3)


def test_what_was_noted_is_not_counted_again(store: FilePublishStore, tmp_path: Path) -> None:
    position = SourcePosition(store, "a")
    position.resume()
    publish(store, 3)
    position.note("row 3")
    assert position.resume() == ResumePoint("row 3", 0)
    publish(store, 2)
    store.close()
    again = FilePublishStore(tmp_path / "store")
    assert SourcePosition(again, "a").resume() == ResumePoint("row 3", 2)
    again.close()


def test_another_source_is_refused(store: FilePublishStore) -> None:
    SourcePosition(store, "a").resume()
    with pytest.raises(StoreError, match="publishes the source 'a', not 'b'"):
        SourcePosition(store, "b").resume()


def test_a_note_of_something_else_is_refused(store: FilePublishStore) -> None:
    store.set_note(NOTE, "7")
    with pytest.raises(StoreError, match="cannot be read"):
        SourcePosition(store, "a").resume()


def test_a_note_that_is_newer_than_its_store_is_refused(store: FilePublishStore) -> None:
    store.set_note(NOTE, '{"source":"a","position":"","sequence":7}')
    with pytest.raises(StoreError, match="is below the noted 7"):
        SourcePosition(store, "a").resume()


def test_what_can_never_work_is_refused(store: FilePublishStore) -> None:
    with pytest.raises(UsageError, match="not a MemoryPublishStore"):
        SourcePosition(cast("FilePublishStore", MemoryPublishStore()), "a")
    with pytest.raises(UsageError, match="must not be empty"):
        SourcePosition(store, "")
