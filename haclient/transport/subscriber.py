"""Subscriptions and queries: opened, sent again on another connection, and ended.

The receiver of a command's messages is added to the router before the command is sent. It is
removed when the command fails or its caller gives up; in the latter case the server is also told to
stop. `MOST_RECENT` is resolved here, from the bookmark store, and never reaches the wire.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from math import inf
from typing import Final

import trio

from haclient.errors import (
    DisconnectedError,
    InvalidBookmark,
    TimedOut,
    UsageError,
)
from haclient.options import TIMEOUT_S, seconds
from haclient.protocol.codec import encode_frame
from haclient.protocol.commands import Command, CommandName
from haclient.protocol.messages import MessageOwner
from haclient.session.acks import PendingCommand, is_refusal
from haclient.session.auditing import AuditedOwner
from haclient.session.bookmark_logs import BookmarkAdvice, BookmarkLogs, subscribe_header
from haclient.session.historical import HistoricalSubscription
from haclient.session.intents import has_receiver, replaced_by
from haclient.session.kept_subscriptions import header_fields
from haclient.session.leases import QueueLeases
from haclient.session.subscriptions import (
    LASTING,
    Phase,
    SubscribeRequest,
    Subscription,
)
from haclient.transport.back_pressure import AckLot
from haclient.transport.commands import Commands, Fields
from haclient.transport.connection import Connection
from haclient.transport.core import Core
from haclient.transport.message_queue import MessageQueue
from haclient.transport.subscription_control import timeout_of
from haclient.transport.tasks import LoggedBy
from haclient_stores.bookmark import MOST_RECENT
from haclient_stores.checks import check_texts
from haclient_stores.interfaces import SubscriptionLog

_MOST_RECENT: Final = str(MOST_RECENT)
_OF_QUEUES: Final = frozenset({CommandName.SUBSCRIBE, CommandName.DELTA_SUBSCRIBE})


@dataclasses.dataclass(slots=True, eq=False)
class _Opening:
    """A command whose opener waits for a server's answer, or for the connection to send it on.

    Attributes:
        sub_id: The id that it will have.
        command_id: The id of its command.
        scope: Cancelled when the application ends it before it was sent.
        is_ended: Whether the application has ended it after it was sent.
    """

    sub_id: str
    command_id: str = ""
    is_ended: bool = False
    scope: trio.CancelScope = dataclasses.field(default_factory=trio.CancelScope)

    @property
    def error(self) -> UsageError:
        """The error for its opener, after the application has ended it."""
        return UsageError(
            f"{self.sub_id!r} was unsubscribed before a server had accepted its command"
        )


class Subscriber:
    """Opens, resubscribes and ends the subscriptions and queries of one client.

    Args:
        core: The client.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._commands: Commands = core.commands
        self._session = core.session
        self._kept = core.kept
        self.logs = BookmarkLogs(core.settings.bookmark_store, core.kept)
        self._is_tracked = core.settings.bookmark_store is not None
        self._advice = BookmarkAdvice(has_store=self._is_tracked)
        self._opening: dict[_Opening, None] = {}
        self._entered = 0  # how many subscriptions so far
        self._unsubscribing: dict[str, PendingCommand] = {}  # ids that may still get messages
        self._unsubscribed = AckLot(core.commands.waits)  # callers that wait for any of them

    # -- opening ----------------------------------------------------------------------------------

    async def open(
        self,
        command: Command,
        queue: MessageQueue,
        *,
        markers: bool = False,
        lasts: bool = False,
        leases: QueueLeases | None = None,
        first_bookmark: str = "",
    ) -> Subscription:
        """Send a command; a client that reconnects tries until a server has answered it.

        Args:
            command: What to send.
            queue: Where its messages go.
            markers: Whether `group_begin` and `group_end` are delivered like messages.
            lasts: Whether a client that reconnects sends it again.
            leases: Its leases, if its topic is a queue.
            first_bookmark: The bookmark at which it began in an earlier process, for the
                subscription manager; empty for where it begins now.

        Returns:
            The subscription, which a server has accepted.

        Raises:
            CommandError: The server refused it; `SubIdInUse` if the id is active.
            DisconnectedError: There is no connection, and none will follow.
            TimedOut: The server did not answer in time.
            UsageError: It can never work, or was unsubscribed meanwhile.
        """
        status, timeout = self._core.status, timeout_of(command)
        self._core.running(command.name)
        lost: DisconnectedError | None = None
        with (
            trio.move_on_after(timeout if status.reconnects else inf),
            self._opening_of(command) as opening,
        ):
            while True:
                await self._commands.ready()
                request = self._request(command, opening)
                try:
                    with self._releasing_on_error(command, request):
                        connection = self._commands.connected()
                        await self._wait_unsubscribed(request, timeout=timeout)
                        subscription = self._enter(
                            request, command, opening, queue, markers=markers, leases=leases
                        )
                        with self._withdrawing_on_error(subscription, connection):
                            await self._send_first_accepted(subscription, timeout=timeout)
                except DisconnectedError as error:
                    if not status.reconnects or is_refusal(error):
                        raise
                    if opening.is_ended:  # nobody would take its messages on the next connection
                        raise opening.error from error
                    lost = error
                else:
                    return self._opened(subscription, command, first_bookmark, lasts=lasts)
        late = f"{command.name}: no server accepted it"
        raise self._commands.too_late(late, timeout, lost)

    @contextmanager
    def _opening_of(self, command: Command) -> Generator[_Opening]:
        """Let `unsubscribe` end a command that no server has accepted yet."""
        opening = _Opening(command.sub_id or command.query_id)
        self._opening[opening] = None
        try:
            with opening.scope:
                yield opening
        finally:
            del self._opening[opening]
        if opening.scope.cancelled_caught:
            raise opening.error

    def _request(self, command: Command, opening: _Opening) -> SubscribeRequest:
        """What a command requests from the server.

        Raises:
            UsageError: It can never work.
        """
        if replaced_by(command, self._kept) is not None:
            raise UsageError(has_receiver(command.sub_id))
        opening.command_id = command.command_id or self._session.next_command_id()
        fields = header_fields(command)
        needs_id = "bm" in fields and command.name in LASTING and not _is_named(command)
        if needs_id and self._is_tracked:
            # The numbers of commands are the same in each process, and stores remember ids: an
            # earlier process may have used this number for another subscription.
            new = f"{opening.command_id}-{secrets.token_hex(8)}"
            fields["sub_id"] = self.logs.generated_id(new, self._unsubscribing)
        request = SubscribeRequest.complete(
            fields, command.body, command_id=opening.command_id, has_store=self._is_tracked
        )
        opening.sub_id = request.sub_id
        if command.bookmark:
            log, extra = self._core.reporter.log, {"sub_id": request.sub_id}
            for warning in self._advice.warnings(command, request):
                log.warning(warning, request.sub_id, command.topic, extra=extra)
        return request

    def _enter(  # the parts of one receiver
        self,
        request: SubscribeRequest,
        command: Command,
        opening: _Opening,
        queue: MessageQueue,
        *,
        markers: bool,
        leases: QueueLeases | None,
    ) -> Subscription:
        """Add the receiver of a command, which is sent next.

        Raises:
            SubIdInUse: The id is active on this connection.
        """
        self._session.router.check_free(request.ids)  # before the bookmark store is written to
        log = self.logs.enter(request)
        if leases is None and command.name in _OF_QUEUES and not request.bookmark:
            leases = self._core.ack_sender.leases(command.topic, is_queue=False)
        is_historical = bool(request.query_id and request.bookmark)
        kind = HistoricalSubscription if is_historical else Subscription
        subscription = kind(
            request,
            queue,
            command_id=opening.command_id,
            log=log,
            owner=None if log is None else self._owner(request.sub_id, log),
            markers=markers,
            leases=leases,
        )
        self._session.router.add(subscription)
        self._entered += 1
        subscription.entered = self._entered
        return subscription

    def _owner(self, sub_id: str, log: SubscriptionLog) -> MessageOwner:
        """Where the messages of a subscription are discarded."""
        owner, auditor = LoggedBy(log, self._core.thread), self._core.auditor
        return owner if auditor is None else AuditedOwner(owner, auditor, sub_id)

    @contextmanager
    def _releasing_on_error(self, command: Command, request: SubscribeRequest) -> Generator[None]:
        try:
            yield
        except BaseException:  # meanwhile an earlier handler may have ended, without a release
            if _is_named(command):
                self.logs.release_refused(request)
            raise

    @contextmanager
    def _withdrawing_on_error(
        self, subscription: Subscription, connection: Connection
    ) -> Generator[None]:
        """Remove a subscription whose command has failed."""
        try:
            yield
        except BaseException as error:
            self._session.router.remove(subscription)
            is_unanswered = isinstance(error, TimedOut | trio.Cancelled)
            if is_unanswered and connection is self._commands.connection:
                self._send_unsubscribe([subscription], connection)
            subscription.drop_queued()  # after the sending, since a store may fail here
            self.logs.purge_generated(subscription.sub_id)
            raise

    def _opened(
        self, subscription: Subscription, command: Command, first_bookmark: str, *, lasts: bool
    ) -> Subscription:
        """A server has accepted the command.

        Raises:
            StoreError: The subscription manager cannot write it; the subscription is ended.
        """
        subscription.phase = Phase.OPEN
        if subscription.is_of_queue:
            self._advice.queues.add(command.topic)
            self._core.queue_acks.resume()  # what an earlier connection has not confirmed
        # It may have been ended before its ack was processed: by the application, or the server.
        request = subscription.request
        if not lasts or request.command not in LASTING:
            return subscription
        if subscription not in self._session.router:
            return subscription
        if first_bookmark:  # before it is written: a kill must not leave another one there
            subscription.request = request.changed({"bm": first_bookmark})
        try:
            self._kept.keep(subscription)
        except BaseException:  # the caller has no handle to end the subscription with
            self._kept.forget(subscription)
            self.unsubscribe_nowait([subscription])
            subscription.drop_queued()
            raise
        return subscription

    # -- sending ----------------------------------------------------------------------------------

    async def resubscribe(self, subscription: Subscription, *, timeout: float) -> None:
        """Send the command of a subscription again on a new connection.

        A bookmark subscription resumes where its store says; the messages that were queued for it
        are dropped already. There is no checkpoint before the first sending. After a failure it is
        still among the active ones: the end of the connection says what becomes of it.

        Args:
            subscription: The subscription.
            timeout: Seconds to wait for the server's answer, while this client reads.

        Raises:
            CommandError: The server refuses it.
            DisconnectedError: The connection was lost.
            TimedOut: The server did not answer in time.
        """
        self._commands.connected()  # else the end of the connection has been: it would stay active
        subscription.command_id = self._session.next_command_id()
        self._session.router.add(subscription)
        await self._send_first_accepted(subscription, timeout=timeout, is_again=True)

    async def _send_first_accepted(
        self, subscription: Subscription, *, timeout: float, is_again: bool = False
    ) -> None:
        """Send its command with the first bookmark that the server understands.

        Raises:
            InvalidBookmark: It refuses the last one, too.
        """
        request, log = subscription.request, subscription.log
        resumes = is_again or request.bookmark == _MOST_RECENT
        if log is not None and resumes and not request.is_conflated:
            log.begin(acked=request.gets_persisted_acks, start=None)
        candidates = subscription.bookmark_candidates(self._core.resume, resumes=resumes)
        what = f"{request.what} again" if is_again else request.what
        for bookmark in candidates:
            if is_again and subscription not in self._kept:
                return  # the application has ended it
            header = subscribe_header(
                subscription,
                bookmark,
                self._core.resume,
                trio.current_time(),
                resumes=resumes,
                version=self._core.status.server_version,
                is_again=is_again,
            )
            try:
                await self._commands.send(
                    header, request.body, what=what, timeout=timeout, patient=is_again
                )
            except InvalidBookmark as error:
                if bookmark == candidates[-1]:
                    raise
                self._core.reporter.log.warning("%s: trying another bookmark", error)
            else:
                break
        if subscription.phase is Phase.LOST:  # right after the ack
            reason = self._core.status.lost_reason  # none if there is another one already
            raise DisconnectedError(f"{what}: the connection was lost") from reason

    # -- ending -----------------------------------------------------------------------------------

    async def unsubscribe(self, ids: str | Iterable[str], *, timeout: float | None) -> None:
        """End subscriptions; late messages for them are dropped.

        Args:
            ids: One id, several, or `all`; an unknown one is no error, and so is an empty one.
            timeout: Seconds to wait for the server's answer; `None` for no limit.

        Raises:
            TimedOut: The server did not answer in time; they have ended here.
        """
        self._core.thread.check("unsubscribe")
        wanted = check_texts("sub_ids", ids)
        chosen = self._kept.all() if ids == "all" else self._kept.named(wanted)
        sent = {one.sub_id: one for one in chosen}
        for opening in self._opening:
            begun = sent.get(opening.sub_id)
            if begun is not None:
                opening.is_ended = begun.phase is Phase.OPENING
            elif ids == "all" or opening.sub_id in wanted:  # it waits for the next connection
                opening.scope.cancel()
        for one in chosen:  # all of them first: if that fails, the call can be made again
            self._kept.drop(one)
        for one in chosen:
            one.drop_queued()
            one.queue.end(_cut_short(one))
        connection = self._commands.connection
        unsubscribing = self.unsubscribe_nowait(chosen)
        if unsubscribing is None:
            return
        pending, answered = unsubscribing
        limit_s = seconds(timeout)
        with trio.move_on_after(limit_s):
            await self._commands.waits.until(answered, pending.what)
        if self._commands.connection is connection:  # else they have ended without an answer
            self._commands.answer(pending, limit_s)

    def unsubscribe_nowait(
        self, subscriptions: Iterable[Subscription]
    ) -> tuple[PendingCommand, trio.Event] | None:
        """End those at the server that are active, without waiting for its answer.

        Returns:
            The command and an event that its answer sets; `None` if it was not sent.
        """
        active = [one for one in subscriptions if one in self._session.router]
        for one in active:
            self._session.router.remove(one)
            if one.leases is not None:  # before the server returns them
                one.leases.close()
        connection = self._commands.connection
        if not active or connection is None or not self._core.status.is_logged_on:
            return None
        return self._send_unsubscribe(active, connection)

    def _send_unsubscribe(
        self, subscriptions: list[Subscription], connection: Connection
    ) -> tuple[PendingCommand, trio.Event]:
        """End them at the server, whether anybody waits for its answer or not.

        Until that has arrived, messages for these ids may still be on their way. A later
        subscription must not take them for its own: they are not where its replay begins, so
        whatever lies in between would count as seen.
        """
        ids = dict.fromkeys(one.sub_id for one in subscriptions)
        queries = dict.fromkeys(one.query_id for one in subscriptions if one.query_id)
        command_id, answered = self._session.next_command_id(), trio.Event()
        fields: Fields = {"c": "unsubscribe", "cid": command_id, "sub_id": ",".join(ids)}
        if queries:  # they have an id of their own
            fields["query_id"] = ",".join(queries)

        def wake() -> None:
            answered.set()
            for one_id in {*ids, *queries}:
                if self._unsubscribing.get(one_id) is pending:
                    del self._unsubscribing[one_id]
            self._unsubscribed.unpark_all()

        pending = PendingCommand(command_id, "unsubscribe", awaited="processed", wake=wake)
        self._unsubscribing.update(dict.fromkeys((*ids, *queries), pending))
        self._session.pending.add(pending)
        connection.writer.send(encode_frame({**fields, "a": "processed"}))
        connection.writer.flush()  # the caller waits: batching gains nothing
        return pending, answered

    async def _wait_unsubscribed(self, request: SubscribeRequest, *, timeout: float) -> None:
        """Wait until the server has confirmed the end of earlier subscriptions with its ids."""
        if self._unsubscribing.keys().isdisjoint(request.ids):
            return
        with trio.move_on_after(timeout):
            while not self._unsubscribing.keys().isdisjoint(request.ids):
                await self._unsubscribed.park(request.what)
            self._commands.connected()
            return
        raise TimedOut(
            f"{request.what}: the server has not confirmed within {timeout:g} s that the earlier "
            f"subscription with this id has ended"
        )

    def undo(self) -> Callable[[str], Awaitable[None]]:
        """Remember what is active before a call, whose caller may never get its result.

        Returns:
            A coroutine function that takes the result of the call, and ends the subscription or
            query that the call has begun. What was active before stays: the call has paused,
            resumed or replaced it. So does a publish, which cannot be taken back.
        """
        before = self._entered  # not the subscriptions: each call would look at all of them

        async def undo(result: str) -> None:
            for one in self._kept.named((result,)):
                if one.sub_id == result and one.entered > before:
                    await self.unsubscribe(result, timeout=TIMEOUT_S)

        return undo


def _cut_short(one: Subscription) -> DisconnectedError | None:
    """The error for who reads a query and has not got its whole result."""
    has_query = one.queue.is_stream and (one.is_query or one.query_id)
    if not has_query or one.is_query_answered:
        return None
    return DisconnectedError(f"{one.request.what} was unsubscribed before its result was complete")


def _is_named(command: Command) -> bool:
    """Whether the application has chosen an id for the subscription of a command."""
    return bool(command.sub_id or command.query_id or command.command_id)
