"""The client for programs without an event loop: scripts, notebooks, Flask, Django.

`HAClient` and `Client` have the methods of `haclient.HAClient` and `haclient.Client`, under the
same names and with the same arguments, as ordinary calls that block the calling thread only::

    with HAClient("orders-7", servers=[uri]) as client:
        client.publish("orders", b"{}")
        with client.stream("orders") as messages:
            for message in messages:
                ...

The client itself lives in a thread of its own, which runs trio. Any number of threads may call it
at the same time; what one thread publishes keeps its order. A call that waits is ended by a
`KeyboardInterrupt`, and by `close` in another thread.

Handlers and listeners are plain functions. Each runs in a worker thread, one message at a time, in
the order of its subscription, and may call the client. What a handler raises ends the client, as in
trio: calls that wait and all later ones raise it, and so does leaving the block.

In a thread that runs trio or asyncio the calls are refused, since they would stop the event loop:
use `haclient.HAClient` or `haclient.aio.HAClient` there. Notebooks are the exception: a cell may
block.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial, wraps
from threading import get_ident
from time import monotonic  # noqa: TID251  # a thread that waits for a lock runs no trio
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
)

from typing_extensions import Unpack, override

import haclient.client
import haclient.streams
from haclient.errors import UsageError
from haclient.facade.buffer import StreamBuffer, Take
from haclient.facade.methods import (
    CallbackArguments,
    FacadeProperty,
    described,
    translated,
    wrapped_options,
)
from haclient.facade.shutdown import run
from haclient.facade.thread import TrioThread, warn_unclosed
from haclient.facade.thread_bridge import Bridge, acquire, in_worker_thread, refuse_event_loop
from haclient.facade.thread_records import LiveRecords, RecordsClient
from haclient.protocol.messages import Message
from haclient.servers.auth import Authenticator
from haclient.transport.queue_conflation import ConflationKey, sow_key
from haclient.transport.settings import ClientOptions, HAOptions, seconds
from haclient_stores.interfaces import BookmarkStore, PublishStore

__all__ = ["Batches", "Client", "HAClient", "LiveRecords", "MessageStream", "TimedMessages", "run"]

_Inner = TypeVar("_Inner")
_P = ParamSpec("_P")
_T = TypeVar("_T")
_H = TypeVar("_H", bound="HAClient")

WORDS: Final = {
    "async with": "with",
    "async for": "for",
    "An async iterator": "An iterator",
    "A coroutine function or plain function": "A plain function",
    "A plain function or a coroutine function": "A plain function",
    "another task": "another thread",
}
"""What the words of the trio client's docstrings are here."""


class Bridged(Protocol):
    """What has methods of the trio client."""

    @property
    def __bridge__(self) -> Bridge[object]:
        """Calls them."""
        ...


# -- how the methods are made ----------------------------------------------------------


def _call(
    method: Callable[Concatenate[Never, _P], Awaitable[_T]],
) -> Callable[Concatenate[Bridged, _P], _T]:
    """The blocking form of a method that waits."""
    name, callbacks = method.__name__, CallbackArguments(method)

    @wraps(method)
    def call(self: Bridged, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        bridge = self.__bridge__
        function: Callable[..., Awaitable[_T]] = getattr(bridge.inner, name)
        if not callbacks.exist:
            return bridge.wait(partial(function, *arguments, **options), name)
        given = callbacks.wrapped(bridge.wrap, arguments, options)
        return bridge.wait(partial(function, *given[0], **given[1]), name)

    return described(call, method, WORDS)


def _plain(
    method: Callable[Concatenate[Never, _P], _T],
) -> Callable[Concatenate[Bridged, _P], _T]:
    """The blocking form of a method that does not wait."""
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
    """The blocking form of a method that describes a client, also before and after its run."""
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
    """The blocking form of a method that returns a stream."""
    make = _plain(method)

    @wraps(method)
    def stream(self: Bridged, /, *arguments: _P.args, **options: _P.kwargs) -> MessageStream:
        return MessageStream(make(self, *arguments, **options), self.__bridge__.thread)

    return described(stream, method, WORDS)


def _opened_stream(
    method: Callable[Concatenate[Never, _P], Awaitable[haclient.streams.MessageStream]],
) -> Callable[Concatenate[Bridged, _P], MessageStream]:
    """The blocking form of a method that returns a stream when that is open."""
    name = method.__name__

    @wraps(method)
    def stream(self: Bridged, /, *arguments: _P.args, **options: _P.kwargs) -> MessageStream:
        bridge, opened = self.__bridge__, list[haclient.streams.MessageStream]()

        async def send() -> None:
            function: Callable[..., Awaitable[haclient.streams.MessageStream]]
            function = getattr(bridge.inner, name)
            opened.append(await function(*arguments, **options))

        try:
            bridge.wait(send, name)
            return MessageStream(opened[0], bridge.thread)
        except BaseException:  # a KeyboardInterrupt: the caller never gets it
            with suppress(Exception):  # the client has ended at this moment, and the stream with it
                for each in opened:
                    MessageStream(each, bridge.thread).close()
            raise

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
    """Make a trio client whose callbacks run in worker threads."""
    thread = TrioThread(str(arguments[0] if arguments else options["name"]))
    given = wrapped_options(options, partial(in_worker_thread, thread=thread))
    untyped: Callable[..., _Inner] = make  # the options are what they were, except callbacks
    return Bridge(untyped(*arguments, **given), thread)


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
    """The messages of one command, in order: `haclient.MessageStream` as a plain iterator.

    Use it as a context manager; leaving the block unsubscribes. Several threads may iterate over
    one stream: each message goes to one of them. `close` in another thread ends the iteration::

        with client.stream("orders") as messages:
            for message in messages:
                ...
    """

    def __init__(self, stream: haclient.streams.MessageStream, thread: TrioThread) -> None:
        self.__bridge__ = Bridge(stream, thread)
        self._buffer = StreamBuffer(stream)
        self._taking = threading.RLock()  # knows which thread has it

    def open(self) -> Self:
        """Send the command and wait until the server has accepted it; `with` does this.

        Returns:
            This stream.

        Raises:
            CommandError: The server refused it.
            DisconnectedError: There is no connection.
            TimedOut: The server did not answer in time.
            UsageError: It was opened before.
        """
        try:
            self.__bridge__.wait(self.__bridge__.inner.open, "open")
            return self  # noqa: TRY300  # an interrupt may come here, too
        except UsageError:  # it was opened before, and may be in use
            raise
        except BaseException:  # a KeyboardInterrupt, maybe just after the server's answer
            self._close_unopened()
            raise

    def close(self) -> None:
        """Unsubscribe and end; messages still queued are dropped. Calling it again does nothing."""
        self._buffer.clear()
        if self.__bridge__.thread.is_running:
            with suppress(UsageError):  # the client is closed at this moment, and the stream too
                self.__bridge__.wait(self.__bridge__.inner.aclose, "close")

    def __enter__(self) -> Self:
        try:
            self.__bridge__.wait(self.__bridge__.inner.__aenter__, "open")
            return self  # noqa: TRY300  # an interrupt may come here, too
        except BaseException:  # a KeyboardInterrupt: `with` closes only what was entered
            self._close_unopened()
            raise

    def _close_unopened(self) -> None:
        """Close it where another error is raised: nobody else would."""
        with suppress(Exception):  # the client has ended at this moment, and the stream with it
            self.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        if (message := self._buffer.pop_ready()) is not None:
            return message
        return self._next(None, self._buffer.pop)

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
            An iterator of non-empty lists.

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
            An iterator of messages and `None`.

        Raises:
            UsageError: `seconds` is negative or NaN.
        """
        self.__bridge__.inner.with_timeout(seconds)  # refuses what cannot be
        return TimedMessages(partial(self._next_or_none, seconds))

    def _next_or_none(self, seconds: float) -> Message | None:
        async def take() -> list[Message]:
            message = await self.__bridge__.inner.with_timeout(left_s).__anext__()
            return [] if message is None else [message]

        self.__bridge__.thread.check_process()  # first: the lock may be held by the other process
        began_at = monotonic()
        try:
            # Another thread may be waiting, and fetch the next messages.
            if self._taking.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
                left_s = max(0.0, seconds - (monotonic() - began_at))
                self._fill(take)
                return self._buffer.pop()
        finally:  # an interrupt may come just after `acquire`, so this thread may have the lock
            try:  # noqa: SIM105  # an interrupt may come in `suppress`
                self._taking.release()
            except RuntimeError:  # it has not
                pass
        return self._buffer.pop_ready()

    def _next(self, take: Take | None, pop: Callable[[], _T | None]) -> _T:
        """Return what `pop` returns; wait until messages have arrived if there are none.

        Raises:
            StopIteration: No message will follow.
        """
        self.__bridge__.thread.check_process()  # first: the lock may be held by the other process
        while True:
            with self._taking:
                self._fill(take)
                if found := pop():
                    return found

    def _fill(self, take: Take | None) -> None:
        # If it is ready, another thread has waited for the messages.
        if not self._buffer.is_ready and not self.__bridge__.wait(
            partial(self._buffer.fill, take), "iterating"
        ):
            raise StopIteration

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
    """An iterator of messages, which yields `None` when none arrives in time."""

    def __init__(self, take: Callable[[], Message | None]) -> None:
        self._take = take

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message | None:
        return self._take()


class Batches:
    """An iterator of non-empty lists of messages."""

    def __init__(self, take: Callable[[], list[Message]]) -> None:
        self._take = take

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Message]:
        return self._take()


# -- clients ---------------------------------------------------------------------------


class BaseClient(RecordsClient):
    """What the two clients share: `haclient.client.BaseClient` for programs without trio."""

    # -- life ---------------------------------------------------------------

    __bridge__: Bridge[haclient.client.BaseClient]

    def open(self, timeout: float | None = None) -> Self:
        """Begin to use the client, as the start of its `with` block does; then call `close`.

        Args:
            timeout: Seconds for the logon of an `HAClient`, `None` for no limit; after `TimedOut`
                make a new client.

        Returns:
            This client. An `HAClient` is connected and logged on.

        Raises:
            UsageError: It was opened before, or this thread runs an event loop, or `timeout` is no
                time.
            HAClientError: It cannot connect; `TimedOut`; `DisconnectedError`: it was closed.
        """
        refuse_event_loop("open", self.__bridge__.thread)
        limit_s = seconds(timeout)
        thread = self.__bridge__.thread
        entered = threading.Lock()
        entered.acquire()
        try:  # up to the last line: an interrupt anywhere leaves the client closed
            thread.start(self.__bridge__.inner, entered.release)
            if not acquire(entered, limit_s):
                status = self.__bridge__.inner._core.status  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours
                raise status.timed_out(f"open: not logged on within {limit_s:g} s")  # noqa: TRY301  # closed below
            if not (thread.has_ended or thread.error is not None):
                return self
        except UsageError:  # it was opened before, and may be in use
            raise
        except BaseException:  # a KeyboardInterrupt, or the limit
            thread.abort()
            raise
        thread.join()
        self._raise_error()
        raise thread.why_cut_short("open")

    def close(self) -> None:
        """End it, as the end of its `with` block does: drain, disconnect, close the stores.

        Calls that wait in other threads raise `DisconnectedError`. A second call does nothing.

        Raises:
            UsageError: A handler of this client called it, which it would wait for.
            BaseException: What a handler has raised, or by what else the client has ended.
        """
        self._leave(drains=True)
        self._raise_error()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(drains=error is None)
        # A KeyboardInterrupt or SystemExit of the block takes precedence.
        if error is None or (
            isinstance(error, Exception) and error is not self.__bridge__.thread.error
        ):
            self._raise_error()

    def _leave(self, *, drains: bool) -> None:
        if not self.__bridge__.thread.is_running:
            return  # also in a process that was forked: the client belongs to the other one
        refuse_event_loop("close", self.__bridge__.thread)
        if get_ident() in self.__bridge__.thread.callback_threads:
            raise UsageError(
                "close was called by a handler of the client, and would wait for that handler: "
                "call it in the thread that has opened the client"
            )
        try:
            self.__bridge__.thread.stop(drains=drains)
            self.__bridge__.thread.join()
        except BaseException:  # a KeyboardInterrupt: leave at once
            self.__bridge__.thread.abort()
            raise

    def _raise_error(self) -> None:
        """Raise by what the client has ended, once."""
        thread = self.__bridge__.thread
        if thread.error is not None and not thread.is_reported:
            thread.is_reported = True
            raise thread.error

    def __del__(self) -> None:
        bridge: Bridge[object] | None = getattr(self, "__bridge__", None)
        if bridge is not None and bridge.thread.is_abandoned:  # making it may have failed
            warn_unclosed(bridge.thread)
            bridge.thread.stop()

    @override
    def __repr__(self) -> str:
        thread = self.__bridge__.thread
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

    subscribe = _call(haclient.client.BaseClient.subscribe)
    stream = _stream(haclient.client.BaseClient.stream)
    bookmark_subscribe = _call(haclient.client.BaseClient.bookmark_subscribe)
    bookmark_stream = _stream(haclient.client.BaseClient.bookmark_stream)
    sow = _stream(haclient.client.BaseClient.sow)
    sow_and_stream = _stream(haclient.client.BaseClient.sow_and_stream)
    sow_and_subscribe = _call(haclient.client.BaseClient.sow_and_subscribe)
    pause = _call(haclient.client.BaseClient.pause)
    resume = _call(haclient.client.BaseClient.resume)
    replace = _call(haclient.client.BaseClient.replace)
    unsubscribe = _call(haclient.client.BaseClient.unsubscribe)
    execute = _opened_stream(haclient.client.BaseClient.execute)
    execute_async = _call(haclient.client.BaseClient.execute_async)

    # -- queues -------------------------------------------------------------

    queue_subscribe = _call(haclient.client.BaseClient.queue_subscribe)
    queue_stream = _stream(haclient.client.BaseClient.queue_stream)
    ack = _call(haclient.client.BaseClient.ack)
    ack_matching = _call(haclient.client.BaseClient.ack_matching)
    flush_acks = _call(haclient.client.BaseClient.flush_acks)


described(BaseClient.records, haclient.client.BaseClient.records, WORDS)


class Client(BaseClient):
    """An AMPS client for one server at a time: `haclient.Client` for programs without trio.

    Args:
        name: Identifies this client and its publishes. It must be unique, and the same in every
            run.
        publish_store: Keeps publishes until they are persisted. The client owns it and closes it.
        bookmark_store: Remembers what subscriptions have finished with. Owned and closed likewise.
        authenticator: Provides the credentials for each logon; by default it sends the URI's
            password. It runs in the client's thread.
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
    """An AMPS client that stays connected to one of several servers, for programs without trio.

    See `haclient.HAClient`. Entering the block, or `open`, connects and logs on; leaving it, or
    `close`, drains and stops.

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
