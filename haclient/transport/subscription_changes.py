"""Changes of active subscriptions: replaced, paused and resumed at the server.

Several such commands may be on their way for one subscription. What is in force afterwards follows
from the order in which they were sent (`haclient.session.pause_state`), so it is noted as each
answer arrives, and not when the task that waits for it runs. The answer counts as well when nobody
waits for it any more, since the server has carried the command out all the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import trio

from haclient.errors import AuthenticationError, CommandError, NameInUse
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.session.acks import PendingCommand
from haclient.session.pause_state import PauseChange
from haclient.session.subscriptions import SubscribeRequest, Subscription
from haclient.transport.commands import Commander, Fields


@dataclasses.dataclass(slots=True, eq=False)
class _Change:
    """One command that changes active subscriptions, and what it means to them.

    Attributes:
        subscriptions: The subscriptions that it changes.
        what: The command in words.
        pauses: Whether they are paused or resumed by it; `None` for neither.
        by_application: Whether the application has asked for it.
        accepted: Called with the ack as soon as the server accepts the command.
        replaces: See `PendingCommand`.
        is_unanswered: Whether it was sent, and the server has not answered.
        is_accepted: Whether the server has accepted it.
    """

    subscriptions: list[Subscription]
    what: str
    pauses: bool | None
    by_application: bool = True
    accepted: Callable[[Message], object] = lambda _: None
    replaces: Subscription | None = None
    is_unanswered: bool = False
    is_accepted: bool = False
    _sent: list[tuple[Subscription, PauseChange]] = dataclasses.field(
        default_factory=list[tuple[Subscription, PauseChange]]
    )

    def sent(self) -> None:
        """Note that the command was sent."""
        self.is_unanswered = True
        if self.pauses is not None:
            for one in self.subscriptions:
                change = one.pauses.sent(pauses=self.pauses, by_application=self.by_application)
                self._sent.append((one, change))
                one.note_held(trio.current_time())

    def answered(self, pending: PendingCommand) -> None:
        """Note the server's answer; does nothing if the wait has ended without one."""
        if pending.ack is None and not _is_refused(pending):
            return
        self.is_unanswered, self.is_accepted = False, pending.ack is not None
        if pending.ack is not None:
            self.accepted(pending.ack)
        for one, change in self._sent:
            one.pauses.answered(change, is_accepted=self.is_accepted)
            one.note_held(trio.current_time())
        for one in self.subscriptions:
            _keep_paused(one)


class SubscriptionChanges:
    """Changes the active subscriptions of a client.

    Args:
        commander: Sends the commands.
        changed: Called with each subscription whose command has changed.
        max_unanswered: How many commands whose callers have given up are remembered until the
            server answers.

    Attributes:
        cannot_hold_back: The addresses of servers, each with the name of a command whose
            subscriptions they do not pause when their queues are full, and are not asked again.
    """

    def __init__(
        self,
        commander: Commander,
        *,
        changed: Callable[[Subscription], object],
        max_unanswered: int = 1_024,
    ) -> None:
        self._commander = commander
        self._changed = changed
        self._max_unanswered = max_unanswered
        self._answers = trio.lowlevel.ParkingLot()  # tasks that wait for any answer
        self._replace_count = 0
        self._unanswered: dict[str, None] = {}  # ids of commands whose callers have given up
        self.cannot_hold_back: set[tuple[str, str]] = set()

    async def replace(
        self,
        subscription: Subscription,
        request: SubscribeRequest,
        *,
        on_replaced: Callable[[], object] = lambda: None,
        timeout: float,
    ) -> None:
        """Replace topic, filter or options of an active subscription; its position stays.

        A paused subscription stays paused, regardless of the options, until it is resumed.

        Args:
            subscription: The subscription.
            request: What it is from now on.
            on_replaced: Called as the server's consent arrives, before the messages behind it.
            timeout: Seconds to wait for the answer.

        Raises:
            CommandError: The server refused it; the subscription continues as it was.
        """
        command_id = self._commander.session.next_command_id()
        options = str(dataclasses.replace(Options.parse(request.options), replace=True))
        header = request.header(command_id, bookmark="", options=options)
        self._replace_count = order = self._replace_count + 1
        log, before = subscription.log, subscription.request
        if log is not None and request.is_conflated and not (before and before.is_conflated):
            log.begin(acked=request.gets_persisted_acks, start=None, conflated=True)

        def accepted(ack: Message) -> None:
            if not self._commander.is_active(subscription):
                return  # ended meanwhile
            if order < subscription.replaced_by:
                return  # a later one, whose answer came first, is in force
            subscription.replaced_by = order
            self._commander.session.router.name_command(subscription, command_id)
            subscription.request = request
            on_replaced()
            if subscription.leases is not None:
                subscription.leases.granted(ack.options)

        change = _Change(
            [subscription],
            what=f"{request.what} with replace",
            pauses=True if request.is_paused else None,
            accepted=accepted,
            replaces=subscription,
        )
        await self._send(change, header, request.body, timeout=timeout)

    async def pause(
        self, subscriptions: list[Subscription], *, paused: bool, timeout: float
    ) -> None:
        """Pause bookmark subscriptions at the server, or resume them, with one command.

        Raises:
            CommandError: The server refused it; nothing has changed.
        """
        await self._pause(subscriptions, "pause" if paused else "resume", timeout=timeout)

    async def _pause(
        self,
        subscriptions: list[Subscription],
        word: str,
        *,
        by_application: bool = True,
        timeout: float,
        patient: bool = False,
    ) -> None:
        ids = ",".join(one.sub_id for one in subscriptions)
        header: Fields = {"c": "subscribe", "cid": self._commander.session.next_command_id()}
        header |= {"sub_id": ids, "opts": word, "a": "processed"}
        change = _Change(
            subscriptions,
            what=f"{word} of {ids}",
            pauses=word == "pause",
            by_application=by_application,
        )
        await self._send(change, header, timeout=timeout, patient=patient)

    async def _send(
        self,
        change: _Change,
        header: Fields,
        body: bytes = b"",
        *,
        timeout: float,
        patient: bool = False,
    ) -> None:
        """Send a command that changes active subscriptions, and note what is in force then.

        Args:
            change: What it means to them.
            header: Its header.
            body: Its body.
            timeout: Seconds to wait for the answer.
            patient: See `Commander.confirm`.
        """
        connection = self._commander.connection

        def answered(pending: PendingCommand) -> None:
            change.answered(pending)
            self._answers.unpark_all()

        try:
            await self._commander.command(
                header,
                body,
                what=change.what,
                timeout=timeout,
                patient=patient,
                on_sent=change.sent,
                on_answer=answered,
                replaces=change.replaces,
            )
        except BaseException:
            if change.is_unanswered and connection is self._commander.connection:
                self._await_late_answer(change, str(header["cid"]))
            raise
        finally:  # the answer may have come while its caller was being cancelled
            self._remember(change)

    def _await_late_answer(self, change: _Change, command_id: str) -> None:
        """Note the answer when it arrives, although no caller waits for it any more."""
        table = self._commander.session.pending
        if len(self._unanswered) >= self._max_unanswered:  # the server does not answer
            oldest = next(iter(self._unanswered))
            del self._unanswered[oldest]
            table.forget(oldest)

        def wake() -> None:
            del self._unanswered[command_id]
            change.answered(pending)
            self._answers.unpark_all()
            try:
                self._remember(change)
            except Exception as error:  # as on a full disk: no caller could get it
                self._commander.reporter.log.warning(
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

    def _remember(self, change: _Change) -> None:
        """Have the accepted commands of the application sent again after a lost connection."""
        if change.by_application and change.is_accepted:
            for one in change.subscriptions:
                self._changed(one)

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
        await self._pause(
            [subscription], "pause", by_application=False, timeout=timeout, patient=True
        )

    async def resume_held_back(self, subscription: Subscription, *, timeout: float) -> bool:
        """Resume a subscription after `hold_back`, unless the application has paused it as well.

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
        pauses, wait_until = subscription.pauses, trio.current_time() + timeout
        while pauses.may_be_paused and self._commander.is_active(subscription):
            # A resume that is not answered may be sent again; a pause may be in force.
            is_late = trio.current_time() >= wait_until
            if pauses.has_unanswered and (subscription.is_paused or not is_late):
                with trio.move_on_after(timeout):
                    await self._answers.park()
                continue
            if pauses.is_paused_by_application:
                return False
            await self._pause(
                [subscription], "resume", by_application=False, timeout=timeout, patient=True
            )
            return True
        return False


def _is_refused(pending: PendingCommand) -> bool:
    """Whether the server has refused it; a lost connection is no refusal."""
    return isinstance(pending.error, CommandError | AuthenticationError | NameInUse)


def _keep_paused(subscription: Subscription) -> None:
    """Have it resubscribed as the application wants it, paused or not."""
    request, is_paused = subscription.request, subscription.pauses.is_paused_by_application
    if request is not None and request.is_paused != is_paused:
        subscription.request = request.paused(is_paused=is_paused)
