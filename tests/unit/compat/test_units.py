"""Milliseconds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from haclient import compat
from haclient.compat.units import milliseconds_of, seconds_of
from haclient.errors import UsageError

pytestmark = pytest.mark.row("B18")


@pytest.mark.parametrize(("given", "seconds"), [(0, math.inf), (1500, 1.5), (0.5, 0.0005)])
def test_a_timeout_is_in_milliseconds_and_zero_is_no_limit(given: float, seconds: float) -> None:
    assert seconds_of(given) == seconds
    assert milliseconds_of(seconds) == round(given)


TAKE_MILLISECONDS: dict[str, Callable[[compat.Client, float], object]] = {
    "logon": lambda client, time: client.logon(time),
    "publish_flush": lambda client, time: client.publish_flush(time),
    "flush": lambda client, time: client.flush(time),
    "sow_delete": lambda client, time: client.sow_delete("prices", "1 = 1", None, time),
    "sow_delete_by_data": lambda client, time: client.sow_delete_by_data("prices", "{}", time),
    "sow_delete_by_keys": lambda client, time: client.sow_delete_by_keys("prices", "1", time),
    "subscribe": lambda client, time: client.subscribe("orders", timeout=time),
    "delta_subscribe": lambda client, time: client.delta_subscribe("orders", timeout=time),
    "bookmark_subscribe": lambda client, time: client.bookmark_subscribe("orders", timeout=time),
    "sow": lambda client, time: client.sow("prices", timeout=time),
    "sow_and_subscribe": lambda client, time: client.sow_and_subscribe("prices", timeout=time),
    "sow_and_delta_subscribe": lambda client, time: client.sow_and_delta_subscribe(
        "prices", timeout=time
    ),
    "stream": lambda client, time: client.subscribe("orders").timeout(time),
    "command": lambda _, time: compat.Command("sow").set_timeout(time),
    "set_ack_timeout": lambda _, time: compat.Client("desk-1").set_ack_timeout(time),
    "set_timeout": lambda _, time: compat.HAClient("desk-1").set_timeout(time),
    "set_reconnect_delay": lambda _, time: compat.HAClient("desk-1").set_reconnect_delay(time),
    "set_resubscription_timeout": lambda _, time: (
        compat.MemorySubscriptionManager().set_resubscription_timeout(time)
    ),
    "fixed": lambda _, time: compat.FixedDelayStrategy(time),
    "fixed, limit": lambda _, time: compat.FixedDelayStrategy(1, time),
    "exponential": lambda _, time: compat.ExponentialDelayStrategy(time),
    "exponential, maximum": lambda _, time: compat.ExponentialDelayStrategy(1, time),
    "exponential, limit": lambda _, time: compat.ExponentialDelayStrategy(1, 2, 2, time),
    "adapter": lambda client, time: compat.SOWRecoveryPointAdapter(client, "desk-1", timeout=time),
    "conflating": lambda client, time: compat.ConflatingRecoveryPointAdapter(
        compat.SOWRecoveryPointAdapter(client, "desk-1"), max_age=time
    ),
}


@pytest.mark.parametrize("given", [-1, math.nan, 10**400])
@pytest.mark.parametrize("name", TAKE_MILLISECONDS)
def test_each_time_in_milliseconds_is_checked(
    plain: compat.Client, name: str, given: float
) -> None:
    with pytest.raises(UsageError, match=r"^\w+ is a number of milliseconds.*$"):
        TAKE_MILLISECONDS[name](plain, given)


def test_a_store_checks_the_time_of_its_flush(ha: compat.HAClient) -> None:
    store = ha.get_publish_store()
    assert store is not None
    for given in (-1, math.nan, 10**400):
        with pytest.raises(UsageError, match="is a number of milliseconds"):
            store.flush(given)


def test_an_acknowledgement_cannot_wait_for_ever() -> None:
    with pytest.raises(UsageError, match="wait for ever"):
        compat.Client("desk-1").set_ack_timeout(math.inf)


@pytest.mark.parametrize("given", [-1, math.nan, "10", None, True])
def test_what_is_no_time_is_refused(given: object) -> None:
    with pytest.raises(UsageError, match="delay is a number of milliseconds"):
        seconds_of(given, "delay")
