from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from haclient_stores.errors import UsageError
from haclient_stores.publish_stores.file import DEFAULT_FILE_SEGMENT_BYTES, FilePublishStore
from haclient_stores.publish_stores.hybrid import HybridPublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.ring import RingPublishStore
from haclient_stores.publish_stores.sizing import publish_store_size

pytestmark = pytest.mark.row("PS19")


def test_a_store_holds_what_is_published_until_a_destination_is_downgraded() -> None:
    size = publish_store_size(10_000, 100, downgrade_age_s=60, check_period_s=15)
    assert size.messages == 750_000
    assert size.bytes == 750_000 * 265 + 3 * DEFAULT_FILE_SEGMENT_BYTES
    assert publish_store_size(0.1, 100, downgrade_age_s=1, check_period_s=0).messages == 1


KINDS: dict[str, Callable[[Path, int], PublishLog]] = {
    "memory": lambda _, size: MemoryPublishStore(max_bytes=size),
    "file": lambda path, size: FilePublishStore(path, max_bytes=size),
    "hybrid": lambda path, size: HybridPublishStore(path, max_bytes=size),
    "ring": RingPublishStore,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rate", "body"), [(400, 100), (500, 400), (5, 10_000)])
def test_a_store_of_that_size_holds_so_many_messages_whatever_it_held_before(
    kind: str, rate: float, body: int, tmp_path: Path
) -> None:
    size = publish_store_size(rate, body, downgrade_age_s=60, check_period_s=15)
    store = KINDS[kind](tmp_path / "p", size.bytes)
    head = b'{"c":"p","t":"orders/of/an/average/name","a":"persisted","s":'
    store.number_above(10**15)
    for acked in (False, True):
        for _ in range(size.messages):
            store.store(head, b"}", bytes(body))
            if acked:
                store.discard_up_to(store.lowest_unpersisted)
        store.checkpoint()
        store.advance(len(store.peek()))
        while store.unsent_bytes:
            store.advance(len(store.peek()))
    assert store.unpersisted_count == size.messages
    store.close()


def test_a_store_of_that_size_may_sync_each_message(tmp_path: Path) -> None:
    size = publish_store_size(50, 1, downgrade_age_s=60, check_period_s=15)
    store = RingPublishStore(tmp_path / "p", size.bytes - 3 * DEFAULT_FILE_SEGMENT_BYTES)
    head = b'{"c":"p","t":"orders/of/an/average/name","a":"persisted","s":'
    store.number_above(10**15)
    for _ in range(size.messages):
        store.store(head, b"}", b"1")
        store.checkpoint()
    store.close()


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_impossible_rates_are_refused(wrong: float) -> None:
    with pytest.raises(UsageError, match="finite and not negative"):
        publish_store_size(wrong, 100, downgrade_age_s=60, check_period_s=15)
    with pytest.raises(UsageError):
        publish_store_size(1, 100, downgrade_age_s=60, check_period_s=wrong)
    with pytest.raises(UsageError, match=r"not .*'fast'"):
        publish_store_size("fast", 100, downgrade_age_s=60, check_period_s=1)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(UsageError, match="no store is as large as"):
        publish_store_size(1e308, 100, downgrade_age_s=1e308, check_period_s=1)
