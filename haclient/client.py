"""A client of one server at a time, with stores.

With `Client` each step is a separate call: connect, logon, work, disconnect. It does not reconnect:
after a loss its streams end, calls that wait for an ack raise, and `connect` may be called again;
the stores then replay and resume what they keep. `HAClient` does all of that automatically.

The client owns a nursery, opened by `async with`; leaving the block drains, closes the connection
and the stores, and leaves no task behind. An error of a background task (a handler that raised, a
bookmark store that is full) cancels the block and is raised from it unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import NoReturn, Self

from typing_extensions import Unpack

from haclient.auth import Authenticator
from haclient.deltas import DeltaClient
from haclient.errors import UsageError
from haclient.inspecting import InspectedClient
from haclient.live_records import RecordsClient
from haclient.protocol.codec import Payload, check_topic
from haclient.protocol.commands import Command
from haclient.protocol.identity import publisher_id
from haclient.protocol.options import Options
from haclient.protocol.uri import Uri
from haclient.queues import QueueClient
from haclient.session.connection_state import ConnectionState, StateListener
from haclient.streams import MessageStream
from haclient.subscribing import Subscriber
from haclient.transport.core import Core
from haclient.transport.message_queue import Handler
from haclient.transport.settings import TIMEOUT_S, ClientOptions, Settings, check_names, seconds
from haclient_stores.bookmark import MOST_RECENT, StartPoint
from haclient_stores.interfaces import BookmarkStore, PublishStore

__all__ = ["Client"]


class Client(QueueClient, DeltaClient, RecordsClient, InspectedClient):
    """An AMPS client for one server at a time.

    Args:
        name: Identifies this client and its publishes. It must be unique, and the same in every
            run.
        publish_store: Keeps publishes until they are persisted. The client owns it and closes it,
            even if creating the client fails because the other store is refused.
        bookmark_store: Remembers what subscriptions have finished with. Owned and closed likewise.
        authenticator: Provides the credentials for each logon; by default it sends the URI's
            password.
        **options: See `ClientOptions`.

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
        check_names(type(self).__name__, options, ClientOptions.__annotations__)
        settings = Settings(
            name=name,
            publish_store=publish_store,
            bookmark_store=bookmark_store,
            authenticator=authenticator,
            **options,
        )
        self._compose(Core(settings))

    def _compose(self, core: Core) -> None:
        """Put the two halves of the public API on one core."""
        super().__init__(core)
        self._subscriber = Subscriber(core, core.settings.on_handler_error)

    # -- life ---------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._core.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._core.leave(kind, error, traceback)

    def __enter__(self) -> NoReturn:
        """Refuse `with`: `haclient.blocking` has the clients for it."""
        kind = type(self).__name__
        raise UsageError(
            f"{kind} is entered by `async with`, in a trio program: for `with` use "
            f"haclient.blocking.{kind}"
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # pragma: no cover  # `with` looks for it before it enters
        pass

    async def connect(self, uri: str | Uri, *, timeout: float | None = TIMEOUT_S) -> None:
        """Open a connection; `logon` comes next.

        Args:
            uri: Where to: `tcp://user:password@host:port/amps/json`, for example.
            timeout: Seconds for all addresses of the host together; `None` waits for as long as
                the system does.

        Raises:
            UsageError: The URI is wrong, or there is a connection already.
            ConnectionRefused: Nobody listens there.
            TimedOut: It took longer than `timeout` seconds.
        """
        await self._core.connect(uri, timeout=seconds(timeout))

    async def logon(self, *, timeout: float | None = TIMEOUT_S) -> None:
        """Log on; then trim and replay the publish store and start the heartbeat.

        Args:
            timeout: Seconds for each answer of the server; `None` waits for as long as it takes.

        Raises:
            AuthenticationError: The server refused user or password.
            NameInUse: The client name belongs to a connection of another user.
            PublishGap: The server lacks what was acknowledged, and the store refuses gaps.
            TimedOut: The server did not answer in time.
        """
        await self._core.logon(timeout=seconds(timeout))

    async def disconnect(self) -> None:
        """Close the connection; what the stores keep stays kept. The client may connect again."""
        await self._core.disconnect()

    async def set_heartbeat(self, interval: float | None, idle_limit: float | None = None) -> None:
        """Send heartbeats, from now on if logged on, else from the next logon.

        Args:
            interval: Seconds between two heartbeats; `None` stops them.
            idle_limit: Silence in seconds after which the server is considered dead; two intervals
                by default.

        Raises:
            UsageError: A limit can never work.
        """
        await self._core.set_heartbeat(interval, idle_limit)

    def add_state_listener(self, listener: StateListener) -> None:
        """Call `listener` with each state that the connection reaches from now on.

        Listeners are called one after the other, in order, by a task of their own: they may issue
        commands and may wait for them. What a listener raises is logged.
        `SHUTDOWN` comes last, when the client can do nothing any more.

        Args:
            listener: A plain function or a coroutine function that takes a `ConnectionState`.

        Raises:
            UsageError: It was added before.
        """
        self._core.thread.check_setting("add_state_listener")
        self._core.events.add("state", listener)

    def remove_state_listener(self, listener: StateListener) -> None:
        """Call `listener` no more, not even with states that were reached before.

        Args:
            listener: One that was added.

        Raises:
            UsageError: It was never added.
        """
        self._core.thread.check_setting("remove_state_listener")
        self._core.events.remove("state", listener)

    @property
    def name(self) -> str:
        """The client name."""
        return self._core.name

    @property
    def name_hash(self) -> int:
        """The hash of the client name: the publisher id in the bookmarks of its publishes."""
        return publisher_id(self._core.name)

    @property
    def state(self) -> ConnectionState:
        """How far the connection is."""
        return self._core.status.state

    @property
    def seen_sequence(self) -> int | None:
        """The highest sequence of this client's name that the server had seen at the last logon.

        What lies above `persisted_sequence` may be missing on a synchronous replica, and may be
        published again. `None` before the first logon, and for a server that does not report it.
        """
        return self._core.publisher.sequences.seen

    @property
    def persisted_sequence(self) -> int | None:
        """The highest sequence of this client's name that the server has reported as persisted.

        It comes from the last logon and rises with each persisted ack. A `Client` that numbers its
        publishes itself continues above it after a lost connection. `None` before the first logon,
        and for a server that does not report it: nothing is known to be persisted then.
        """
        return self._core.publisher.sequences.persisted

    @property
    def publish_store(self) -> PublishStore | None:
        """The publish store that this client was made with."""
        return self._core.publisher.store

    @property
    def bookmark_store(self) -> BookmarkStore | None:
        """The bookmark store that this client was made with."""
        return self._core.commander.bookmark_store

    @property
    def unpersisted_count(self) -> int:
        """Publishes in the store that are not persisted yet; 0 without a store."""
        log = self._core.publisher.log
        return 0 if log is None else log.unpersisted_count

    @property
    def oldest_unpersisted_age(self) -> float:
        """Seconds that the oldest unpersisted publish has waited; 0 when none does.

        It is 0 before the client was entered and after it was left.

        What an earlier process has left counts from the start of this one. It is too low by a few
        milliseconds; while there is no connection, by the time since the last attempt.
        """
        return self._core.oldest_unpersisted_age_s

    # -- subscribing ----------------------------------------------------------

    async def subscribe(
        self,
        topic: str,
        *,
        handler: Handler,
        filter: str = "",  # noqa: A002  # the protocol's word
        options: str | Options = "",
        sub_id: str = "",
        timeout: float | None = TIMEOUT_S,
    ) -> str:
        """Subscribe; `handler` gets each message, in order, one at a time.

        An `HAClient` subscribes again after each lost connection; what is published meanwhile is
        missing. With `options=Options(replace=True)` and the id of an active subscription that one
        is replaced in place, and its messages go to this handler from then on.

        Args:
            topic: A literal topic or a regular expression.
            handler: A coroutine function or plain function that takes a `Message`.
            filter: Content filter.
            options: Options of the subscription.
            sub_id: Its id; one is chosen where it is empty.
            timeout: Seconds to wait for the server's answer; `None` waits for as long as it takes.

        Returns:
            The subscription id, for `unsubscribe`.

        Raises:
            CommandError: The server refused it: `BadFilter`, `BadRegexTopic`, `NotEntitled`, ...
            SubIdInUse: The id is active on this connection.
            TimedOut: The server did not answer within `timeout` seconds.
        """
        command = Command(
            "subscribe",
            topic=topic,
            filter=filter,
            options=options,
            sub_id=sub_id,
            timeout=seconds(timeout),
        )
        return await self._subscriber.handle(command, handler)

    def stream(
        self,
        topic: str,
        *,
        filter: str = "",  # noqa: A002  # the protocol's word
        options: str | Options = "",
        sub_id: str = "",
        resumes: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> MessageStream:
        """The stream form of `subscribe`: `async with client.stream("orders") as messages`.

        When the connection is lost, messages may be missing from there on. On a `Client` the
        stream then ends, and `end_reason` says why. On an `HAClient` it raises
        `DisconnectedError`, or continues with the next connection if `resumes` says so.

        Args:
            topic: A literal topic or a regular expression.
            filter: Content filter.
            options: Options of the subscription.
            sub_id: Its id; one is chosen where it is empty.
            resumes: Whether an `HAClient` subscribes again after each lost connection;
                `messages.gaps` then counts where messages may be missing.
            timeout: Seconds to wait for the server's answer when the stream is opened; `None` waits
                for as long as it takes.

        Returns:
            The stream. Enter it with `async with`; that sends the command.

        Raises:
            UsageError: `resumes`, and this client does not reconnect by itself.
        """
        command = Command(
            "subscribe",
            topic=topic,
            filter=filter,
            options=options,
            sub_id=sub_id,
            timeout=seconds(timeout),
        )
        return self._subscriber.stream(command, resumes=self._subscriber.checked(resumes=resumes))

    async def bookmark_subscribe(  # noqa: PLR0913  # the parts of one command
        self,
        topic: str,
        *,
        sub_id: str,
        handler: Handler,
        bookmark: StartPoint | str = MOST_RECENT,
        filter: str = "",  # noqa: A002  # the protocol's word
        options: str | Options = "",
        auto_discard: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> str:
        """Replay the transaction log from `bookmark`, then follow it live.

        `MOST_RECENT` resumes where the bookmark store says this `sub_id` has got to; from the start
        of the log when it knows nothing, or when the client has no bookmark store. Any other
        bookmark starts over and forgets what the store knew of this `sub_id`.

        With `auto_discard` a message is discarded when the handler has returned; one for which it
        raises is not, and `on_handler_error` decides.

        Args:
            topic: A literal topic or a regular expression.
            sub_id: The id under which the bookmark store remembers the subscription; the same in
                every run.
            handler: A coroutine function or plain function that takes a `Message`.
            bookmark: Where to begin: `MOST_RECENT`, `EPOCH`, `NOW` (or the words `"recent"`,
                `"epoch"`, `"now"` in any case), a bookmark, a list of them, a
                time or a range.
            filter: Content filter.
            options: Options of the subscription.
            auto_discard: Whether a message is discarded when the handler has returned.
            timeout: Seconds to wait for the server's answer; `None` waits for as long as it takes.

        Returns:
            The subscription id.

        Raises:
            InvalidTopic: The topic is not recorded in the transaction log.
            CommandError: The server refused it for another reason.
            SubIdInUse: The id is active on this connection.
            StoreError: The bookmark store cannot remember the subscription.
            TimedOut: The server did not answer within `timeout` seconds.
        """
        command = Command(
            "subscribe",
            topic=topic,
            filter=filter,
            options=options,
            sub_id=sub_id,
            bookmark=bookmark,
            timeout=seconds(timeout),
        )
        return await self._subscriber.handle(command, handler, auto_discard=auto_discard)

    def bookmark_stream(
        self,
        topic: str,
        *,
        sub_id: str,
        bookmark: StartPoint | str = MOST_RECENT,
        filter: str = "",  # noqa: A002  # the protocol's word
        options: str | Options = "",
        timeout: float | None = TIMEOUT_S,
    ) -> MessageStream:
        """The stream form of `bookmark_subscribe`; call `message.discard()` on finished messages.

        Args:
            topic: A literal topic or a regular expression.
            sub_id: The id under which the bookmark store remembers the subscription; the same in
                every run.
            bookmark: Where to begin; see `bookmark_subscribe`.
            filter: Content filter.
            options: Options of the subscription.
            timeout: Seconds to wait for the server's answer when the stream is opened; `None` waits
                for as long as it takes.

        Returns:
            The stream. Enter it with `async with`; that sends the command and raises what
            `bookmark_subscribe` does.
        """
        command = Command(
            "subscribe",
            topic=topic,
            filter=filter,
            options=options,
            sub_id=sub_id,
            bookmark=bookmark,
            timeout=seconds(timeout),
        )
        return self._subscriber.stream(command, resumes=True)

    def sow(  # noqa: PLR0913  # the parts of one command
        self,
        topic: str,
        *,
        filter: str = "",  # noqa: A002  # the protocol's word
        order_by: str = "",
        top_n: int | None = None,
        bookmark: StartPoint | str = "",
        batch_size: int = 10,
        options: str | Options = "",
        data: Payload = b"",
        timeout: float | None = TIMEOUT_S,
    ) -> MessageStream:
        """Query the State of the World; the stream ends with the result.

        Args:
            topic: A literal topic or a regular expression.
            filter: Content filter.
            order_by: Order of the records, such as `/px DESC`.
            top_n: Most records that are wanted; `None` for all.
            bookmark: The moment whose records are wanted, for a topic that keeps its history: a
                time such as `Bookmark.at(datetime)`, or a message, after which they are as asked.
            batch_size: Records in one frame.
            options: Options of the query.
            data: The body of the query, for topics that take parameters in it.
            timeout: Seconds to wait for the server's answer when the stream is opened, and for each
                further part of the result; `None` waits for as long as it takes.

        Returns:
            The stream. Enter it with `async with`; that sends the command, and raises
            `InvalidTopic` for a topic without a State of the World or another `CommandError`. When
            the server stops in the middle of the result, reading raises `TimedOut`.
        """
        command = Command(
            "sow",
            topic=topic,
            filter=filter,
            order_by=order_by,
            top_n=top_n,
            bookmark=bookmark,
            batch_size=batch_size,
            options=options,
            data=data,
            timeout=seconds(timeout),
        )
        return self._subscriber.stream(command)

    def sow_and_stream(  # noqa: PLR0913  # the parts of one command
        self,
        topic: str,
        *,
        filter: str = "",  # noqa: A002  # the protocol's word
        order_by: str = "",
        bookmark: StartPoint | str = "",
        batch_size: int = 10,
        options: str | Options = "",
        sub_id: str = "",
        resumes: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> MessageStream:
        """Query, then follow: nothing lost or doubled between the two.

        With a bookmark the records are those of an earlier moment, and the log is replayed from
        there; the topic has to keep its history. The messages are then those of a
        `bookmark_stream`: call `message.discard()` on finished ones. `messages.caught_up` is true
        when the replay is complete, too. After a lost connection the records include
        everything that was delivered, and the replay goes on from there.

        Args:
            topic: A literal topic or a regular expression.
            filter: Content filter of both.
            order_by: Order of the records, such as `/px DESC`. With `Options(top_n=10, skip_n=20)`
                the subscription is to a page of them: see docs/broker.md.
            bookmark: Where to begin, as in `bookmark_subscribe`; empty for now, without a replay.
            batch_size: Records in one frame.
            options: Options of the command.
            sub_id: The id of the subscription; one is chosen where it is empty. `MOST_RECENT`
                needs one that is the same in every run.
            resumes: Whether an `HAClient` sends the command again after each lost connection: the
                stream then delivers all records again, and `messages.gaps` counts how often. With
                a bookmark that a bookmark store tracks there are no gaps.
            timeout: Seconds to wait for the server's answer when the stream is opened, and for each
                further part of the result; `None` waits for as long as it takes.

        Returns:
            The stream. Enter it with `async with`; that sends the command.

        Raises:
            UsageError: `resumes`, and this client does not reconnect by itself.
        """
        command = Command(
            "sow_and_subscribe",
            topic=topic,
            filter=filter,
            order_by=order_by,
            bookmark=bookmark,
            batch_size=batch_size,
            options=options,
            sub_id=sub_id,
            timeout=seconds(timeout),
        )
        return self._subscriber.stream(command, resumes=self._subscriber.checked(resumes=resumes))

    async def sow_and_subscribe(  # noqa: PLR0913  # the parts of one command
        self,
        topic: str,
        *,
        handler: Handler,
        filter: str = "",  # noqa: A002  # the protocol's word
        order_by: str = "",
        bookmark: StartPoint | str = "",
        batch_size: int = 10,
        options: str | Options = "",
        sub_id: str = "",
        timeout: float | None = TIMEOUT_S,
    ) -> str:
        """The handler form of `sow_and_stream`; it also gets `group_begin` and `group_end`.

        An `HAClient` sends it again after each lost connection.

        Args:
            topic: A literal topic or a regular expression.
            handler: A coroutine function or plain function that takes a `Message`.
            filter: Content filter of both.
            order_by: Order of the records, such as `/px DESC`. With `Options(top_n=10, skip_n=20)`
                the subscription is to a page of them: see docs/broker.md.
            bookmark: Where to begin, as in `bookmark_subscribe`; empty for now, without a replay.
            batch_size: Records in one frame.
            options: Options of the command.
            sub_id: The id of the subscription; one is chosen where it is empty. `MOST_RECENT`
                needs one that is the same in every run.
            timeout: Seconds to wait for the server's answer, and for each further part of the
                records; `None` waits for as long as it takes.

        Returns:
            The subscription id, for `unsubscribe`.

        Raises:
            CommandError: The server refused it.
            SubIdInUse: The id is active on this connection.
            TimedOut: The server did not answer within `timeout` seconds.
        """
        command = Command(
            "sow_and_subscribe",
            topic=topic,
            filter=filter,
            order_by=order_by,
            bookmark=bookmark,
            batch_size=batch_size,
            options=options,
            sub_id=sub_id,
            timeout=seconds(timeout),
        )
        return await self._subscriber.handle(command, handler)

    async def pause(
        self, sub_ids: str | Sequence[str], *, timeout: float | None = TIMEOUT_S
    ) -> None:
        """Have the server hold back the messages of bookmark subscriptions; positions are kept.

        One command pauses all of them. What is on its way still arrives. A subscription that is
        paused stays so after a lost connection.

        Args:
            sub_ids: One id, or several.
            timeout: Seconds to wait for the server's answer; `None` waits for as long as it takes.

        Raises:
            UsageError: One of them is no active bookmark subscription of this client.
            CommandError: The server refused it; nothing has changed.
            DisconnectedError: There is no connection, or it was lost; an `HAClient` waits instead.
            TimedOut: The server did not answer in time.
        """
        await self._subscriber.changer.pause(sub_ids, paused=True, timeout=seconds(timeout))

    async def resume(
        self, sub_ids: str | Sequence[str], *, timeout: float | None = TIMEOUT_S
    ) -> None:
        """Continue paused subscriptions where they were paused, without missing a message.

        Subscriptions that one command resumes at the same position, with the same rate, share one
        replay: the server sends their messages in the order of the log. An `HAClient` resubscribes
        them together after a lost connection.

        Args:
            sub_ids: One id, or several that are resumed by one command.
            timeout: Seconds to wait for the server's answer; `None` waits for as long as it takes.

        Raises:
            UsageError: One of them is no active bookmark subscription of this client.
            CommandError: The server refused it; nothing has changed.
            DisconnectedError: There is no connection, or it was lost; an `HAClient` waits instead.
            TimedOut: The server did not answer in time.
        """
        await self._subscriber.changer.pause(sub_ids, paused=False, timeout=seconds(timeout))

    async def replace(
        self,
        sub_id: str,
        *,
        topic: str | None = None,
        filter: str | None = None,  # noqa: A002  # the protocol's word
        order_by: str | None = None,
        options: str | Options | None = None,
        timeout: float | None = TIMEOUT_S,
    ) -> None:
        """Change an active subscription in place; its handler or stream continues.

        The server replaces it at one moment: no message is lost or doubled by it. After a lost
        connection the later form is subscribed again.

        A subscription that began with a query begins with it again, in the later form: a page is
        moved by `options=Options(top_n=10, skip_n=20)`. The records of the new page, or else those
        that have not arrived yet, come in one group, and with `oof` an out-of-focus message before
        it for each record that has left.

        Args:
            sub_id: The subscription.
            topic: The new topic; `None` leaves it as it is. A page keeps its topic.
            filter: The new content filter, empty for none; `None` leaves it as it is.
            order_by: The new order of the records of a query, empty for none; `None` leaves it as
                it is.
            options: The new options; `None` leaves them as they are.
            timeout: Seconds to wait for the server's answer; `None` waits for as long as it takes.

        Raises:
            UsageError: It is not active, or the options cannot be read, or it has no query that
                could have an order.
            CommandError: The server refused it; the subscription continues as it was.
            DisconnectedError: There is no connection, or it was lost; an `HAClient` waits instead.
            TimedOut: The server did not answer in time.
        """
        if topic is not None:
            check_topic(topic)
        changed = {"t": topic, "filter": filter, "orderby": order_by}
        fields: dict[str, str | int] = {k: v for k, v in changed.items() if v is not None}
        if options is not None:
            fields["opts"] = str(Options.parse(str(options)))
        await self._subscriber.changer.replace(sub_id, fields, timeout=seconds(timeout))

    async def unsubscribe(
        self, sub_ids: str | Sequence[str] = "all", *, timeout: float | None = TIMEOUT_S
    ) -> None:
        """End one subscription, several, or all; their streams end.

        Args:
            sub_ids: One id, several, or `"all"`; unknown ids are over already, empty ones end none.
            timeout: Seconds to wait for the server's answer; `None` waits for as long as it takes.

        Raises:
            TimedOut: The server did not answer in time; the subscriptions have ended here.
        """
        await self._subscriber.unsubscribe(sub_ids, timeout=timeout)

    async def execute(self, command: Command) -> MessageStream:
        """Send any command; its messages, and the acks it asks for, as an open stream.

        Args:
            command: What to send; its `timeout` limits the wait for the server's answer.

        Returns:
            The stream, which was opened already.

        Raises:
            UsageError: It has nothing to stream, such as a publish, or can never work.
            CommandError: The server refused it.
            TimedOut: The server did not answer in time.
        """
        return await self._subscriber.execute(command)

    async def execute_async(
        self, command: Command, handler: Handler | None = None, *, resubscribes: bool = True
    ) -> str:
        """Send any command; its messages, and the acks it asks for, go to `handler`.

        With `resubscribes=False` a subscription ends with its connection, on an `HAClient` too:
        the handler gets what had come, and the command is not sent again.

        Args:
            command: What to send; its `timeout` limits the wait for the server's answer.
            handler: A coroutine function or plain function that takes a `Message`; not needed for
                a publish, a `sow_delete` with a publish store, or an `unsubscribe`.
            resubscribes: Whether an `HAClient` sends a subscription again after each lost
                connection. One that is replaced keeps what was said when it was made.

        Returns:
            The subscription id; empty for a command that has none.

        Raises:
            UsageError: It needs a handler, or can never work.
            CommandError: The server refused it.
            TimedOut: The server did not answer in time.
        """
        return await self._subscriber.execute_async(command, handler, resubscribes=resubscribes)
