from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from haclient_stores.errors import UsageError
from haclient_stores.publish_stores.null import NullPublishStore
from support.frames import fill, kept, put


def test_numbers_rise_and_nothing_is_kept() -> None:
    store = NullPublishStore()
    store.reconcile(seen=5, persisted=3, clock_us=1)
    assert fill(store, 3) == [6, 7, 8]
    assert kept(store) == []
    assert store.replay_single(7) is None
    assert (store.unpersisted_count, store.unpersisted_bytes, store.lowest_unpersisted) == (0, 0, 0)


def test_it_begins_at_the_clock_and_follows_acks() -> None:
    store = NullPublishStore()
    store.number_above(100)
    store.number_above(200)
    assert put(store) == 101
    store.discard_up_to(300)
    store.discard_up_to(200)
    assert (put(store), store.last_persisted) == (301, 300)


def test_it_belongs_to_nobody_and_may_be_closed() -> None:
    store = NullPublishStore()
    for name in ("a", "b"):
        store.open_for(name)
        assert store.client_name == name
    store.sync()
    store.close()
    assert store.gap is None


def test_it_belongs_to_the_thread_that_first_uses_it() -> None:
    store = NullPublishStore()
    assert put(store) == 1
    with ThreadPoolExecutor(1) as pool:
        for call in (
            lambda: put(store),
            lambda: store.discard_up_to(9),
            lambda: store.number_above(9),
            lambda: store.reconcile(seen=9, persisted=9, clock_us=9),
            lambda: store.open_for("me"),
            store.replay,
            lambda: store.replay_single(1),
        ):
            with pytest.raises(UsageError, match="a store belongs to the thread that first uses"):
                pool.submit(call).result()
        assert (store.last_sequence, store.last_persisted, store.client_name) == (1, 0, "")
        store.close()
        assert pool.submit(put, store).result() == 2
