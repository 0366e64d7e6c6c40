from __future__ import annotations

import pytest

from haclient_stores.errors import StoreLocked
from haclient_stores.memory_publish import MemoryPublishStore
from haclient_stores.segment import MIN_SEGMENT_BYTES


@pytest.mark.row("PS10")
def test_what_is_stored_survives_the_loss_of_a_client() -> None:
    store = MemoryPublishStore()
    store.open_for("me")
    store.store(b"H", b"T", b"")
    store.sync()
    store.close()
    store.open_for("me")
    assert store.unpersisted_count == 1
    assert store.client_name == "me"


@pytest.mark.row("PS12")
def test_another_client_is_refused() -> None:
    store = MemoryPublishStore()
    store.open_for("me")
    with pytest.raises(StoreLocked, match="belongs to the client 'me'") as caught:
        store.open_for("you")
    assert caught.value.owner == "me"


def test_memory_is_used_again_without_what_was_in_it() -> None:
    store = MemoryPublishStore(segment_bytes=MIN_SEGMENT_BYTES)
    for _ in range(30):
        for _ in range(20):
            store.append(b"H", b"T", b"x" * 3000)
        while store.unsent_bytes:
            store.advance(len(store.peek()))
        store.discard_up_to(store.last_sequence)
    store.append(b"H", b"T", bytes(100_000))
    store.append(b"H", b"T", b"y")
    assert [len(frame) for _, frame in store.replay()] == [100_009, 10]
