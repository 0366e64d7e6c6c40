from __future__ import annotations

import pytest

from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore, NullBookmarkStore
from haclient_stores.errors import StoreLocked


@pytest.mark.row("BS1", "BS13")
def test_the_store_follows_messages_by_subscription_id() -> None:
    store = MemoryBookmarkStore()
    assert str(store.most_recent("s")) == "0"
    assert store.log("s", "1|1|") == 1
    assert store.log("s", "1|2|") == 2
    assert store.log("s", "1|2|") == 0
    assert store.oldest_undiscarded("s") == 1
    store.discard("s", 1)
    assert str(store.most_recent("s")) == "1|1|"
    store.discard_up_to("s", 2)
    assert str(store.most_recent("s")) == "1|2|"
    assert store.is_discarded("s", "1|2|")
    store.persisted("s", "1|5|")
    store.prune()
    store.close()
    assert str(store.most_recent("s")) == "1|2|"


@pytest.mark.row("BS7")
def test_each_subscription_id_has_a_history_of_its_own() -> None:
    store = MemoryBookmarkStore()
    store.log("one", "1|1|")
    assert store.log("two", "1|1|") == 1
    assert store.subscription("one") is store.subscription("one")
    assert set(store.subscriptions) == {"one", "two"}
    store.purge("one")
    assert store.log("one", "1|1|") == 2
    assert store.log("two", "1|1|") == 0
    store.purge()
    assert store.log("two", "1|1|") == 2


@pytest.mark.row("BS21")
def test_a_store_belongs_to_the_client_that_used_it_first() -> None:
    store = MemoryBookmarkStore()
    assert store.client_name == ""
    store.open_for("me")
    store.open_for("me")
    with pytest.raises(StoreLocked, match="belongs to the client 'me'") as caught:
        store.open_for("you")
    assert caught.value.owner == "me"
    assert store.client_name == "me"


@pytest.mark.row("BS1", "BS8")
def test_the_null_store_remembers_nothing() -> None:
    store = NullBookmarkStore()
    store.open_for("me")
    assert [store.log("s", "1|1|"), store.log("s", "1|1|")] == [-1, -1]
    store.discard("s", 1)
    store.discard_up_to("s", 1)
    store.persisted("s", "1|1|")
    assert not store.is_discarded("s", "1|1|")
    assert str(store.most_recent("s")) == "0"
    assert (store.oldest_undiscarded("s"), store.client_name) == (0, "")
    store.purge()
    store.prune()
    store.close()
