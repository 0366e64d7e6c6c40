"""The client for asyncio applications, such as those of FastAPI.

`HAClient` and `Client` have the methods of `haclient.HAClient` and `haclient.Client`, under the
same names and with the same arguments; what is awaited there is awaited here::

    async with HAClient("orders-7", servers=[uri]) as client:
        await client.publish("orders", b"{}")
        async with client.stream("orders") as messages:
            async for message in messages:
                ...

The client itself lives in a thread of its own, which runs trio. It belongs to the event loop in
which it was opened, whatever loop that is: only what every loop of asyncio has is used.

**Cancellation.** A call that is cancelled (`asyncio.timeout`, `wait_for`, `task.cancel()`) is
cancelled in the client's thread and waited for, then `CancelledError` is raised. A subscription
that the server has accepted at that moment is ended, since its caller never gets its id; one that
was active before stays, and a message that has arrived stays in its stream.

**Handlers and listeners** may be plain functions or coroutine functions. They run in the event
loop, each coroutine function as a task, one message of a subscription at a time and in order, in a
copy of the context in which they were given. A message is discarded or acknowledged after its
handler has returned. What a handler raises ends the client, as in trio: the task inside the
`async with` block is cancelled and the block raises the error; so do calls that wait and all later
ones, also of a client that was opened without a block. When the client is left, a handler that is
that is running is cancelled and waited for.

**The loop ends first.** A client that is still open when its loop is closed is closed when the
program ends, with a `ResourceWarning`; until then messages for a handler end it by an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Concatenate, Generic, Never, ParamSpec, Protocol, Self, TypeVar, cast, overload

from typing_extensions import override

import haclient.client
from haclient.client import BaseClient as TrioClient
from haclient.codecs import Topic
from haclient.errors import DisconnectedError, HAClientError, UsageError
from haclient.facade.buffer import StreamBuffer
from haclient.facade.loop_bridge import WORDS, LoopThread, run
from haclient.facade.methods import (
    FacadeClient,
    Factory,
    Method,
    Openable,
    Reads,
    Subscribing,
    close_inner,
    like,
    made_of,
    makes,
    next_change_arrived,
    open_inner,
    plain,
    with_words,
)
from haclient.facade.thread import Bridge
from haclient.live_records import JsonRecord, RecordChange, RecordMapping
from haclient.live_records import LiveRecords as TrioRecords
from haclient.observability.metrics import ClientMetrics
from haclient.options import TIMEOUT_S
from haclient.protocol.messages import Message
from haclient.session.back_pressure import ConflationKey, sow_key
from haclient.session.connection_state import ConnectionState
from haclient.streams import MessageStream as TrioStream
from haclient_stores.interfaces import BookmarkStore, PublishStore

__all__ = ["Batches", "Client", "HAClient", "LiveRecords", "MessageStream", "TimedMessages", "run"]

_I = TypeVar("_I", bound=Openable)
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Bridged(Protocol):
    """What has methods of the trio client."""

    @property
    def __bridge__(self) -> Bridge[object, LoopThread]:
        """The object of the trio client, and its thread."""
        ...


# -- how the methods are made ----------------------------------------------------------


def _call(
    method: Callable[Concatenate[Never, _P], Awaitable[_T]],
) -> Callable[Concatenate[Bridged, _P], Coroutine[object, object, _T]]:
    """The form of a method that waits."""
    inner = Method(method)

    @like(method)
    async def call(self: Bridged, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        bridge = self.__bridge__
        return await bridge.thread.wait(inner.bound(bridge, arguments, options), inner.name)

    return call


def _subscribes(
    method: Callable[Concatenate[Never, _P], Awaitable[str]],
) -> Callable[Concatenate[Bridged, _P], Coroutine[object, object, str]]:
    """The form of a method that begins a subscription."""
    inner = Method(method)

    @like(method)
    async def call(self: Bridged, /, *arguments: _P.args, **options: _P.kwargs) -> str:
        bridge = self.__bridge__
        subscribing = Subscribing(bridge.inner, inner.bound(bridge, arguments, options))
        return await bridge.thread.wait(subscribing.begin, inner.name, undo=subscribing.undo)

    return call


def _stream(
    method: Callable[Concatenate[Never, _P], TrioStream],
) -> Callable[Concatenate[Bridged, _P], MessageStream]:
    """The form of a method that returns a stream."""
    make = plain(method)

    @like(method)
    def call(self: Bridged, /, *arguments: _P.args, **options: _P.kwargs) -> MessageStream:
        return MessageStream(make(self, *arguments, **options), self.__bridge__.thread)

    return call


def _opened_stream(
    method: Callable[Concatenate[Never, _P], Awaitable[TrioStream]],
) -> Callable[Concatenate[Bridged, _P], Coroutine[object, object, MessageStream]]:
    """The form of a method that returns a stream when that is open."""
    inner = Method(method)

    @like(method)
    async def call(self: Bridged, /, *arguments: _P.args, **options: _P.kwargs) -> MessageStream:
        bridge = self.__bridge__
        opening = inner.bound(bridge, arguments, options)
        opened = partial(made_of, opening, partial(MessageStream, thread=bridge.thread))
        return await bridge.thread.wait(opened, inner.name, undo=close_inner)

    return call


# -- streams and records -----------------------------------------------------------------


class _Iterator(Generic[_T]):
    """An async iterator of what a function returns until it raises `StopAsyncIteration`."""

    def __init__(self, take: Callable[[], Coroutine[object, object, _T]]) -> None:
        self._take = take

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _T:
        return await self._take()


class TimedMessages(_Iterator[Message | None]):
    """An async iterator of messages, which yields `None` when none arrives in time."""


class Batches(_Iterator[list[Message]]):
    """An async iterator of non-empty lists of messages."""


class RecordChanges(_Iterator[RecordChange[_T]]):
    """An async iterator of changes, which any number of tasks may use."""


class _Opened(Generic[_I]):
    """What a command opens, and what is closed: a stream, or records."""

    __bridge__: Bridge[_I, LoopThread]

    async def open(self) -> Self:
        """Send the command and wait until the server has accepted it; `async with` does this.

        Records are complete then.

        Raises:
            CommandError: The server refused it.
            DisconnectedError: There is no connection.
            TimedOut: The server did not answer in time.
            UsageError: It was opened before.
        """
        opened = partial(open_inner, self)
        return await self.__bridge__.thread.wait(opened, "open", undo=close_inner)

    async def aclose(self) -> None:
        """Unsubscribe and end; messages still queued are dropped. Calling it again does nothing."""
        if self.__bridge__.thread.is_running:
            # The client may be closed at this moment, and this with it.
            with suppress(UsageError, DisconnectedError):
                await self.__bridge__.thread.wait(partial(close_inner, self), "aclose")

    async def __aenter__(self) -> Self:
        opened = partial(open_inner, self, is_entered=True)
        return await self.__bridge__.thread.wait(opened, "open", undo=close_inner)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # asyncio: the loop has dropped the coroutine, which cannot wait
        if kind is GeneratorExit:
            return
        # both
        await self.aclose()


@with_words(WORDS)
class MessageStream(_Opened[TrioStream]):
    """The messages of one command, in order: `haclient.MessageStream` for asyncio.

    Use it as a context manager; leaving the block unsubscribes. Several tasks may iterate over
    one stream: each message goes to one. A task that is cancelled while it waits loses none::

        async with client.stream("orders") as messages:
            async for message in messages:
                ...
    """

    def __init__(self, stream: TrioStream, thread: LoopThread) -> None:
        self.__bridge__ = Bridge(stream, thread)
        self._buffer = StreamBuffer(stream, thread)

    @override
    async def aclose(self) -> None:
        """Unsubscribe and end; messages still queued are dropped. Calling it again does nothing."""
        self._buffer.close()
        await super().aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        buffer = self._buffer
        if (message := buffer.pop()) is not None:
            return message
        wait = self.__bridge__.thread.wait
        for taken in await wait(buffer.take, "iterating", undo=buffer.put_back):
            return taken
        raise StopAsyncIteration

    @like(TrioStream.conflate)
    def conflate(self, key: ConflationKey = sow_key) -> Self:
        """As in `haclient.MessageStream`."""
        self.__bridge__.inner.conflate(key)
        self._buffer.take_one_by_one()
        return self

    @like(TrioStream.batches)
    def batches(self, max_messages: int | None = None, max_seconds: float = 0.0) -> Batches:
        """As in `haclient.MessageStream`."""
        lists = self.__bridge__.inner.batches(max_messages, max_seconds)
        return Batches(partial(self._next_list, partial(self._buffer.take, lists, max_messages)))

    async def _next_list(self, take: Callable[[], Awaitable[list[Message]]]) -> list[Message]:
        wait = self.__bridge__.thread.wait
        if taken := await wait(take, "iterating", undo=self._buffer.put_back):
            return taken
        raise StopAsyncIteration

    @like(TrioStream.with_timeout)
    def with_timeout(self, seconds: float) -> TimedMessages:
        """As in `haclient.MessageStream`."""
        self.__bridge__.inner.with_timeout(seconds)  # refuses what cannot be
        return TimedMessages(partial(self._next_or_none, seconds))

    async def _next_or_none(self, seconds: float) -> Message | None:
        buffer = self._buffer
        take, wait = partial(buffer.take_within, seconds), self.__bridge__.thread.wait
        for taken in await wait(take, "iterating", undo=buffer.put_back):
            return taken
        raise StopAsyncIteration

    wait_caught_up = _call(TrioStream.wait_caught_up)
    caught_up = Reads[bool](TrioStream)
    gaps = Reads[int](TrioStream)
    ended = Reads[bool](TrioStream)
    end_reason = Reads[HAClientError | None](TrioStream)

    @property
    def sub_id(self) -> str:
        """The id of the subscription; empty before the stream was opened."""
        return self.__bridge__.inner.sub_id


class LiveRecords(RecordMapping[_T], _Opened[TrioRecords[_T]]):
    """The records of a topic, by key: `haclient.LiveRecords` for asyncio.

    Any thread may read it. Several tasks may take changes: each change goes to one of them, and
    none is lost when a wait is cancelled::

        async with client.records("prices", key=lambda price: price["symbol"]) as prices:
            print(prices["A"])
            async for change in prices.changes():
                print(change.kind, change.key, change.new)
    """

    def __init__(self, records: TrioRecords[_T], thread: LoopThread) -> None:
        super().__init__(records._view)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours
        self.__bridge__ = Bridge(records, thread)

    def changes(self) -> RecordChanges[_T]:
        """Each change from now on, without an end."""
        return RecordChanges(self._next_change)

    async def _next_change(self) -> RecordChange[_T]:
        # Only the wait can be cancelled, and it takes no change.
        records, thread = self.__bridge__.inner, self.__bridge__.thread
        arrived = partial(next_change_arrived, records, thread)
        while (change := self.__bridge__.read(records.pop_change, "iterating")) is None:
            is_closed = not thread.is_running and thread.error is None
            if is_closed or not await thread.wait(arrived, "iterating"):
                raise StopAsyncIteration
        return change

    # asyncio: a loop over a plain mapping yields its keys
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordChange[_T]:
        return await self._next_change()

    # both
    caught_up = Reads[bool](TrioRecords)
    ended = Reads[bool](TrioRecords)


# -- clients ---------------------------------------------------------------------------


@with_words(WORDS)
class BaseClient(FacadeClient[LoopThread]):
    """What the two clients share: `haclient.client.BaseClient` for asyncio."""

    # -- life ---------------------------------------------------------------

    async def open(self, timeout: float | None = None) -> Self:
        """Begin to use the client, as the start of its `async with` block does; then call `aclose`.

        Args:
            timeout: Seconds for the logon of an `HAClient`, `None` for no limit; after `TimedOut`
                make a new client.

        Returns:
            This client. An `HAClient` is connected and logged on.

        Raises:
            UsageError: It was opened before, or cannot be used here, or `timeout` is no time.
            HAClientError: It cannot connect; `TimedOut`; `DisconnectedError`: it was closed.
        """
        bridge = self.__bridge__
        return await bridge.thread.open(bridge.inner, timeout, self)

    async def aclose(self) -> None:
        """End it, as the end of its `async with` block does: drain, disconnect, close the stores.

        Calls that wait in other tasks raise `DisconnectedError`. A second call does nothing.

        Raises:
            UsageError: A handler of this client called it, which it would wait for.
            BaseException: What a handler has raised, or by what else the client has ended.
        """
        await self.__bridge__.thread.leave(drains=True)
        self.__bridge__.thread.raise_error()

    async def __aenter__(self) -> Self:
        bridge = self.__bridge__
        return await bridge.thread.enter(bridge.inner, None, self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.__bridge__.thread.exit(kind, error)

    disconnect = _call(TrioClient.disconnect)
    add_event_listener = plain(TrioClient.add_event_listener)
    remove_event_listener = plain(TrioClient.remove_event_listener)
    name = Reads[str](TrioClient)
    state = Reads[ConnectionState](TrioClient)
    uri = Reads[str](TrioClient)
    connection_info = Reads[Mapping[str, str]](TrioClient)
    metrics = Reads[ClientMetrics](TrioClient)
    health = plain(TrioClient.health, anytime=True)
    report = plain(TrioClient.report, anytime=True)
    explain_recovery = plain(TrioClient.explain_recovery)
    persisted_sequence = Reads[int | None](TrioClient)
    publish_store = Reads[PublishStore | None](TrioClient)
    bookmark_store = Reads[BookmarkStore | None](TrioClient)
    unpersisted_count = Reads[int](TrioClient)

    # -- publishing ---------------------------------------------------------

    publish = _call(TrioClient.publish)
    publish_many = _call(TrioClient.publish_many)
    publish_json = _call(TrioClient.publish_json)
    publish_persisted = _call(TrioClient.publish_persisted)
    publish_nowait = plain(TrioClient.publish_nowait)
    publish_flush = _call(TrioClient.publish_flush)
    wait_persisted = _call(TrioClient.wait_persisted)
    flush = _call(TrioClient.flush)
    sow_delete = _call(TrioClient.sow_delete)

    # -- subscribing --------------------------------------------------------

    subscribe = _subscribes(TrioClient.subscribe)
    stream = _stream(TrioClient.stream)
    bookmark_subscribe = _subscribes(TrioClient.bookmark_subscribe)
    bookmark_stream = _stream(TrioClient.bookmark_stream)
    sow = _stream(TrioClient.sow)
    sow_and_stream = _stream(TrioClient.sow_and_stream)
    sow_and_subscribe = _subscribes(TrioClient.sow_and_subscribe)
    pause = _call(TrioClient.pause)
    resume = _call(TrioClient.resume)
    replace = _call(TrioClient.replace)
    unsubscribe = _call(TrioClient.unsubscribe)
    execute = _opened_stream(TrioClient.execute)
    execute_async = _subscribes(TrioClient.execute_async)

    # -- queues -------------------------------------------------------------

    queue_subscribe = _subscribes(TrioClient.queue_subscribe)
    queue_stream = _stream(TrioClient.queue_stream)
    ack = _call(TrioClient.ack)
    ack_matching = _call(TrioClient.ack_matching)
    flush_acks = _call(TrioClient.flush_acks)

    # -- records ------------------------------------------------------------

    @overload
    def records(
        self,
        topic: str,
        *,
        key: Callable[[JsonRecord], Hashable] | None = None,
        filter: str = "",
        deltas: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> LiveRecords[JsonRecord]: ...

    @overload
    def records(
        self,
        topic: Topic[_T],
        *,
        key: Callable[[_T], Hashable] | None = None,
        filter: str = "",
        deltas: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> LiveRecords[_T]: ...

    @like(TrioClient.records)
    def records(
        self,
        topic: str | Topic[_T],
        *,
        key: Callable[[JsonRecord], Hashable] | Callable[[_T], Hashable] | None = None,
        filter: str = "",  # noqa: A002  # the protocol's word
        deltas: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> LiveRecords[JsonRecord] | LiveRecords[_T]:
        """As in `haclient.Client`."""
        bridge = self.__bridge__
        make = partial(
            bridge.inner.records,
            cast("Topic[_T]", topic),
            key=cast("Callable[[_T], Hashable] | None", key),
            filter=filter,
            deltas=deltas,
            timeout=timeout,
        )
        return LiveRecords(bridge.thread.now(make, "records"), bridge.thread)


@with_words(WORDS)
class Client(BaseClient):
    """An AMPS client for one server at a time: `haclient.Client` for asyncio.

    Args:
        name: Identifies this client and its publishes. It must be unique, and the same in every
            run.
        publish_store: Keeps publishes until they are persisted. The client owns it and closes it.
        bookmark_store: Remembers what subscriptions have finished with. Owned and closed likewise.
        authenticator: Provides the credentials for each logon; by default it sends the URI's
            password. It runs in the client's thread, which runs trio.
        **options: See `Settings`.

    Raises:
        UsageError: The name or a limit can never work.
        StoreLocked: A store belongs to another client, or is in use by another process.
    """

    @makes(LoopThread, haclient.client.Client)
    def __init__(self) -> None: ...

    connect = _call(haclient.client.Client.connect)
    logon = _call(haclient.client.Client.logon)
    set_heartbeat = _call(haclient.client.Client.set_heartbeat)


@with_words(WORDS)
class HAClient(BaseClient):
    """An AMPS client that stays connected to one of several servers, for asyncio.

    See `haclient.HAClient`. Entering the block, or `open`, connects and logs on; leaving it, or
    `aclose`, drains and stops.

    Args:
        name: Identifies this client and its publishes; the same in every run, unlike all others.
        publish_store: Keeps publishes until they are persisted. Owned and closed.
        bookmark_store: Remembers what subscriptions have finished with. Owned and closed.
        **options: See `HASettings`; `servers` or `server_chooser` is needed.

    Raises:
        UsageError: Neither or both of `servers` and `server_chooser` are given, or a value is
            invalid.
        StoreLocked: A store belongs to another client.
    """

    @makes(LoopThread, haclient.client.HAClient)
    def __init__(self) -> None: ...

    memory_backed = Factory(LoopThread, haclient.client.HAClient.memory_backed)
    file_backed = Factory(LoopThread, haclient.client.HAClient.file_backed)

    disconnect = _call(haclient.client.HAClient.disconnect)
    move_to = _call(haclient.client.HAClient.move_to)
    restore_subscriptions = _call(haclient.client.HAClient.restore_subscriptions)
