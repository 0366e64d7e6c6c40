"""What is refused before anything is sent; the rest is in tests/scenarios."""

from __future__ import annotations

import pytest

from haclient.client import Client
from haclient.client.receiver import Receiver
from haclient.errors import UsageError
from haclient.options import Settings
from haclient.protocol.commands import Command
from haclient.transport.core import Core
from haclient.transport.subscriber import Subscriber


def receiver() -> Receiver:
    core = Core(Settings(name="c"))
    return Receiver(core, Subscriber(core))


def open_receiver() -> Receiver:
    core = Core(Settings(name="c"))
    core.thread.bind()
    return Receiver(core, Subscriber(core))


@pytest.mark.row("CC18")
@pytest.mark.parametrize("name", ["publish", "delta_publish"])
async def test_a_publish_has_nothing_to_stream(name: str) -> None:
    with pytest.raises(UsageError, match="no messages to stream"):
        await receiver().execute(Command(name, topic="t"))


@pytest.mark.row("CC18")
async def test_messages_need_a_handler() -> None:
    with pytest.raises(UsageError, match="subscribe needs a handler"):
        await open_receiver().execute_async(Command("subscribe", topic="t"), None)


@pytest.mark.row("CC17", "CC18")
async def test_an_unsubscribe_command_has_to_say_from_what() -> None:
    with pytest.raises(UsageError, match="sub_id"):
        await open_receiver().execute_async(Command("unsubscribe"), None)
    await open_receiver().execute_async(Command("unsubscribe", query_id="gone"), None)


@pytest.mark.row("CC11")
async def test_a_subscription_outside_the_block_is_refused() -> None:
    command = Command("subscribe", topic="t")
    with pytest.raises(UsageError, match="async with"):
        await receiver().handle(command, print)
    with pytest.raises(UsageError, match="async with"):
        await receiver().stream(command).open()


@pytest.mark.row("CC11", "CC13")
async def test_what_no_server_could_carry_out_is_refused() -> None:
    async with Client("c") as client:
        for options in ("nonsense", "rate=3"):
            with pytest.raises(UsageError):
                await client.stream("t", options=options + ",live,").open()
        with pytest.raises(UsageError):
            await client.subscribe("", handler=print)
        with pytest.raises(UsageError):
            await client.bookmark_stream("t", sub_id="s", bookmark="no bookmark").open()
