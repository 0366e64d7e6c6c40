"""Stores with the official names, without a connection."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from haclient import compat
from haclient.compat.stores import bookmark_store_of, publish_store_of
from haclient.errors import StoreLocked, UsageError
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore

pytestmark = pytest.mark.row("B18")


def test_stores_in_files_are_there_when_they_are_made(tmp_path: Path) -> None:
    for make in (
        compat.PublishStore,
        compat.HybridPublishStore,
        compat.MMapBookmarkStore,
        compat.RingBookmarkStore,
    ):
        path = str(tmp_path / make.__name__)
        store = make(path)
        assert Path(path).exists()
        with pytest.raises(StoreLocked):
            make(path)
        store.native.close()


def test_bookmark_stores_answer_without_a_client() -> None:
    store = compat.MemoryBookmarkStore()
    store.native.open_for("desk-1")
    number = store.native.log("s1", "1|2|")
    assert store.get_oldest_bookmark_seq("s1") == number
    store.discard("s1", number)
    assert store.get_oldest_bookmark_seq("s1") == 0
    store.purge()
    store.prune()
    assert store.get_most_recent("s1") == "0"


def test_a_store_belongs_to_one_client() -> None:
    store = compat.MemoryPublishStore()
    first, second = compat.Client("desk-1"), compat.Client("desk-2")
    store.own(first)
    store.own(first)
    with pytest.raises(UsageError, match="another client"):
        store.own(second)
    with pytest.raises(UsageError, match="no client uses"):
        compat.MemoryPublishStore().flush()


def test_stores_are_given_as_names_of_files_or_as_those_of_haclient(tmp_path: Path) -> None:
    publishes = publish_store_of(str(tmp_path / "a.pub"))
    assert isinstance(publishes, compat.PublishStore)
    publishes.native.close()
    bookmarks = bookmark_store_of(str(tmp_path / "a.bm"))
    assert isinstance(bookmarks, compat.LoggedBookmarkStore)
    bookmarks.native.close()
    native = MemoryBookmarkStore()
    assert bookmark_store_of(native).native is native
    for of in (publish_store_of, bookmark_store_of):
        with pytest.raises(UsageError, match="not 3"):
            of(3)


def test_a_prune_does_not_hold_up_the_client(
    ha: compat.HAClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ha.get_bookmark_store()
    assert store is not None
    threads: list[int] = []
    monkeypatch.setattr(store.native, "prune", lambda: threads.append(threading.get_ident()))
    ha.prune_store()
    assert threads == [threading.get_ident()]
