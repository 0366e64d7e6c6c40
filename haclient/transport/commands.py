"""Commands and their confirmation.

Every command except a publish requests a `processed` ack and waits for it; a refusal is raised as
the error that its reason names. The receiver of a command's messages is added to the router before
the command is sent. It is removed when the command fails or its caller gives up; in the latter case
the server is also told to stop.

`MOST_RECENT` is resolved here, from the bookmark store, and never reaches the wire.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import trio

from haclient.errors import (
    CommandError,
    DisconnectedError,
    HAClientError,
    InvalidBookmark,
    TimedOut,
)
from haclient.protocol.codec import encode_frame
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message, MessageOwner
from haclient.session.acks import PendingCommand, explained
from haclient.session.connection_state import ConnectionStatus
from haclient.session.custom_stores import StoreSubscription
from haclient.session.historical import HistoricalSubscription
from haclient.session.queue_leases import QueueLeases
from haclient.session.resume import ResumeContext, resume_options
from haclient.session.session import Session
from haclient.session.subscriptions import Sink, SubscribeRequest, Subscription
from haclient.transport.ack_waits import AckLot, AckWaits
from haclient.transport.auditing import AuditedOwner, Auditor
from haclient.transport.client_thread import ClientThread, LoggedBy
from haclient.transport.connection import Connection
from haclient.transport.reporter import Reporter
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW, parse_bookmark
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.tracked_store import TrackedBookmarkStore
from haclient_stores.interfaces import BookmarkStore, SubscriptionLog

Fields: TypeAlias = dict[str, str | int]
"""A command's header by wire name."""


class Commander:
    """Sends the commands of a client and waits for their acks.

    Args:
        session: Where receivers and waiting commands are registered.
        bookmark_store: Records what bookmark subscriptions have received, or `None`.
        status: The state of the connection.
        reporter: Receives the log records; its clock may step.
        thread: The client's thread, on which its messages are discarded.
        auditor: Records what is discarded, or `None`.

    Attributes:
        resume: Where bookmark subscriptions resume.
        waits: The calls that wait for acks.
        generated_ids: The ids in the bookmark store that the application did not choose.
    """

    def __init__(
        self,
        session: Session,
        bookmark_store: BookmarkStore | None,
        status: ConnectionStatus,
        reporter: Reporter,
        *,
        thread: ClientThread | None = None,
        auditor: Auditor | None = None,
    ) -> None:
        self._thread = thread or ClientThread()
        self._auditor = auditor
        self.waits = AckWaits()
        self.session = session
        self.bookmark_store = bookmark_store
        self.generated_ids: set[str] = set()
        self._purged_ids: list[str] = []  # of ended subscriptions, to be generated again
        self.status = status
        self.reporter = reporter
        self.resume = ResumeContext(reporter.clock_us)
        self.connection: Connection | None = None
        self._leaving: dict[str, PendingCommand] = {}  # ids that the server may still send for
        self._left = AckLot(self.waits)  # callers that wait for any of them

    # -- confirmation -------------------------------------------------------

    def connected(self) -> Connection:
        """The connection in use.

        Raises:
            DisconnectedError: There is none, or it has not logged on.
        """
        self.status.check_logged_on()
        assert self.connection is not None  # noqa: S101  # as the status says
        return self.connection

    async def confirm(
        self,
        send: Callable[[], object],
        pending: PendingCommand,
        event: trio.Event,
        *,
        timeout: float,
        patient: bool = False,
    ) -> Message:
        """Send, then wait for the ack that confirms the command.

        Args:
            send: Sends it.
            pending: What to wait for.
            event: Set when that has come.
            timeout: Seconds to wait.
            patient: Whether the time runs only while this client reads and the server makes no
                progress with earlier publishes: an ack behind messages that a slow handler has not
                taken yet, or behind a backlog, is not the server's delay.

        Raises:
            CommandError: The server refused it.
            DisconnectedError: The connection was lost first.
            TimedOut: No ack came within `timeout` seconds.
            SubscriptionFull: The ack comes after more messages than the client reads ahead; not if
                `patient`.
        """
        self.session.pending.add(pending)
        try:
            backlog = None if self.connection is None else self.connection.writer.backlog()
            send()
            if self.connection is not None:
                self.connection.writer.flush()  # a waiter gains nothing from batching
            await self._wait(event, pending.what, timeout, backlog if patient else None)
        finally:
            self.session.pending.forget(pending.command_id)
        if pending.error is not None:
            raise pending.error
        if pending.ack is None:
            raise self._unanswered(pending.what, timeout)
        return pending.ack

    def _unanswered(self, what: str, timeout: float) -> TimedOut:
        connection = self.connection
        stopped = connection is not None and not connection.is_reading
        why = "; the client reads nothing until the messages of a full queue are taken"
        return TimedOut(
            f"{what}: the server did not answer within {timeout:g} s{why if stopped else ''}"
        )

    async def _wait(
        self,
        event: trio.Event,
        what: str,
        timeout: float,
        backlog: Callable[[], tuple[int, int]] | None,
    ) -> None:
        """Wait for an event; after a `timeout`, wait again if the delay was not the server's.

        Args:
            event: What to wait for.
            what: What the caller does, for the error.
            timeout: Seconds to wait each time.
            backlog: See `Writer.backlog`; `None` to wait only once.
        """
        connection = self.connection
        while not event.is_set():
            before = None if backlog is None else backlog()
            with trio.move_on_after(timeout):
                await self.waits.until(event, what, may_fail=backlog is None)
            if backlog is None or connection is None:
                return
            if backlog() == before and connection.is_reading:
                return

    async def command(  # noqa: PLR0913  # one frame and how to wait for its answer
        self,
        fields: Fields,
        body: bytes = b"",
        *,
        what: str,
        awaited: str = "processed",
        urgent: bool = False,
        timeout: float,
        patient: bool = False,
        on_sent: Callable[[], object] = lambda: None,
        on_answer: Callable[[PendingCommand], object] = lambda _: None,
        replaces: Subscription | None = None,
    ) -> Message:
        """Send one command, after all publishes or before them; return the ack that confirms it.

        `on_answer` is called as the answer arrives, so in the order of arrival, whichever of the
        tasks that wait for answers runs first.
        """
        connection = self.connected()
        frame = encode_frame(fields, body)
        event = trio.Event()

        def wake() -> None:
            on_answer(pending)
            event.set()

        pending = PendingCommand(
            str(fields["cid"]), what, awaited=awaited, wake=wake, replaces=replaces
        )

        def send() -> None:
            (connection.writer.send_urgent if urgent else connection.writer.send)(frame)
            on_sent()

        try:
            return await self.confirm(send, pending, event, timeout=timeout, patient=patient)
        except CommandError as error:
            raise explained(error, fields) from None

    # -- where subscriptions resume -------------------------------------------------------------

    def logged_on(self) -> None:
        """After a logon: check whether the server still has the transaction log that it had."""
        status = self.status
        if status.server is not None and not self.resume.servers.logged_on(
            status.address, status.server
        ):
            self.reporter.log.warning(
                "%s has another transaction log than before (a lost disk, or a restored backup): "
                "bookmark subscriptions resume by time there",
                status.address,
            )

    def note_caught_up(self, until: float, last: bool) -> None:  # noqa: FBT001  # a callback
        """Note the caught-up time of the link; `last` when the link has ended."""
        now = trio.current_time()
        for one in self.session.router.all():
            self.resume.note_caught_up(one.position, until, now, last=last)

    def _sending(
        self,
        subscription: Subscription,
        request: SubscribeRequest,
        bookmark: str,
        *,
        resumes: bool,
    ) -> None:
        """Prepare to send its command; once that is accepted, its store follows that log."""
        now, log = trio.current_time(), subscription.log
        subscription.position.sending(now)
        subscription.is_query_answered = False
        subscription.pauses.begin(is_paused=request.is_paused)
        subscription.note_held(now)
        if log is None:
            return
        # It begins anew at an explicit bookmark, and where conflated messages may come again.
        starts_over = not resumes or request.is_conflated
        entered_us = 0
        if starts_over and parse_bookmark(bookmark) == NOW:  # by any server's clock not before that
            entered_us = max(1, self.resume.now_us(now) - self.resume.overlap_us)

        def accepted() -> None:  # not before: a refused command must not have changed the store
            if starts_over:
                log.begin(
                    acked=request.gets_persisted_acks,
                    start=bookmark,
                    conflated=request.is_conflated,
                    entered_us=entered_us,
                )
            self.resume.accepted(subscription.position)

        subscription.accepted = accepted

    # -- receivers ----------------------------------------------------------

    async def open(  # noqa: PLR0913  # one command and what takes part in its opening
        self,
        request: SubscribeRequest,
        sink: Sink,
        *,
        command_id: str,
        markers: bool,
        timeout: float,
        leases: QueueLeases | None = None,
        on_entering: Callable[[], object] = lambda: None,
    ) -> Subscription:
        """Send a command and return its receiver once the server has accepted it.

        Args:
            request: The command.
            sink: Where its messages go.
            command_id: Names the command in its acks.
            markers: Whether `group_begin` and `group_end` are delivered like messages.
            timeout: Seconds to wait for the server's answer.
            leases: What it does if its topic is a queue.
            on_entering: Called when the id is free, before the bookmark store says where to start.

        Raises:
            SubIdInUse: The id is active on this connection; nothing was sent.
        """
        self.connected()
        ids = [each for each in (request.sub_id, request.query_id) if each]
        await self._until_left(ids, request.what, timeout=timeout)
        connection = self.connected()
        self.session.router.check_free(ids)  # before the bookmark store is written to
        on_entering()
        log = self.log_of(request)
        if log is not None and _resumes(request) and not request.is_conflated:
            log.begin(acked=request.gets_persisted_acks, start=None)
        kind = HistoricalSubscription if request.query_id and request.bookmark else Subscription
        subscription = kind(
            request.sub_id,
            sink,
            request=request,
            command_id=command_id,
            query_id=request.query_id,
            log=log,
            owner=None if log is None else self._owner(request.sub_id, log),
            user_acks=request.user_acks,
            ends_after=request.ends_after,
            markers=markers,
            leases=leases,
        )
        self.session.router.add(subscription)
        sent = trio.Event()
        enter = partial(self._enter, subscription, request, timeout=timeout, on_sent=sent.set)
        try:
            await best_first(self._forms(request, log), enter, self._report_refusal)
        except BaseException as error:
            is_unanswered = isinstance(error, TimedOut | trio.Cancelled)
            self._drop_unopened(
                subscription, connection if sent.is_set() and is_unanswered else None
            )
            raise
        return subscription

    async def _enter(
        self,
        subscription: Subscription,
        request: SubscribeRequest,
        bookmark: str,
        *,
        timeout: float,
        on_sent: Callable[[], object],
    ) -> None:
        self._sending(subscription, request, bookmark, resumes=_resumes(request))
        options = self._options(request, bookmark)
        header = request.header(subscription.command_id, bookmark=bookmark, options=options)
        sending = partial(self.command, timeout=timeout, on_sent=on_sent)
        await sending(header, request.body, what=request.what)

    def _drop_unopened(self, subscription: Subscription, sent_on: Connection | None) -> None:
        """Remove a subscription whose command has failed.

        Args:
            subscription: The subscription.
            sent_on: The connection on which the command was sent and not answered.
        """
        self.session.router.remove(subscription)
        if sent_on is not None and sent_on is self.connection:
            self._leave([subscription], sent_on)
        subscription.drop_queued()  # after the sending, since a store may fail here
        self.purge_generated(subscription.sub_id)

    def _report_refusal(self) -> None:
        self.reporter.log.warning(
            "%s refuses bookmarks with a time anchor", self.resume.servers.name
        )

    def _owner(self, sub_id: str, log: SubscriptionLog) -> MessageOwner:
        """Where the messages of a subscription are discarded."""
        owner = LoggedBy(log, self._thread)
        return owner if self._auditor is None else AuditedOwner(owner, self._auditor, sub_id)

    async def resubscribe(
        self,
        subscription: Subscription,
        *,
        still_wanted: Callable[[], bool],
        on_sent: Callable[[], object],
        timeout: float,
    ) -> None:
        """Send the command of a subscription again on a new connection.

        A bookmark subscription resumes where its store says; the messages that were queued for it
        are dropped already.

        Args:
            subscription: Its receiver, with its command.
            still_wanted: Whether the application has not ended it meanwhile; asked before each
                sending, since a server may refuse the first form of the bookmark.
            on_sent: Called after each sending; there is no checkpoint before the first.
            timeout: Seconds to wait for the server's answer, while this client reads.
        """
        request = subscription.request
        assert request is not None  # noqa: S101  # a publish is not sent again like this
        if subscription.log is not None and not request.is_conflated:
            subscription.log.begin(acked=request.gets_persisted_acks, start=None)
        forms = subscription.bookmark_candidates(self.resume)

        async def enter(bookmark: str) -> None:
            if still_wanted():
                options = resume_options(
                    request.options,
                    bookmark=bookmark,
                    version=self.status.server_version,
                    again=True,
                )
                sending = partial(self.command, on_sent=on_sent, timeout=timeout, patient=True)
                await self._reopen(subscription, request, bookmark, options, sending)

        await best_first(forms, enter, self._report_refusal)

    async def _reopen(
        self,
        subscription: Subscription,
        request: SubscribeRequest,
        bookmark: str,
        options: str,
        command: Callable[..., Awaitable[Message]],
    ) -> None:
        subscription.command_id = self.session.next_command_id()
        self._sending(subscription, request, bookmark, resumes=True)
        self.session.router.add(subscription)
        header = request.header(subscription.command_id, bookmark=bookmark, options=options)
        try:
            await command(header, request.body, what=f"{request.what} again")
        except BaseException:  # refused, lost or cancelled: the next attempt adds it again
            self.session.router.remove(subscription)
            subscription.drop_queued(keep_replaced=True)
            raise

    def is_active(self, subscription: Subscription) -> bool:
        """Whether the server sends messages for it."""
        return self.session.router.get(subscription.sub_id) is subscription

    def generate_id(self, command_id: str) -> str:
        """An id for a tracked subscription that the application has given none.

        One that the store has forgotten is used again, since it keeps an entry for each.

        Args:
            command_id: Makes a new one readable.
        """
        free = (each for each in self._purged_ids if each not in self._leaving)
        if sub_id := next(free, ""):
            self._purged_ids.remove(sub_id)
        else:
            sub_id = f"{command_id}-{secrets.token_hex(8)}"
        self.generated_ids.add(sub_id)
        return sub_id

    def purge_generated(self, sub_id: str) -> None:
        """Have the bookmark store forget an ended subscription whose id was generated."""
        if sub_id not in self.generated_ids:
            return
        self.generated_ids.remove(sub_id)
        store = self.bookmark_store
        if isinstance(store, MemoryBookmarkStore):
            store.purge_ended(sub_id)
        elif store is not None:
            store.purge(sub_id)
        # Only where numbers go on: else a late discard could mean a message of the next one.
        if isinstance(store, TrackedBookmarkStore) and sub_id in store.subscriptions:
            self._purged_ids.append(sub_id)

    def log_of(self, request: SubscribeRequest) -> SubscriptionLog | None:
        """The bookmark store's part of a subscribe; `None` if it has none."""
        store = self.bookmark_store
        if store is None or not request.bookmark:
            return None
        return subscription_log(store, request.sub_id)

    def _forms(self, request: SubscribeRequest, log: SubscriptionLog | None) -> tuple[str, ...]:
        """The bookmarks to request, the best first; resolves `MOST_RECENT`."""
        if log is None or not _resumes(request):
            return (str(request.fields.get("bm", "")),)
        return self.resume.bookmarks(log, is_conflated=request.is_conflated)

    def _options(self, request: SubscribeRequest, bookmark: str) -> str:
        """The options of a subscribe: those of a resume if the store holds its position."""
        if not _resumes(request) or "|" not in bookmark or bookmark == str(NOW):
            return request.options
        # The server may lack what this client knows, so it must not begin after it.
        return resume_options(
            request.options, bookmark=bookmark, version=self.status.server_version, again=False
        )

    # -- leaving ------------------------------------------------------------

    def _unsubscribe(self, subscriptions: list[Subscription]) -> Fields:
        """The command that ends these: queries have an id of their own."""
        ids = dict.fromkeys(one.sub_id for one in subscriptions)
        queries = dict.fromkeys(one.query_id for one in subscriptions if one.query_id)
        fields: Fields = {"c": "unsubscribe", "cid": self.session.next_command_id()}
        fields["sub_id"] = ",".join(ids)
        if queries:
            fields["query_id"] = ",".join(queries)
        return fields

    async def unsubscribe(self, subscriptions: list[Subscription], *, timeout: float) -> None:
        """End these at the server; late messages for them are dropped."""
        connection = self.connection
        leaving = self.leave(subscriptions)
        if leaving is None or connection is None:
            return
        pending, left = leaving
        with trio.move_on_after(timeout):
            await self.waits.until(left, pending.what)
        if self.connection is not connection:
            return  # the connection was lost: they have ended without an answer
        if pending.error is not None:
            raise pending.error
        if pending.ack is None:
            raise self._unanswered(pending.what, timeout)

    def leave(self, subscriptions: list[Subscription]) -> tuple[PendingCommand, trio.Event] | None:
        """End these at the server without waiting; return what to wait for, None if not sent."""
        for one in subscriptions:
            self.session.router.remove(one)
            if one.leases is not None:  # before the server returns them
                one.leases.close()
        connection = self.connection
        if not subscriptions or connection is None or not self.status.is_logged_on:
            return None
        return self._leave(subscriptions, connection)

    def _leave(
        self, subscriptions: list[Subscription], connection: Connection
    ) -> tuple[PendingCommand, trio.Event]:
        """Tell the server to stop, whether anybody waits for its answer or not.

        Until that has arrived, messages for these ids may still be on their way. A later
        subscription must not take them for its own: they are not where its replay begins, so
        whatever lies in between would count as seen.
        """
        fields = {**self._unsubscribe(subscriptions), "a": "processed"}
        ids = {one_id for one in subscriptions for one_id in (one.sub_id, one.query_id) if one_id}
        left = trio.Event()

        def wake() -> None:
            left.set()
            for one_id in ids:
                if self._leaving.get(one_id) is pending:
                    del self._leaving[one_id]
            self._left.unpark_all()

        command_id = str(fields["cid"])
        pending = PendingCommand(command_id, "unsubscribe", awaited="processed", wake=wake)
        self._leaving.update(dict.fromkeys(ids, pending))
        self.session.pending.add(pending)
        connection.writer.send(encode_frame(fields))
        connection.writer.flush()  # the caller waits: batching gains nothing
        return pending, left

    async def _until_left(self, ids: list[str], what: str, *, timeout: float) -> None:
        """Wait until the server has confirmed the end of earlier subscriptions with these ids."""
        with trio.move_on_after(timeout):
            for one_id in ids:
                while one_id in self._leaving:
                    await self._left.park(what)
            return
        raise TimedOut(
            f"{what}: the server has not confirmed within {timeout:g} s that the earlier "
            f"subscription with this id has ended"
        )


def _resumes(request: SubscribeRequest) -> bool:
    """Whether a new subscription begins where the bookmark store says."""
    return request.bookmark == str(MOST_RECENT)


def subscription_log(store: BookmarkStore, sub_id: str) -> SubscriptionLog:
    """The store's own fast handle for one subscription, or one made of its public methods."""
    own = getattr(store, "subscription", None)
    handle: SubscriptionLog = own(sub_id) if own is not None else StoreSubscription(store, sub_id)
    return handle


def lost_error(pending: PendingCommand | None, reason: HAClientError) -> HAClientError:
    """The error for one command that was waiting when the connection was lost."""
    if pending is None:
        return reason
    error = DisconnectedError(f"{pending.what}: not confirmed: {reason}")
    error.__cause__ = reason
    return error


def plain_stream_lost(subscription: Subscription, reason: HAClientError) -> HAClientError:
    """The error of a stream that nothing continues on the next connection."""
    error = DisconnectedError(
        f"the stream {subscription.sub_id!r} ended with its connection, and messages may be "
        f"missing from here on: {reason}: open it again, open it with resumes=True to go on after "
        "a gap, or use a bookmark_stream to miss nothing"
    )
    error.__cause__ = reason
    return error


async def best_first(
    bookmarks: tuple[str, ...],
    enter: Callable[[str], Awaitable[None]],
    on_refused: Callable[[], object],
) -> None:
    """Ask for the first of these forms that the server understands.

    Args:
        bookmarks: The forms.
        enter: Enters the subscription with one of them.
        on_refused: Called when the server refuses a form, before the next one is tried.

    Raises:
        InvalidBookmark: It refuses the last one, too.
    """
    *better, last = bookmarks
    for bookmark in better:
        try:
            await enter(bookmark)
        except InvalidBookmark:
            on_refused()
        else:
            return
    await enter(last)


def header_fields(command: Command) -> Fields:
    """The command's header; `MOST_RECENT` is resolved when it is sent.

    Raises:
        UsageError: No server could carry it out.
    """
    recent = command.start == str(MOST_RECENT)
    if recent:
        command = dataclasses.replace(command, bookmark=EPOCH)
    command.validate()
    fields = command.to_fields()
    if recent:
        fields["bm"] = str(MOST_RECENT)
    return fields
