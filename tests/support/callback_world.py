"""One callback of an application that misbehaves, on a journey of its client.

A case names the *seat* of the callback (an option of the client, a kind of event, a method of a
chooser or store), how it *behaves* there, and what happens to the client meanwhile, the *journey*.
`run` gives what became of it. Everything runs in this process and in virtual time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Final, NamedTuple, TypeVar

import pytest
import trio
import trio.testing
from trio._core import _run as scheduler
from typing_extensions import override

from haclient import events
from haclient.client import HAClient
from haclient.errors import DisconnectedError, HAClientError, StoreError
from haclient.events import MessagesReceived
from haclient.observability.health import Health
from haclient.options import wall_clock
from haclient.protocol.messages import Message
from haclient.servers.auth import DefaultAuthenticator
from haclient.servers.chooser import DefaultServerChooser, PriorityServerChooser
from haclient.servers.delay import FixedDelayStrategy
from haclient.session.connection_state import ConnectionState
from haclient.subscription_manager import MemorySubscriptionManager
from haclient.transport.links.memory_network import network
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.engine.settings import Entitlement, QueueTopic, SowTopic
from haclient_fake_server.server import BrokerServer
from haclient_stores.adapters.recovery_point import TimedAdapter
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.undiscarded_watch import UndiscardedWatch
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.custom import DictBookmarkStore, DictPublishStore
from support.engine import START_US
from support.points import KeptPoints

__all__ = ["BEHAVIOURS", "JOURNEYS", "Case", "Oops", "World", "run"]

T = TypeVar("T")

EAST, WEST = "mem://u:x@callbacks-east:1/amps/json", "mem://v:x@callbacks-west:1/amps/json"
OTHER: Final = "mem://u:x@callbacks-west:1/amps/json"
STRANGER: Final = "mem://nobody:x@callbacks-east:1/amps/json"
ADDRESSES: Final = "mem://callbacks-east:1", "mem://callbacks-west:1"
CONFIG: Final = BrokerConfig(
    listen=ADDRESSES,
    users={"u": "x", "v": "x"},
    entitlements=(
        Entitlement("u", "all", "orders|plain|jobs|notes"),
        Entitlement("v", "publish", ".*"),
    ),
    sow_topics=(SowTopic(name="records", keys=("/id",)),),
    queues=(QueueTopic(name="jobs", topics=()),),
)
EXIT_S: Final = 5.0
MOST_S: Final = 300.0  # for a case, in virtual time


class Oops(Exception):
    """What the application raises."""


class Case(NamedTuple):
    seat: str
    behaviour: str
    journey: str
    at: int = 1  # the call at which it behaves so, if it does once


def _nothing(*_: object) -> None:
    pass


def _drop(*_: object) -> str:
    return "drop"


def _discard(message: Message, _: Exception) -> None:
    message.discard()


def _only(state: ConnectionState, listener: Callable[..., Any]) -> Callable[..., Any]:
    def listen(event: events.StateChanged) -> object:
        return listener(event) if event.state is state else None

    return listen


class Adapter(KeptPoints, TimedAdapter):
    """Keeps points at once."""

    @override
    def poll(self, now: float) -> None:
        pass


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname} {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            text += f" [{record.exc_info[1]!r}]"
        self.texts.append(text)


@dataclass
class World:
    """A client on its journey, with the callback of a case.

    Attributes:
        case: What is combined.
        broker: The only broker, with two addresses; at the second one the user may not read.
        nursery: For what a plain function of the application starts.
        calls: How often the callback was called.
        accepted: The messages that a publish has accepted: topic and number.
        logged: Those that are in the broker's log at the end.
        left: How many the store has at the end, in a warning.
        handled: The orders that the handler has discarded.
        told: The events of a listener that does nothing.
        texts: The warnings and errors in the log, with their exceptions.
        outcome: What has left the block of the client.
        stop_reason: Why the client had ended before its block.
        is_cancelled: Whether the application has cancelled the block.
        took_s: How long leaving took.
        health: What the client says of itself afterwards.
        problems: What must never be, in one line each.
    """

    case: Case
    broker: BrokerServer
    nursery: trio.Nursery
    calls: int = 0
    accepted: list[tuple[str, int]] = field(default_factory=list)
    logged: list[tuple[str, int]] = field(default_factory=list)
    left: int = 0
    handled: list[int] = field(default_factory=list)
    told: list[events.Event] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    outcome: Exception | None = None
    stop_reason: HAClientError | None = None
    is_cancelled: bool = False
    took_s: float = 0.0
    health: Health | None = None
    problems: list[str] = field(default_factory=list)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    gate: trio.Event = field(default_factory=trio.Event)  # of the handler, while it holds
    holds: bool = False
    fails: bool = False
    keeps: bool = False  # does not discard
    is_over: bool = False  # from then on every callback behaves
    count: int = 0

    def __post_init__(self) -> None:
        case = self.case
        kind, _, name = case.seat.partition(".")
        self.store: Any = DictPublishStore() if kind == "publish_store" else MemoryPublishStore()
        self.client = HAClient(
            "c",
            server_chooser=self._chooser(),
            delay_strategy=self.placed("delay", FixedDelayStrategy(0.5, give_up_after=20.0)),
            publish_store=self.placed("publish_store", self.store),
            bookmark_store=self._bookmarks(),
            subscription_manager=self.placed("manager", MemorySubscriptionManager()),
            exit_timeout=EXIT_S,
            connect_timeout=3.0,
            max_queued_bytes=400,
            progress_timeout=6.0 if case.journey == "silent" else None,
            on_event=self.wrap("option.on_event", _nothing),
            on_failed_write=self.wrap("option.on_failed_write", _nothing),
            wire_tap=self.wrap("option.wire_tap", _nothing),
            on_handler_error=self.wrap("option.on_handler_error", _discard),
            on_resubscribe_failure=self.wrap("option.on_resubscribe_failure", _drop),
        )
        listener = self.wrap(case.seat, _nothing)
        if kind == "event":
            self.listener = listener
            self.client.add_event_listener(listener, getattr(events, name))
        if kind == "state":
            self.listener = _only(ConnectionState[name], listener)
            self.client.add_event_listener(self.listener, events.StateChanged)
        self.client.add_event_listener(self.told.append)
        if case.journey == "received":
            self.client.add_event_listener(partial(list.append, self.told), MessagesReceived)

    def _chooser(self) -> Any:  # noqa: ANN401  # one of two kinds, with a method replaced
        authenticator = self.placed("authenticator", DefaultAuthenticator())
        if self.case.journey == "moved back":
            chooser: Any = PriorityServerChooser([EAST, OTHER], check_every=1.0, healthy_for=3.0)
        else:
            first = STRANGER if self.case.journey == "logon refused" else EAST
            chooser = DefaultServerChooser([first, EAST if first is STRANGER else WEST])
        chooser.current_authenticator = lambda: authenticator
        return self.placed("chooser", chooser)

    def _bookmarks(self) -> Any:  # noqa: ANN401  # any kind of store
        if self.case.seat.startswith("bookmark_store."):
            return self.placed("bookmark_store", DictBookmarkStore())
        watch = UndiscardedWatch(2.0, self.wrap("watch.on_old", _nothing))
        return MemoryBookmarkStore(watch=watch, adapter=self.placed("adapter", Adapter()))

    def placed(self, kind: str, instance: T) -> T:
        """An object with the callback in the place of a method, if that is its seat."""
        seat, _, name = self.case.seat.partition(".")
        if seat == kind and hasattr(instance, name):
            setattr(instance, name, self.wrap(self.case.seat, getattr(instance, name)))
        return instance

    def wrap(self, seat: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """The callback itself, with its behaviour if it is that of the case."""
        if seat != self.case.seat:
            return real
        behave = BEHAVIOURS[self.case.behaviour]

        def plain(*values: object, **named: object) -> object:
            self.calls += 1
            found = None if self.is_over else behave(self)
            return real(*values, **named) if found is None else found

        async def waiting(*values: object, **named: object) -> object:
            self.calls += 1
            found = behave(self)
            found = await found if isawaitable(found) else found
            answer = real(*values, **named) if found is None else found
            return await answer if isawaitable(answer) else answer

        return waiting if iscoroutinefunction(behave) or iscoroutinefunction(real) else plain

    @property
    def is_due(self) -> bool:
        """Whether what happens once happens now."""
        return self.calls == self.case.at and self.client._core.entered

    # -- what the application does ------------------------------------------------

    async def publish(self, topic: str = "orders", count: int = 1, *, pad: int = 0) -> None:
        for _ in range(count):
            n = self.count = self.count + 1
            body = json.dumps({"n": n, "pad": "x" * pad})
            await self.client.publish(topic, body)
            self.accepted.append((topic, n))

    def publish_now(self, topic: str = "notes") -> None:
        n = self.count = self.count + 1
        self.client.publish_nowait(topic, json.dumps({"n": n}))
        self.accepted.append((topic, n))

    async def on_order(self, message: Message) -> None:
        n = json.loads(message.data)["n"]
        if self.holds:
            await self.gate.wait()
        if self.fails:
            raise Oops("of the handler")
        self.handled.append(n)
        if not self.keeps:
            message.discard()

    async def begin(self) -> None:
        handler = self.wrap("handler.bookmark_subscribe", self.on_order)
        await self.client.bookmark_subscribe("orders", sub_id="s", handler=handler)
        handler = self.wrap("handler.subscribe", _nothing)
        await self.client.subscribe("plain", sub_id="p", handler=handler)
        await self.publish(count=2)
        await self.publish("plain")
        await self.until(lambda: len(self.handled) >= 2)
        await trio.sleep(2)

    async def handle_jobs(self) -> None:
        """A consumer of a queue, two jobs, and the end of the subscription."""
        handler = self.wrap("handler.queue_subscribe", _nothing)
        key = self.wrap("queue.key", lambda message: message.data)
        await self.client.queue_subscribe("jobs", sub_id="q", handler=handler, workers=2, key=key)
        for _ in range(2):
            await self.client.publish("jobs", b"{}")
        await trio.sleep(1)
        await self.client.unsubscribe("q")
        await self.client.unsubscribe("p")

    async def until(self, condition: Callable[[], bool], most_s: float = 20.0) -> None:
        with trio.move_on_after(most_s):
            while not condition():  # noqa: ASYNC110  # it happens in several places
                await trio.sleep(0.05)

    def is_live(self) -> bool:
        return self.client._core.status.is_live

    def cut(self) -> None:
        for each in network().connections:
            if each.open:
                each.reset()

    def down(self, *addresses: str) -> None:
        for each in addresses:
            self.broker.set_transport(each, enabled=False)

    def up(self) -> None:
        for each in ADDRESSES:
            self.broker.set_transport(each, enabled=True)

    # -- a case -------------------------------------------------------------------

    async def run(self) -> None:
        left_at = trio.current_time()
        try:
            with self.scope:
                async with self.client:
                    try:
                        await JOURNEYS[self.case.journey](self)
                    finally:
                        left_at = trio.current_time()
                        self.stop_reason = self.client._core.status.stop_reason
        except Exception as error:
            self.outcome = error
        self.is_cancelled = self.scope.cancelled_caught
        self.took_s = trio.current_time() - left_at
        self.left = self.store.unpersisted_count
        self.is_over = True
        self.health = self.client.health()
        self.gate.set()

    async def read_log(self) -> None:
        self.up()
        async with HAClient("reader", servers=[EAST], exit_timeout=0) as reader:
            for topic in ("orders", "plain", "notes"):
                async with reader.bookmark_stream(topic, sub_id=topic, bookmark="epoch") as stream:
                    with trio.move_on_after(2):
                        async for message in stream:
                            self.logged.append((topic, json.loads(message.data)["n"]))


# -- behaviours ------------------------------------------------------------------------------------


def _raises(_: World) -> None:
    raise Oops("mine")


def _raises_ours(_: World) -> None:
    raise DisconnectedError("mine")


def _raises_group(_: World) -> None:
    raise ExceptionGroup("mine", [Oops("mine")])


def _wrong(_: World) -> object:
    return object()


def _publishes(world: World) -> None:
    if world.is_due:
        world.publish_now()


def _cancels(world: World) -> None:
    if world.is_due:
        world.scope.cancel()


def _ends(world: World) -> None:
    """A plain function that has the client disconnected."""
    if world.is_due:
        world.nursery.start_soon(world.client.disconnect)


def _listens(world: World) -> None:
    if world.is_due:
        another = list[events.Event]().append
        world.client.add_event_listener(another, events.StateChanged)
        world.client.remove_event_listener(another)
        if world.case.seat.startswith(("event.", "state.")):
            world.client.remove_event_listener(world.listener)


async def _hangs(world: World) -> None:
    if world.calls >= world.case.at:
        await trio.sleep_forever()


async def _sleeps(_: World) -> None:
    await trio.sleep(0.01)


def _raises_store_error(_: World) -> None:
    raise StoreError("mine")


async def _raises_late(_: World) -> None:
    await trio.sleep(0.01)
    raise Oops("mine")


async def _disconnects(world: World) -> None:
    if world.is_due:
        await world.client.disconnect()


async def _flushes(world: World) -> None:
    if world.is_due:
        await world.publish("notes")
        await world.client.publish_flush(timeout=20)


async def _subscribes(world: World) -> None:
    if world.is_due:
        await world.client.subscribe("notes", handler=print, sub_id="new")


async def _unsubscribes(world: World) -> None:
    if world.is_due:
        await world.client.unsubscribe("p")


async def _moves(world: World) -> None:
    if world.is_due:
        await world.client.move_to(WEST)


BEHAVIOURS: Final[dict[str, Callable[..., Any]]] = {
    "returns": _nothing,
    "raises": _raises,
    "raises ours": _raises_ours,
    "raises a group": _raises_group,
    "raises a store error": _raises_store_error,
    "wrong": _wrong,
    "publishes": _publishes,
    "cancels": _cancels,
    "ends": _ends,
    "listens": _listens,
    "hangs": _hangs,
    "sleeps": _sleeps,
    "raises late": _raises_late,
    "disconnects": _disconnects,
    "flushes": _flushes,
    "subscribes": _subscribes,
    "unsubscribes": _unsubscribes,
    "moves": _moves,
}


# -- journeys --------------------------------------------------------------------------------------


async def _idle(world: World) -> None:
    await world.begin()


async def _jobs(world: World) -> None:
    await world.begin()
    await world.handle_jobs()


async def _lost(world: World) -> None:
    await world.begin()
    world.keeps = True
    await world.publish(count=2)
    await trio.sleep(6)  # stable; nobody discards
    world.cut()
    await world.until(lambda: not world.is_live())
    await world.until(world.is_live)
    await world.publish(count=1)
    await trio.sleep(2)


async def _ack_lost(world: World) -> None:
    await world.begin()
    await trio.sleep(6)
    await world.publish()
    await trio.sleep(0.01)  # the broker has it, and says so later
    world.cut()
    await world.until(lambda: not world.is_live())
    await world.until(world.is_live)
    await trio.sleep(1)


async def _resent(world: World) -> None:
    await world.begin()
    await trio.sleep(6)
    world.down(*ADDRESSES)
    world.cut()
    await trio.sleep(1)
    await world.publish(count=2)
    world.up()
    await world.until(world.is_live)
    await trio.sleep(1)


async def _all_down(world: World) -> None:
    await world.begin()
    await trio.sleep(6)
    world.down(*ADDRESSES)
    world.cut()
    await trio.sleep(60)


async def _not_taken_back(world: World) -> None:
    await world.begin()
    await trio.sleep(6)
    world.down(ADDRESSES[0])
    world.cut()
    await world.until(lambda: not world.is_live())
    await world.until(world.is_live, 30)
    await trio.sleep(2)


async def _ended_by_server(world: World) -> None:
    await world.begin()
    if (one := world.client._core.session.router.get("s")) is None:
        return
    command_id = one.command_id
    for each in network().connections:
        if each.open:
            header = json.dumps(
                {
                    "c": "ack",
                    "a": "completed",
                    "cid": command_id,
                    "status": "failure",
                    "reason": "gone",
                }
            ).encode()
            each.server.sending.put(len(header).to_bytes(4, "big") + header)
    await trio.sleep(2)
    await world.publish()
    await trio.sleep(1)


async def _failed_write(world: World) -> None:
    await world.begin()
    await world.client.publish("forbidden", b"{}")
    await world.publish()
    await trio.sleep(2)


async def _handler_error(world: World) -> None:
    await world.begin()
    world.fails = True
    await world.publish()
    await trio.sleep(1)
    world.fails = False
    await world.publish()
    await trio.sleep(2)


async def _backlog(world: World) -> None:
    await world.begin()
    for each in network().connections:
        each.server.sending.held = True  # no ack arrives any more
    await world.publish(count=3)


async def _reconnecting(world: World) -> None:
    await world.begin()
    await trio.sleep(6)
    world.down(*ADDRESSES)
    world.cut()
    await world.until(lambda: not world.is_live())
    await world.publish(count=2)
    await trio.sleep(1)


async def _at_once(world: World) -> None:
    """Left while the last ack is on its way."""
    await world.begin()
    await world.publish(count=2)


async def _slow(world: World) -> None:
    await world.begin()
    world.holds = True
    await world.publish(count=20, pad=100)
    await trio.sleep(2)
    world.holds = False
    world.gate.set()
    await world.until(lambda: len(world.handled) >= 22)
    await trio.sleep(1)


async def _silent(world: World) -> None:
    await world.begin()
    await trio.sleep(10)
    await world.until(world.is_live)
    await world.publish()
    await trio.sleep(1)


async def _unrouted(world: World) -> None:
    await world.begin()
    header = json.dumps({"c": "p", "t": "orders", "s": "nobody"}).encode()
    for each in network().connections:
        if each.open:
            each.server.sending.put((len(header) + 2).to_bytes(4, "big") + header + b"{}")
    await trio.sleep(1)


async def _moved(world: World) -> None:
    await world.begin()
    await world.client.move_to(OTHER)
    await world.publish()
    await trio.sleep(1)


async def _back(world: World) -> None:
    """The chooser moves the client back to the first server."""
    await world.begin()
    await trio.sleep(6)
    world.down(ADDRESSES[0])
    world.cut()
    await world.until(lambda: not world.is_live())
    await trio.sleep(2)
    world.up()
    await trio.sleep(30)
    await world.publish()
    await trio.sleep(1)


async def _disconnected(world: World) -> None:
    await world.begin()
    await world.client.disconnect()
    await trio.sleep(1)


JOURNEYS: Final[dict[str, Callable[[World], Coroutine[object, None, None]]]] = {
    "idle": _idle,
    "left at once": _at_once,
    "jobs": _jobs,
    "lost": _lost,
    "ack lost": _ack_lost,
    "resent": _resent,
    "logon refused": _idle,
    "all down": _all_down,
    "not taken back": _not_taken_back,
    "ended by the server": _ended_by_server,
    "failed write": _failed_write,
    "handler error": _handler_error,
    "backlog": _backlog,
    "reconnecting": _reconnecting,
    "slow": _slow,
    "silent": _silent,
    "unrouted": _unrouted,
    "received": _idle,
    "disconnected": _disconnected,
    "moved": _moved,
    "moved back": _back,
}


def _now_us() -> int:
    return START_US + int(trio.current_time() * 1_000_000)


async def _run(case: Case) -> World:
    wall_clock.set(_now_us)
    records = Records()
    logging.getLogger("haclient").addHandler(records)
    try:
        async with (
            BrokerServer(CONFIG, wall_clock_us=_now_us) as broker,
            trio.open_nursery() as nursery,
        ):
            before = trio.lowlevel.current_statistics().tasks_living
            world = World(case, broker, nursery)
            with trio.move_on_after(MOST_S) as limit:
                await world.run()
            if limit.cancelled_caught:
                world.problems.append("has not ended")
            world.texts = list(records.texts)
            for each in network().connections:
                each.server.sending.held = False
                each.server.sending.changed()
            await trio.sleep(1)
            after = trio.lowlevel.current_statistics().tasks_living
            if after > before:
                world.problems.append(f"{after - before} tasks are left")
            await world.read_log()
            nursery.cancel_scope.cancel()
    finally:
        logging.getLogger("haclient").removeHandler(records)
    return world


def run(case: Case) -> World:
    """What becomes of a case."""
    state = scheduler._r.getstate()
    scheduler._r.seed(str(case))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
            return trio.run(_run, case, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        scheduler._r.setstate(state)
