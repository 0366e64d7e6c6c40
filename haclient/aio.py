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
ones. When the client is left, a handler that is at work is cancelled and waited for.

**The loop ends first.** A client that is still open when its loop is closed is closed when the
program ends, with a `ResourceWarning`; until then messages for a handler end it by an error.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # this module is for its users
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial, wraps
from types import TracebackType
from typing import (
    Concatenate,
    Final,
    Generic,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
)

from typing_extensions import Unpack, override

import haclient.client
import haclient.streams
from haclient.errors import UsageError
from haclient.facade.buffer import StreamBuffer, Take
from haclient.facade.loop_bridge import Bridge, LoopThread, Wakeup, in_loop
from haclient.facade.loop_records import LiveRecords, RecordsClient
from haclient.facade.loop_shutdown import run
from haclient.facade.methods import (
    CallbackArguments,
    FacadeProperty,
    described,
    translated,
    wrapped_options,
)
from haclient.facade.thread import warn_unclosed
from haclient.protocol.messages import Message
from haclient.servers.auth import Authenticator
from haclient.transport.queue_conflation import ConflationKey, sow_key
from haclient.transport.settings import ClientOptions, HAOptions
from haclient_stores.interfaces import BookmarkStore, PublishStore

__all__ = ["Batches", "Client", "HAClient", "LiveRecords", "MessageStream", "TimedMessages", "run"]

_Inner = TypeVar("_Inner")
_P = ParamSpec("_P")
_T = TypeVar("_T")
_H = TypeVar("_H", bound="HAClient")

WORDS: Final[dict[str, str]] = {}
"""What the words of the trio client's docstrings are here: they fit as they are."""


class Bridged(Protocol):
    """What has methods of the trio client."""

    @property
    def __bridge__(self) -> Bridge[object]:
        """Calls them."""
        ...


# -- how the methods are made ----------------------------------------------------------


def _call(
    method: Callable[Concatenate[Never, _P], Awaitable[_T]],
) -> Callable[Concatenate[Bridged, _P], Coroutine[object, object, _T]]:
    """The form for asyncio of a method that waits."""
    name, callbacks = method.__name__, CallbackArguments(method)

    @wraps(method)
    async def call(self: Bridged, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        bridge = self.__bridge__
        function: Callable[..., Awaitable[_T]] = getattr(bridge.inner, name)
        if not callbacks.exist:
            return await bridge.wait(partial(function, *arguments, **options), name)
        given = callbacks.wrapped(bridge.wrap, arguments, options)
        return await bridge.wait(partial(function, *given[0], **given[1]), name)

    return described(call, method, WORDS)


def _subscribes(
    method: Callable[Concatenate[Never, _P], Awaitable[str]],
) -> Callable[Concatenate[Bridged, _P], Coroutine[object, object, str]]:
    """The form for asyncio of a method that begins a subscription."""
    name, callbacks = method.__name__, CallbackArguments(method)

    @wraps(method)
    async def subscribe(self: Bridged, /, *arguments: _P.args, **options: _P.kwargs) -> str:
        bridge = self.__bridge__
        function: Callable[..., Awaitable[str]] = getattr(bridge.inner, name)
        given = callbacks.wrapped(bridge.wrap, arguments, options)
        undo: list[Callable[[str], Awaitable[None]]] = []

        async def begin() -> str:
            client = cast("haclient.client.BaseClient", bridge.inner)
            undo.append(client._subscriber.undo())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours
            return await function(*given[0], **given[1])

        async def take_back(sub_id: str) -> None:
            await undo[0](sub_id)

        return await bridge.wait(begin, name, undo=take_back)

    return described(subscribe, method, WORDS)


def _plain(
    method: Callable[Concatenate[Never, _P], _T],
) -> Callable[Concatenate[Bridged, _P], _T]:
    """The form for asyncio of a method that does not wait."""
    name, callbacks = method.__name__, CallbackArguments(method)

    @wraps(method)
    def call(self: Bridged, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        bridge = self.__bridge__
        function: Callable[..., _T] = getattr(bridge.inner, name)
        given = callbacks.wrapped(bridge.wrap, arguments, options)
        return bridge.now(partial(function, *given[0], **given[1]), name)

    return described(call, method, WORDS)


def _inspects(
    method: Callable[Concatenate[haclient.client.BaseClient, _P], _T],
) -> Callable[Concatenate[Bridged, _P], _T]:
    """The form for asyncio of a method that describes a client, also before and after its run."""
    name = method.__name__

    @wraps(method)
    def call(self: Bridged, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        def read(inner: object) -> _T:
            function: Callable[..., _T] = getattr(inner, name)
            return function(*arguments, **options)

        return self.__bridge__.read(read, name)

    return described(call, method, WORDS)


def _stream(
    method: Callable[Concatenate[Never, _P], haclient.streams.MessageStream],
) -> Callable[Concatenate[Bridged, _P], MessageStream]:
    """The form for asyncio of a method that returns a stream."""
    make = _plain(method)

    @wraps(method)
    def stream(self: Bridged, /, *arguments: _P.args, **options: _P.kwargs) -> MessageStream:
        return MessageStream(make(self, *arguments, **options), self.__bridge__.home)

    return described(stream, method, WORDS)


def _opened_stream(
    method: Callable[Concatenate[Never, _P], Awaitable[haclient.streams.MessageStream]],
) -> Callable[Concatenate[Bridged, _P], Coroutine[object, object, MessageStream]]:
    """The form for asyncio of a method that returns a stream when that is open."""
    name = method.__name__

    @wraps(method)
    async def stream(self: Bridged, /, *arguments: _P.args, **options: _P.kwargs) -> MessageStream:
        bridge = self.__bridge__
        function: Callable[..., Awaitable[haclient.streams.MessageStream]]
        function = getattr(bridge.inner, name)
        opened = await bridge.wait(
            partial(function, *arguments, **options), name, undo=lambda stream: stream.aclose()
        )
        return MessageStream(opened, bridge.home)

    return described(stream, method, WORDS)


def _reads(
    read: Callable[[haclient.client.BaseClient], _T],
) -> FacadeProperty[haclient.client.BaseClient, _T]:
    return FacadeProperty(read, haclient.client.BaseClient, WORDS)


def _reads_stream(
    read: Callable[[haclient.streams.MessageStream], _T],
) -> FacadeProperty[haclient.streams.MessageStream, _T]:
    return FacadeProperty(read, haclient.streams.MessageStream, WORDS)


def _made(make: Callable[_P, _Inner], *arguments: _P.args, **options: _P.kwargs) -> Bridge[_Inner]:
    """Make a trio client whose callbacks run in the loop."""
    home = LoopThread(str(arguments[0] if arguments else options["name"]))
    given = wrapped_options(options, partial(in_loop, home=home))
    untyped: Callable[..., _Inner] = make  # the options are what they were, except callbacks
    return Bridge(untyped(*arguments, **given), home)


class _Factory(Generic[_P]):
    """A class method that makes a client as one of the trio client does."""

    def __init__(self, make: Callable[_P, haclient.client.HAClient]) -> None:
        self._make = make
        self.__doc__ = translated(make.__doc__, WORDS)

    def __get__(self, instance: object, owner: type[_H]) -> Callable[_P, _H]:
        @wraps(self._make)
        def make(*arguments: _P.args, **options: _P.kwargs) -> _H:
            client = owner.__new__(owner)
            client.__bridge__ = _made(self._make, *arguments, **options)
            return client

        return make


# -- streams ---------------------------------------------------------------------------


class MessageStream:
    """The messages of one command, in order: `haclient.MessageStream` for asyncio.

    Use it as a context manager; leaving the block unsubscribes. Several tasks may iterate over one
    stream: each message goes to one of them. A task that is cancelled while it waits loses none::

        async with client.stream("orders") as messages:
            async for message in messages:
                ...
    """

    def __init__(self, stream: haclient.streams.MessageStream, home: LoopThread) -> None:
        self.__bridge__ = Bridge(stream, home)
        self._buffer = StreamBuffer(stream)
        self._taking = asyncio.Lock()

    async def open(self) -> Self:
        """Send the command and wait until the server has accepted it; `async with` does this.

        Returns:
            This stream.

        Raises:
            CommandError: The server refused it.
            DisconnectedError: There is no connection.
            TimedOut: The server did not answer in time.
            UsageError: It was opened before.
        """
        bridge = self.__bridge__
        await bridge.wait(bridge.inner.open, "open", undo=lambda stream: stream.aclose())
        return self

    async def aclose(self) -> None:
        """Unsubscribe and end; messages still queued are dropped. Calling it again does nothing."""
        self._buffer.clear()
        if self.__bridge__.home.thread.is_running:
            with suppress(UsageError):  # the client is closed at this moment, and the stream too
                await self.__bridge__.wait(self.__bridge__.inner.aclose, "aclose")

    async def __aenter__(self) -> Self:
        bridge = self.__bridge__
        await bridge.wait(bridge.inner.__aenter__, "open", undo=lambda stream: stream.aclose())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not GeneratorExit:  # the loop has dropped the coroutine, which cannot wait
            await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if (message := self._buffer.pop_ready()) is not None:
            return message
        return await self._next(None, self._buffer.pop)

    def conflate(self, key: ConflationKey = sow_key) -> Self:
        """As in `haclient.MessageStream`."""
        self.__bridge__.inner.conflate(key)
        self._buffer.take_one_by_one()
        return self

    conflate = described(conflate, haclient.streams.MessageStream.conflate, WORDS)

    def batches(self, max_messages: int | None = None, max_seconds: float = 0.0) -> Batches:
        """The same messages in lists: as they arrive, which is the fast path, or collected.

        Args:
            max_messages: The most messages in a list; `None` for whatever has arrived.
            max_seconds: How long to wait for that many, once there is a first one: a list is
                complete when it is full, after this time, and at the end of the stream.

        Returns:
            An async iterator of non-empty lists.

        Raises:
            UsageError: The numbers cannot be.
        """
        take = self.__bridge__.inner.batches(max_messages, max_seconds).__anext__
        pop = partial(self._buffer.pop_list, max_messages)
        return Batches(partial(self._next, take, pop))

    def with_timeout(self, seconds: float) -> TimedMessages:
        """Yield the same messages, and `None` each time that none arrives in time.

        Args:
            seconds: How long to wait for a message; 0 yields `None` at once when none is queued.

        Returns:
            An async iterator of messages and `None`.

        Raises:
            UsageError: `seconds` is negative or NaN.
        """
        self.__bridge__.inner.with_timeout(seconds)  # refuses what cannot be
        return TimedMessages(partial(self._next_or_none, seconds))

    async def _next_or_none(self, seconds: float) -> Message | None:
        async def take() -> list[Message]:
            message = await self.__bridge__.inner.with_timeout(left_s).__anext__()
            return [] if message is None else [message]

        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:  # another task may be waiting, and fetch the next messages
            async with asyncio.timeout(seconds):
                await self._taking.acquire()
        except TimeoutError:
            return self._buffer.pop_ready()
        left_s = max(0.0, seconds - (loop.time() - began_at))
        try:
            await self._fill(take)
            return self._buffer.pop()
        finally:
            self._taking.release()

    async def _next(self, take: Take | None, pop: Callable[[], _T | None]) -> _T:
        """Return what `pop` returns; wait until messages have arrived if there are none.

        Raises:
            StopAsyncIteration: No message will follow.
        """
        while True:
            async with self._taking:
                await self._fill(take)
                if found := pop():
                    return found

    async def _fill(self, take: Take | None) -> None:
        # If it is ready, another task has waited for the messages.
        if not self._buffer.is_ready and not await self.__bridge__.wait(
            partial(self._buffer.fill, take), "iterating"
        ):
            raise StopAsyncIteration

    wait_caught_up = _call(haclient.streams.MessageStream.wait_caught_up)
    caught_up = _reads_stream(lambda stream: stream.caught_up)
    gaps = _reads_stream(lambda stream: stream.gaps)
    ended = _reads_stream(lambda stream: stream.ended)
    end_reason = _reads_stream(lambda stream: stream.end_reason)

    @property
    def sub_id(self) -> str:
        """The id of the subscription; empty before the stream was opened."""
        return self.__bridge__.inner.sub_id


class TimedMessages:
    """An async iterator of messages, which yields `None` when none arrives in time."""

    def __init__(self, take: Callable[[], Awaitable[Message | None]]) -> None:
        self._take = take

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message | None:
        return await self._take()


class Batches:
    """An async iterator of non-empty lists of messages."""

    def __init__(self, take: Callable[[], Awaitable[list[Message]]]) -> None:
        self._take = take

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Message]:
        return await self._take()


# -- clients ---------------------------------------------------------------------------


class _Body:
    """The task inside the `async with` block of a client, to be cancelled if the client fails.

    Args:
        home: The client's thread and loop.
    """

    def __init__(self, home: LoopThread) -> None:
        self._thread = home.thread
        self._loop = home.running_loop("open")
        self._task = asyncio.current_task()
        self._is_left = False
        self._has_cancelled = False
        home.thread.notify_ended(self._notify)

    def _notify(self) -> None:
        with suppress(RuntimeError):  # the loop was closed, and the task with it
            self._loop.call_soon_threadsafe(self._client_ended)

    def _client_ended(self) -> None:
        if self._thread.error is not None and not self._is_left and self._task is not None:
            self._has_cancelled = True
            self._task.cancel(f"the client {self._thread.name!r} has ended by an error")

    async def leave(self, error: BaseException | None) -> bool:
        """Cancel the task no more, and take back a cancellation that this has caused.

        Returns:
            Whether somebody else has cancelled the task as well.
        """
        self._is_left = True
        if not self._has_cancelled or self._task is None:
            return False
        if not isinstance(error, asyncio.CancelledError):
            with suppress(asyncio.CancelledError):  # it was not delivered yet: it is here
                await asyncio.sleep(0)
        return self._task.uncancel() > 0


class BaseClient(RecordsClient):
    """What the two clients share: `haclient.client.BaseClient` for asyncio."""

    # -- life ---------------------------------------------------------------

    __bridge__: Bridge[haclient.client.BaseClient]
    _body: _Body | None = None

    async def open(self) -> Self:
        """Begin to use the client, as the start of its block does; then await `aclose`.

        Unlike the block, it cancels no task when the client ends by an error: calls raise it.

        Returns:
            This client. An `HAClient` is connected and logged on.

        Raises:
            UsageError: It was opened before, or no event loop of asyncio runs here.
            DisconnectedError: Another task has closed it meanwhile.
            HAClientError: An `HAClient` cannot connect.
        """
        home = self.__bridge__.home
        loop = home.running_loop("open")
        home.loop = home.loop or loop  # callbacks may be called before this call returns
        entered = Wakeup(loop)
        home.thread.start(self.__bridge__.inner, entered.notify)
        await self._unless_cancelled(entered)
        if home.thread.has_ended or home.thread.error is not None:
            await self._ended().wait_uncancelled()
            self._raise_error()
            raise home.thread.why_cut_short("open")
        return self

    async def aclose(self) -> None:
        """End it, as the end of its block does: drain, disconnect, close the stores.

        Calls that wait in other tasks are ended: they raise `DisconnectedError`. A second call
        does nothing.

        Raises:
            UsageError: A handler of this client called it, which it would wait for.
            BaseException: What a handler has raised, or by what else the client has ended.
        """
        await self._leave(drains=True)
        self._raise_error()

    async def __aenter__(self) -> Self:
        await self.open()
        self._body = _Body(self.__bridge__.home)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        thread, body = self.__bridge__.home.thread, self._body
        if kind is GeneratorExit or body is None:  # the loop has dropped the coroutine
            thread.cancel()
            return
        is_cancelled = await body.leave(error)
        await self._leave(drains=error is None)
        if is_cancelled and isinstance(error, asyncio.CancelledError):
            return  # by somebody else, too, which goes before; the error was logged
        if error is None or error is not thread.error:
            self._raise_error()

    async def _leave(self, *, drains: bool) -> None:
        home = self.__bridge__.home
        if not home.thread.is_running:
            return  # also in a process that was forked: the client belongs to the other one
        home.running_loop("aclose")
        if asyncio.current_task() in home.callback_tasks:
            raise UsageError(
                "aclose was called by a handler of the client, and would wait for that handler: "
                "call it in the task that has opened the client"
            )
        home.thread.stop(drains=drains)
        await self._unless_cancelled(self._ended())
        home.thread.join()  # it has nothing left to do

    def _ended(self) -> Wakeup:
        """Notified when the client's thread has ended."""
        home = self.__bridge__.home
        ended = Wakeup(home.running_loop("aclose"))
        home.thread.notify_ended(ended.notify)
        return ended

    async def _unless_cancelled(self, event: Wakeup) -> None:
        """Wait for an event; if that is cancelled, leave the client at once, and wait for that."""
        thread = self.__bridge__.home.thread
        try:
            await event.wait()
        except asyncio.CancelledError:
            thread.cancel()
            await self._ended().wait_uncancelled()
            thread.join()
            raise
        except BaseException:  # the coroutine is closed, and can wait for nothing
            thread.cancel()
            raise

    def _raise_error(self) -> None:
        """Raise by what the client has ended, once."""
        thread = self.__bridge__.home.thread
        if thread.error is not None and not thread.is_reported:
            thread.is_reported = True
            raise thread.error

    def __del__(self) -> None:
        bridge: Bridge[object] | None = getattr(self, "__bridge__", None)
        if bridge is not None and bridge.home.thread.is_abandoned:  # making it may have failed
            warn_unclosed(bridge.home.thread)
            bridge.home.thread.stop()

    @override
    def __repr__(self) -> str:
        thread = self.__bridge__.home.thread
        state = "open" if thread.is_running else "not open"
        return f"<{type(self).__module__}.{type(self).__qualname__} {thread.name!r}, {state}>"

    add_event_listener = _plain(haclient.client.BaseClient.add_event_listener)
    remove_event_listener = _plain(haclient.client.BaseClient.remove_event_listener)
    name = _reads(lambda client: client.name)
    state = _reads(lambda client: client.state)
    uri = _reads(lambda client: client.uri)
    connection_info = _reads(lambda client: client.connection_info)
    metrics = _reads(lambda client: client.metrics)
    health = _inspects(haclient.client.BaseClient.health)
    report = _inspects(haclient.client.BaseClient.report)
    explain_recovery = _plain(haclient.client.BaseClient.explain_recovery)
    persisted_sequence = _reads(lambda client: client.persisted_sequence)
    publish_store = _reads(lambda client: client.publish_store)
    bookmark_store = _reads(lambda client: client.bookmark_store)
    unpersisted_count = _reads(lambda client: client.unpersisted_count)

    disconnect = _call(haclient.client.BaseClient.disconnect)

    # -- publishing ---------------------------------------------------------

    publish = _call(haclient.client.BaseClient.publish)
    publish_many = _call(haclient.client.BaseClient.publish_many)
    publish_json = _call(haclient.client.BaseClient.publish_json)
    publish_persisted = _call(haclient.client.BaseClient.publish_persisted)
    publish_nowait = _plain(haclient.client.BaseClient.publish_nowait)
    publish_flush = _call(haclient.client.BaseClient.publish_flush)
    wait_persisted = _call(haclient.client.BaseClient.wait_persisted)
    flush = _call(haclient.client.BaseClient.flush)
    sow_delete = _call(haclient.client.BaseClient.sow_delete)

    # -- subscribing --------------------------------------------------------

    subscribe = _subscribes(haclient.client.BaseClient.subscribe)
    stream = _stream(haclient.client.BaseClient.stream)
    bookmark_subscribe = _subscribes(haclient.client.BaseClient.bookmark_subscribe)
    bookmark_stream = _stream(haclient.client.BaseClient.bookmark_stream)
    sow = _stream(haclient.client.BaseClient.sow)
    sow_and_stream = _stream(haclient.client.BaseClient.sow_and_stream)
    sow_and_subscribe = _subscribes(haclient.client.BaseClient.sow_and_subscribe)
    pause = _call(haclient.client.BaseClient.pause)
    resume = _call(haclient.client.BaseClient.resume)
    replace = _call(haclient.client.BaseClient.replace)
    unsubscribe = _call(haclient.client.BaseClient.unsubscribe)
    execute = _opened_stream(haclient.client.BaseClient.execute)
    execute_async = _subscribes(haclient.client.BaseClient.execute_async)

    # -- queues -------------------------------------------------------------

    queue_subscribe = _subscribes(haclient.client.BaseClient.queue_subscribe)
    queue_stream = _stream(haclient.client.BaseClient.queue_stream)
    ack = _call(haclient.client.BaseClient.ack)
    ack_matching = _call(haclient.client.BaseClient.ack_matching)
    flush_acks = _call(haclient.client.BaseClient.flush_acks)


described(BaseClient.records, haclient.client.BaseClient.records, WORDS)


class Client(BaseClient):
    """An AMPS client for one server at a time: `haclient.Client` for asyncio.

    Args:
        name: Identifies this client and its publishes. It must be unique, and the same in every
            run.
        publish_store: Keeps publishes until they are persisted. The client owns it and closes it.
        bookmark_store: Remembers what subscriptions have finished with. Owned and closed likewise.
        authenticator: Provides the credentials for each logon; by default it sends the URI's
            password. It runs in the client's thread, and must not use asyncio.
        **options: See `Settings`.

    Raises:
        UsageError: The name or a limit can never work.
        StoreLocked: A store belongs to another client, or is in use by another process.
    """

    def __init__(
        self,
        name: str,
        *,
        publish_store: PublishStore | None = None,
        bookmark_store: BookmarkStore | None = None,
        authenticator: Authenticator | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        self.__bridge__ = _made(
            haclient.client.Client,
            name,
            publish_store=publish_store,
            bookmark_store=bookmark_store,
            authenticator=authenticator,
            **options,
        )

    connect = _call(haclient.client.Client.connect)
    logon = _call(haclient.client.Client.logon)
    set_heartbeat = _call(haclient.client.Client.set_heartbeat)


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

    def __init__(
        self,
        name: str,
        *,
        publish_store: PublishStore | None = None,
        bookmark_store: BookmarkStore | None = None,
        **options: Unpack[HAOptions],
    ) -> None:
        self.__bridge__ = _made(
            haclient.client.HAClient,
            name,
            publish_store=publish_store,
            bookmark_store=bookmark_store,
            **options,
        )

    memory_backed = _Factory(haclient.client.HAClient.memory_backed)
    file_backed = _Factory(haclient.client.HAClient.file_backed)

    disconnect = _call(haclient.client.HAClient.disconnect)
    move_to = _call(haclient.client.HAClient.move_to)
    restore_subscriptions = _call(haclient.client.HAClient.restore_subscriptions)
