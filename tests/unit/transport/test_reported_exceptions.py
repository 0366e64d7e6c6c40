"""Every exception of a handler, a listener or a background task is reported, once."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.client import Client
from haclient.errors import StoreFull
from haclient.events import Event, StateChanged
from haclient.protocol.messages import Message
from haclient.transport.message_queue import Handler
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore
from support.listening import on_exceptions
from support.peer import listening, together

pytestmark = in_virtual_time


class Boom(Exception):
    """What the handlers of these tests raise."""


def plain(message: Message) -> None:
    raise Boom(message.text)


async def waiting(message: Message) -> None:
    await trio.lowlevel.checkpoint()
    raise Boom(message.text)


@pytest.mark.row("OB7", "CC28")
@pytest.mark.parametrize("handler", [plain, waiting])
async def test_each_exception_of_a_handler_is_reported_whatever_the_policy(
    handler: Handler,
) -> None:
    reported: list[str] = []
    async with (
        listening() as server,
        Client(
            "c",
            on_event=on_exceptions(lambda error: reported.append(repr(error))),
            on_handler_error="continue",
        ) as client,
    ):
        peer = await server.log_on(client)
        await together(
            lambda: client.subscribe("orders", handler=handler, sub_id="s"),
            lambda: peer.answer("subscribe"),
        )
        await peer.publish("s", b"a")
        await peer.publish("s", b"b")
        await wait_all_tasks_blocked()
        assert reported == ["Boom('a')", "Boom('b')"]


@pytest.mark.row("OB7")
async def test_an_exception_that_leaves_the_block_is_reported_once() -> None:
    reported: list[Exception] = []
    with pytest.raises(Boom):  # noqa: PT012  # from the block
        async with (
            listening() as server,
            Client("c", on_event=on_exceptions(reported.append)) as client,
        ):
            peer = await server.log_on(client)
            await together(
                lambda: client.subscribe("orders", handler=waiting, sub_id="s"),
                lambda: peer.answer("subscribe"),
            )
            await peer.publish("s", b"a")
            await trio.sleep_forever()
    assert [repr(each) for each in reported] == ["Boom('a')"]


@pytest.mark.row("OB7")
async def test_an_exception_of_a_listener_is_reported() -> None:
    reported: list[Exception] = []

    def fail(event: Event) -> None:
        raise Boom(type(event).__name__)

    async with (
        listening() as server,
        Client("c", on_event=on_exceptions(reported.append)) as client,
    ):
        client.add_event_listener(fail, StateChanged)
        await server.connect(client)
        await wait_all_tasks_blocked()
        assert [repr(each) for each in reported] == ["Boom('StateChanged')"]


@pytest.mark.row("OB7")
async def test_a_background_error_of_the_client_itself_is_reported() -> None:
    class Full(DictBookmarkStore):
        @override
        def log(self, sub_id: str, bookmark: str) -> int:
            raise StoreFull(f"no room for {bookmark} of {sub_id}")

    reported: list[Exception] = []
    with pytest.raises(StoreFull):  # noqa: PT012  # from the block
        async with (
            listening() as server,
            Client("c", bookmark_store=Full(), on_event=on_exceptions(reported.append)) as client,
        ):
            peer = await server.log_on(client)
            await together(
                lambda: client.bookmark_subscribe("orders", handler=print, sub_id="s"),
                lambda: peer.answer("subscribe"),
            )
            await peer.publish("s", b"a", bm="1|1|")
            await trio.sleep_forever()
    assert [str(each) for each in reported] == ["no room for 1|1| of s"]


async def test_what_the_application_raises_itself_is_not_reported() -> None:
    reported: list[Exception] = []
    with pytest.raises(Boom):
        async with Client("c", on_event=on_exceptions(reported.append)):
            raise Boom
    assert not reported
