"""One client for an ASGI application, and server-sent events that end."""

from __future__ import annotations

import asyncio  # noqa: TID251  # FastAPI runs in it
import os
import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, MutableMapping
from contextlib import asynccontextmanager
from typing import Self, TypeVar

import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from typing_extensions import override

from haclient import Message
from haclient.aio import HAClient
from haclient.contrib.fastapi import EVENT_STREAM, Lifespan, server_sent_event
from haclient.errors import TimedOut, UsageError
from haclient_fake_server.config import BrokerConfig, SowTopic
from support.broker_thread import BrokerThread, broker_thread
from support.process import LIMIT_S

T = TypeVar("T")
Event = MutableMapping[str, object]


@pytest.fixture(scope="module")
def broker() -> Generator[BrokerThread]:
    topic = SowTopic(name="orders", keys=("/id",))
    with broker_thread(BrokerConfig(sow_topics=(topic,))) as running:
        yield running


def make_lifespan(
    broker: BrokerThread, on_open: Callable[[HAClient], Awaitable[object]] | None = None
) -> Lifespan:
    def make(name: str) -> HAClient:
        return HAClient.memory_backed(name, servers=[broker.uri])

    async def nothing(_client: HAClient) -> None: ...

    return Lifespan("api", make, on_open=on_open or nothing, open_timeout=LIMIT_S)


def run(main: Callable[[], Awaitable[T]]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await main()

    return asyncio.run(limited())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # nothing of what is waited for has an event
        await asyncio.sleep(0.001)


def test_the_client_lives_as_long_as_the_application(broker: BrokerThread) -> None:
    async def main() -> None:
        amps = make_lifespan(broker)
        for _ in range(2):  # a test may start the application again
            async with amps(FastAPI()):
                clients = await asyncio.gather(*(amps.get() for _ in range(5)))
                assert len(set(clients)) == 1
                assert clients[0].health().is_ready
            assert not clients[0].health().is_alive

    run(main)
    run(main)


def test_a_client_that_has_ended_for_good_is_replaced_and_prepared(broker: BrokerThread) -> None:
    seen: list[HAClient] = []

    async def main() -> None:
        async def prepare(client: HAClient) -> None:
            seen.append(client)
            if len(seen) == 2:
                raise UsageError("not now")

        amps = make_lifespan(broker, prepare)
        async with amps(FastAPI()):
            await (await amps.get()).disconnect()
            with pytest.raises(UsageError, match="not now"):
                await amps.get()
            assert not seen[1].health().is_alive
            assert await amps.get() is seen[2]

    run(main)


def test_an_error_of_a_handler_does_not_reach_the_request_that_replaces_its_client(
    broker: BrokerThread,
) -> None:
    def fail(_message: Message) -> None:
        raise ValueError("mine")

    async def main() -> None:
        amps = make_lifespan(broker)
        async with amps(FastAPI()):
            first = await amps.get()
            await first.subscribe("orders", handler=fail)
            await first.publish("orders", b'{"id": 1}')
            await until(lambda: not first.__bridge__.thread.is_running)
            assert await amps.get() is not first

    run(main)


def test_a_time_out_of_on_open_is_not_one_of_the_logon(broker: BrokerThread) -> None:
    async def prepare(_client: HAClient) -> None:
        await asyncio.sleep(0)
        raise TimeoutError("mine")

    async def main() -> None:
        with pytest.raises(TimeoutError, match="mine"):
            await make_lifespan(broker, prepare).get()

    run(main)


def test_a_signal_that_is_ignored_ends_no_stream(broker: BrokerThread) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for its background
    try:

        async def main() -> None:
            async with make_lifespan(broker)(FastAPI()):
                assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN

        run(main)
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_application_starts_without_a_server() -> None:
    async def main() -> None:
        def make(name: str) -> HAClient:
            return HAClient.memory_backed(name, servers=["tcp://127.0.0.1:1/amps/json"])

        limits, told = iter((0.3, 3.0, 30.0)), ""
        while "127.0.0.1:1" not in told:  # a busy machine may not have got as far as the refusal
            amps = Lifespan("api", make, open_timeout=next(limits))
            async with amps(FastAPI()):
                with pytest.raises(TimedOut, match="not logged on within") as late:
                    await amps.get()
            told = str(late.value)

    run(main)


def test_a_request_waits_neither_for_another_one_nor_for_on_open_without_end(
    broker: BrokerThread,
) -> None:
    class Opened(HAClient):
        @override
        async def open(self, timeout: float | None = None) -> Self:
            await super().open(timeout)
            amps._open_timeout_s = 0.01  # from here on: a busy machine may take long to open
            return self

    async def prepare(_client: HAClient) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        with pytest.raises(TimedOut, match=r"on_open took more than 0\.01 s"):
            await amps.get()
        async with amps._lock:
            with pytest.raises(TimedOut, match=r"another request .* for more than 0\.01 s"):
                await amps.get()

    amps = Lifespan(
        "api",
        lambda name: Opened.memory_backed(name, servers=[broker.uri]),
        on_open=prepare,
        open_timeout=LIMIT_S,
    )
    run(main)


# -- server-sent events ------------------------------------------------------------------


class Browser:
    """A request to an ASGI application, as a server makes it."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._leaves = asyncio.Event()
        self._asked = False
        self.text = ""
        self.status = 0

    async def get(self, path: str) -> None:
        scope: Event = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [],
        }
        await self._app(scope, self._receive, self._send)

    async def _receive(self) -> Event:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: Event) -> None:
        if event["type"] == "http.response.start":
            status = event["status"]
            assert isinstance(status, int)
            self.status = status
        else:
            body = event.get("body", b"")
            assert isinstance(body, bytes)
            self.text += body.decode()

    def leave(self) -> None:
        self._leaves.set()


@asynccontextmanager
async def streaming(
    broker: BrokerThread, keep_alive: float = 15.0
) -> AsyncGenerator[tuple[Lifespan, Browser, asyncio.Task[None]]]:
    """An application and a browser that has got the first event."""
    amps = make_lifespan(broker)
    app = FastAPI(lifespan=amps)

    async def live() -> StreamingResponse:
        stream = (await amps.get()).sow_and_stream("orders")
        events = amps.events(stream, keep_alive=keep_alive)
        return StreamingResponse(events, media_type=EVENT_STREAM)

    app.get("/live")(live)
    async with app.router.lifespan_context(app):
        await (await amps.get()).publish_persisted("orders", b'{"id": 1}', timeout=LIMIT_S)
        browser = Browser(app)
        task = asyncio.create_task(browser.get("/live"))
        await until(lambda: 'data: {"id": 1}\n\n' in browser.text)
        yield amps, browser, task


def test_a_browser_gets_the_records_and_then_each_message(broker: BrokerThread) -> None:
    async def main() -> None:
        async with streaming(broker, keep_alive=0.001) as (amps, browser, task):
            assert browser.status == 200
            await (await amps.get()).publish("orders", b'{"id": 2}')
            await until(lambda: 'data: {"id": 2}\n\n' in browser.text)
            await until(lambda: browser.text.endswith(": keep-alive\n\n"))
            browser.leave()
            await task

    run(main)


def test_the_server_is_unsubscribed_when_the_browser_leaves(broker: BrokerThread) -> None:
    async def main() -> None:
        async with streaming(broker) as (amps, browser, task):
            client = await amps.get()
            assert len(client.metrics.subscriptions) == 1
            browser.leave()
            await task
            assert len(client.metrics.subscriptions) == 0

    run(main)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_response_ends_when_the_server_is_told_to_end(
    broker: BrokerThread, number: signal.Signals
) -> None:
    got: list[int] = []  # as a server installs its handlers before it starts the application
    before = signal.signal(number, lambda number, _: got.append(number))
    try:

        async def main() -> None:
            async with streaming(broker) as (amps, _, task):
                os.kill(os.getpid(), number)
                await task  # before the lifespan ends: a server waits for responses first
                assert got == [number]
                again = amps.events((await amps.get()).stream("orders"))
                assert [text async for text in again] == []

        run(main)
        os.kill(os.getpid(), number)
        assert got == [number, number]
    finally:
        signal.signal(number, before)


def test_a_response_that_was_sending_when_the_client_was_closed_ends(broker: BrokerThread) -> None:
    async def main() -> None:
        amps = make_lifespan(broker)
        async with amps(FastAPI()):
            events = amps.events((await amps.get()).stream("orders"), keep_alive=0.001)
            assert await anext(events) == ": keep-alive\n\n"
        with pytest.raises(StopAsyncIteration):
            await anext(events)

    run(main)


def test_a_browser_that_does_not_read_is_unsubscribed(broker: BrokerThread) -> None:
    async def main() -> None:
        amps = make_lifespan(broker)
        async with amps(FastAPI()):
            client = await amps.get()
            await client.publish_persisted("orders", b'{"id": 1}', timeout=LIMIT_S)
            events = amps.events(client.sow_and_stream("orders"), send_limit=0.01)
            assert (await anext(events)).startswith("data: ")
            await until(lambda: not client.metrics.subscriptions)  # though it asks for no more
            with pytest.raises(StopAsyncIteration):
                await anext(events)

    run(main)


def test_the_response_ends_with_the_lifespan(broker: BrokerThread) -> None:
    async def main() -> None:
        async with streaming(broker) as (_, _, task):
            pass
        await task

    thread = threading.Thread(target=run, args=(main,))  # where no signals are handled
    thread.start()
    thread.join()
    run(main)


def test_the_response_ends_when_the_link_of_a_plain_stream_is_lost() -> None:
    async def main() -> None:
        topic = SowTopic(name="orders", keys=("/id",))
        with broker_thread(BrokerConfig(sow_topics=(topic,))) as own:
            async with streaming(own) as (_, _, task):
                await asyncio.to_thread(own.stop)
                await task

    run(main)


def test_an_event_has_a_line_for_each_line_of_its_data() -> None:
    assert server_sent_event("a") == "data: a\n\n"
    assert server_sent_event("a\r\nb\rc\n", event="order", event_id="7") == (
        "event: order\nid: 7\ndata: a\ndata: b\ndata: c\ndata: \n\n"
    )


@pytest.mark.parametrize("name", ["event", "event_id"])
def test_a_type_or_an_id_cannot_add_a_field(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} .* has a line break"):
        server_sent_event("x", **{name: "1\ndata: y"})


def test_the_text_of_events_can_be_chosen(broker: BrokerThread) -> None:
    def event(message: Message) -> str:
        return server_sent_event(message.text, event_id=str(message.topic))

    async def main() -> None:
        amps = make_lifespan(broker)
        async with amps(FastAPI()):
            client = await amps.get()
            await client.publish_persisted("orders", b'{"id": 1}', timeout=LIMIT_S)
            events = amps.events(client.sow("orders", filter="/id = 1"), event=event)
            assert [text async for text in events] == ['id: orders\ndata: {"id": 1}\n\n']

    run(main)
