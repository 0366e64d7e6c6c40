from __future__ import annotations

import pytest

from haclient_stores.errors import PublishGap
from haclient_stores.interfaces import FrameLog
from haclient_stores.memory_publish import MemoryPublishStore
from haclient_stores.publish_log import PublishLog


@pytest.mark.row("PS1")
def test_store_and_append_are_one_function() -> None:
    assert PublishLog.store is PublishLog.append
    assert isinstance(MemoryPublishStore(), FrameLog)


@pytest.mark.row("PS9")
def test_a_gap_is_recorded_and_work_goes_on() -> None:
    store = MemoryPublishStore()
    store.reconcile(seen=0, persisted=0, clock_us=10)
    for _ in range(3):
        store.store(b"H", b"T", b"")
    store.discard_up_to(12)
    store.reconcile(seen=11, persisted=11, clock_us=10)
    gap = store.gap
    assert gap is not None
    assert (gap.acknowledged, gap.server) == (12, 11)
    assert [sequence for sequence, _ in store.replay()] == [13]
    store.reconcile(seen=13, persisted=13, clock_us=10)
    assert store.gap is None


@pytest.mark.row("PS9")
def test_a_gap_is_raised_when_that_was_asked_for_and_nothing_changes() -> None:
    store = MemoryPublishStore(error_on_publish_gap=True)
    store.reconcile(seen=100, persisted=100, clock_us=10)
    store.store(b"H", b"T", b"")
    with pytest.raises(PublishGap):
        store.reconcile(seen=500, persisted=99, clock_us=10)
    assert (store.last_sequence, store.unpersisted_count) == (101, 1)


@pytest.mark.row("PS6")
def test_one_message_is_found_until_it_is_persisted() -> None:
    store = MemoryPublishStore()
    for body in (b"a", b"b", b"c"):
        store.store(b"H", b"T", body)
    assert store.replay_single(2) == b"\0\0\0\x04H2Tb"
    store.discard_up_to(2)
    assert store.replay_single(2) is None
    assert store.replay_single(4) is None
    assert (store.lowest_unpersisted, store.last_persisted) == (3, 2)
