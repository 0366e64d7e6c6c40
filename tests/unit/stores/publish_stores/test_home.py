from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.errors import StoreLocked, UsageError
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.home import MemoryHome, check_owner


@pytest.mark.row("PS12")
def test_the_refusal_of_another_client_says_why_and_what_to_do() -> None:
    check_owner("store", "", "b")
    check_owner("store", "b", "b")
    with pytest.raises(StoreLocked, match="store: belongs to the client 'a', not to 'b'") as caught:
        check_owner("store", "a", "b")
    assert caught.value.owner == "a"
    assert "a store of its own" in str(caught.value)


@pytest.mark.parametrize("kind", [LoggedBookmarkStore, RingBookmarkStore, FilePublishStore])
def test_a_store_with_another_durability_is_not_made(
    tmp_path: Path, kind: Callable[..., object]
) -> None:
    with pytest.raises(UsageError, match="one of process, group, fsync, not 'always'"):
        kind(tmp_path / "store", durability="always")
    assert not list(tmp_path.iterdir())


def test_memory_belongs_to_its_first_client_and_has_no_path() -> None:
    home = MemoryHome()
    home.open_for("a")
    assert (home.client_name, home.path) == ("a", None)
    with pytest.raises(StoreLocked):
        home.open_for("b")
    home.sync(lambda: 5)
    home.close([])
    assert home.synced_sequence == 0
