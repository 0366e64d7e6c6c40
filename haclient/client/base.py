"""What every client can do: `Client` and `HAClient` add how they connect.

Each method makes a request, and calls the one collaborator that carries it out.

A client owns a nursery, opened by `async with`; leaving the block drains, closes the connection
and the stores, and leaves no task behind. An error of a background task (a handler that raised, a
bookmark store that is full) cancels the block and is raised from it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypedDict, TypeVar, cast, overload

import trio
from typing_extensions import Unpack

from haclient.client.publishing import PublishingClient
from haclient.client.receiver import Receiver
from haclient.codecs import Topic
from haclient.live_records import JsonRecord, LiveRecords
from haclient.options import TIMEOUT_S, seconds
from haclient.protocol.codec import Payload
from haclient.protocol.commands import Command
from haclient.protocol.options import Options
from haclient.session.record_view import RecordView
from haclient.streams import MessageStream
from haclient.transport.core import Core
from haclient.transport.message_queue import Handler
from haclient.transport.subscriber import Subscriber
from haclient.workers.queue_handlers import DEFAULT_MAX_BACKLOG, QueueHandlerOptions
from haclient_stores.bookmark import MOST_RECENT, StartPoint

T = TypeVar("T")
_RECORDS_IN_FRAME: Final = 100  # of the query of live records


class BaseClient(PublishingClient):
    """What `Client` and `HAClient` share; made by one of these.

    The methods that subscribe have arguments of the same names and meanings:

    * `topic`: a literal topic or a regular expression;
    * `handler`: a coroutine function or plain function that takes a `Message`; it is called with
      each message, in order, one at a time;
    * `filter`: a content filter, of the whole message;
    * `options`: the options of the command, an `Options` or text;
    * `sub_id`: the id of the subscription; one is chosen where it is empty;
    * `delta`: whether the server sends a new record whole, and of each update only the fields that
      have changed, with the key fields; see docs/deltas.md;
    * `resumes`: whether an `HAClient` sends the command of the stream again after each lost
      connection; `messages.gaps` then counts where messages may be missing;
    * `timeout`: seconds to wait for the server's answer, and for each further part of the records
      of a query; `None` waits for as long as it takes.

    A handler form returns the subscription id, for `unsubscribe`, and raises `CommandError` when
    the server refuses (`BadFilter`, `InvalidTopic`, `NotEntitled`, ...), `SubIdInUse` when the id
    is active on this connection and `TimedOut` when the server does not answer. A stream form
    returns a stream that sends the command when it is entered with `async with`, which raises the
    same.

    Args:
        core: Its connection and its collaborators.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._subscriber = Subscriber(core)
        self._receiver = Receiver(core, self._subscriber)

    # -- subscribing ----------------------------------------------------------

    async def subscribe(  # noqa: PLR0913  # the parts of one command
        self,
        topic: str,
        *,
        handler: Handler,
        filter: str = "",  # noqa: A002  # the protocol's word
        options: str | Options = "",
        sub_id: str = "",
        delta: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> str:
        """Subscribe: `handler` gets each message, in order, one at a time.

        An `HAClient` subscribes again after each lost connection; what is published meanwhile is
        missing. With `options=Options(replace=True)` and the id of an active subscription that one
        is replaced in place, and its messages go to this handler from then on. The arguments are
        those of `BaseClient`.
        """
        command = _subscribe(
            topic, timeout, delta=delta, filter=filter, options=options, sub_id=sub_id
        )
        return await self._receiver.handle(command, handler)

    def stream(  # noqa: PLR0913  # the parts of one command
        self,
        topic: str,
        *,
        filter: str = "",  # noqa: A002  # the protocol's word
        options: str | Options = "",
        sub_id: str = "",
        delta: bool = False,
        resumes: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> MessageStream:
        """The stream form of `subscribe`: `async with client.stream("orders") as messages`.

        When the connection is lost, messages may be missing from there on. On a `Client` the
        stream then ends, and `end_reason` says why. On an `HAClient` it raises
        `DisconnectedError`, or continues with the next connection if `resumes` says so.

        Raises:
            UsageError: `resumes`, and this client does not reconnect by itself.
        """
        command = _subscribe(
            topic, timeout, delta=delta, filter=filter, options=options, sub_id=sub_id
        )
        return self._receiver.stream(command, resumes=self._receiver.checked(resumes=resumes))

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
            auto_discard: Whether a message is discarded when the handler has returned. One for
                which it raises is not, and `on_handler_error` decides.
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
        command = _subscribe(
            topic, timeout, filter=filter, options=options, sub_id=sub_id, bookmark=bookmark
        )
        return await self._receiver.handle(command, handler, auto_discard=auto_discard)

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

        The arguments are those of `bookmark_subscribe`. On an `HAClient` the stream continues after
        a lost connection, and nothing is missing.
        """
        command = _subscribe(
            topic, timeout, filter=filter, options=options, sub_id=sub_id, bookmark=bookmark
        )
        return self._receiver.stream(command, resumes=True)

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
            timeout: Seconds to wait for the server's answer, and for each further part of the
                result; `None` waits for as long as it takes.

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
        return self._receiver.stream(command)

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
        delta: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> str:
        """Query, then follow: nothing lost or doubled between the two.

        The handler also gets `group_begin` and `group_end`. An `HAClient` sends the command again
        after each lost connection. With a bookmark the records are those of an earlier moment, and
        the log is replayed from there; the topic has to keep its history.

        Args:
            topic: A literal topic or a regular expression.
            handler: A coroutine function or plain function that takes a `Message`.
            filter: Content filter of both, of the whole message.
            order_by: Order of the records, such as `/px DESC`. With `Options(top_n=10, skip_n=20)`
                the subscription is to a page of them: see docs/broker.md.
            bookmark: Where to begin, as in `bookmark_subscribe`; empty for now, without a replay.
            batch_size: Records in one frame.
            options: Options of the command.
            sub_id: The id of the subscription; one is chosen where it is empty. `MOST_RECENT`
                needs one that is the same in every run.
            delta: Whether an update has only the fields that have changed, and the key fields.
            timeout: Seconds to wait for the server's answer, and for each further part of the
                records; `None` waits for as long as it takes.

        Returns:
            The subscription id, for `unsubscribe`.

        Raises:
            CommandError: The server refused it.
            SubIdInUse: The id is active on this connection.
            TimedOut: The server did not answer within `timeout` seconds.
        """
        command = _subscribe(
            topic,
            timeout,
            queries=True,
            delta=delta,
            filter=filter,
            order_by=order_by,
            bookmark=bookmark,
            batch_size=batch_size,
            options=options,
            sub_id=sub_id,
        )
        return await self._receiver.handle(command, handler)

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
        delta: bool = False,
        resumes: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> MessageStream:
        """The stream form of `sow_and_subscribe`, whose arguments it has.

        `resumes` says whether an `HAClient` sends the command again after each lost connection: the
        stream then delivers all records again, and `messages.gaps` counts how often.

        With a bookmark the messages are those of a `bookmark_stream`: call `message.discard()` on
        finished ones. `messages.caught_up` is true when the replay is complete, too. After a lost
        connection the records include everything that was delivered, the replay goes on from there,
        and there is no gap if a bookmark store tracks the subscription.

        Raises:
            UsageError: `resumes`, and this client does not reconnect by itself.
        """
        command = _subscribe(
            topic,
            timeout,
            queries=True,
            delta=delta,
            filter=filter,
            order_by=order_by,
            bookmark=bookmark,
            batch_size=batch_size,
            options=options,
            sub_id=sub_id,
        )
        return self._receiver.stream(command, resumes=self._receiver.checked(resumes=resumes))

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
        topic: Topic[T],
        *,
        key: Callable[[T], Hashable] | None = None,
        filter: str = "",
        deltas: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> LiveRecords[T]: ...

    def records(
        self,
        topic: str | Topic[T],
        *,
        key: Callable[[JsonRecord], Hashable] | Callable[[T], Hashable] | None = None,
        filter: str = "",  # noqa: A002  # the protocol's word
        deltas: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> LiveRecords[JsonRecord] | LiveRecords[T]:
        """The records of a State-of-the-World topic as a mapping that is kept up to date.

        Args:
            topic: A literal topic whose records are JSON objects, or a `Topic` that decodes them.
            key: Returns the key of a record in the mapping, such as its id; by default the SOW key,
                which the server may compute from the key fields. It is called in the client's
                thread, and must be fast.
            filter: Content filter; a record that no longer matches it is removed.
            deltas: Whether the server sends only the changed fields of an update; JSON only.
            timeout: Seconds to wait for the server's answer, and for each further part of the
                records; `None` waits for as long as it takes.

        Returns:
            The records. Enter them with `async with`; that sends the command.
        """
        decoder = topic if isinstance(topic, Topic) else cast("Topic[T]", Topic(topic, JsonRecord))
        command = _subscribe(
            decoder.name,
            timeout,
            queries=True,
            delta=deltas,
            filter=filter,
            batch_size=_RECORDS_IN_FRAME,
            options="oof",
        )
        stream = self._receiver.stream(command, markers=True, resumes=self._core.status.reconnects)
        view = RecordView(decoder, key=cast("Callable[[T], Hashable] | None", key), deltas=deltas)
        return LiveRecords(view, stream, self._core)

    # -- changing subscriptions -------------------------------------------------

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
            UsageError: One of them is no active bookmark subscription of this client, or has the
                option `live`.
            CommandError: The server refused it; nothing has changed.
            DisconnectedError: There is no connection, or it was lost; an `HAClient` waits instead.
            TimedOut: The server did not answer in time.
        """
        await self._core.changes.pause(sub_ids, paused=True, timeout=seconds(timeout))

    async def resume(
        self, sub_ids: str | Sequence[str], *, timeout: float | None = TIMEOUT_S
    ) -> None:
        """Continue paused subscriptions where they were paused, without missing a message.

        Subscriptions that one command resumes at the same position, with the same rate, share one
        replay: the server sends their messages in the order of the log. After a lost connection
        each of them resumes alone.

        Args:
            sub_ids: One id, or several that are resumed by one command.
            timeout: Seconds to wait for the server's answer; `None` waits for as long as it takes.

        Raises:
            UsageError: One of them is no active bookmark subscription of this client.
            CommandError: The server refused it; nothing has changed.
            DisconnectedError: There is no connection, or it was lost; an `HAClient` waits instead.
            TimedOut: The server did not answer in time.
        """
        await self._core.changes.pause(sub_ids, paused=False, timeout=seconds(timeout))

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
        connection the later form is subscribed again. Calls that overlap are sent one by one.

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
                could have an order, or it is paused and would get the option `live`.
            CommandError: The server refused it; the subscription continues as it was.
            DisconnectedError: There is no connection, or it was lost; an `HAClient` waits instead.
            TimedOut: The server did not answer in time.
        """
        changes: dict[str, object] = {"topic": topic, "filter": filter, "order_by": order_by}
        await self._core.changes.change(
            sub_id, {**changes, "options": options}, timeout=seconds(timeout)
        )

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
        return await self._receiver.execute(command)

    async def execute_async(
        self, command: Command, handler: Handler | None = None, *, resubscribes: bool = True
    ) -> str:
        """Send any command; its messages, and the acks it asks for, go to `handler`.

        With `resubscribes=False` a subscription ends with its connection, on an `HAClient` too:
        the handler gets what had come, and the command is not sent again.

        Args:
            command: What to send; its `timeout` limits the wait for the server's answer.
            handler: A coroutine function or plain function that takes a `Message`; not needed for
                a publish, which takes none, a `sow_delete` or an `unsubscribe`.
            resubscribes: Whether an `HAClient` sends a subscription again after each lost
                connection. One that is replaced keeps what was said when it was made.

        Returns:
            The subscription id; empty for a command that has none.

        Raises:
            UsageError: It needs a handler, or can never work.
            CommandError: The server refused it.
            TimedOut: The server did not answer in time.
        """
        return await self._receiver.execute_async(command, handler, resubscribes=resubscribes)

    # -- queues -------------------------------------------------------------------

    async def queue_subscribe(
        self,
        topic: str,
        *,
        handler: Handler,
        filter: str = "",  # noqa: A002  # the protocol's word
        options: str | Options = "",
        sub_id: str = "",
        timeout: float | None = TIMEOUT_S,
        **handling: Unpack[QueueHandlerOptions],
    ) -> str:
        """Consume a queue: `handler` gets each message that the server leases to this consumer.

        A message is acknowledged when its handler has returned. When the handler raises, the
        message is never acknowledged; `on_handler_error` says what happens to it:

        * `"cancel"` gives it back, after a delay that doubles with each failure of this message
          in this subscription, from 0.1 to 30 seconds; during the delay it counts towards the
          backlog, so messages that always fail need a limit (`expire_after`, or `max_deliveries` of
          the queue): as many as the backlog would hold up all others;
        * `"expire"` removes it as expired;
        * `DeadLetter(topic)` publishes a copy, and acknowledges the message once that is persisted;
        * a callable gets message and error, and may acknowledge, cancel or expire the message,
          which is given back otherwise;
        * `"raise"` lets the error leave the client's block; the message is redelivered.

        `"continue"` is `"cancel"` here, and `"discard"` is `"expire"`.

        After a lost connection an `HAClient` subscribes again. Messages that wait for the handler
        are dropped, since the server redelivers them. A message that the handler is processing is
        redelivered too, unless its acknowledgement is sent first.

        Args:
            topic: A queue, or a regular expression for several.
            handler: A coroutine function or plain function that takes a `Message`.
            filter: Content filter: messages that do not match are left to other consumers.
            options: Further options of the subscription.
            sub_id: The subscription id; empty to have one chosen.
            timeout: Seconds to wait for the server's answer; `None` waits for as long as it takes.
            **handling: Backlog, workers, error policy, leases; see `QueueHandlerOptions`.

        Returns:
            The subscription id, for `unsubscribe`.

        Raises:
            UsageError: An argument can never work.
            CommandError: The server refused it: `InvalidTopic`, `NotEntitled`, ... The reference
                broker answers with `InvalidOptions` if the topic is not a queue.
            SubIdInUse: The id is active on this connection.
            TimedOut: The server did not answer within `timeout` seconds.
        """
        command = _subscribe(topic, timeout, filter=filter, options=options, sub_id=sub_id)
        return await self._receiver.handle_queue(command, handler, handling)

    def queue_stream(  # noqa: PLR0913  # the parts of one command
        self,
        topic: str,
        *,
        max_backlog: int = DEFAULT_MAX_BACKLOG,
        filter: str = "",  # noqa: A002  # the protocol's word
        options: str | Options = "",
        sub_id: str = "",
        auto_ack: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> MessageStream:
        """The stream form of `queue_subscribe`; call `message.ack()` on processed messages.

        `with message:` acknowledges a message at the end of the block, unless the block raises.
        With `auto_ack` a message is acknowledged when the task or thread that took it requests the
        next one, so the last one of each is not. On an `HAClient` the stream continues after a lost
        connection.

        Args:
            topic: A queue, or a regular expression for several.
            max_backlog: How many messages may be with this consumer unacknowledged; the server may
                grant less.
            filter: Content filter: messages that do not match are left to other consumers.
            options: Further options of the subscription.
            sub_id: The subscription id; empty to have one chosen.
            auto_ack: Whether a message is acknowledged when its taker requests the next one.
            timeout: Seconds to wait for the server's answer when the stream is opened; `None` waits
                for as long as it takes.

        Returns:
            The stream. Enter it with `async with`; that sends the command and raises what
            `queue_subscribe` does.
        """
        command = _subscribe(topic, timeout, filter=filter, options=options, sub_id=sub_id)
        return self._receiver.queue_stream(command, max_backlog=max_backlog, auto_ack=auto_ack)

    async def ack(
        self,
        topic: str,
        bookmarks: str | Sequence[str],
        *,
        cancel: bool = False,
        expire: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> None:
        """Acknowledge messages of a queue by their bookmarks, no matter which consumer has them.

        The server skips without an error messages that have left the queue, and with `strict`
        leasing those that another consumer has. The call waits for the server's answer; for
        messages that this client has received, `message.ack()` is faster.

        Args:
            topic: The queue.
            bookmarks: One bookmark, or several.
            cancel: Give the messages back.
            expire: Remove the messages as expired.
            timeout: Seconds to wait for the server's answer; `None` waits for as long as it takes.

        Raises:
            UsageError: A bookmark does not name a message, or `cancel` and `expire` were given.
            CommandError: The server refused it.
            DisconnectedError: There is no connection, or it was lost; an `HAClient` waits instead.
            TimedOut: The server did not answer in time.
        """
        options = Options(cancel=cancel, expire=expire)
        await self._receiver.ack(topic, bookmarks, options, timeout=seconds(timeout))

    async def ack_matching(
        self,
        topic: str,
        filter: str,  # noqa: A002  # the protocol's word
        *,
        cancel: bool = False,
        expire: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> int:
        """Acknowledge all messages of a queue that match a filter, leased or not.

        Args:
            topic: The queue.
            filter: Content filter; `1=1` matches every message.
            cancel: Give the messages back.
            expire: Remove the messages as expired.
            timeout: Seconds to wait for the server's answer; `None` waits for as long as it takes.

        Returns:
            The number of acknowledged messages, as the server reports it.

        Raises:
            UsageError: The filter is empty, or `cancel` and `expire` were given.
            CommandError: The server refused it.
            DisconnectedError: There is no connection, or it was lost before the answer. It is not
                sent again, since it would also acknowledge what was published meanwhile.
            TimedOut: The server did not answer in time.
        """
        options = Options(cancel=cancel, expire=expire)
        return await self._receiver.ack_matching(topic, filter, options, timeout=seconds(timeout))

    async def flush_acks(self, *, timeout: float | None = TIMEOUT_S) -> None:
        """Wait until the server has answered every acknowledgement of a message so far.

        One that it refuses is logged as an error, and its message may be redelivered.

        Args:
            timeout: Seconds to wait; `None` waits for as long as it takes.

        Raises:
            TimedOut: It took longer than `timeout` seconds.
            DisconnectedError: There is no connection, or it was lost; an `HAClient` waits instead.
                Or a `Client` has connected again, and sends the acknowledgements of its lost
                connection when it subscribes to a queue.
        """
        self._core.thread.check("flush_acks")
        await trio.lowlevel.checkpoint()  # with nothing to wait for it must not hold the loop
        await self._core.flusher.acks(timeout=seconds(timeout))


class _SubscribeParts(TypedDict, total=False):
    """What the command of a subscription may have; the names are those of `Command`."""

    filter: str
    order_by: str
    bookmark: StartPoint | str
    batch_size: int
    options: str | Options
    sub_id: str


def _subscribe(
    topic: str,
    timeout: float | None,
    *,
    queries: bool = False,
    delta: bool = False,
    **parts: Unpack[_SubscribeParts],
) -> Command:
    """The command of a subscription.

    Args:
        topic: Its topic.
        timeout: Seconds, as the application gives them.
        queries: Whether it begins with a query.
        delta: Whether updates have only the fields that have changed.
        **parts: What else it has.
    """
    name = f"{'sow_and_' if queries else ''}{'delta_' if delta else ''}subscribe"
    return Command(name, topic=topic, timeout=seconds(timeout), **parts)
