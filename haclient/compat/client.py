"""The client with the official names, on top of `haclient.blocking`.

It keeps the settings that the application makes before it connects; connecting creates the client
of `haclient.blocking` with them. `execute` and `execute_async` take the commands of the official
client.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, iscoroutinefunction
from types import TracebackType
from typing import Final, Self, TypedDict, cast, overload

from typing_extensions import Unpack, override

import haclient.blocking
import haclient.protocol.messages
import haclient.servers.auth
from haclient.compat.configured import ConfiguredClient
from haclient.compat.listeners import MessageHandler
from haclient.compat.messages import Command, Message, ack_words
from haclient.compat.policies import authenticator_of
from haclient.compat.streams import MessageStream
from haclient.compat.units import seconds_of
from haclient.errors import UsageError
from haclient.options import ClientOptions
from haclient.protocol.codec import Payload
from haclient.protocol.commands import Command as NativeCommand
from haclient.protocol.options import Options
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW, StartPoint
from haclient_stores.interfaces import BookmarkStore, PublishStore


class Bookmarks:
    """Where a bookmark subscription begins."""

    EPOCH: Final = str(EPOCH)
    NOW: Final = str(NOW)
    MOST_RECENT: Final = str(MOST_RECENT)


class QueryArguments(TypedDict, total=False):
    """The further arguments of queries, by keyword only.

    Attributes:
        batch_size: Records in one frame.
        order_by: Order of the records.
        top_n: The maximum number of records.
        bookmark: The moment of which the records are queried.
        options: Options of the command.
        timeout: Milliseconds to wait for the server's answer; 0 for no limit.
        sub_id: The id of the subscription.
    """

    batch_size: int
    order_by: str | None
    top_n: int | None
    bookmark: StartPoint | str | None
    options: Options | str | None
    timeout: float
    sub_id: str | None


def _signature(*positional: str, keywords: Sequence[str] = ()) -> Signature:
    """The arguments of a command after its handler."""
    return Signature(
        [Parameter("topic", Parameter.POSITIONAL_OR_KEYWORD)]
        + [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in positional]
        + [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in keywords]
    )


_SUBSCRIBE: Final = _signature("filter", "options", "timeout", "sub_id")
_BOOKMARK_SUBSCRIBE: Final = _signature(*("bookmark", "filter", "sub_id", "options", "timeout"))
_SOW_DELETE: Final = _signature("filter", "options", "timeout")
_QUERY: Final = _signature("filter", keywords=list(QueryArguments.__annotations__))


class Client(ConfiguredClient):
    """An AMPS client for one server at a time.

    Args:
        name: Identifies this client and its publishes. It must be unique, and the same in every
            run.
    """

    Bookmarks = Bookmarks

    # -- life ---------------------------------------------------------------------

    def connect(self, uri: str) -> None:
        """Open a connection; `logon` comes next.

        Args:
            uri: The server, for example `tcp://user:password@host:port/amps/json`.

        Raises:
            UsageError: The URI is wrong, or there is a connection already.
            ConnectionRefused: No server listens there.
            TimedOut: It took longer than 10 seconds.
        """
        self._forget_ended()
        inner = self._inner
        if inner is None:
            with self._alone("connect"):
                inner = self._inner = self._inner or self._start()
        cast("haclient.blocking.Client", inner).connect(uri)

    def logon(
        self,
        timeout: float = 0,
        authenticator: object = None,
        options: Options | str | None = None,
    ) -> None:
        """Log on; then trim and replay the publish store and start the heartbeat.

        Args:
            timeout: Milliseconds for each answer of the server; 0 for no limit.
            authenticator: Returns the password; by default that of the URI is sent.
            options: Options of the logon; call `set_logon_options` before `connect` instead.

        Raises:
            AuthenticationError: The server refused user or password.
            UsageError: Options are given that were not set before connecting.
            TimedOut: The server did not answer in time.
        """
        if options and str(options) != str(self._options.get("logon_options", "")):
            raise UsageError(
                "logon options have to be set before connecting: call set_logon_options, then "
                "connect"
            )
        if authenticator is not None:
            self._authenticator = authenticator_of(authenticator)
        cast("haclient.blocking.Client", self._open).logon(timeout=seconds_of(timeout))

    def disconnect(self) -> None:
        """Close the connection; the stores keep their content. The client may connect again.

        Releases the thread, descriptors and files. Messages of this connection can no longer be
        discarded; undiscarded ones are delivered again. In a handler or listener of this client
        only the connection is closed; `close` releases the rest.
        """
        inner = self._inner
        if inner is None:
            return
        thread = inner.__bridge__.thread
        thread.check_process()
        if thread.is_running:  # else an interrupt has ended it before this call
            inner.disconnect()
        if thread.is_in_callback:  # it would wait for itself
            return
        thread.cancel()
        thread.join()
        self._forget(inner, self._pause_stores)

    def close(self) -> None:
        """Close connection and stores; a second call does nothing.

        If another thread is connecting, that ends with a `DisconnectedError`.
        """
        inner = self._inner
        if inner is None:
            with self._alone("close", ends=True):
                inner = self._inner
                if inner is None:
                    self._close_stores()
                    return
        try:
            inner.close()
        finally:
            self._forget_ended()  # does nothing if a handler called this, which is refused

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @override
    def _make(
        self, publish_store: PublishStore | None, bookmark_store: BookmarkStore | None
    ) -> haclient.blocking.BaseClient:
        return haclient.blocking.Client(
            self._name,
            publish_store=publish_store,
            bookmark_store=bookmark_store,
            authenticator=_Delegating(lambda: self._authenticator),
            **cast("ClientOptions", self._all_options()),
        )

    # -- publishing --------------------------------------------------------------------------

    def publish(self, topic: str, data: Payload, expiration: int | None = None) -> int:
        """Publish a message.

        Args:
            topic: The topic.
            data: The body; text is sent as UTF-8.
            expiration: Lifetime of the record in seconds.

        Returns:
            The sequence number.

        Raises:
            DisconnectedError: There is no connection, and no store to keep the message.
        """
        return self._open.publish(topic, data, expiration=expiration)

    def delta_publish(self, topic: str, data: Payload, expiration: int | None = None) -> int:
        """Publish the changed fields of a record.

        Args:
            topic: The topic.
            data: The body; text is sent as UTF-8.
            expiration: Lifetime of the record in seconds.

        Returns:
            The sequence number.

        Raises:
            DisconnectedError: There is no connection, and no store to keep the message.
        """
        return self._open.publish(topic, data, expiration=expiration, delta=True)

    def publish_flush(self, timeout: float = 0) -> None:
        """Wait until all earlier publishes are persisted.

        Args:
            timeout: Milliseconds; 0 for no limit.

        Raises:
            TimedOut: It took longer; the messages stay in the store.
        """
        self._open.publish_flush(timeout=seconds_of(timeout))

    def flush(self, timeout: float = 0) -> None:
        """Wait until the server has processed everything sent before.

        Args:
            timeout: Milliseconds; 0 for no limit.

        Raises:
            TimedOut: It took longer.
        """
        self._open.flush(timeout=seconds_of(timeout))

    @overload
    def sow_delete(
        self,
        on_message: MessageHandler,
        topic: str,
        filter: str | None = None,
        options: Options | str | None = None,
        timeout: float = 0,
    ) -> str: ...
    @overload
    def sow_delete(
        self,
        topic: str,
        filter: str | None = None,
        options: Options | str | None = None,
        timeout: float = 0,
    ) -> Message: ...
    def sow_delete(self, *arguments: object, **keywords: object) -> str | Message:
        """Delete the records that a filter matches.

        Args:
            arguments: Optionally a handler of the `stats` ack; then topic, filter, options and
                timeout in milliseconds.
            keywords: The same by name.

        Returns:
            The `stats` ack; with a handler the id of the command.

        Raises:
            CommandError: The server refused it.
            TimedOut: The server did not answer in time.
        """
        handler, fields = _bound(_SOW_DELETE, arguments, keywords)
        if handler is not None:
            return self.execute_async(
                _command("sow_delete", {**fields, "ack_type": "stats"}), handler
            )
        command = _command("sow_delete", fields)
        return Message(
            self._open.sow_delete(
                command.topic,
                filter=command.filter,
                options=command.options,
                timeout=command.timeout,
            )
        )

    def sow_delete_by_data(self, topic: str, data: Payload, timeout: float = 0) -> Message:
        """Delete the record whose key a message has.

        Args:
            topic: The topic.
            data: The message.
            timeout: Milliseconds; 0 for no limit.

        Returns:
            The `stats` ack.
        """
        return Message(self._open.sow_delete(topic, data=data, timeout=seconds_of(timeout)))

    def sow_delete_by_keys(
        self, topic: str, keys: str | Sequence[str], timeout: float = 0
    ) -> Message:
        """Delete the records with SOW keys.

        Args:
            topic: The topic.
            keys: The keys, as a comma list or a list.
            timeout: Milliseconds; 0 for no limit.

        Returns:
            The `stats` ack.
        """
        chosen = [each.strip() for each in keys.split(",")] if isinstance(keys, str) else keys
        return Message(self._open.sow_delete(topic, keys=chosen, timeout=seconds_of(timeout)))

    # -- subscribing -----------------------------------------------------------------------

    def execute(self, command: NativeCommand) -> MessageStream:
        """Send a command, and return its messages and requested acks as a stream.

        Args:
            command: The command.

        Returns:
            The stream, once the server has accepted the command.

        Raises:
            CommandError: The server refused it.
            TimedOut: The server did not answer in time.
            UsageError: The command is a publish, which has no stream.
        """
        stream = self._open.execute(_without_limit(command))
        return MessageStream(stream, auto_ack=self._auto_ack)

    def execute_async(
        self, command: NativeCommand, on_message: MessageHandler | None = None
    ) -> str:
        """Send a command; its messages and requested acks go to a handler.

        Args:
            command: The command.
            on_message: Called with each message, in a worker thread, one at a time. It may call
                this client. An error that it raises goes to the exception listener.

        Returns:
            The subscription id; empty for a command that has none.

        Raises:
            CommandError: The server refused it.
            TimedOut: The server did not answer in time.
        """
        handler = None if on_message is None else self._handler(on_message)
        return self._open.execute_async(_without_limit(command), handler)

    def _handler(
        self, on_message: MessageHandler
    ) -> Callable[[haclient.protocol.messages.Message], None]:
        if iscoroutinefunction(on_message):  # nothing would await it, or notice that
            raise UsageError(
                f"a handler of haclient.compat is a plain function, and {on_message!r} is a "
                "coroutine function"
            )

        def handle(native: haclient.protocol.messages.Message) -> None:
            message = Message(native)
            on_message(message)
            if self._auto_ack:
                message.ack()

        return handle

    def _place(
        self,
        name: str,
        signature: Signature,
        arguments: tuple[object, ...],
        keywords: Mapping[str, object],
    ) -> str | MessageStream:
        return self._execute(name, *_bound(signature, arguments, keywords))

    def _execute(
        self, name: str, handler: MessageHandler | None, fields: Mapping[str, object]
    ) -> str | MessageStream:
        command = _command(name, fields)
        return self.execute(command) if handler is None else self.execute_async(command, handler)

    @overload
    def subscribe(
        self,
        on_message: MessageHandler,
        topic: str,
        filter: str | None = None,
        options: Options | str | None = None,
        timeout: float = 0,
        sub_id: str | None = None,
    ) -> str: ...
    @overload
    def subscribe(
        self,
        topic: str,
        filter: str | None = None,
        options: Options | str | None = None,
        timeout: float = 0,
        sub_id: str | None = None,
    ) -> MessageStream: ...
    def subscribe(self, *arguments: object, **keywords: object) -> str | MessageStream:
        """Subscribe to a topic.

        Args:
            arguments: A handler, or none for a stream; then the topic and the others in order.
            keywords: The same by name; see `QueryArguments` for those of queries.

        Returns:
            A stream; with a handler the subscription id.

        Raises:
            CommandError: The server refused it.
            TimedOut: The server did not answer in time.
        """
        return self._place("subscribe", _SUBSCRIBE, arguments, keywords)

    @overload
    def delta_subscribe(
        self,
        on_message: MessageHandler,
        topic: str,
        filter: str | None = None,
        options: Options | str | None = None,
        timeout: float = 0,
        sub_id: str | None = None,
    ) -> str: ...
    @overload
    def delta_subscribe(
        self,
        topic: str,
        filter: str | None = None,
        options: Options | str | None = None,
        timeout: float = 0,
        sub_id: str | None = None,
    ) -> MessageStream: ...
    def delta_subscribe(self, *arguments: object, **keywords: object) -> str | MessageStream:
        """Subscribe to the changes of records.

        Args:
            arguments: A handler, or none for a stream; then the topic and the others in order.
            keywords: The same by name; see `QueryArguments` for those of queries.

        Returns:
            A stream; with a handler the subscription id.

        Raises:
            CommandError: The server refused it.
            TimedOut: The server did not answer in time.
        """
        return self._place("delta_subscribe", _SUBSCRIBE, arguments, keywords)

    @overload
    def bookmark_subscribe(
        self,
        on_message: MessageHandler,
        topic: str,
        bookmark: StartPoint | str | None = None,
        filter: str | None = None,
        sub_id: str | None = None,
        options: Options | str | None = None,
        timeout: float = 0,
    ) -> str: ...
    @overload
    def bookmark_subscribe(
        self,
        topic: str,
        bookmark: StartPoint | str | None = None,
        filter: str | None = None,
        sub_id: str | None = None,
        options: Options | str | None = None,
        timeout: float = 0,
    ) -> MessageStream: ...
    def bookmark_subscribe(self, *arguments: object, **keywords: object) -> str | MessageStream:
        """Replay the transaction log from a bookmark, then follow it live.

        Without a bookmark it begins with `MOST_RECENT`.

        Args:
            arguments: A handler, or none for a stream; then the topic and the others in order.
            keywords: The same by name; see `QueryArguments` for those of queries.

        Returns:
            A stream; with a handler the subscription id.

        Raises:
            CommandError: The server refused it.
            TimedOut: The server did not answer in time.
        """
        handler, fields = _bound(_BOOKMARK_SUBSCRIBE, arguments, keywords)
        if (
            fields.get("bookmark") is None
        ):  # otherwise it would be a subscription without a bookmark
            fields["bookmark"] = Bookmarks.MOST_RECENT
        return self._execute("subscribe", handler, fields)

    @overload
    def sow(
        self,
        on_message: MessageHandler,
        topic: str,
        filter: str | None = None,
        **keywords: Unpack[QueryArguments],
    ) -> str: ...
    @overload
    def sow(
        self,
        topic: str,
        filter: str | None = None,
        **keywords: Unpack[QueryArguments],
    ) -> MessageStream: ...
    def sow(self, *arguments: object, **keywords: object) -> str | MessageStream:
        """Query the State of the World.

        Args:
            arguments: A handler, or none for a stream; then the topic and the others in order.
            keywords: The same by name; see `QueryArguments` for those of queries.

        Returns:
            A stream; with a handler the subscription id.

        Raises:
            CommandError: The server refused it.
            TimedOut: The server did not answer in time.
        """
        return self._place("sow", _QUERY, arguments, keywords)

    @overload
    def sow_and_subscribe(
        self,
        on_message: MessageHandler,
        topic: str,
        filter: str | None = None,
        **keywords: Unpack[QueryArguments],
    ) -> str: ...
    @overload
    def sow_and_subscribe(
        self,
        topic: str,
        filter: str | None = None,
        **keywords: Unpack[QueryArguments],
    ) -> MessageStream: ...
    def sow_and_subscribe(self, *arguments: object, **keywords: object) -> str | MessageStream:
        """Query, then follow: nothing lost or doubled between the two.

        Args:
            arguments: A handler, or none for a stream; then the topic and the others in order.
            keywords: The same by name; see `QueryArguments` for those of queries.

        Returns:
            A stream; with a handler the subscription id.

        Raises:
            CommandError: The server refused it.
            TimedOut: The server did not answer in time.
        """
        return self._place("sow_and_subscribe", _QUERY, arguments, keywords)

    @overload
    def sow_and_delta_subscribe(
        self,
        on_message: MessageHandler,
        topic: str,
        filter: str | None = None,
        **keywords: Unpack[QueryArguments],
    ) -> str: ...
    @overload
    def sow_and_delta_subscribe(
        self,
        topic: str,
        filter: str | None = None,
        **keywords: Unpack[QueryArguments],
    ) -> MessageStream: ...
    def sow_and_delta_subscribe(
        self, *arguments: object, **keywords: object
    ) -> str | MessageStream:
        """Query, then follow the changes of records.

        Args:
            arguments: A handler, or none for a stream; then the topic and the others in order.
            keywords: The same by name; see `QueryArguments` for those of queries.

        Returns:
            A stream; with a handler the subscription id.

        Raises:
            CommandError: The server refused it.
            TimedOut: The server did not answer in time.
        """
        return self._place("sow_and_delta_subscribe", _QUERY, arguments, keywords)

    def unsubscribe(self, sub_id: str | None = None) -> None:
        """End one subscription, or all.

        Args:
            sub_id: Its id; `None` or `"all"` for all. An empty one ends nothing.
        """
        if self._inner is not None:
            self._inner.unsubscribe("all" if sub_id is None else sub_id)

    def discard(self, message: Message) -> None:
        """Mark a message as finished, so that it is never delivered again."""
        message.discard()

    def get_most_recent(self, sub_id: str) -> str:
        """The recovery point of a subscription: a comma list of bookmarks, or `0`."""
        return "0" if self._bookmark_store is None else self._bookmark_store.get_most_recent(sub_id)

    def prune_store(self, tmp_file_name: str = "") -> None:
        """Release the space of finished entries of the bookmark store.

        Args:
            tmp_file_name: Not needed.
        """
        if self._bookmark_store is not None:
            self._bookmark_store.prune(tmp_file_name)

    # -- queues -------------------------------------------------------------------------------

    @overload
    def ack(self, message: Message, options: str | None = None, /) -> None: ...
    @overload
    def ack(self, topic: str, bookmark: str, options: str | None = None, /) -> None: ...
    def ack(self, first: Message | str, *rest: str | None) -> None:
        """Acknowledge a message of a queue.

        Args:
            first: The message, or its topic.
            rest: Its bookmark after a topic; then `"cancel"` or `"expire"`, or nothing.

        Raises:
            UsageError: The option is another one.
        """
        if isinstance(first, Message):
            first.ack(*rest)
            return
        bookmark, *options = rest
        words = ack_words(options[0] if options else None)
        self._open.ack(first, bookmark or "", cancel="cancel" in words, expire="expire" in words)

    def flush_acks(self) -> None:
        """Send the acknowledgements that wait for others, and wait until they are processed."""
        self._open.flush_acks()


class _Delegating(haclient.servers.auth.Authenticator):
    """Delegates to the authenticator that was passed to the last `logon`."""

    def __init__(self, given: Callable[[], haclient.servers.auth.Authenticator | None]) -> None:
        self._given = given

    @property
    def _current(self) -> haclient.servers.auth.Authenticator:
        return self._given() or haclient.servers.auth.DefaultAuthenticator()

    @override
    async def authenticate(self, user: str, password: str) -> str:
        return await self._current.authenticate(user, password)

    @override
    async def retry(self, user: str, password: str) -> str:
        return await self._current.retry(user, password)

    @override
    def completed(self, user: str, password: str, reason: str) -> None:
        self._current.completed(user, password, reason)


def _bound(
    signature: Signature, arguments: tuple[object, ...], keywords: Mapping[str, object]
) -> tuple[MessageHandler | None, dict[str, object]]:
    """The handler and the fields of a command.

    Raises:
        TypeError: An argument is missing, unknown or given twice.
    """
    named = dict(keywords)
    handler = named.pop("on_message", None)
    if arguments and callable(arguments[0]):
        handler, *rest = arguments
        arguments = tuple(rest)
    fields = signature.bind(*arguments, **named).arguments
    return cast("MessageHandler | None", handler), dict(fields)


def _command(name: str, fields: Mapping[str, object]) -> Command:
    """A command made from the arguments of a method; their timeout is in milliseconds."""
    command = Command(name).set_timeout(cast("float | None", fields.get("timeout")))
    for field, value in fields.items():
        if value is not None and field != "timeout":
            setattr(command, field, value)
    return command


def _without_limit(command: NativeCommand) -> NativeCommand:
    """The command, with no limit if it has no timeout."""
    if command.timeout is None:
        return dataclasses.replace(command, timeout=math.inf)
    return command
