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
from typing import Final, TypeAlias, TypeVar

import trio

from haclient.errors import (
    AuthenticationError,
    CommandError,
    ConnectionRefused,
    DisconnectedError,
    HAClientError,
    NameInUse,
    ProtocolError,
    PublishGap,
    ReconnectGaveUp,
    SubscriptionStalled,
    TimedOut,
    UsageError,
)
from haclient.events import AttemptFailed, Resubscribed, SubscriptionEnded, SubscriptionSilent
from haclient.options import HASettings
from haclient.protocol.uri import Uri
from haclient.servers.auth import Authenticator, DefaultAuthenticator
from haclient.servers.chooser import DefaultServerChooser, MovingServerChooser
from haclient.servers.delay import DelayStrategy, ExponentialDelayStrategy, asked_by
from haclient.session.connection_state import ConnectionState
from haclient.session.diagnosis import NameConflicts, SilenceWatch
from haclient.session.recovery import (
    STABLE_AFTER_S,
    FailureAction,
    FailureLog,
    Failures,
    Recovery,
    RecoveryPlan,
    StepOutcome,
)
from haclient.session.subscriptions import Subscription
from haclient.transport.core import ClosedByOwnError, Core, fail
from haclient.transport.rejected_publishes import RejectedPublishes
from haclient.transport.subscriber import Subscriber
from haclient.transport.tasks import open_nursery

Check: TypeAlias = Callable[[str, Authenticator, float], Awaitable[HAClientError | None]]
"""Logs on to a server under another name, within so many seconds; why it failed, if it did."""

MAX_RESUBSCRIBING: Final = 64
"""Subscriptions that were sent again, and wait for the server's answer, at one time."""

CHOOSING_LIMIT_S: Final = 60.0
"""How long a chooser may take for an answer, in seconds."""

_T = TypeVar("_T")
_ENDED: Final = DisconnectedError("the client was left")
_EXPECTED = (DisconnectedError, CommandError, ProtocolError, TimedOut, PublishGap)


class _Moved(Exception):  # no error: the client leaves a server that works
    """The client has drained its connection, in order to move to another server."""


class RequestedMove:
    """A move that the application has asked for (`HAClient.move_to`), and that has not ended yet.

    The task that serves the connection carries it out: it has moved, was refused, or has failed and
    returned.

    Args:
        uri: The connection string of the new server.

    Attributes:
        uri: The same.
        has_left: Whether the old connection was drained and closed.
    """

    __slots__ = ("_ended", "_error", "has_left", "uri")

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.has_left = False
        self._ended = trio.Event()
        self._error: HAClientError | None = None

    @property
    def safe_uri(self) -> str:
        """The connection string without its password."""
        return Uri.parse(self.uri).safe

    def end(self, error: HAClientError | None = None) -> None:
        """The client is live at the new server, or is not; whoever waits gets the error."""
        self._error = error
        self._ended.set()

    async def ended(self) -> None:
        """Wait for the end.

        Raises:
            HAClientError: The client is not at the new server.
        """
        await self._ended.wait()
        if self._error is not None:
            raise self._error


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
        self._check = check
        self._left_uri = ""  # of the server that a planned move left, until it or another is live
        self._move: RequestedMove | None = None  # that the application has asked for
        self._asked_to_move = trio.Event()
        self._is_chosen = True  # whether the chooser has chosen the current server
        self._settings = settings
        self._chooser = settings.server_chooser or DefaultServerChooser(settings.servers)
        self.delay: DelayStrategy = settings.delay_strategy or ExponentialDelayStrategy()
        self._plan = RecoveryPlan()
        self._failures = Failures(raises_gaps=settings.on_publish_gap == "raise")
        self._failure_log = FailureLog()
        # Logs the last failure, once the time of the next attempt is known or there is none.
        self._unlogged: Callable[[str], None] | None = None
        self._uri = ""  # of this attempt
        self._authenticator: Authenticator = DefaultAuthenticator()
        self._name_conflicts = NameConflicts()
        self._rejected = RejectedPublishes(core, parks=settings.on_rejected_frame == "park")
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
        core.drops = self._drops
        core.resume.overlap_us = int(settings.failover_overlap * 1_000_000)

    async def connect_and_logon(self) -> None:
        """Start to stay connected; returns when it is live for the first time.

        Raises:
            AuthenticationError: Every server has refused user or password.
            ReconnectGaveUp: The chooser has no server, or the delay strategy had enough.
            NameInUse: The client name belongs to another client.
        """
        self._core.running("connect").start_soon(self._run)
        await self._core.commands.ready()

    async def move_to(self, uri: str, *, timeout: float) -> None:
        """Leave the server for another one; returns when the client is live there.

        Raises:
            UsageError: The URI is wrong, or another move is under way.
            DisconnectedError: The client is reconnecting, or could not leave; or it could not use
                the new server, and reconnects to the others.
            HAClientError: What a logon at the new server raises; the client has stayed.
        """
        core, address = self._core, Uri.parse(uri).address
        core.running("move_to")
        if self._move is not None:
            raise UsageError(f"a move to {self._move.safe_uri} is under way: wait for its end")
        if core.status.stop_reason is not None:
            raise core.status.stop_reason
        if not core.status.is_live:
            raise DisconnectedError(
                "move_to: the client is reconnecting, and goes to the server that its chooser "
                "says: wait until it is connected, or add the server to the chooser"
            )
        if address == core.status.address:
            return
        self._move = move = RequestedMove(uri)
        try:
            error: HAClientError | None
            try:
                authenticator = await self._answer(self._chooser.current_authenticator())
                error = await self._check(uri, authenticator, timeout)
            except DisconnectedError as failed:  # of the chooser
                error = DisconnectedError(f"move_to: {failed}")
            if error is not None:
                error.add_note(f"the client stays at {self._info()['uri']}")
                raise error
            if not core.status.is_live:
                raise DisconnectedError("move_to: the connection was lost before the move began")
            if address == core.status.address:  # where it has come by itself, during the check
                return
            self._asked_to_move.set()
            await move.ended()
        finally:
            if not move.has_left:  # refused, lost before, or nobody waits for it any more
                self._forget_move(move)

    def _forget_move(self, move: RequestedMove | None) -> None:
        if self._move is move:
            self._move = None
            if self._asked_to_move.is_set():  # else a task waits for it, and would wait for ever
                self._asked_to_move = trio.Event()

    def _end_move(self, error: HAClientError | None) -> None:
        """Tell the one who waits for a move how it has ended."""
        move = self._move
        if move is None:
            return
        if error is not None and not move.has_left and not self._asked_to_move.is_set():
            return  # its check is under way, and finds out by itself
        if error is not None:
            reason, error = (
                error,
                DisconnectedError(
                    f"move_to: the client is not at {move.safe_uri} but reconnects: {error}"
                ),
            )
            error.__cause__ = reason
        self._forget_move(move)
        move.end(error)

    async def disconnect(self) -> None:
        """Stop for good, at once, whatever the recovery is doing."""
        core, reason = self._core, DisconnectedError("the client was disconnected on purpose")
        core.stop(reason)
        self._scope.cancel()
        for subscription in core.kept:
            core.end(subscription, reason)
        await core.disconnect()

    # -- the plan -------------------------------------------------------------

    async def _run(self) -> None:
        with self._scope, ExitStack() as at_end:
            at_end.callback(self._core.publisher.move_failed)
            at_end.callback(self._log_failure)
            at_end.callback(lambda: self._end_move(self._core.status.stop_reason or _ENDED))
            while self._core.status.stop_reason is None:
                try:
                    await self._steps[self._plan.state]()
                except _Moved:
                    await self._leave_for_another()
                except _EXPECTED as error:  # anything else is a defect and ends the client
                    await self._failed(error)
                else:
                    self._plan.next(StepOutcome.DONE)
        if self._failures.fatal is not None:
            raise self._failures.fatal

    async def _failed(self, error: HAClientError) -> None:
        """A step failed, or the connection was lost."""
        core, state = self._core, self._plan.state
        core.publisher.move_failed()
        if core.status.stop_reason is not None:  # stopped on purpose, which is what made it fail
            return
        self._end_move(error)
        lost_reason = core.status.lost_reason
        if lost_reason is not None and error.__cause__ is lost_reason:
            error = lost_reason  # a command failed for no other reason than the lost connection
        if self._uri == self._left_uri:  # and it fails now
            self._left_uri = ""
        rejected = self._rejected.note_loss(state, error)
        if rejected is not None:
            self._failures.fatal = error = rejected
        actions = self._failures.judge(
            state, error, address=core.status.address, is_moving=bool(self._left_uri)
        )
        self._warn(error)
        core.status.failure = error
        if state is Recovery.LIVE:
            self._note_lost(error)
        core.counters.failed_attempts += FailureAction.COUNT in actions
        self._plan.next(StepOutcome.FAILED)
        is_unstable = FailureAction.BLAME_UNLESS_STABLE in actions and not self._plan.is_stable
        if self._is_chosen and (is_unstable or FailureAction.BLAME in actions):
            self._chooser.report_failure(error, self._info())
        if core.status.server is None and state in {Recovery.DIALLING, Recovery.LOGGING_ON}:
            self._failures.note_logon(self._uri, error)
        await core.abandon(error)
        if FailureAction.END in actions:
            self._give_up(error)
        elif core.status.state is ConnectionState.DISCONNECTED:
            core.set_state(ConnectionState.RECONNECTING)

    def _warn(self, error: HAClientError) -> None:
        """Log a failed attempt or a lost connection, without passwords."""
        core, plan, server = self._core, self._plan, self._info()["uri"]
        if plan.state in {Recovery.CHOOSING, Recovery.WAITING}:
            return  # no server was tried: this ends the client, which raises it
        if isinstance(error, ClosedByOwnError):
            return  # the error itself leaves the client's block
        attempt, level = 0, logging.WARNING
        text = "client %s lost its connection to %s: %s%s"
        values: tuple[object, ...] = (core.name, server, error)
        if plan.state is not Recovery.LIVE:
            attempt = plan.attempts
            text = "client %s: attempt %d at %s failed (%s): %s%s"
            values = (core.name, attempt, server, plan.state, error)
            cause = f"{server} {plan.state} {type(error).__name__} {error}"
            if not self._failure_log.is_due(trio.current_time(), cause):
                level = logging.INFO
            core.reporter.emit(AttemptFailed, attempt=attempt, error=error)

        def log(next_attempt: str) -> None:
            extra = {"attempt": attempt}
            core.reporter.log.log(level, text, *values, next_attempt, extra=extra)
            if level == logging.WARNING:
                core.flight.log_before(error)

        self._log_failure()
        self._unlogged = log

    def _log_failure(self, next_attempt: str = "") -> None:
        """Log the last failure, which waits until the time of the next attempt is known."""
        log, self._unlogged = self._unlogged, None
        if log is not None:
            log(next_attempt)

    def _give_up(self, error: HAClientError) -> None:
        """End the client: the error leaves its block, and every stream."""
        self._log_failure()
        self._failures.fatal = error
        self._core.stop(error)
        for subscription in self._core.kept:
            fail(subscription, error)
            self._core.kept.forget(subscription)

    def _info(self) -> dict[str, str]:
        return {
            "uri": Uri.parse(self._uri).safe if self._uri else "",
            "client_name": self._core.name,
            "server_version": self._core.status.server_version,
        }

    # -- its steps --------------------------------------------------------------

    async def _choose(self) -> None:
        move = self._move
        self._is_chosen = move is None or not move.has_left
        if move is not None and move.has_left:  # one attempt, then the chooser's servers
            self._uri = move.uri
            self._authenticator = await self._chosen(self._chooser.current_authenticator())
            return
        self._uri = await self._chosen(self._chooser.current_uri())
        if not self._uri:
            raise ReconnectGaveUp(self._plan.attempts, self._chooser.error())
        if (refused := self._failures.refused_credentials(self._uri)) is not None:
            raise refused
        self._authenticator = await self._chosen(self._chooser.current_authenticator())

    async def _chosen(self, answer: _T | Awaitable[_T]) -> _T:
        """What the chooser answers during a recovery, which cannot go on without it."""
        try:
            return await self._answer(answer)
        except DisconnectedError as error:  # no server was tried, so no delay would follow
            raise ReconnectGaveUp(self._plan.attempts, str(error)) from error.__cause__

    async def _answer(self, answer: _T | Awaitable[_T]) -> _T:
        """What the chooser answers, at once or after a while.

        Raises:
            DisconnectedError: It does not.
        """
        if not isawaitable(answer):
            return answer
        self._log_failure()  # the answer may take a while
        with trio.move_on_after(CHOOSING_LIMIT_S):
            try:
                return await answer
            except _EXPECTED as error:
                raise DisconnectedError(f"the server chooser failed: {error}") from error
        raise DisconnectedError(f"the server chooser did not answer within {CHOOSING_LIMIT_S:g} s")

    async def _wait(self) -> None:
        try:
            with asked_by(self):
                delay_s = self.delay.delay_for(self._uri, trio.current_time())
        except TimedOut as error:  # the strategy gives up
            why = f"{error}; the last error: {self._chooser.error()}"
            raise ReconnectGaveUp(self._plan.attempts, why) from error
        # A planned move is not a loss: the chooser has seen that the server is there.
        is_move = self._left_uri and not self._plan.attempts
        delay_s = 0.0 if is_move else delay_s
        when = f"in {delay_s:.3g} s" if delay_s else "at once"
        self._log_failure(f"; next attempt: {self._info()['uri']} {when}")
        await trio.sleep(delay_s)

    def _reset_delay(self) -> None:
        with asked_by(self):
            self.delay.reset()

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
            self._failures.note_logon(self._uri, None)
            core.set_state(ConnectionState.LOGGED_ON)
            return
        hint = "" if core.connection is None else core.connection.hint_if_silent
        raise TimedOut(f"logon: no answer within {limit_s:g} s{hint}")

    async def _reconcile(self) -> None:
        core = self._core
        core.check_connected()
        if self._is_chosen or isinstance(self._chooser, MovingServerChooser):
            self._chooser.report_success(self._info())
        publishes, server = core.publisher.publishes, core.status.server
        self._check_name()
        if self._settings.refuses_gaps and server is not None:
            # Before the store is reconciled: a store written by the user might accept the gap.
            gap = publishes.gap_at(server)
            if gap is not None:
                raise gap
        core.reconcile()
        if publishes.log.gap is not None:
            self._core.reporter.log.warning(
                "client %s goes on with %s: %s", core.name, self._info()["uri"], publishes.log.gap
            )

    def _check_name(self) -> None:
        """End this client if another one publishes under its name.

        This has to come before the store is reconciled, which would trim it to what the other
        client has published.

        Raises:
            NameInUse: Another client does; this ends the client.
        """
        core, server = self._core, self._core.status.server
        if server is None:
            return
        highest, log = core.publisher.publishes.highest, core.publisher.log
        if (
            self._name_conflicts.note_logon(core.status.address, seen=server.seen, highest=highest)
            and highest
        ):
            self._failures.fatal = error = NameInUse(
                f"another client publishes as {core.name!r}: the server has seen sequence "
                f"{server.seen}, this client has used {highest} at most. Its publishes that are "
                f"not persisted: {log.unpersisted_count}; under this name the server drops them as "
                "duplicates. Give each client a name of its own"
            )
            raise error

    def _note_lost(self, error: HAClientError) -> None:
        """Note why a live connection has ended."""
        core = self._core
        if isinstance(error, SubscriptionStalled):
            core.reporter.emit(SubscriptionSilent, sub_id=error.sub_id, error=error)
        if type(error) is not DisconnectedError or self._rejected.has_rejected:
            return  # a subclass, or the publish, names another reason
        if self._name_conflicts.note_closed(trio.current_time() - self._live_since):
            core.reporter.log.warning(
                "client %s: %s has closed several connections soon after the logon: either the "
                "server restarts, or another client uses the same name",
                core.name,
                self._info()["uri"],
            )

    async def _start_heartbeat(self) -> None:
        core = self._core
        core.check_connected()
        if await core.start_heartbeat(timeout=self._settings.connect_timeout):
            core.set_state(ConnectionState.HEARTBEAT_INITIATED)

    async def _replay(self) -> None:
        core = self._core
        await self._rejected.wait_if_suspected()
        core.check_connected()
        await core.open_log()
        core.set_state(ConnectionState.PUBLISH_REPLAYED)

    async def _resubscribe(self) -> None:
        """Send the subscriptions again, in their order, without a round trip for each."""
        core, failures = self._core, list[HAClientError]()
        places = trio.Semaphore(MAX_RESUBSCRIBING)

        async def again(subscription: Subscription, *, task_status: trio.TaskStatus[None]) -> None:
            # The next one follows: there is no checkpoint until this one is in the outbox.
            task_status.started()
            try:
                await self._resubscribe_one(subscription)
            except HAClientError as error:  # all others would fail like it
                failures.append(error)
                nursery.cancel_scope.cancel()
            finally:
                places.release()

        async with open_nursery() as nursery:
            for subscription in core.kept.to_resubscribe():
                await places.acquire()
                await nursery.start(again, subscription)
        if failures:
            raise failures[0]
        core.check_connected()
        core.queue_acks.resume()
        core.set_state(ConnectionState.RESUBSCRIBED)

    async def _serve(self) -> None:
        """Stay until the connection is lost; one that lasts counts as a success."""
        core = self._core
        core.check_connected()
        self._failures.note_live()
        self._left_uri = ""
        self._live_since = trio.current_time()
        core.live()
        if self._move is not None and self._move.has_left:
            self._end_move(None)
        end_reasons: list[Exception] = []

        async def run_until_end(task: Callable[[], Awaitable[None]]) -> None:
            try:
                await task()
            except (_Moved, *_EXPECTED) as end:
                end_reasons.append(end)  # several tasks may end at once: the first one counts
                nursery.cancel_scope.cancel()

        async with open_nursery() as nursery:
            nursery.start_soon(run_until_end, self._move_when_asked)
            if isinstance(self._chooser, MovingServerChooser):
                nursery.start_soon(run_until_end, partial(self._watch, self._chooser))
            if self._silence is not None:
                nursery.start_soon(run_until_end, partial(self._watch_silence, self._silence))
            with trio.move_on_after(STABLE_AFTER_S) as young:
                await core.wait_lost()
            if young.cancelled_caught:
                self._plan.stable()
                self._failure_log.reset()
                self._reset_delay()
                await core.wait_lost()
            nursery.cancel_scope.cancel()
        raise end_reasons[0] if end_reasons else core.status.why_not_connected()

    async def _watch_silence(self, silence: SilenceWatch) -> None:
        """Watch the subscriptions for as long as a connection is live.

        Raises:
            SubscriptionStalled: One has received nothing for too long.
        """
        core = self._core
        silence.begin(trio.current_time())
        while True:
            await trio.sleep(silence.check_every_s)
            is_reading = core.connection is not None and core.connection.is_reading
            stalled = silence.check(core.kept, trio.current_time(), is_reading=is_reading)
            if stalled is not None:
                raise stalled

    # -- planned moves -------------------------------------------------------------

    async def _watch(self, chooser: MovingServerChooser) -> None:
        """Check the servers that the chooser prefers, until it is time to move to one of them.

        Raises:
            _Moved: It is, and the connection has been drained.
        """
        while True:
            await trio.sleep(chooser.check_every)
            for uri, authenticator in chooser.to_check():
                error = await self._check(uri, authenticator, self._settings.connect_timeout)
                if error is not None:
                    safe = Uri.parse(uri).safe
                    self._core.reporter.log.info("client %s: %s: %s", self._core.name, safe, error)
                chooser.report_check(uri, error, trio.current_time())
            try:
                if not await self._answer(chooser.is_move_due(trio.current_time())):
                    continue
            except DisconnectedError as error:  # the connection works
                self._core.reporter.log.warning(
                    "client %s stays at %s: %s", self._core.name, self._info()["uri"], error
                )
                continue
            await self._drain()
            chooser.report_move()
            raise _Moved

    async def _move_when_asked(self) -> None:
        """Leave for the server that the application names, if it does.

        Raises:
            _Moved: It has, and the connection has been drained.
        """
        while True:
            await self._asked_to_move.wait()
            move = self._move
            if move is None:
                await trio.lowlevel.checkpoint()
                continue
            await self._drain()
            if self._move is move:  # still wanted
                move.has_left = True
                raise _Moved

    async def _drain(self) -> None:
        """Have the server take what was sent to it, before the client leaves it.

        What is published meanwhile stays in the log, and goes to the next server.
        """
        core = self._core
        if core.connection is not None:
            await core.flusher.drain(limit_s=self._settings.connect_timeout)
        if core.connection is None:
            await trio.sleep_forever()  # lost meanwhile, which ends the move and this task

    async def _leave_for_another(self) -> None:
        """Close a connection that works; the next attempt is at the chooser's new server."""
        core = self._core
        self._core.reporter.log.info(
            "client %s leaves %s for another server", core.name, self._info()["uri"]
        )
        self._plan.next(StepOutcome.MOVED)
        self._reset_delay()
        self._left_uri = self._uri
        why = "the client moves to a server of higher priority"
        if self._move is not None and self._move.has_left:
            why = f"the client moves to {self._move.safe_uri}, as it was asked to"
        core.publisher.is_moving = True
        await core.abandon(DisconnectedError(why))
        if core.status.state is ConnectionState.DISCONNECTED:
            core.set_state(ConnectionState.RECONNECTING)

    # -- resubscribing -------------------------------------------------------------

    async def _resubscribe_one(self, subscription: Subscription) -> None:
        """Resubscribe one subscription, at its recovery point.

        Raises:
            HAClientError: The connection is of no use, or this subscription is not to go on.
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

        When every server was asked, the application's word counts.

        Raises:
            HAClientError: The connection is closed, for the next server or for good.
        """
        sub_id, core = subscription.sub_id, self._core
        if subscription not in core.kept:  # ended on purpose meanwhile
            return
        if not self._failures.note_refusal(sub_id, self._uri):
            raise error
        match word := self._decide(sub_id, error):
            case "drop":
                extra = {"sub_id": sub_id}
                self._core.reporter.log.error(
                    "client %s drops subscription %s: %s", core.name, sub_id, error, extra=extra
                )
                core.reporter.emit(SubscriptionEnded, sub_id=sub_id, error=error)
                core.kept.drop(subscription)
                core.session.router.remove(subscription)  # the connection stays
                fail(subscription, error)
            case "retry":
                raise error
            case "fail":
                self._failures.fatal = error
                raise error
            case _:
                raise UsageError(
                    f"on_resubscribe_failure has to answer 'fail', 'retry' or 'drop', not {word!r}"
                )

    def _decide(self, sub_id: str, error: HAClientError) -> str:
        policy = self._settings.on_resubscribe_failure
        return policy(sub_id, error) if callable(policy) else policy

    def _drops(self, sub_id: str, error: HAClientError) -> bool:
        return self._decide(sub_id, error) == "drop"
