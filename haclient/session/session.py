"""The session: interprets the messages of one chunk.

`receive` takes every message of one read from the socket and returns `Received`: batches for
subscriptions in the order of arrival, and the results of the acks among them. It sends nothing,
waits for nothing and has no clock. The caller must act on the result in this order:

1. `persisted` moves the publish store's tail, after the failed writes below it were looked up;
2. batches and markers go to the queues in order;
3. confirmed commands wake (that has happened already: waking is only a mark in the scheduler).

A message of a bookmark subscription is logged in the bookmark store *here*, before any queue gets
it; one that the store has seen before is a duplicate and is not delivered.

The loop of `receive` is the hot path: adjacent messages with the same `sids` text form a run and
are handled together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from haclient.errors import HAClientError, ProtocolError, UsageError, printable
from haclient.protocol.commands import command_error
from haclient.protocol.messages import Message
from haclient.session.acks import PendingCommands
from haclient.session.connection_state import MAX_SEQUENCE, Counters
from haclient.session.subscriptions import Marker, Router, Subscription
from haclient_stores.tracker.tracker import UNTRACKED


class Received:
    """What the caller has to do for one chunk of messages.

    Attributes:
        deliveries: Batches, markers and errors that end a subscription, in the order of arrival.
        ended: The subscriptions that the server has ended by an error, with that error.
        persisted: The highest publish sequence acknowledged in this chunk, 0 when none was.
        failed: Failure acks for single publishes, in order.
        duplicates: Messages that the bookmark stores have seen before.
        unrouted: Messages that no subscription receives.
        heartbeat: Whether the server has sent a heartbeat.
        disconnect_reason: Why the server is about to close the connection; empty unless the last
            message says so.
        log_reached: A position that the server's log has reached, in wire form; empty if none.
        fault: The error of a part that cannot be read, which follows the messages; the connection
            must be closed.
    """

    __slots__ = (
        "deliveries",
        "disconnect_reason",
        "duplicates",
        "ended",
        "failed",
        "fault",
        "heartbeat",
        "log_reached",
        "persisted",
        "unrouted",
    )

    def __init__(self) -> None:
        self.deliveries: list[tuple[Subscription, list[Message] | Marker | HAClientError]] = []
        self.ended: list[tuple[Subscription, HAClientError]] = []
        self.persisted = 0
        self.failed: list[Message] = []
        self.duplicates: list[Message] = []
        self.unrouted: list[Message] = []
        self.heartbeat = False
        self.disconnect_reason = ""
        self.fault: ProtocolError | None = None
        self.log_reached = ""

    def messages_of_one(self) -> int:
        """How many messages it has for its only subscription, which gets all of its bytes.

        0 if several have messages in it, or if some are not delivered: then each message is
        weighed, which costs time.
        """
        if self.duplicates or self.unrouted:
            return 0
        only, count = None, 0
        for subscription, batch in self.deliveries:
            if isinstance(batch, list):
                if only is None:
                    only = subscription
                elif subscription is not only:
                    return 0
                count += len(batch)
        return count


class Session:
    """The state of one connection above its frames."""

    def __init__(self) -> None:
        self.pending = PendingCommands()
        self.router = Router()
        self.counters = Counters()
        self.reserved_ids: frozenset[str] = frozenset()  # of subscriptions of an earlier process
        self._last_command_id = 0
        self._now = 0.0
        self.moved: dict[Subscription, None] = {}  # since the caught-up time was noted last
        self.tap: Callable[[Sequence[Message]], None] | None = None

    def next_command_id(self) -> str:
        """A command id that is unique in this session, also as the id of a subscription.

        Applications may have chosen ids, too.
        """
        while True:
            self._last_command_id += 1
            command_id = str(self._last_command_id)
            if command_id in self.pending or command_id in self.reserved_ids:
                continue
            if not self.router.of_ack(command_id, command_id, ""):
                return command_id

    def receive(self, messages: Sequence[Message], now: float = 0.0) -> Received:
        """Sort one chunk.

        Messages before an unreadable part count: they are in the bookmark store, and would be taken
        for delivered.

        Args:
            messages: The messages of the chunk.
            now: When it was read, in seconds; leases count from here.

        Raises:
            StoreError: The bookmark store cannot log a message; it was not delivered.
        """
        out = Received()
        self._now = now
        if self.tap is not None:
            self.tap(messages)
        try:
            self._group_by_subscription(messages, out)
        except ProtocolError as error:  # what came before it in the chunk still counts
            out.fault = error
        if messages and _is_disconnect(messages[-1]):
            out.disconnect_reason = printable(messages[-1].reason)
        return out

    def _group_by_subscription(self, messages: Sequence[Message], out: Received) -> None:
        run: list[Message] = []
        run_key = ""
        for message in messages:
            key = message.sids
            if key and key == run_key:
                run.append(message)
                continue
            if run:
                self._deliver(run_key, run, out)
            if key:
                run, run_key = [message], key
            else:
                run, run_key = self._without_sids(message, out)
        if run:
            self._deliver(run_key, run, out)

    def _without_sids(self, message: Message, out: Received) -> tuple[list[Message], str]:
        """Handle a message that names no `sids`; a run of its own, if it is to be delivered."""
        match message.kind:
            case "ack":
                self._ack(message, out)
            case "heartbeat":
                out.heartbeat = True
            case "group_begin" | "group_end":
                self._group(message, out)
            case _:
                key = message.query_id or message.sub_id or message.command_id
                if key:
                    return [message], key
                out.unrouted.append(message)
        return [], ""

    # -- messages ---------------------------------------------------------

    def _deliver(self, ids: str, run: list[Message], out: Received) -> None:
        receivers = self.router.route(ids)
        if not receivers:
            out.unrouted.extend(run)
            return
        for subscription in receivers[1:]:  # values that two handlers can keep apart
            self._record_and_deliver(subscription, [message.copy() for message in run], out)
        self._record_and_deliver(receivers[0], run, out)

    def _record_and_deliver(
        self, subscription: Subscription, run: list[Message], out: Received
    ) -> None:
        sub_id, log = subscription.sub_id, subscription.log
        if log is None:
            self._untracked(subscription, run, out)
            return
        # A message proves that the command was accepted, even if its ack comes later. A bookmark
        # store that starts over must do so before it logs the first message.
        _accept(subscription)
        if records := subscription.take_records(run):
            for message in run[:records]:
                message.sub_id = sub_id
            out.deliveries.append((subscription, run[:records]))
            run = run[records:]
            if not run:
                return
        if not log.oldest_undiscarded:
            subscription.position.busy_since = self._now
        try:
            numbers = log.log_batch([message.bookmark for message in run])
        except UsageError as error:  # the store cannot read what the server sent
            raise ProtocolError(
                f"the server sent a bookmark that cannot be read: {error}"
            ) from error
        subscription.position.last_bookmark = run[-1].bookmark
        self.moved[subscription] = None
        owner = subscription.owner
        for message, number in zip(run, numbers, strict=True):
            message.sub_id = sub_id
            message.owner = owner
            message.number = number
        if 0 in numbers:
            run = self._without_duplicates(subscription, run, out)
        if run:
            out.deliveries.append((subscription, run))

    @staticmethod
    def _without_duplicates(
        subscription: Subscription, run: list[Message], out: Received
    ) -> list[Message]:
        """The messages of a run that are to be delivered, where the store knows some of them."""
        if subscription.request.is_conflated:
            # A merged message has the bookmark of the first one of its interval, and a server may
            # send the intervals of its keys in any order: what is in the message may be new.
            for message in run:
                message.number = message.number or UNTRACKED
            return run
        if subscription.query_id:  # the records lack what the replay has: see `historical`
            for message in run:
                if not message.number:
                    message.kind, message.query_id = "sow", subscription.query_id
                    message.owner = None
            return run
        out.duplicates.extend(message for message in run if not message.number)
        return [message for message in run if message.number]

    def _untracked(self, subscription: Subscription, run: list[Message], out: Received) -> None:
        """Deliver the messages of a subscription that no bookmark store tracks."""
        subscription.position.last_bookmark = run[-1].bookmark  # for the progress watchdog
        for message in run:
            message.sub_id = subscription.sub_id
        leases = subscription.leases
        if leases is not None and leases.is_queue:
            leases.received(run, self._now)
        out.deliveries.append((subscription, run))

    def _group(self, message: Message, out: Received) -> None:
        subscription = self.router.get(message.query_id or message.sub_id or message.command_id)
        if subscription is None:
            out.unrouted.append(message)
            return
        if subscription.markers:
            message.sub_id = subscription.sub_id
            out.deliveries.append((subscription, [message]))
        subscription.has_group = True
        subscription.is_query_answered = message.kind == "group_end"
        if subscription.is_query_answered:
            self._progress(subscription, "group_end", out)

    def _progress(self, subscription: Subscription, what: str, out: Received) -> None:
        """Handle `group_end` or an ack, which reports the progress of a query or replay."""
        if subscription.is_caught_up_with(what):
            out.deliveries.append((subscription, Marker.CAUGHT_UP))
        subscription.note(what)
        if subscription.is_complete:
            self.router.remove(subscription)
            out.deliveries.append((subscription, Marker.ENDED))

    # -- acks -------------------------------------------------------------

    def _ack(self, ack: Message, out: Received) -> None:
        if ack.reason:
            ack.reason = printable(ack.reason)  # it is part of errors and log lines
        if ack.detail:
            ack.detail = printable(ack.detail)
        if ack.log_starts and ack.ack_type == "persisted":
            out.log_reached = ack.log_starts  # a logon ack names positions that were not reached
        subscription = self.router.of_ack(ack.command_id, ack.query_id, ack.sub_id)
        # The sequence in a subscription's ack is not of a publish: it must not trim the store.
        is_of_publish = subscription is None and ack.sequence is not None
        if ack.ack_type == "persisted" and (is_of_publish or _is_unaddressed_failure(ack)):
            self._publish_ack(ack, out)
        if subscription is not None:
            own = ack.command_id in {"", subscription.command_id}
            is_pending = ack.command_id in self.pending
            if ack.status == "failure" and own and not is_pending:
                self._refused(subscription, ack, out)
            elif own or not (is_pending or subscription.is_query):
                # Else it answers a command about the subscription, or an earlier query of this id.
                self._subscription_ack(subscription, ack, out)
        replaced = self.pending.on_ack(ack)
        if replaced is not None and self.router.get(replaced.sub_id) is replaced:
            out.deliveries.append((replaced, Marker.REPLACED))

    def _refused(self, subscription: Subscription, ack: Message, out: Received) -> None:
        """End a subscription whose command failed after it had been accepted."""
        error = command_error(f"subscription {subscription.sub_id!r}", ack.reason, ack.detail)
        self.router.remove(subscription)
        if ack.ack_type in subscription.user_acks:
            ack.sub_id = subscription.sub_id
            out.deliveries.append((subscription, [ack]))
        out.ended.append((subscription, error))
        out.deliveries.append((subscription, error))

    @staticmethod
    def _publish_ack(ack: Message, out: Received) -> None:
        sequence = ack.sequence or 0
        if sequence > MAX_SEQUENCE:
            raise ProtocolError(
                f"the server acknowledges sequence {sequence}, which no publisher can have reached"
            )
        if ack.status == "failure" and ack.reason != "duplicate":  # it was processed before
            out.failed.append(ack)
        elif sequence > out.persisted:
            out.persisted = sequence

    def _subscription_ack(self, subscription: Subscription, ack: Message, out: Received) -> None:
        kind = ack.ack_type
        if kind == "processed" and ack.status == "success":
            _accept(subscription)
        if kind == "processed" and ack.status == "success" and subscription.leases is not None:
            subscription.leases.granted(ack.options)  # before the messages that follow it
        if ack.status == "success" and kind == "completed" and subscription.ends_replay(ack):
            subscription.position.completed(self._now)
            self.moved[subscription] = None
        if ack.status == "success" and subscription.log is not None and ack.bookmark:
            if kind == "persisted":
                subscription.position.last_persisted = ack.bookmark
                subscription.log.persisted(ack.bookmark)
            elif kind == "completed":
                subscription.log.completed(ack.bookmark)
        if kind in subscription.user_acks:
            ack.sub_id = subscription.sub_id
            out.deliveries.append((subscription, [ack]))
        if ack.status == "success" and subscription.is_answered_by(ack):
            if subscription.markers:  # who waits for the end of the records gets it here, too
                out.deliveries.append((subscription, _empty_group(subscription)))
            subscription.is_query_answered = True
            subscription.note("group_end")
        self._progress(subscription, kind, out)

    # -- the end ----------------------------------------------------------

    def lost(self, reason: HAClientError) -> list[Subscription]:
        """The connection is lost: fail the pending commands and remove all subscriptions.

        Args:
            reason: Why.

        Returns:
            The subscriptions that were active.
        """
        self.pending.fail_all(reason)
        ended = self.router.all()
        for subscription in ended:
            self.router.remove(subscription)
        return ended


def _accept(subscription: Subscription) -> None:
    """Call, once, what waits for the server to accept a command."""
    if subscription.accepted is not None:
        subscription.accepted()
        subscription.accepted = None


def _empty_group(subscription: Subscription) -> list[Message]:
    """The frame of a result without records, which the server has left out."""
    sub_id, query_id = subscription.sub_id, subscription.query_id
    kinds = "group_begin", "group_end"
    return [Message(kind=kind, sub_id=sub_id, query_id=query_id) for kind in kinds]


def _is_unaddressed_failure(ack: Message) -> bool:
    """Whether it is a failure ack that names no command and no subscription."""
    return ack.status == "failure" and not (ack.command_id or ack.sub_id or ack.query_id)


def _is_disconnect(message: Message) -> bool:
    """Whether it is a disconnect reason, after which the server sends nothing more.

    A `persisted` ack is about a publish, even where it does not say which.
    """
    return (
        message.kind == "ack"
        and message.ack_type != "persisted"
        and _is_unaddressed_failure(message)
    )
