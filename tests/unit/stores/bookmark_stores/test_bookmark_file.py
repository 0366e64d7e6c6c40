from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import pytest

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.errors import StoreLocked, UsageError

pytestmark = [
    pytest.mark.row("BS21"),
    pytest.mark.parametrize("kind", [LoggedBookmarkStore, RingBookmarkStore]),
]

Kind: TypeAlias = type[LoggedBookmarkStore] | type[RingBookmarkStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.bm"


def test_a_file_belongs_to_one_process_and_one_client(kind: Kind, path: Path) -> None:
    store = kind(path)
    store.open_for("me")
    store.open_for("me")
    with pytest.raises(StoreLocked, match="open already in this process, as client 'me'") as caught:
        kind(path)
    assert caught.value.owner == "me"
    store.close()
    store = kind(path)
    assert (store.path, store.client_name) == (path, "me")
    with pytest.raises(StoreLocked, match="belongs to the client 'me'"):
        store.open_for("you")
    store.close()


def test_a_closed_store_belongs_to_nobody_any_more(kind: Kind, path: Path) -> None:
    store = kind(path)
    store.close()
    store.close()
    for use in (lambda: store.open_for("me"), store.sync, lambda: store.log("s", "7|1|")):
        with pytest.raises(UsageError, match="the store is closed"):
            use()
    kind(path).close()


def test_a_durability_that_does_not_exist_leaves_no_file(kind: Kind, path: Path) -> None:
    with pytest.raises(UsageError, match="durability is one of"):
        kind(path, durability="never")  # type: ignore[arg-type]  # what is tested
    assert not path.exists()
