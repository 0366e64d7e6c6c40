"""A client that is not open refuses every call, in all three forms, and loses nothing silently."""

from __future__ import annotations

import asyncio  # noqa: TID251  # of an application that uses haclient.aio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final, cast

import pytest
import trio

import haclient.aio
import haclient.blocking
import haclient.client
from haclient.errors import UsageError
from haclient.protocol.commands import Command
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time

pytestmark = in_virtual_time

GIVEN: Final[dict[str, object]] = {
    "topic": "prices",
    "data": b"{}",
    "bodies": [b"1"],
    "value": {"id": 1},
    "handler": print,
    "handlers": {},
    "listener": print,
    "filter": "/id > 0",
    "bookmarks": "1|1|",
    "sub_id": "s",
    "sub_ids": "s",
    "sequence": 1,
    "first_sequence": 1,
    "command": Command("subscribe", topic="prices"),
    "uri": "tcp://127.0.0.1:1/amps/json",
    "heartbeat": 1.0,
}
"""An argument for each parameter that a method needs."""

READ_ANYTIME: Final = {"health", "report"}
"""They say that the client is not open."""

OF_LIFE: Final = {"open", "close", "aclose"}
BEFORE: Final = {
    "set_heartbeat",
    *(
        f"{do}_{what}_listener"
        for do in ("add", "remove")
        for what in ("state", "event", "command")
    ),
}
"""They prepare a trio client, whose block is entered later."""


def methods_of(kind: type) -> Iterator[str]:
    for name in dir(kind):
        static = inspect.getattr_static(kind, name)
        is_method = callable(static) and not isinstance(static, classmethod | staticmethod)
        if not name.startswith("_") and is_method and name not in READ_ANYTIME | OF_LIFE:
            yield name


def call_of(client: object, name: str) -> Callable[[], object]:
    method = getattr(client, name)
    needed = [
        each.name
        for each in inspect.signature(method).parameters.values()
        if each.default is each.empty
        and each.kind in {each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY}
    ]
    return partial(method, **{each: GIVEN[each] for each in needed})


async def finished(result: object) -> object:
    """What a call returns; for a coroutine, what that returns."""
    if not isinstance(result, Awaitable):
        return result
    waiting = cast("Awaitable[object]", result)
    return await waiting


async def accepted(client: object, *, apart_from: set[str]) -> list[str]:
    """The methods that do not refuse the call as a misuse of the client."""
    found: list[str] = []
    for name in methods_of(type(client)):
        if name in apart_from:
            continue
        try:
            result = await finished(call_of(client, name)())
            for enter in ("__aenter__", "__enter__"):  # streams and records send when entered
                if hasattr(result, enter):
                    await finished(getattr(result, enter)())
        except UsageError:
            continue
        found.append(name)
    return found


def single() -> haclient.client.Client:
    return haclient.client.Client("c", publish_store=MemoryPublishStore())


def reconnecting() -> haclient.client.HAClient:
    return haclient.client.HAClient.memory_backed("c", servers=["mem://nobody:1/amps/json"])


trio_clients = pytest.mark.parametrize("make", [single, reconnecting])


@pytest.mark.row("CC6", "CC11", "HA1")
@trio_clients
async def test_a_trio_client_that_was_not_entered_refuses_every_call(
    make: Callable[[], haclient.client.Client],
) -> None:
    client = make()
    assert await accepted(client, apart_from=BEFORE) == []
    with pytest.raises(UsageError, match=r"^publish of a client that was not entered: call it in"):
        await client.publish("prices", b"1")
    assert client.unpersisted_count == 0
    assert not client.health().is_alive
    client.add_event_listener(print)
    assert isinstance(client.publish_store, MemoryPublishStore)


@pytest.mark.row("CC6", "CC11", "HA1")
@trio_clients
async def test_a_trio_client_that_was_left_refuses_every_call(
    make: Callable[[], haclient.client.Client],
) -> None:
    client = make()
    with trio.move_on_after(1):
        async with client:
            await trio.lowlevel.checkpoint()
    assert await accepted(client, apart_from=set()) == []
    with pytest.raises(UsageError, match=r"^publish_nowait of a client that was left: make a new"):
        client.publish_nowait("prices", b"1")
    assert (client.unpersisted_count, client.metrics.unpersisted) == (0, 0)
    assert "left" in client.health().reasons[0]
    assert isinstance(client.publish_store, MemoryPublishStore)
    assert client.report().startswith("client c")


@pytest.mark.row("CC6", "CC11")
async def test_a_client_that_fails_in_its_block_refuses_every_call() -> None:
    client = single()
    with pytest.raises(ZeroDivisionError):
        async with client:
            raise ZeroDivisionError
    assert await accepted(client, apart_from=set()) == []


@pytest.mark.row("CC6", "CC11")
def test_a_blocking_client_that_is_not_open_refuses_every_call() -> None:
    client = haclient.blocking.Client("c", publish_store=MemoryPublishStore())
    assert trio.run(partial(accepted, client, apart_from=set())) == []
    assert client.unpersisted_count == 0
    with client:
        assert client.health().is_alive
    assert trio.run(partial(accepted, client, apart_from=set())) == []
    assert client.unpersisted_count == 0


@pytest.mark.row("CC6", "CC11")
def test_an_asyncio_client_that_is_not_open_refuses_every_call() -> None:
    async def main() -> None:
        client = haclient.aio.Client("c", publish_store=MemoryPublishStore())
        assert await accepted(client, apart_from=set()) == []
        async with client:
            assert client.health().is_alive
        assert await accepted(client, apart_from=set()) == []
        assert client.unpersisted_count == 0

    asyncio.run(main())
