"""One client for a FastAPI or Starlette application, and its messages as server-sent events.

::

    amps = Lifespan("orders-api", lambda name: HAClient.memory_backed(name, servers=SERVERS))
    app = FastAPI(lifespan=amps)
    Client = Annotated[HAClient, Depends(amps.get)]

    @app.post("/orders")
    async def place(order: Order, client: Client) -> None:
        await client.publish_persisted("orders", order.model_dump_json(), timeout=10.0)

    @app.get("/orders/live")
    async def live(client: Client) -> StreamingResponse:
        return StreamingResponse(amps.events(client.stream("orders")), media_type=EVENT_STREAM)

**The shutdown of a server** such as uvicorn begins with a signal. It then waits until all requests
have ended, without a limit by default, and only then ends the lifespan of the application. A
response of server-sent events has no end of its own. So the lifespan watches SIGTERM and SIGINT,
which the server still gets, and closes the streams at once: their responses end, then the lifespan,
then the client, in order. A response that a browser does not read cannot end: limit that wait
(`uvicorn --timeout-graceful-shutdown`).
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # FastAPI runs in it
import re
import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from types import FrameType
from typing import Final

from haclient.aio import HAClient, MessageStream
from haclient.contrib.process_name import process_name
from haclient.errors import DisconnectedError, HAClientError, TimedOut, UsageError
from haclient.protocol.messages import Message
from haclient.service import STOP_SIGNALS

__all__ = ["EVENT_STREAM", "Lifespan", "server_sent_event"]

EVENT_STREAM: Final = "text/event-stream"
"""The media type of `Lifespan.events`."""

OPEN_TIMEOUT_S: Final = 5.0
KEEP_ALIVE_S: Final = 15.0
"""Proxies close connections on which nothing is sent, often after a minute."""

SEND_LIMIT_S: Final = 15.0
"""After so long a browser that reads nothing is cut: a full stream stops the client's reading."""

_LINE_END: Final = re.compile(r"\r\n|\r|\n")  # each of them ends a field


class Lifespan:
    """Keeps one client open while an application runs: `FastAPI(lifespan=Lifespan(...))`.

    The application also starts while no AMPS server is reachable; each request then tries again.
    The next request replaces a client that an error of a handler or a refused logon has ended. Use
    it as a dependency: `Depends(amps.get)`.

    Args:
        name: The first part of the client's name. Host and process id are appended, since the
            server disconnects a client when another one logs on with its name.
        make: Makes a client with the whole name, not opened.
        on_open: Called with each client that was opened, such as to subscribe; if it raises, the
            client is closed and `get` raises that.
        open_timeout: Seconds for `get` to open the client.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[str], HAClient],
        *,
        on_open: Callable[[HAClient], Awaitable[object]] | None = None,
        open_timeout: float = OPEN_TIMEOUT_S,
    ) -> None:
        self._name = name
        self._make = make
        self._on_open = on_open
        self._open_timeout_s = open_timeout
        self._lock = asyncio.Lock()
        self._client: HAClient | None = None
        self._streams: set[MessageStream] = set()
        self._is_ending = False
        self._closing = set[asyncio.Task[None]]()

    def __call__(self, app: object) -> AbstractAsyncContextManager[None]:
        """The context manager that the application enters when it starts.

        An application with a lifespan of its own enters it in there: `async with amps(app):`.

        Args:
            app: The application.
        """
        del app  # one client for all: a mounted application may have the same lifespan
        return self._life()

    @asynccontextmanager
    async def _life(self) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()  # of this loop: a test may start the application again
        self._is_ending = False
        with suppress(HAClientError):  # the application starts; requests try again
            await self.get()
        try:
            with _stop_signals_seen(lambda: loop.call_soon_threadsafe(self._end_streams)):
                yield
        finally:
            self._is_ending = True
            await _close(list(self._streams))
            await self.aclose()

    async def get(self) -> HAClient:
        """The client, open; any number of requests may use it at a time.

        Raises:
            TimedOut: No server has accepted the logon within `open_timeout`, or another request has
                been opening the client for that long.
            HAClientError: The client cannot be opened.
        """
        async with self._limited("get: another request has been opening the client for"):
            await self._lock.acquire()
        try:
            if self._client is not None and not self._client.health().is_alive:
                await self._end()  # it ended by an error that earlier requests have raised
            if self._client is None:
                self._client = await self._opened()
            return self._client
        finally:
            self._lock.release()

    @asynccontextmanager
    async def _limited(self, what: str) -> AsyncGenerator[None]:
        limit = asyncio.timeout(self._open_timeout_s)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if isinstance(error, HAClientError) or not limit.expired():  # of the block itself
                raise
            raise TimedOut(f"{what} more than {self._open_timeout_s:g} s") from error

    async def _opened(self) -> HAClient:
        client = self._make(process_name(self._name))
        await client.open(timeout=self._open_timeout_s)
        try:
            if self._on_open is not None:
                async with self._limited("get: on_open took"):
                    await self._on_open(client)
        except BaseException:  # refused, or cancelled with the request
            with suppress(Exception):  # the caller gets the error of `on_open`
                await client.aclose()
            raise
        return client

    async def aclose(self) -> None:
        """Close the client in order if it was opened; a later `get` opens another one."""
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):  # any error by which it ended; it was logged
                await client.aclose()

    # -- server-sent events ---------------------------------------------------

    def _end_streams(self) -> None:
        self._is_ending = True
        self._close_soon(self._streams)

    def _close_soon(self, streams: Iterable[MessageStream]) -> None:
        self._closing.add(task := asyncio.ensure_future(_close(list(streams))))
        task.add_done_callback(self._closing.discard)

    async def events(
        self,
        stream: MessageStream,
        *,
        event: Callable[[Message], str] | None = None,
        keep_alive: float = KEEP_ALIVE_S,
        send_limit: float = SEND_LIMIT_S,
    ) -> AsyncGenerator[str]:
        """The messages of a stream as server-sent events, for `StreamingResponse`.

        They end when the web server shuts down, when the stream ends, when the response is
        cancelled because the browser disconnected, and when the browser does not read. Each of
        these unsubscribes the stream. A plain stream also ends with its connection; the
        `EventSource` of a browser then connects again.

        Args:
            stream: The stream, not opened.
            event: Returns the text of an event, with the empty line that ends it; by default
                `server_sent_event` of the body.
            keep_alive: Seconds without a message after which a comment is sent.
            send_limit: Seconds that the browser may take for one event. Meanwhile its messages
                wait in the client, which reads no others once they are `max_queued_bytes`.

        Yields:
            Events and comments.
        """
        if self._is_ending:
            return
        self._streams.add(stream)
        loop = asyncio.get_running_loop()
        try:
            with suppress(DisconnectedError):
                await stream.open()
                async for message in stream.with_timeout(keep_alive):
                    text = ": keep-alive\n\n"
                    if message is not None:
                        text = event(message) if event else server_sent_event(message.text)
                    late = loop.call_later(send_limit, self._close_soon, [stream])
                    try:
                        yield text
                    finally:
                        late.cancel()
                    if self._is_ending:  # meanwhile, and the client may be closed
                        return
        finally:
            self._streams.discard(stream)
            await stream.aclose()


async def _close(streams: Iterable[MessageStream]) -> None:
    for stream in streams:
        await stream.aclose()


def server_sent_event(data: str, *, event: str = "", event_id: str = "") -> str:
    """The text of an event.

    Args:
        data: What a browser gets as `data`; it may have many lines.
        event: Its type; a browser takes an empty one for `message`.
        event_id: Its id; a browser sends it as `Last-Event-ID` when it connects again.

    Returns:
        The text, with the empty line that ends it.

    Raises:
        UsageError: `event` or `event_id` has a line break, behind which another field would begin.
    """
    for name, value in ("event", event), ("event_id", event_id):
        if _LINE_END.search(value):
            raise UsageError(
                f"{name} {value!r:.60} has a line break: only data may have several lines"
            )
    head = f"event: {event}\n" if event else ""
    head += f"id: {event_id}\n" if event_id else ""
    lines = _LINE_END.split(data)
    return head + "".join(f"data: {line}\n" for line in lines) + "\n"


@contextmanager
def _stop_signals_seen(react: Callable[[], object]) -> Generator[None]:
    """Call `react` at SIGTERM and SIGINT, then the handler that was there before."""
    if threading.current_thread() is not threading.main_thread():
        yield  # a server in another thread, such as that of a test, gets no signals
        return
    before: dict[int, Callable[[int, FrameType | None], object] | int] = {}
    for each in STOP_SIGNALS:
        handler = signal.getsignal(each)
        # None: it was not installed by Python, and could not be restored.
        if handler is not None and handler is not signal.SIG_IGN:
            before[each] = handler

    def handle(number: int, frame: FrameType | None) -> None:
        react()
        handler = before[number]
        if callable(handler):
            handler(number, frame)
        elif handler is signal.SIG_DFL:
            signal.signal(number, handler)
            signal.raise_signal(number)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
