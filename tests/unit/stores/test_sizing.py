from __future__ import annotations

import math

import pytest

from haclient_stores.errors import UsageError
from haclient_stores.memory_publish import MemoryPublishStore
from haclient_stores.sizing import publish_store_size

pytestmark = pytest.mark.row("PS19")


def test_a_store_holds_what_is_published_until_a_destination_is_downgraded() -> None:
    size = publish_store_size(10_000, 100, downgrade_age_s=60, check_period_s=15)
    assert size.messages == 750_000
    assert size.bytes == 750_000 * 245
    assert publish_store_size(0.1, 100, downgrade_age_s=1, check_period_s=0).messages == 1


def test_a_store_of_that_size_holds_so_many_messages() -> None:
    size = publish_store_size(1_000, 100, downgrade_age_s=60, check_period_s=15)
    store = MemoryPublishStore(max_bytes=size.bytes)
    head = b'{"c":"p","t":"orders/of/an/average/name","a":"persisted","s":'
    store.number_above(10**15)
    for _ in range(size.messages):
        store.store(head, b"}", bytes(100))
    assert store.unpersisted_count == size.messages


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_impossible_rates_are_refused(wrong: float) -> None:
    with pytest.raises(UsageError, match="finite and not negative"):
        publish_store_size(wrong, 100, downgrade_age_s=60, check_period_s=15)
    with pytest.raises(UsageError):
        publish_store_size(1, 100, downgrade_age_s=60, check_period_s=wrong)
