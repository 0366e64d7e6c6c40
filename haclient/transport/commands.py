"""Commands and their confirmation.

Every command except a publish requests a `processed` ack and waits for it; a refusal is raised as
the error that its reason names. The receiver of a command's messages is added to the router before
the command is sent. It is removed when the command fails or its caller gives up; in the latter case
the server is also told to stop.

`MOST_RECENT` is resolved here, from the bookmark store, and never reaches the wire.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

import trio

from haclient.errors import (
    CommandError,
    DisconnectedError,
    HAClientError,
    InvalidBookmark,
    StoreFull,
    TimedOut,
    UsageError,
)
from haclient.protocol.codec import encode_frame, encode_header
from haclient.protocol.messages import Message, MessageOwner
from haclient.protocol.options import Options
from haclient.session.acks import PendingCommand
from haclient.session.connection_state import ConnectionStatus
from haclient.session.custom_stores import StoreSubscription
from haclient.session.resume import ResumeContext, resume_options
from haclient.session.session import Session
from haclient.session.subscriptions import (
    Marker,
    QueueSide,
    Sink,
    SubscribeRequest,
    Subscription,
)
from haclient.transport.auditing import AuditedOwner, Auditor
from haclient.transport.client_thread import ClientThread, LoggedBy
from haclient.transport.connection import Connection
from haclient.transport.message_queue import Delivery
from haclient.transport.publisher import Publisher
from haclient.transport.reporter import Reporter
from haclient_stores.bookmark import MOST_RECENT, NOW, parse_bookmark
from haclient_stores.interfaces import BookmarkStore, SubscriptionLog

Fields: TypeAlias = dict[str, str | int]
"""A command's header by wire name."""


class Commander:
    """Sends the commands of a client and waits for their acks.

    Args:
        session: Where receivers and waiting commands are registered.
        bookmark_store: Records what bookmark subscriptions have received, or `None`.
        status: The state of the connection.
        reporter: Where log records go; its clock may step.
        thread: The client's thread, on which its messages are discarded.
        auditor: Records what is discarded, or `None`.

    Attributes:
        resume: Where bookmark subscriptions resume.
        can_hold_back: Whether the server is asked to pause subscriptions whose queues are full.
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
        self.session = session
        self.bookmark_store = bookmark_store
        self.status = status
        self.reporter = reporter
        self.resume = ResumeContext(reporter.clock_us)
        self.connection: Connection | None = None
        self._leaving: dict[str, trio.Event] = {}  # ids that the server may still send for
        self.can_hold_back = True

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
            patient: Whether the time counts only while this client reads: an ack that comes after
                messages which a slow handler has yet to take is not the server's delay.

        Raises:
            CommandError: The server refused it.
            DisconnectedError: The connection was lost first.
            TimedOut: No ack came within `timeout` seconds.
            UsageError: The ack comes after messages that the calling task has yet to take.
        """
        if self.connection is not None:
            self.connection.refuse_deadlock(pending.what)
        pending.waiter = trio.lowlevel.current_task()
        self.session.pending.add(pending)
        try:
            send()
            if self.connection is not None:
                self.connection.writer.flush()  # a waiter gains nothing from batching
            await self._wait(event, timeout, patient=patient)
        finally:
            self.session.pending.forget(pending.command_id)
        if pending.error is not None:
            raise pending.error
        if pending.ack is None:
            raise TimedOut(f"{pending.what}: the server did not answer within {timeout:g} s")
        return pending.ack

    async def _wait(self, event: trio.Event, timeout: float, *, patient: bool) -> None:
        while not event.is_set():
            with trio.move_on_after(timeout):
                await event.wait()
            connection = self.connection
            if not patient or connection is None or connection.reading_stopped_by is None:
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
    ) -> Message:
        """Send one command, after all publishes or before them; return the ack that confirms it."""
        connection = self.connected()
        frame = encode_frame(fields, body)
        event = trio.Event()
        pending = PendingCommand(str(fields["cid"]), what, awaited=awaited, wake=event.set)

        def send() -> None:
            (connection.writer.send_urgent if urgent else connection.writer.send)(frame)
            on_sent()

        return await self.confirm(send, pending, event, timeout=timeout, patient=patient)

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

    def _sending(self, subscription: Subscription) -> None:
        """Prepare to send its command; once that is accepted, its store follows that log."""
        first = subscription.accepted
        now = trio.current_time()
        subscription.position.sending(now)
        subscription.held_back = subscription.may_be_paused = False
        subscription.note_held(now)
        if subscription.log is None:
            return

        def accepted() -> None:
            if first is not None:
                first()
            self.resume.accepted(subscription.position)

        subscription.accepted = accepted

    # -- receivers ----------------------------------------------------------

    async def open(
        self,
        request: SubscribeRequest,
        sink: Sink,
        *,
        command_id: str,
        markers: bool,
        timeout: float,
        queue: QueueSide | None = None,
    ) -> Subscription:
        """Send a command and return its receiver once the server has accepted it.

        Args:
            request: The command.
            sink: Where its messages go.
            command_id: Names the command in its acks.
            markers: Whether `group_begin` and `group_end` are delivered like messages.
            timeout: Seconds to wait for the server's answer.
            queue: What it does if its topic is a queue.

        Raises:
            SubIdInUse: The id is active on this connection; nothing was sent.
        """
        self.connected()
        ids = [each for each in (request.sub_id, request.query_id) if each]
        await self._until_left(ids, request.what, timeout=timeout)
        connection = self.connected()
        self.session.router.check_free(ids)  # before the bookmark store is written to
        log, accepted = self._remember(request)
        subscription = Subscription(
            request.sub_id,
            sink,
            request=request,
            command_id=command_id,
            query_id=request.query_id,
            log=log,
            owner=None if log is None else self._owner(request.sub_id, log),
            accepted=accepted,
            user_acks=request.user_acks,
            ends_after=request.ends_after,
            markers=markers,
            queue=queue,
        )
        self._sending(subscription)
        self.session.router.add(subscription)

        async def enter(bookmark: str) -> None:
            options = self._options(request, bookmark)
            header = request.header(command_id, bookmark=bookmark, options=options)
            await self.command(header, request.body, what=request.what, timeout=timeout)

        try:
            await best_first(self._forms(request, log), enter, self._report_refusal)
        except BaseException as error:
            self.session.router.remove(subscription)
            drop_queued(subscription)
            if isinstance(error, TimedOut | trio.Cancelled) and connection is self.connection:
                self._leave([subscription], connection)
            raise
        return subscription

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
        request: SubscribeRequest,
        *,
        still_wanted: Callable[[], bool],
        on_sent: Callable[[], object],
        timeout: float,
    ) -> None:
        """Send the command of a subscription again on a new connection.

        A bookmark subscription resumes where its store says; the messages that were queued for it
        are dropped already.

        Args:
            subscription: Its receiver.
            request: Its command.
            still_wanted: Whether the application has not ended it meanwhile; asked before each
                sending, since a server may refuse the first form of the bookmark.
            on_sent: Called after each sending; there is no checkpoint before the first.
            timeout: Seconds to wait for the server's answer, while this client reads.
        """
        log = subscription.log
        forms: tuple[str, ...] = (request.bookmark,)
        subscription.request = request
        if log is not None:
            conflated = request.is_conflated
            log.begin(acked=request.gets_persisted_acks, start=None, conflated=conflated)
            # Conflated messages and those of a query do not come in the order of the log.
            ordered = not conflated and not subscription.query_id
            forms = self.resume.bookmarks(
                log, subscription.position.last_bookmark if ordered else ""
            )

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
        subscription.accepted = None
        self._sending(subscription)
        self.session.router.add(subscription)
        header = request.header(subscription.command_id, bookmark=bookmark, options=options)
        try:
            await command(header, request.body, what=f"{request.what} again")
        except BaseException:  # refused, lost or cancelled: the next attempt adds it again
            self.session.router.remove(subscription)
            drop_queued(subscription, keep_replaced=True)
            raise

    async def replace(
        self, subscription: Subscription, request: SubscribeRequest, *, timeout: float
    ) -> None:
        """Replace topic, filter or options of an active subscription; its position stays.

        A paused subscription stays paused, regardless of the options, until it is resumed.

        Raises:
            CommandError: The server refused it; the subscription continues as it was.
        """
        command_id = self.session.next_command_id()
        options = str(dataclasses.replace(Options.parse(request.options), replace=True))
        header = request.header(command_id, bookmark="", options=options)
        what = f"{request.what} with replace"
        log, before = subscription.log, subscription.request
        if log is not None and request.is_conflated and not (before and before.is_conflated):
            log.begin(acked=request.gets_persisted_acks, start=None, conflated=True)
        with self._may_pause([subscription] if request.is_paused else []):
            ack = await self.command(header, request.body, what=what, timeout=timeout)
        if subscription.queue is not None:
            subscription.queue.granted(ack.options)
        self.session.router.name_command(subscription, command_id)
        before = subscription.request
        if before is not None and before.is_paused and not request.is_paused:
            request = request.paused(is_paused=True)
        subscription.request = request
        if request.is_paused:
            subscription.may_be_paused = False
        subscription.sink.mark(Marker.REPLACED)

    async def pause(
        self, subscriptions: list[Subscription], *, paused: bool, timeout: float
    ) -> None:
        """Pause bookmark subscriptions at the server, or resume them, with one command.

        Raises:
            CommandError: The server refused it; nothing has changed.
        """
        with self._may_pause(subscriptions if paused else []):
            await self._pause(subscriptions, "pause" if paused else "resume", timeout=timeout)
        for one in subscriptions:
            one.held_back, one.may_be_paused = one.held_back and paused, False
            if one.request is not None:
                one.request = one.request.paused(is_paused=paused)
            one.note_held(trio.current_time())

    async def _pause(
        self,
        subscriptions: list[Subscription],
        word: str,
        *,
        timeout: float,
        patient: bool = False,
    ) -> None:
        ids = ",".join(one.sub_id for one in subscriptions)
        header: Fields = {"c": "subscribe", "cid": self.session.next_command_id()}
        header |= {"sub_id": ids, "opts": word, "a": "processed"}
        await self.command(header, what=f"{word} of {ids}", timeout=timeout, patient=patient)

    @contextmanager
    def _may_pause(self, subscriptions: list[Subscription]) -> Generator[None]:
        """Around a command of the application that pauses these: from its sending on they may be.

        Only a refusal says that they are not; any other error says nothing of what the server does.
        """
        for one in subscriptions:
            one.may_be_paused = True
            one.note_held(trio.current_time())
        try:
            yield
        except CommandError:
            for one in subscriptions:
                one.may_be_paused = False
                one.note_held(trio.current_time())
            raise

    # -- full queues, see `haclient.transport.automatic_pauses` -------------------------------

    async def hold_back(self, subscription: Subscription, *, timeout: float) -> None:
        """Pause a subscription until `resume_held_back`, whatever the application does meanwhile.

        Args:
            subscription: An active one with a bookmark.
            timeout: Seconds to wait for the server's answer, while this client reads.

        Raises:
            CommandError: The server refused it; nothing has changed.
            TimedOut: It has not answered, and may have paused it.
        """
        self._note_held_back(subscription, held_back=True)
        try:
            await self._pause([subscription], "pause", timeout=timeout, patient=True)
        except CommandError:
            self._note_held_back(subscription, held_back=False)
            raise
        # The answer to an earlier resume by the application may have come before this one.
        self._note_held_back(subscription, held_back=True)

    async def resume_held_back(self, subscription: Subscription, *, timeout: float) -> bool:
        """Resume a subscription after `hold_back`, unless the application has paused it as well.

        Args:
            subscription: It may have been resumed or ended by the application meanwhile.
            timeout: Seconds to wait for the server's answer, while this client reads.

        Returns:
            Whether the server sends again.

        Raises:
            CommandError: The server refused it.
            TimedOut: It has not answered.
        """
        if not subscription.held_back:
            return False
        resumes = self.is_active(subscription) and not subscription.is_paused
        if resumes:
            await self._pause([subscription], "resume", timeout=timeout, patient=True)
        self._note_held_back(subscription, held_back=False)
        return resumes

    @staticmethod
    def _note_held_back(subscription: Subscription, *, held_back: bool) -> None:
        subscription.held_back = held_back
        subscription.note_held(trio.current_time())

    def is_active(self, subscription: Subscription) -> bool:
        """Whether the server is to send messages for it."""
        return self.session.router.get(subscription.sub_id) is subscription

    def _remember(
        self, request: SubscribeRequest
    ) -> tuple[SubscriptionLog | None, Callable[[], None] | None]:
        """Open the bookmark store's part of a subscribe.

        Returns:
            That part, and the action to run on it once the server has accepted the command.
        """
        store, bookmark = self.bookmark_store, request.bookmark
        if store is None or not bookmark:
            return None, None
        log = subscription_log(store, request.sub_id)
        acked, conflated = request.gets_persisted_acks, request.is_conflated
        if bookmark == str(MOST_RECENT):
            log.begin(acked=acked, start=None, conflated=conflated)
            return log, None
        # An explicit bookmark forgets what is known: not before the server has accepted it.
        entered_us = 0
        if parse_bookmark(bookmark) == NOW:  # by the clock of any server not later than that
            entered_us = max(1, self.resume.now_us(trio.current_time()) - self.resume.overlap_us)
        return log, partial(
            log.begin, acked=acked, start=bookmark, conflated=conflated, entered_us=entered_us
        )

    def _forms(self, request: SubscribeRequest, log: SubscriptionLog | None) -> tuple[str, ...]:
        """The bookmarks to request, the best first; resolves `MOST_RECENT`."""
        if log is None or request.bookmark != str(MOST_RECENT):
            return (str(request.fields.get("bm", "")),)
        return self.resume.bookmarks(log)

    def _options(self, request: SubscribeRequest, bookmark: str) -> str:
        """The options of a subscribe: those of a resume if the store holds its position."""
        resolved = request.bookmark == str(MOST_RECENT)
        if not resolved or "|" not in bookmark or bookmark == str(NOW):
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
        connection.refuse_deadlock(pending.what)
        pending.waiter = trio.lowlevel.current_task()
        with trio.move_on_after(timeout):
            await left.wait()
        if self.connection is not connection:
            return  # the connection was lost: they have ended without an answer
        if pending.error is not None:
            raise pending.error
        if pending.ack is None:
            raise TimedOut(f"{pending.what}: the server did not answer within {timeout:g} s")

    def leave(self, subscriptions: list[Subscription]) -> tuple[PendingCommand, trio.Event] | None:
        """End these at the server without waiting; return what to wait for, None if not sent."""
        for one in subscriptions:
            self.session.router.remove(one)
            if one.queue is not None:  # before the server returns its leases
                one.queue.close()
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
        self._leaving.update(dict.fromkeys(ids, left))

        def wake() -> None:
            left.set()
            if isinstance(pending.error, UsageError):  # only the wait was refused
                self.session.pending.add(
                    PendingCommand(command_id, what, awaited="processed", wake=forget)
                )
            else:
                forget()

        def forget() -> None:
            for one_id in ids:
                if self._leaving.get(one_id) is left:
                    del self._leaving[one_id]

        command_id, what = str(fields["cid"]), "unsubscribe"
        pending = PendingCommand(command_id, what, awaited="processed", wake=wake)
        self.session.pending.add(pending)
        connection.writer.send(encode_frame(fields))
        connection.writer.flush()  # the caller waits: batching gains nothing
        return pending, left

    async def _until_left(self, ids: list[str], what: str, *, timeout: float) -> None:
        """Wait until the server has confirmed the end of earlier subscriptions with these ids."""
        with trio.move_on_after(timeout):
            for one_id in ids:
                while (left := self._leaving.get(one_id)) is not None:
                    self.connected().refuse_deadlock(what)
                    await left.wait()
            return
        raise TimedOut(
            f"{what}: the server has not confirmed within {timeout:g} s that the earlier "
            f"subscription with this id has ended"
        )


def drop_queued(subscription: Subscription, *, keep_replaced: bool = False) -> None:
    """Drop the undelivered messages of a subscription; a resume redelivers them.

    Args:
        subscription: The subscription.
        keep_replaced: Whether it resumes with the current command: then messages of a replaced
            command are kept, since they would not be redelivered.
    """
    sink, log = subscription.sink, subscription.log
    first = sink.drop(keep_replaced=keep_replaced) if isinstance(sink, Delivery) else 0
    if first and log is not None:
        log.link_lost(first)


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


async def best_first(
    bookmarks: tuple[str, ...],
    enter: Callable[[str], Awaitable[None]],
    on_refused: Callable[[], object],
) -> None:
    """Ask for the first of these forms that the server understands.

    Args:
        bookmarks: The forms.
        enter: Enters the subscription with one of them.
        on_refused: Called when the server refuses a form, and the next one is tried.

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


# -- deletes that are kept like publishes ----------------------------------------

_WHAT = "sow_delete"


async def delete_stored(
    commander: Commander,
    publisher: Publisher,
    fields: Fields,
    body: bytes,
    *,
    timeout: float,
) -> Message:
    """Store the command, wait for its `stats`; like a publish it waits for room before.

    Returns:
        The `stats` ack. Its counts are missing if a server had executed the command and the
        connection was lost before it reported the number of records.

    Raises:
        CommandError: The server refused it.
        DisconnectedError: There is no connection and none will come; else see `TimedOut`.
        UsageError: The command has a sequence of its own.
        TimedOut: No answer came in time; what was stored by then is still sent.
    """
    if "s" in fields:
        raise UsageError(
            f"the publish store numbers a sow_delete like a publish, found the sequence "
            f"{fields['s']}: leave it out"
        )
    if not commander.status.expects_connection:
        commander.connected()
    with trio.move_on_after(timeout):
        await publisher.make_room()
        while True:
            try:
                return await _store_and_wait(commander, publisher, fields, body)
            except StoreFull as full:  # nothing was stored
                await publisher.room_after(full, _WHAT)
    raise TimedOut(f"{_WHAT}: the server did not answer within {timeout:g} s")


async def _store_and_wait(
    commander: Commander, publisher: Publisher, fields: Fields, body: bytes
) -> Message:
    log = publisher.log
    assert log is not None  # noqa: S101  # who has no store sends it as an ordinary command
    # A stored command may be sent again by a later process: no later id may equal its own.
    command_id = f"{_WHAT}-{log.last_sequence + 1}"
    header = {**fields, "cid": command_id, "a": "processed,stats,persisted"}
    head = encode_header(header)[:-1] + b',"s":'
    table = commander.session.pending
    pending, answered = _pending(command_id)
    table.add(pending)
    try:
        sequence = publisher.append(head, body)
        await publisher.wait_synced()
        publisher.flush_for_waiter(_WHAT)
        await answered.wait()
        while pending.ack is None:
            lost = pending.error or DisconnectedError("the wait was ended")
            if not isinstance(lost, DisconnectedError):
                raise lost
            if log.last_persisted >= sequence:
                return Message(kind="ack", ack_type="stats", status="success", sequence=sequence)
            commander.status.check_expects_connection(_WHAT, lost)
            # The next connection repeats it, unless that server has it already. A server answers
            # before it says "persisted": after that no answer comes.
            pending, answered = _pending(command_id)
            table.add(pending)
            await publisher.persisted.reached(sequence, answered)
    finally:
        table.forget(command_id)
    return pending.ack


def _pending(command_id: str) -> tuple[PendingCommand, trio.Event]:
    event = trio.Event()
    waiter = trio.lowlevel.current_task()
    pending = PendingCommand(command_id, _WHAT, awaited="stats", wake=event.set, waiter=waiter)
    return pending, event
