"""The life of a client that stays connected (seed S4; rows HA2-HA8, HA17-HA23, SM2-SM11).

`HACore` runs the recovery plan: one task, one step at a time, from choosing a server to being live,
and again after every loss. What the application does meanwhile goes on: publishes go into the
store, commands wait until it is live, handlers and resumable streams keep their queues' consumers.

When a link is lost, what was queued and not handed out is forgotten, since it comes again; what was
handed out and not discarded is in hand, and its repetition is filtered by the bookmark store.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Literal, TypeAlias, TypeVar

import trio
from typing_extensions import override

from haclient.chooser import ServerChooser
from haclient.delay import DelayStrategy
from haclient.errors import (
    AuthenticationError,
    CommandError,
    DisconnectedError,
    HAClientError,
    NameInUse,
    ProtocolError,
    PublishGap,
    ReconnectGaveUp,
    TimedOut,
    UsageError,
)
from haclient.protocol.codec import Payload
from haclient.protocol.messages import Message
from haclient.protocol.uri import Uri
from haclient.session.recovery import Recovery, RecoveryPlan
from haclient.session.resuming import Refusals, resuming_options
from haclient.session.states import ConnectionState
from haclient.session.subscriptions import Marker, Phase, Subscription
from haclient.subscription_manager import Entry, SubscriptionManager
from haclient.transport.commander import Fields, drop_queued
from haclient.transport.connection import Connection
from haclient.transport.core import Core
from haclient.transport.dispatch import Delivery
from haclient.transport.reentry import best_first
from haclient.transport.settings import Settings
from haclient_stores.publish_stores.publish_log import PublishLog

__all__ = ["HACore", "HASettings", "OnPublishGap", "OnResubscribeFailure"]

OnPublishGap: TypeAlias = Literal["refuse", "continue", "raise"]
"""What to do with a server that lacks what was acknowledged: try the next, go on, or give up."""

OnResubscribeFailure: TypeAlias = (
    Literal["fail", "retry", "drop"] | Callable[[str, HAClientError], str]
)
"""What becomes of a subscription that no server takes back; a callable gets its id and the error
and answers with one of the words."""

_EXPECTED = (DisconnectedError, CommandError, ProtocolError, TimedOut, PublishGap)
_T = TypeVar("_T")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HASettings:
    """What a client that stays connected was made with; `haclient.ha.HAClient` documents each."""

    chooser: ServerChooser
    delay: DelayStrategy
    manager: SubscriptionManager
    connect_timeout_s: float
    on_publish_gap: OnPublishGap
    on_resubscribe_failure: OnResubscribeFailure
    failover_overlap_s: float

    def __post_init__(self) -> None:
        """Refuse words that mean nothing.

        Raises:
            UsageError: One does.
        """
        gap, failure = self.on_publish_gap, self.on_resubscribe_failure
        if gap not in {"refuse", "continue", "raise"}:
            raise UsageError(f"on_publish_gap is 'refuse', 'continue' or 'raise', not {gap!r}")
        if not callable(failure) and failure not in {"fail", "retry", "drop"}:
            raise UsageError(
                f"on_resubscribe_failure is 'fail', 'retry', 'drop' or a callable, not {failure!r}"
            )

    @property
    def minds_gaps(self) -> bool:
        """Whether a server that lacks what was acknowledged is left."""
        return self.on_publish_gap != "continue"


class HACore(Core):
    """A client's pieces, kept connected."""

    def __init__(self, settings: Settings, ha: HASettings) -> None:
        store = settings.publish_store
        if isinstance(store, PublishLog) and store.error_on_publish_gap and not ha.minds_gaps:
            raise UsageError(
                "on_publish_gap='continue' goes on where error_on_publish_gap=True of the publish "
                "store says stop: give one of the two"
            )
        super().__init__(settings)
        self._ha = ha
        self._plan = RecoveryPlan()
        self._live = trio.Event()
        self._gave_up: HAClientError | None = None  # why nothing follows, on purpose or not
        self._fatal: HAClientError | None = None  # what has to leave the block
        self._refusals = Refusals()
        self._lasting: dict[str, Subscription] = {}
        self._attempt = ""  # the URI of this attempt
        self._authenticator = settings.authenticator
        self._stopping = trio.CancelScope()
        self._steps: dict[Recovery, Callable[[], Awaitable[None]]] = {
            Recovery.CHOOSING: self._choose,
            Recovery.WAITING: self._wait,
            Recovery.DIALLING: self._dial,
            Recovery.LOGGING_ON: self._log_on_there,
            Recovery.RECONCILING: self._reconcile_with_server,
            Recovery.HEARTBEAT: self._beat,
            Recovery.REPLAYING: self._replay,
            Recovery.RESUBSCRIBING: self._resubscribe,
            Recovery.LIVE: self._stay,
        }
        self.commander.places.overlap_us = int(ha.failover_overlap_s * 1_000_000)

    # -- for the client -------------------------------------------------------

    async def connect_and_logon(self) -> None:
        """Start to stay connected; returns when it is live for the first time (HA2).

        Raises:
            ReconnectGaveUp: The chooser has no server, or the delay strategy had enough.
            NameInUse: The client name belongs to somebody else.
        """
        self.running().start_soon(self._stay_connected)
        await self.ready()

    @override
    async def ready(self) -> None:
        while not self._live.is_set():
            if self._gave_up is not None:
                raise self._gave_up
            await self._live.wait()
        if self._gave_up is not None:
            raise self._gave_up

    @override
    async def disconnect(self) -> None:
        """Stop for good, at once, whatever the recovery is doing (HA8)."""
        reason = DisconnectedError("the client was disconnected on purpose")
        self._stop(self._gave_up or reason)
        self._stopping.cancel()
        for subscription in self._lasting.values():
            super()._end(subscription, reason)
        await super().disconnect()

    @override
    async def _close(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop(self._gave_up or DisconnectedError("the client was left"))
        await super()._close(kind, error, traceback)

    def _stop(self, reason: HAClientError) -> None:
        """Nothing follows: whoever waits for a connection hears so."""
        self._gave_up = reason
        self._plan.stop()
        self.publisher.stop(reason)
        self._live.set()
        if self.state is ConnectionState.RECONNECTING:
            self._tell(ConnectionState.DISCONNECTED)

    @override
    def subscriptions(self) -> list[Subscription]:
        return list(dict.fromkeys((*super().subscriptions(), *self._lasting.values())))

    @override
    def opened(self, subscription: Subscription, fields: Fields, body: bytes) -> None:
        kept = {name: value for name, value in fields.items() if name != "cid"}
        self._lasting[subscription.sub_id] = subscription
        self._ha.manager.add(Entry(subscription.sub_id, kept, body))

    @override
    def closed(self, subscription: Subscription) -> None:
        if self._lasting.get(subscription.sub_id) is subscription:
            del self._lasting[subscription.sub_id]
            self._ha.manager.remove(subscription.sub_id)

    @override
    def drops(self, sub_id: str, error: HAClientError) -> bool:
        policy = self._ha.on_resubscribe_failure
        return (policy(sub_id, error) if callable(policy) else policy) == "drop"

    @override
    def _lost(self, reason: HAClientError) -> None:
        # At once: who has to wait for the next connection must not take this one for it.
        if self._live.is_set() and self._gave_up is None:
            self._live = trio.Event()
        super()._lost(reason)

    @override
    def _end(self, subscription: Subscription, reason: HAClientError) -> None:
        lasts = self._lasting.get(subscription.sub_id) is subscription
        if self._gave_up is None and subscription.phase is Phase.OPENING:
            subscription.phase = Phase.LOST  # whoever opens it does so anew, with the same queue
            drop_queued(subscription)
        elif self._gave_up is None and lasts:
            if subscription.log is None and not subscription.query_id:
                subscription.sink.mark(Marker.GAP)  # what has arrived does not come again
            else:
                drop_queued(subscription)
                subscription.sink.mark(Marker.GAP)
        elif self._gave_up is None and not subscription.finite:
            _fail(subscription, _plain_stream_lost(subscription, reason))
        else:
            super()._end(subscription, reason)

    @override
    async def flush(self, *, timeout: float | None) -> None:
        """Wait until a server has processed every command sent so far (CC10)."""
        await self._until_answered(partial(super().flush, timeout=timeout), "flush", timeout)

    @override
    async def sow_delete(self, fields: Fields, body: Payload, *, timeout: float | None) -> Message:
        """Delete SOW records; with a store the command outlives the connection (PS3).

        Without one it is not said twice: what was published meanwhile would be deleted too.
        """
        if self.publisher.log is not None:
            return await super().sow_delete(fields, body, timeout=timeout)
        with trio.move_on_after(float("inf") if timeout is None else timeout):
            await self.ready()
            return await super().sow_delete(fields, body, timeout=None)
        raise TimedOut(f"sow_delete: no server answered within {timeout:g} s")

    async def _until_answered(
        self, command: Callable[[], Awaitable[_T]], what: str, timeout: float | None
    ) -> _T:
        """Run a command on one connection after the other until a server has answered it."""
        with trio.move_on_after(float("inf") if timeout is None else timeout):
            while True:
                await self.ready()
                with contextlib.suppress(DisconnectedError):
                    return await command()
        raise TimedOut(f"{what}: no server answered within {timeout:g} s")

    # -- the plan -------------------------------------------------------------

    async def _stay_connected(self) -> None:
        plan = self._plan
        with self._stopping:
            while plan.state is not Recovery.STOPPED:
                try:
                    await self._steps[plan.state]()
                except _EXPECTED as error:
                    await self._failed(error)
                else:
                    plan.done()
        if self._fatal is not None:
            raise self._fatal

    async def _failed(self, error: HAClientError) -> None:
        """A step failed, or the connection was lost."""
        if self._gave_up is not None:  # on purpose, which is what made it fail
            return
        _logger.info("client %s: %s: %s", self.name, self._plan.state, error)
        final = isinstance(error, ReconnectGaveUp | NameInUse) or (
            isinstance(error, PublishGap) and self._ha.on_publish_gap == "raise"
        )
        if self._plan.lost():
            self._ha.chooser.report_failure(error, self._info())
        if self._connection is not None:
            await self._abandon(self._connection, self._closed, error)
        if final or error is self._fatal:
            self._give_up(error)
        elif self.state is ConnectionState.DISCONNECTED:
            self._tell(ConnectionState.RECONNECTING)

    def _give_up(self, error: HAClientError) -> None:
        """The error leaves the block, and every stream."""
        self._fatal = error
        self._stop(error)
        for subscription in self._lasting.values():
            _fail(subscription, error)
        self._lasting.clear()

    def _info(self) -> dict[str, str]:
        uri = Uri.parse(self._attempt).safe if self._attempt else ""
        version = "" if self.server is None else self.server.server_version
        return {"uri": uri, "client_name": self.name, "server_version": version}

    # -- its steps --------------------------------------------------------------

    async def _choose(self) -> None:
        self._attempt = self._ha.chooser.current_uri()
        if not self._attempt:
            raise ReconnectGaveUp(self._plan.attempts, self._ha.chooser.error())
        self._authenticator = self._ha.chooser.current_authenticator()

    async def _wait(self) -> None:
        try:
            delay_s = self._ha.delay.delay_for(self._attempt, trio.current_time())
        except TimedOut as error:
            why = f"{error}; the last error: {self._ha.chooser.error()}"
            raise ReconnectGaveUp(self._plan.attempts, why) from error
        await trio.sleep(delay_s)

    async def _dial(self) -> None:
        await self.connect(self._attempt, timeout=self._ha.connect_timeout_s)

    async def _log_on_there(self) -> None:
        connection, uri, limit_s = self._serving(), self._uri, self._ha.connect_timeout_s
        with trio.move_on_after(limit_s):  # with what the authenticator takes
            if uri is not None:
                await self._log_on(connection, uri, self._authenticator, timeout=None)
            self._tell(ConnectionState.LOGGED_ON)
            return
        raise TimedOut(f"logon: no answer within {limit_s:g} s")

    async def _reconcile_with_server(self) -> None:
        self._serving()
        self._ha.chooser.report_success(self._info())
        log = self.publisher.log
        persisted = None if self.server is None else self.server.persisted
        if (
            self._ha.minds_gaps
            and log is not None
            and persisted is not None
            and persisted < log.last_persisted
        ):
            # Before the store is told: a store of the user's own might go on.
            raise PublishGap(log.last_persisted, persisted)
        self._reconcile()
        if log is not None and log.gap is not None:
            _logger.warning(
                "client %s goes on with %s: %s", self.name, self._info()["uri"], log.gap
            )

    async def _beat(self) -> None:
        self._serving()
        if self._heartbeat is not None:
            await self._start_heartbeat(self._heartbeat, timeout=self._ha.connect_timeout_s)
            self._tell(ConnectionState.HEARTBEAT_INITIATED)

    async def _replay(self) -> None:
        self._serving()
        self.publisher.open_log()
        self._tell(ConnectionState.PUBLISH_REPLAYED)

    async def _resubscribe(self) -> None:
        for entry in self._ha.manager.entries():
            subscription = self._lasting.get(entry.sub_id)
            if subscription is not None:
                try:
                    await self._reenter(subscription, entry)
                except (CommandError, AuthenticationError) as error:
                    self._refused(subscription, error)
        self._serving()
        self._tell(ConnectionState.RESUBSCRIBED)

    async def _stay(self) -> None:
        self._serving()
        self._ha.delay.reset()
        self._refusals.clear()
        self._live.set()
        await self._closed.wait()
        raise self._not_connected()

    def _serving(self) -> Connection:
        """The connection of this attempt.

        Raises:
            HAClientError: It was lost while nobody waited for anything.
        """
        if self._connection is None:
            raise self._not_connected()
        return self._connection

    # -- entering again -----------------------------------------------------------

    async def _reenter(self, subscription: Subscription, entry: Entry) -> None:
        """One subscription, from where its store says (BS9)."""
        fields, log = dict(entry.fields), subscription.log
        options = str(fields.pop("opts", ""))
        forms: tuple[str, ...] = (str(fields.get("bm", "")),)
        if log is not None:
            conflated = "conflation=" in options
            log.begin(acked=fields["c"] == "subscribe", start=None, conflated=conflated)
            # Conflated messages and those of a query do not come in the order of the log.
            ordered = not conflated and not subscription.query_id
            last = subscription.whereabouts.last if ordered else ""
            forms = self.commander.places.forms(log, last)

        async def enter(bookmark: str) -> None:
            if self._lasting.get(subscription.sub_id) is not subscription:
                return  # it was ended on purpose while the better form was refused
            opts = resuming_options(
                options, bookmark=bookmark, version=self.commander.server_version, again=True
            )
            more = {name: value for name, value in (("bm", bookmark), ("opts", opts)) if value}
            await self.commander.reopen(
                subscription, {**fields, **more}, entry.body, timeout=self._ha.connect_timeout_s
            )

        await best_first(forms, enter, self._info()["uri"])

    def _refused(self, subscription: Subscription, error: HAClientError) -> None:
        """A server does not take a subscription back (SM8).

        Another server may, so each is asked once, in the chooser's order and with the strategy's
        waits. When one refuses for the second time, the application's word counts.

        Raises:
            HAClientError: The connection is given up, for the next server or for good.
        """
        sub_id = subscription.sub_id
        if self._lasting.get(sub_id) is not subscription:  # ended on purpose meanwhile
            return
        if not self._refusals.add(sub_id, self._attempt):
            raise error
        policy = self._ha.on_resubscribe_failure
        word = policy(sub_id, error) if callable(policy) else policy
        match word:
            case "drop":
                _logger.error("client %s drops subscription %s: %s", self.name, sub_id, error)
                self.closed(subscription)
                _fail(subscription, error)
            case "retry":
                raise error
            case "fail":
                self._fatal = error
                raise error
            case _:
                raise UsageError(
                    f"on_resubscribe_failure has to answer 'fail', 'retry' or 'drop', not {word!r}"
                )


def _plain_stream_lost(subscription: Subscription, reason: HAClientError) -> HAClientError:
    error = DisconnectedError(
        f"the stream {subscription.sub_id!r} ended with its connection, and messages may be "
        f"missing from here on: {reason}: open it again, open it with resumes=True to go on after "
        "a gap, or use a bookmark_stream to miss nothing"
    )
    error.__cause__ = reason
    return error


def _fail(subscription: Subscription, error: HAClientError) -> None:
    """End it by an error: who iterates gets it raised, a handler's task ends."""
    if isinstance(subscription.sink, Delivery):
        subscription.sink.end(error, raises=True)
