"""Keeps a client connected: drives a `Core` through the recovery plan.

One task, one step at a time, from choosing a server to being live, and again after every loss; the
plan is `haclient.session.recovery`. The application continues to work meanwhile: publishes go into
the store, commands wait until the client is live, handlers and resumable streams keep waiting for
messages.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from inspect import isawaitable
from typing import Final, TypeVar

import trio

from haclient.errors import (
    AuthenticationError,
    CommandError,
    ConnectionRefused,
    DisconnectedError,
    HAClientError,
    PublishFailed,
    ReconnectGaveUp,
    TimedOut,
    UsageError,
)
from haclient.events import AttemptFailed, Resubscribed, SubscriptionEnded, SubscriptionSilent
from haclient.options import HASettings
from haclient.protocol.messages import Message
from haclient.protocol.uri import Uri
from haclient.servers.auth import Authenticator, DefaultAuthenticator
from haclient.servers.chooser import DefaultServerChooser, MovingServerChooser
from haclient.servers.delay import DelayStrategy, ExponentialDelayStrategy, asked_by
from haclient.session.acks import is_refusal
from haclient.session.connection_state import ConnectionState
from haclient.session.diagnosis import (
    QUIET_S,
    NameConflicts,
    RejectedFrames,
    SilenceWatch,
    rejection,
)
from haclient.session.recovery import (
    EXPECTED,
    STABLE_AFTER_S,
    FailureAction,
    FailureLog,
    FailureRecord,
    Failures,
    Recovery,
    RecoveryPlan,
    Refusal,
    StepOutcome,
)
from haclient.session.subscriptions import Subscription
from haclient.transport.core import Core
from haclient.transport.moves import Check, Moves, answer_of
from haclient.transport.subscriber import Subscriber
from haclient.transport.tasks import open_nursery

MAX_RESUBSCRIBING: Final = 64
"""Subscriptions that were sent again, and wait for the server's answer, at one time."""

_T = TypeVar("_T")
_ENDED: Final = DisconnectedError("the client was left")


class Reconnector:
    """Keeps one `Core` connected.

    Args:
        core: What to connect; it was made with the same settings.
        subscriber: Sends the subscriptions again.
        settings: The servers, the delays, and what to do with a server that cannot be used.
        check: Checks whether a server that a `MovingServerChooser` prefers is healthy.
    """

    def __init__(
        self, core: Core, subscriber: Subscriber, settings: HASettings, *, check: Check
    ) -> None:
        self._core = core
        self._subscriber = subscriber
        self._is_chosen = True  # whether the chooser has chosen the current server
        self._settings = settings
        self._chooser = settings.server_chooser or DefaultServerChooser(settings.servers)
        self.delay: DelayStrategy = settings.delay_strategy or ExponentialDelayStrategy()
        self._plan = RecoveryPlan()
        self._failures = Failures(
            raises_gaps=settings.on_publish_gap == "raise",
            on_refusal=settings.on_resubscribe_failure,
        )
        self._failure_log = FailureLog()
        self._unlogged: FailureRecord | None = None  # until the time of the next attempt is known
        self._uri = ""  # of this attempt
        self._authenticator: Authenticator = DefaultAuthenticator()
        self._name_conflicts = NameConflicts()
        self._rejected = RejectedFrames()
        self._sending_since = 0.0  # when this connection began to send publishes, in seconds
        self._live_since = 0.0  # when this connection became live, in seconds
        limit_s = settings.progress_timeout
        self._silence = None if limit_s is None else SilenceWatch(limit_s)
        self._scope = trio.CancelScope()
        self._steps: dict[Recovery, Callable[[], Awaitable[None]]] = {
            Recovery.CHOOSING: self._choose,
            Recovery.WAITING: self._wait,
            Recovery.DIALLING: self._dial,
            Recovery.LOGGING_ON: self._log_on,
            Recovery.RECONCILING: self._reconcile,
            Recovery.HEARTBEAT: self._start_heartbeat,
            Recovery.REPLAYING: self._replay,
            Recovery.RESUBSCRIBING: self._resubscribe,
            Recovery.LIVE: self._serve,
        }
        self.moves = Moves(core, self._chooser, check=check, timeout_s=settings.connect_timeout)

    async def connect_and_logon(self) -> None:
        """Start to stay connected; returns when it is live for the first time.

        Raises:
            AuthenticationError: Every server has refused user or password.
            ReconnectGaveUp: The chooser has no server, or the delay strategy gave up.
            NameInUse: The client name belongs to another client.
        """
        self._core.running("connect").start_soon(self._run)
        await self._core.commands.ready()

    async def disconnect(self) -> None:
        """Stop for good, at once, whatever the recovery is doing."""
        core, reason = self._core, DisconnectedError("the client was disconnected on purpose")
        core.stop(reason)
        self._scope.cancel()
        for subscription in core.kept:
            subscription.end(reason)
        await core.disconnect()

    # -- the plan -------------------------------------------------------------

    async def _run(self) -> None:
        with self._scope, ExitStack() as at_end:
            at_end.callback(self._log_failure)
            at_end.callback(lambda: self.moves.failed("", self._core.status.stop_reason or _ENDED))
            while self._core.status.stop_reason is None:
                try:
                    await self._steps[self._plan.state]()
                except EXPECTED as error:  # anything else is a defect and ends the client
                    await self._failed(error)
                else:
                    self._plan.next(StepOutcome.DONE)
        if self._failures.fatal is not None:
            raise self._failures.fatal

    async def _failed(self, error: HAClientError) -> None:
        """A step failed, or the connection was lost."""
        core, state = self._core, self._plan.state
        if core.status.stop_reason is not None:  # stopped on purpose, which is what made it fail
            return
        if state is Recovery.LIVE and self.moves.has_left:
            self._moved()
            return
        lost_reason = core.status.lost_reason
        if lost_reason is not None and error.__cause__ is lost_reason:
            error = lost_reason  # a command failed for no other reason than the lost connection
        self.moves.failed(self._uri, error)
        rejected = self._reject_publish(state, error)
        if rejected is not None:
            self._failures.fatal = error = rejected
        is_stable, is_moving = self._plan.is_stable, self.moves.is_moving
        actions = self._failures.judge(
            state, error, uri=self._uri, is_stable=is_stable, is_moving=is_moving
        )
        self._report_failure(error, actions)
        core.status.failure = error
        core.counters.failed_attempts += FailureAction.COUNT in actions
        self._plan.next(StepOutcome.FAILED)
        is_final = FailureAction.END in actions
        if self._is_chosen and FailureAction.BLAME in actions:
            try:
                self._notify(partial(self._chooser.report_failure, error, self._info()))
            except ReconnectGaveUp as gave_up:
                error, is_final = gave_up, True
        await core.abandon(error)
        if is_final:
            self._give_up(error)
        elif core.status.expects_connection and core.status.state is ConnectionState.DISCONNECTED:
            core.set_state(ConnectionState.RECONNECTING)  # else it was stopped meanwhile

    def _reject_publish(self, state: Recovery, error: HAClientError) -> PublishFailed | None:
        """Check whether a publish that no server takes has ended the connection.

        Returns:
            The error that ends the client, if there is one and it is not moved to a file.

        Raises:
            StoreError: The file for it cannot be written.
        """
        core, publishes = self._core, self._core.publisher.publishes
        after_s = trio.current_time() - self._sending_since
        message = self._rejected.judge(state, error, publishes, after_s=after_s)
        if message is None:
            return None
        if self._settings.on_rejected_frame == "park":
            sequence = message.sequence or 0
            reason = f"{message.reason}; moved to {publishes.park(sequence)}"
            core.refused(Message(kind="ack", sequence=sequence, reason=reason))
            return None
        core.reporter.publish_refused(refused := rejection(message), message)
        return refused

    def _moved(self) -> None:
        """The client has left a server that works; the next attempt is at another one."""
        self._plan.next(StepOutcome.MOVED)
        self._reset_delay()
        self._core.set_state(ConnectionState.RECONNECTING)

    def _report_failure(self, error: HAClientError, actions: frozenset[FailureAction]) -> None:
        """Report a failed attempt or a lost connection, without passwords."""
        core, server, now = self._core, self._info()["uri"], trio.current_time()
        record = self._failure_log.record(
            actions, self._plan, error, client=core.name, server=server, now=now
        )
        if record is None:
            return
        self._log_failure()
        self._unlogged = record
        if FailureAction.REPORT_ATTEMPT in actions:
            core.reporter.emit(AttemptFailed, attempt=record.attempt, error=error)
        else:
            self._warn_of_conflict(error)

    def _log_failure(self, next_attempt: str = "") -> None:
        """Log the last failure, which waits until the time of the next attempt is known."""
        record, self._unlogged = self._unlogged, None
        if record is not None:
            extra = {"attempt": record.attempt}
            self._core.reporter.log.log(
                record.level, "%s%s", record.text, next_attempt, extra=extra
            )
            if record.level == logging.WARNING:
                self._core.flight.log_before(record.error)

    def _give_up(self, error: HAClientError) -> None:
        """End the client: the error leaves its block, and every stream."""
        self._log_failure()
        self._failures.fatal = error
        self._core.stop(error)
        for subscription in self._core.kept:
            subscription.fail(error)
            self._core.kept.forget(subscription)

    def _info(self) -> dict[str, str]:
        return {
            "uri": Uri.parse(self._uri).safe if self._uri else "",
            "client_name": self._core.name,
            "server_version": self._core.status.server_version,
        }

    # -- its steps --------------------------------------------------------------

    async def _choose(self) -> None:
        target = self.moves.uri  # one attempt there, then the chooser's servers
        self._is_chosen = not target
        self._uri = target or await self._chosen(self._chooser.current_uri)
        if not self._uri:
            raise ReconnectGaveUp(self._plan.attempts, self._chooser_error())
        refused = self._failures.refused_credentials(self._uri) if self._is_chosen else None
        if refused is not None:
            raise refused
        self._authenticator = await self._chosen(self._chooser.current_authenticator)

    async def _chosen(self, ask: Callable[[], _T | Awaitable[_T]]) -> _T:
        """What the chooser answers during a recovery, which cannot go on without it."""
        try:
            answer = ask()
            if isawaitable(answer):
                self._log_failure()  # the answer may take a while
            return await answer_of(answer)
        except EXPECTED as error:  # no server was tried, so no delay would follow
            raise ReconnectGaveUp(self._plan.attempts, str(error)) from error.__cause__ or error

    def _chooser_error(self) -> str:
        try:
            return self._chooser.error()
        except EXPECTED as error:
            return str(error)

    def _notify(self, report: Callable[[], object]) -> None:
        """Notify the chooser or the delay strategy, without which nothing can go on."""
        try:
            report()
        except EXPECTED as error:  # not for the server: another one would help as little
            raise ReconnectGaveUp(self._plan.attempts, str(error)) from error.__cause__ or error

    async def _wait(self) -> None:
        try:
            with asked_by(self):
                delay_s = self.delay.delay_for(self._uri, trio.current_time())
        except EXPECTED as error:  # the strategy gives up
            why = f"{error}; the last error: {self._chooser_error()}"
            raise ReconnectGaveUp(self._plan.attempts, why) from error
        # A planned move is not a loss: the chooser has seen that the server is there.
        is_move = self.moves.is_moving and not self._plan.attempts
        delay_s = 0.0 if is_move else delay_s
        when = f"in {delay_s:.3g} s" if delay_s else "at once"
        self._log_failure(f"; next attempt: {self._info()['uri']} {when}")
        await trio.sleep(delay_s)

    def _reset_delay(self) -> None:
        with asked_by(self):
            self._notify(self.delay.reset)

    async def _dial(self) -> None:
        core, plan = self._core, self._plan
        self._core.reporter.log.info(
            "client %s: attempt %d at %s",
            core.name,
            plan.attempts,
            self._info()["uri"],
            extra={"attempt": plan.attempts},
        )
        try:
            await core.connect(self._uri, timeout=self._settings.connect_timeout)
        except UsageError as error:
            if core.status.server is None or not isinstance(error.__cause__, OSError):
                raise
            # A file that could be used before, such as a certificate that is being renewed.
            raise ConnectionRefused(str(error)) from error

    async def _log_on(self) -> None:
        core, limit_s = self._core, self._settings.connect_timeout
        with trio.move_on_after(limit_s):  # with what the authenticator takes
            await core.log_on(self._authenticator, timeout=limit_s)
            self._failures.logged_on()
            core.set_state(ConnectionState.LOGGED_ON)
            return
        hint = "" if core.connection is None else core.connection.hint_if_silent
        raise TimedOut(f"logon: no answer within {limit_s:g} s{hint}")

    async def _reconcile(self) -> None:
        core = self._core
        core.check_connected()
        if self._is_chosen or isinstance(self._chooser, MovingServerChooser):
            self._notify(partial(self._chooser.report_success, self._info()))
        publishes, server = core.publisher.publishes, core.status.server
        if server is not None:  # before the store is reconciled: one of the user may accept a gap
            name, address = core.name, core.status.address
            self._failures.fatal = self._name_conflicts.check(name, address, server, publishes)
            # After a planned move there is a server that has what this one lacks.
            refuses = self._settings.refuses_gaps or self.moves.is_moving
            gap = publishes.gap_at(server) if refuses else None
            if (error := self._failures.fatal or gap) is not None:
                raise error
        core.reconcile()
        if publishes.log.gap is not None:
            self._core.reporter.log.warning(
                "client %s goes on with %s: %s", core.name, self._info()["uri"], publishes.log.gap
            )

    def _warn_of_conflict(self, error: HAClientError) -> None:
        """Warn if live connections end as another client of the same name ends them."""
        if type(error) is not DisconnectedError or self._rejected.is_rejected:
            return  # a subclass, or the publish, names another reason
        if self._name_conflicts.note_closed(trio.current_time() - self._live_since):
            self._core.reporter.log.warning(
                "client %s: %s has closed several connections soon after the logon: either the "
                "server restarts, or another client uses the same name",
                self._core.name,
                self._info()["uri"],
            )

    async def _start_heartbeat(self) -> None:
        core = self._core
        core.check_connected()
        if await core.start_heartbeat(timeout=self._settings.connect_timeout):
            core.set_state(ConnectionState.HEARTBEAT_INITIATED)

    async def _replay(self) -> None:
        core = self._core
        if self._rejected.suspects(core.publisher.publishes.first_in_flight()[0]):
            # A server that closes this connection, too, does not close it for a publish.
            with trio.move_on_after(QUIET_S):
                await core.wait_lost()
        self._sending_since = trio.current_time()
        core.check_connected()
        await core.open_log()
        core.set_state(ConnectionState.PUBLISH_REPLAYED)

    async def _resubscribe(self) -> None:
        """Send the subscriptions again, in their order, without a round trip for each."""
        core, failures = self._core, list[Exception]()
        connection = core.check_connected()
        places = trio.Semaphore(MAX_RESUBSCRIBING)

        async def again(subscription: Subscription, *, task_status: trio.TaskStatus[None]) -> None:
            # The next one follows: there is no checkpoint until this one is in the outbox.
            task_status.started()
            try:
                await self._resubscribe_one(subscription)
            except Exception as error:  # also of the application's policy
                is_answer = isinstance(error, HAClientError) and is_refusal(error)
                if is_answer and error is not self._failures.fatal:
                    failures.append(error)
                    return  # the others are asked for, too: else each refusal costs a connection
                failures.insert(0, error)
                # First: a refusal that is read when nobody waits for it would end a subscription.
                connection.close(error if isinstance(error, HAClientError) else None)
                nursery.cancel_scope.cancel()
            finally:
                places.release()

        async with open_nursery() as nursery:
            for subscription in core.kept.to_resubscribe():
                await places.acquire()
                await nursery.start(again, subscription)
        if failures:
            raise self._failures.fatal or failures[0]
        core.check_connected()
        core.queue_acks.resume()
        core.set_state(ConnectionState.RESUBSCRIBED)

    async def _serve(self) -> None:
        """Stay until the connection is lost; one that lasts counts as a success."""
        core = self._core  # connected: there was no checkpoint since the last step has checked it
        self._failures.note_live()
        self._live_since = trio.current_time()
        core.live()
        self.moves.live()
        async with open_nursery() as nursery:
            nursery.start_soon(self.moves.watch)
            nursery.start_soon(self._watch_silence)
            with trio.move_on_after(STABLE_AFTER_S) as young:
                await core.wait_lost()
            if young.cancelled_caught:
                self._plan.stable()
                self._failure_log.reset()
                self._reset_delay()
                await core.wait_lost()
            nursery.cancel_scope.cancel()
        raise core.status.why_not_connected()

    async def _watch_silence(self) -> None:
        """Leave a live connection on which a subscription has received nothing for too long."""
        core, silence = self._core, self._silence
        if silence is None:
            return
        silence.begin(trio.current_time())
        while (connection := core.connection) is not None:
            await trio.sleep(silence.check_every_s)
            now, is_reading = trio.current_time(), connection.is_reading
            stalled = silence.check(core.kept, now, is_reading=is_reading)
            if stalled is not None:
                core.reporter.emit(SubscriptionSilent, sub_id=stalled.sub_id, error=stalled)
                connection.close(stalled)
                return

    # -- resubscribing -------------------------------------------------------------

    async def _resubscribe_one(self, subscription: Subscription) -> None:
        """Resubscribe one subscription, at its recovery point.

        Raises:
            HAClientError: The connection cannot be used, or this subscription has ended.
        """
        if subscription not in self._core.kept:  # ended while it waited for its place
            return
        try:
            await self._subscriber.resubscribe(subscription, timeout=self._settings.connect_timeout)
        except (CommandError, AuthenticationError) as error:  # the policy decides
            self._refused(subscription, error)
        else:
            self._core.reporter.emit(Resubscribed, sub_id=subscription.sub_id)

    def _refused(self, subscription: Subscription, error: HAClientError) -> None:
        """A server does not take a subscription back.

        When every server was asked, the application's policy decides.

        Raises:
            HAClientError: The connection is closed, for the next server or for good.
        """
        sub_id, core = subscription.sub_id, self._core
        if subscription not in core.kept:  # ended on purpose meanwhile
            return
        refusal = self._failures.refused(sub_id, self._uri, error)
        if refusal is Refusal.END:  # the log has it with the end of the client
            core.reporter.emit(SubscriptionEnded, sub_id=sub_id, error=error)
        if refusal is not Refusal.DROP:
            raise error
        text = f" drops subscription {sub_id}: {error}"
        core.reporter.subscription_ended(sub_id, error, text=text)
        core.kept.drop(subscription)
        core.session.router.remove(subscription)  # the connection stays
        subscription.fail(error)
