from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from haclient.cli.storing import entries_of, explanations_of, subscriptions_of, summary_of
from haclient.protocol.codec import encode_header
from haclient.stores import FilePublishStore, LoggedBookmarkStore

pytestmark = pytest.mark.row("PS23")


def test_a_sow_delete_is_shown_with_its_filter(tmp_path: Path) -> None:
    with closing(FilePublishStore(tmp_path / "p")) as store:
        head = encode_header({"c": "sow_delete", "t": "orders", "filter": "/id = 1"})[:-1]
        store.store(head + b',"s":', b"}", b"")
        (row,) = entries_of(store)
    assert (row["command"], row["topic"], row["filter"]) == ("sow_delete", "orders", "/id = 1")


def test_a_store_without_subscriptions_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "s.bm"
    with closing(LoggedBookmarkStore(path)) as store:
        values, text = summary_of(path, store)
        assert list(entries_of(store)) == list(subscriptions_of(store)) == []
        assert list(explanations_of(store)) == []
    assert values["subscriptions"] == []
    assert text == f"{path}: logged bookmark store of nobody yet, {values['bytes']} bytes"
