"""Changes of active subscriptions: replaced, paused and resumed at the server.

The application asks for them, by methods or as commands. What a command means to its subscriptions
is decided by `haclient.session.acks`. The client itself pauses bookmark subscriptions while
their queues are full.

A connection has one socket. If the client stops reading for one slow consumer, every other
subscription waits too, and so do the acks of publishes and commands. The server, however, keeps the
position of a bookmark subscription and can hold back that one alone. The client pauses it once its
queue is over the cap, and resumes it when half of the cap is free. Messages in flight meanwhile are
still accepted, up to a limit for all subscriptions together, at which reading stops after all.

A query of the past that a replay follows is paused once its records have arrived: then it is a
bookmark subscription like any other. A server may refuse to pause it all the same, so each command
counts for itself: that refusal says nothing about plain bookmark subscriptions.

Plain subscriptions cannot be paused: messages published during a pause would never arrive. Queues
need no pause, since their backlog bounds the messages in flight. For both the client stops reading,
as it does at a server that refuses to pause.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import trio
from typing_extensions import override

from haclient.errors import CommandError, DisconnectedError, HAClientError, TimedOut, UsageError
from haclient.events import SubscriptionPaused, SubscriptionResumed
from haclient.options import TIMEOUT_S, seconds
from haclient.protocol.commands import Command
from haclient.protocol.options import Options
from haclient.session.acks import Change, PendingCommand
from haclient.session.kept_subscriptions import KeptSubscriptions, changed_fields, replacing_fields
from haclient.session.subscriptions import SubscribeRequest, Subscription
from haclient.transport.back_pressure import BackPressure, queue_of
from haclient.transport.commands import Commands, Fields
from haclient.transport.reporter import Reporter
from haclient.transport.tasks import ClientThread, open_nursery
from haclient_stores.checks import check_texts, check_utf8


class SubscriptionControl:
    """Changes the active subscriptions of a client.

    Args:
        commands: Sends the commands.
        kept: The subscriptions that survive a lost connection.
        reporter: Receives the log records.
        thread: The client's thread.
        max_unanswered: How many commands whose callers have given up are remembered until the
            server answers.

    Attributes:
        cannot_pause: The addresses of servers, each with the name of a command whose
            subscriptions they do not pause when their queues are full, and are not asked again.
    """

    def __init__(
        self,
        commands: Commands,
        kept: KeptSubscriptions,
        reporter: Reporter,
        thread: ClientThread,
        *,
        max_unanswered: int = 1_024,
    ) -> None:
        self._commands = commands
        self._session = commands.session
        self._kept = kept
        self._reporter = reporter
        self._thread = thread
        self._max_unanswered = max_unanswered
        self._answers = trio.lowlevel.ParkingLot()  # tasks that wait for any answer
        self._replace_count = 0
        self._replacing: set[str] = set()  # ids of subscriptions whose replace is unanswered
        self._unanswered: dict[str, None] = {}  # ids of commands whose callers have given up
        self.cannot_pause: set[tuple[str, str]] = set()

    # -- for the application ----------------------------------------------------------------------

    async def pause(self, sub_ids: str | Iterable[str], *, paused: bool, timeout: float) -> None:
        """Pause bookmark subscriptions, or resume them, with one command.

        Args:
            sub_ids: One id, or several.
            paused: Whether to pause; else they are resumed.
            timeout: Seconds to wait for a server's answer.

        Raises:
            UsageError: One of them is not active, or has no bookmark.
            CommandError: The server refused it; nothing has changed.
        """
        word = "pause" if paused else "resume"
        self._thread.check(word)
        ids = check_texts("sub_ids", sub_ids)
        self._commands.check_connection_follows()
        chosen = self._kept.with_bookmarks(ids, word)

        async def command() -> None:
            self._kept.check_not_ended(chosen)
            await self._pause(chosen, word, timeout=timeout)

        late = f"{word} of {','.join(ids)}: no server accepted it"
        await self._commands.until_answered(command, late, timeout)

    async def change(self, sub_id: str, changes: Mapping[str, object], *, timeout: float) -> None:
        """Replace topic, filter, order or options of an active subscription.

        Args:
            sub_id: Its id.
            changes: The new values by the names of `Command`; what is `None` stays as it was.
            timeout: Seconds to wait for a server's answer.

        Raises:
            UsageError: It is not active, or a value can never work.
        """
        await self.replace(sub_id, changed_fields(changes), timeout=timeout)

    async def replace(
        self,
        sub_id: str,
        fields: Mapping[str, str | int],
        *,
        on_replaced: Callable[[], object] | None = None,
        timeout: float,
    ) -> None:
        """Replace some fields of an active subscription; its handler or stream continues.

        Args:
            sub_id: Its id.
            fields: The new values by wire name; the others stay.
            on_replaced: Called as the server's consent arrives, before the messages behind it.
            timeout: Seconds to wait for a server's answer.

        Raises:
            UsageError: It is not active.
            CommandError: The server refused it; the subscription continues as it was.
        """
        self._thread.check("replace")
        check_utf8("sub_id", sub_id)
        self._commands.check_connection_follows()
        active = self._kept.to_replace(sub_id, fields)

        async def command() -> None:
            self._kept.check_not_ended([active])
            request = active.request  # as it is then, after a wait for a connection
            if "opts" not in fields:  # it stays paused if it is, also when a resume is on its way
                request = request.paused(is_paused=False)
            await self._replace(active, request.changed(fields), on_replaced, timeout=timeout)

        async def one_at_a_time() -> None:
            # Each continues from what the one before it has made of the subscription.
            with trio.move_on_after(timeout) as limit:
                while sub_id in self._replacing:
                    await self._answers.park()
            if limit.cancelled_caught:
                raise TimedOut(f"{late} within {timeout:g} s: another replace has no answer yet")
            self._replacing.add(sub_id)
            try:
                await command()
            finally:
                self._replacing.remove(sub_id)
                self._answers.unpark_all()

        late = f"replace of {sub_id}: no server accepted it"
        await self._commands.until_answered(one_at_a_time, late, timeout)

    async def replace_with(
        self,
        active: Subscription,
        command: Command,
        on_replaced: Callable[[], object] | None = None,
    ) -> None:
        """Replace a subscription by a whole command; what it does not say is as it was."""
        fields, timeout = replacing_fields(active.sub_id, command), timeout_of(command)
        await self.replace(active.sub_id, fields, on_replaced=on_replaced, timeout=timeout)

    # -- full queues: for `AutomaticPauses` --------------------------------------------------------

    async def pause_for_back_pressure(self, subscription: Subscription, *, timeout: float) -> None:
        """Pause a subscription until `resume_after_drain`, whatever the application does.

        Args:
            subscription: An active one with a bookmark.
            timeout: Seconds to wait for the server's answer, while this client reads.

        Raises:
            CommandError: The server refused it; nothing has changed.
            TimedOut: It has not answered, and may have paused it.
        """
        await self._pause([subscription], "pause", by_application=False, timeout=timeout)

    async def resume_after_drain(self, subscription: Subscription, *, timeout: float) -> bool:
        """End `pause_for_back_pressure`, unless the application has paused it as well.

        While it is not known whether the application has, this waits for the server's answer.

        Args:
            subscription: It may have been resumed or ended by the application meanwhile.
            timeout: Seconds to wait for the server's answer, while this client reads.

        Returns:
            Whether the server sends again.

        Raises:
            CommandError: The server refused it.
            TimedOut: It has not answered.
        """
        state, wait_until = subscription.pauses, trio.current_time() + timeout
        while state.may_be_paused and subscription in self._session.router:
            # A resume that is not answered may be sent again; a pause may be in force.
            is_late = trio.current_time() >= wait_until
            if state.has_unanswered and (subscription.is_paused or not is_late):
                with trio.move_on_after(timeout):
                    await self._answers.park()
                continue
            if state.is_paused_by_application:
                return False
            await self._pause([subscription], "resume", by_application=False, timeout=timeout)
            return True
        return False

    # -- sending ----------------------------------------------------------------------------------

    async def _replace(
        self,
        subscription: Subscription,
        request: SubscribeRequest,
        on_replaced: Callable[[], object] | None,
        *,
        timeout: float,
    ) -> None:
        """Send a replacement. A paused subscription stays paused, regardless of the options."""
        command_id = self._session.next_command_id()
        options = str(dataclasses.replace(Options.parse(request.options), replace=True))
        header = request.header(command_id, bookmark="", options=options)
        self._replace_count += 1
        log, before = subscription.log, subscription.request

        def replaced() -> None:  # not before: a refused command must not change the store
            if log is not None and request.is_conflated and not before.is_conflated:
                log.begin(acked=request.gets_persisted_acks, start=None, conflated=True)
            if on_replaced is not None:
                on_replaced()

        change = Change(
            [subscription],
            f"{request.what} with replace",
            pauses=True if request.is_paused else None,
            replacement=request,
            command_id=command_id,
            order=self._replace_count,
            on_replaced=replaced,
        )
        await self._send(change, header, request.body, timeout=timeout)

    async def _pause(
        self,
        subscriptions: Sequence[Subscription],
        word: str,
        *,
        by_application: bool = True,
        timeout: float,
    ) -> None:
        ids = ",".join(one.sub_id for one in subscriptions)
        header: Fields = {"c": "subscribe", "cid": self._session.next_command_id()}
        header |= {"sub_id": ids, "opts": word, "a": "processed"}
        change = Change(
            subscriptions,
            f"{word} of {ids}",
            pauses=word == "pause",
            by_application=by_application,
        )
        await self._send(change, header, timeout=timeout)

    async def _send(
        self, change: Change, header: Fields, body: bytes = b"", *, timeout: float
    ) -> None:
        connection = self._commands.connected()
        change.sent(trio.current_time())  # no checkpoint lies between this and the sending
        try:
            await self._commands.send(
                header,
                body,
                what=change.what,
                timeout=timeout,
                patient=not change.by_application,
                on_answer=lambda pending: self._answered(change, pending),
                replaces=change.replaces,
            )
        except UsageError:  # it cannot be written, so it was not sent
            raise
        except BaseException:
            if change.is_unanswered and connection is self._commands.connection:
                self._await_late_answer(change, str(header["cid"]))
            raise
        finally:  # the answer may have come while its caller was being cancelled
            self._remember(change)

    def _answered(self, change: Change, pending: PendingCommand) -> None:
        change.answered(pending, self._session.router, trio.current_time())
        self._answers.unpark_all()

    def _await_late_answer(self, change: Change, command_id: str) -> None:
        """Note the answer when it arrives, although no caller waits for it any more."""
        table = self._session.pending
        if len(self._unanswered) >= self._max_unanswered:  # the server does not answer
            oldest = next(iter(self._unanswered))
            del self._unanswered[oldest]
            table.forget(oldest)

        def wake() -> None:
            del self._unanswered[command_id]
            self._answered(change, pending)
            try:
                self._remember(change)
            except Exception as error:  # as on a full disk: no caller could get it
                self._reporter.log.warning(
                    "%s was accepted too late for its caller, and is not sent again after a lost "
                    "connection: %r",
                    change.what,
                    error,
                )

        pending = PendingCommand(
            command_id, change.what, awaited="processed", wake=wake, replaces=change.replaces
        )
        table.add(pending)
        self._unanswered[command_id] = None

    def _remember(self, change: Change) -> None:
        """Have the accepted commands of the application sent again after a lost connection."""
        if change.by_application and change.is_accepted:
            for one in change.subscriptions:
                self._kept.changed(one)


def timeout_of(command: Command) -> float:
    """Seconds to wait for the answer to a command."""
    return TIMEOUT_S if command.timeout is None else seconds(command.timeout)


class AutomaticPauses(BackPressure):
    """The subscriptions of one connection that are paused because their queues are full.

    Args:
        commands: Knows what is active, and where.
        changes: Pauses and resumes them.
        reporter: Receives the events and log records.
    """

    def __init__(
        self, commands: Commands, changes: SubscriptionControl, reporter: Reporter
    ) -> None:
        super().__init__(commands.waits, reporter.calls)
        self._status = commands.status
        self._router = commands.session.router
        self._changes = changes
        self._reporter = reporter
        self._nursery: trio.Nursery | None = None
        self._pausing: set[Subscription] = set()  # the command is not answered
        self._paused: set[Subscription] = set()
        self._failed = trio.Event()
        self._failures: list[Exception] = []

    @override
    async def run(self) -> None:
        try:
            async with open_nursery() as self._nursery:
                await self._failed.wait()
                self._nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
        raise self._failures[0]  # several tasks may fail at once: the first one counts

    @override
    def pause_for_back_pressure(self, subscription: Subscription, /) -> bool:
        # The application may have resumed it since: then it has to be paused again.
        is_held = subscription in self._paused and subscription.pauses.may_be_paused
        if not (is_held or subscription in self._pausing):
            if self._nursery is None or not self._can_pause(subscription):
                return False
            self._pausing.add(subscription)
            self._paused.add(subscription)
            self._nursery.start_soon(self._pause_until_drained, subscription)
        return True

    def _can_pause(self, subscription: Subscription) -> bool:
        request = subscription.request
        if subscription.is_of_queue or request.parsed.live:
            return False
        if (self._status.address, request.command) in self._changes.cannot_pause:
            return False
        return subscription.can_be_paused

    async def _pause_until_drained(self, subscription: Subscription) -> None:
        queue = queue_of(subscription)
        try:
            try:
                has_to_be_resumed = await self._pause(subscription)
            finally:
                self._pausing.remove(subscription)
            if has_to_be_resumed:
                await queue.drained()
                await self._resume(subscription)
        except (HAClientError, OSError, trio.ClosedResourceError) as error:
            self._failures.append(error)
            self._failed.set()
        finally:
            self._paused.discard(subscription)

    async def _pause(self, subscription: Subscription) -> bool:
        """Pause a subscription; return whether it has to be resumed."""
        try:
            await self._changes.pause_for_back_pressure(subscription, timeout=TIMEOUT_S)
        except CommandError as error:
            if subscription in self._router:
                self._give_up(subscription, error)
            return False
        except TimedOut:  # the server may have paused it nevertheless
            self._reporter.log.warning(
                "the queue of subscription %s is full, and the server has not answered its pause "
                "within %g s",
                subscription.sub_id,
                TIMEOUT_S,
                extra={"sub_id": subscription.sub_id},
            )
        self._reporter.emit(SubscriptionPaused, sub_id=subscription.sub_id)
        return True

    async def _resume(self, subscription: Subscription) -> None:
        try:
            if await self._changes.resume_after_drain(subscription, timeout=TIMEOUT_S):
                self._reporter.emit(SubscriptionResumed, sub_id=subscription.sub_id)
        except (CommandError, TimedOut) as error:
            if subscription not in self._router:
                return
            # It would stay silent for ever. A new connection begins without a pause.
            if isinstance(error, CommandError):  # one that is late pauses as before
                self._give_up(subscription, error)
            raise DisconnectedError(
                f"subscription {subscription.sub_id} was paused while its queue was full, and the "
                f"server does not resume it ({error}): the client has to reconnect"
            ) from error

    def _give_up(self, subscription: Subscription, error: Exception) -> None:
        """Pause no more subscriptions of this command at this server."""
        command = subscription.request.command
        refusal = self._status.address, command
        if refusal in self._changes.cannot_pause:
            return
        self._changes.cannot_pause.add(refusal)
        self._reporter.log.warning(
            "the server does not pause a subscription with a full queue (%s): from now on the "
            "client stops reading the whole connection for a slow consumer of a %s",
            error,
            command,
        )
