"""One subscription with options, changes of it, and what it then has to receive.

A case is a subscription of some kind with one option or two, and one change or two while messages
are published. A twin of it is paused and resumed by the same commands, and a witness on the same
client has to get every message. Everything runs in this process and in virtual time.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import trio
import trio.testing
from typing_extensions import override

from haclient.client import Client, HAClient
from haclient.errors import CommandError, DisconnectedError, HAClientError, TimedOut, UsageError
from haclient.options import wall_clock
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.streams import MessageStream
from haclient.transport.tasks import open_nursery
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.engine.settings import QueueTopic, SowTopic
from haclient_fake_server.server import BrokerServer
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.engine import START_US

__all__ = [
    "ALL_OPTIONS",
    "BOOKMARKS",
    "CHANGES",
    "FORMS",
    "KINDS",
    "Case",
    "problems_of",
]

KINDS: Final = "subscribe", "bookmark", "sow_and_subscribe", "sow", "queue"
FORMS: Final = "stream", "handler"
SUBSCRIBE: Final = {
    "subscribe": "subscribe",
    "bookmark": "bookmark_subscribe",
    "sow_and_subscribe": "sow_and_subscribe",
    "queue": "queue_subscribe",
}
STREAM: Final = {
    "subscribe": "stream",
    "bookmark": "bookmark_stream",
    "sow_and_subscribe": "sow_and_stream",
    "queue": "queue_stream",
}
OPTIONS: Final = {
    "none": "",
    "live": "live",
    "fully_durable": "fully_durable",
    "rate": "rate=200",
    "conflation": "conflation=50ms,conflation_key=[/id]",
    "oof": "oof",
    "top_n": "top_n=3",
    "pause": "pause",
}
BOOKMARKS: Final = "range by bookmark", "range by time", "now", "epoch", "recent"
ALL_OPTIONS: Final = (*OPTIONS, *BOOKMARKS, "filter")
CHANGES: Final = (
    *("to pause", "resume", "to filter", "to live", "to rate", "second", "unsubscribe"),
    *("lost", "disconnect", "move", "full"),
)
URIS: Final = "mem://pairs-east:1/amps/json", "mem://pairs-west:1/amps/json"
CONFIG: Final = BrokerConfig(
    listen=tuple(uri.removesuffix("/amps/json") for uri in URIS),
    sow_topics=(SowTopic(name="prices", keys=("/id",), history=True),),
    queues=(QueueTopic(name="jobs", topics=()),),
)
BEFORE: Final = 8  # messages that are in the log when a case begins
RANGE: Final = 2, 6  # those of a range
EVEN: Final = "/even = 1"
MOST_ROUNDS: Final = 10_000  # of the event loop in one case


class Case(NamedTuple):
    """What is combined.

    Attributes:
        kind: Of the subscription.
        form: Of its delivery.
        options: One or two that it begins with.
        changes: One or two, in order.
        overlaps: Whether the second begins before the first has been answered.
    """

    kind: str
    form: str
    options: tuple[str, ...]
    changes: tuple[str, ...]
    overlaps: bool = False

    @property
    def keeps_links(self) -> bool:
        return not {"lost", "disconnect", "move"} & {*self.changes}

    @property
    def is_replay(self) -> bool:
        """Whether it begins with a replay of the log."""
        return self.kind == "bookmark" or bool({*BOOKMARKS} & {*self.options})


class Rounds(trio.abc.Instrument):
    """Counts the rounds of the event loop, and cancels a case that never rests."""

    def __init__(self, most: int = MOST_ROUNDS) -> None:
        self.most = most
        self.count = 0
        self.scope = trio.CancelScope()

    @override
    def before_io_wait(self, timeout: float) -> None:
        self.count += 1
        if self.count == self.most:
            self.scope.cancel()


@dataclass
class Follower:
    """What one subscription has to receive, and what it has received.

    Attributes:
        case: What is combined.
        low: The first message that it may get.
        high: The first message behind its range; `None` without an end.
        finished: The discarded messages, which may not come again.
        filtered: Whether its filter takes even numbers alone.
        narrow: Whether it always did.
        wanted: The messages that have to come.
        whole: Whether it has to be complete: it was neither ended nor replaced.
        held: What an earlier handler of the id may still have had, when this one began.
        ended_at: How many messages there were when it had ended.
    """

    case: Case
    low: int
    high: int | None
    finished: set[int]
    filtered: bool
    narrow: bool
    wanted: list[int]
    whole: bool = True
    held: Sequence[int] = ()
    ended_at: int | None = None
    stream: MessageStream | None = None
    error: HAClientError | None = None
    got: list[int] = field(default_factory=list)
    latest: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def published(self, n: int) -> None:
        is_asked = self.case.kind != "sow" and (self.high is None or n < self.high)
        if is_asked and not (self.filtered and n % 2):
            self.wanted.append(n)

    def receive(self, message: Message) -> None:
        if message.command not in {"publish", "sow"}:
            return
        n = json.loads(message.data)["n"]
        kind, is_conflated = self.case.kind, "conflation" in self.case.options
        if kind == "bookmark" and n in self.finished and not is_conflated:
            self.problems.append(f"{n} came after its discard")
        is_late = self.ended_at is not None and n >= self.ended_at
        if is_late or (self.narrow and n % 2) or not self._is_in_range(n):
            self.problems.append(f"{n} came and was not asked for")
        is_ordered = kind in {"bookmark", "subscribe"} and not is_conflated
        if is_ordered and self.got and n <= self.got[-1]:
            self.problems.append(f"{n} came behind {self.got[-1]}")
        self.got.append(n)
        self.latest[n % 4] = n
        if kind == "queue" and self.stream is not None:
            message.ack()
        elif self.case.is_replay and n % 3:
            message.discard()
            self.finished.add(n)

    def _is_in_range(self, n: int) -> bool:
        is_inside = self.low <= n and (self.high is None or n < self.high)
        return is_inside or self.case.kind != "bookmark"

    def check(self) -> None:
        """Compare with what is wanted, when everything is quiet."""
        kind, options = self.case.kind, {*self.case.options}
        if not self.whole or kind == "queue":
            return
        if self.error is not None:
            self.problems.append(f"the stream raised {self.error!r}")
        if self.stream is not None and self.case.is_replay and not self.stream.caught_up:
            self.problems.append("the stream is not caught up")
        if "top_n" in options or (kind == "subscribe" and not self.case.keeps_links):
            return
        if kind in {"bookmark", "subscribe"} and "conflation" not in options:
            missing = sorted({*self.wanted} - {*self.got, *self.held})
        elif self.high is None:  # an older message may come for a record, the last one has to
            last = {n % 4: n for n in self.wanted}
            missing = [n for n in last.values() if self.latest.get(n % 4) != n]
        else:
            missing = []
        if missing:
            self.problems.append(f"{missing} are missing")


class World:
    """A client with its subscriptions, and a publisher."""

    def __init__(self, case: Case, publisher: HAClient, nursery: trio.Nursery) -> None:
        self.case = case
        self.publisher = publisher
        self.nursery = nursery
        self.bookmarks: list[str] = []
        self.times: list[str] = []
        self.count = 0
        self.followers: list[Follower] = []
        self.active: dict[str, Follower] = {}
        self.witnessed: list[int] = []
        self.problems: list[str] = []
        self.refused: HAClientError | None = None
        self.server = 0
        self.gate = trio.Event()
        self.gate.set()
        size = 300 if "full" in case.changes else 2**20
        stores: dict[str, Any] = {
            "bookmark_store": MemoryBookmarkStore(),
            "publish_store": MemoryPublishStore(),
        }
        stores |= {"exit_timeout": 0, "max_queued_bytes": size}
        self.client: Client | HAClient = (
            Client("c", **stores)
            if "disconnect" in case.changes
            else HAClient("c", servers=URIS[:1], **stores)
        )

    async def publish(self, count: int) -> None:
        for _ in range(count):
            n, self.count = self.count, self.count + 1
            body = json.dumps({"id": n % 4, "n": n, "even": int(n % 2 == 0), "pad": "x" * 60})
            for follower in self.followers:
                follower.published(n)
            for topic in ("prices", "jobs"):
                await self.publisher.publish_persisted(topic, body)
            await trio.sleep(0.01)

    async def begin(self) -> None:
        """Publish the messages before, and learn their bookmarks and times."""
        await self.publish(BEFORE)
        log = self.publisher.bookmark_stream(
            "prices", sub_id="log", bookmark="epoch", options="timestamp"
        )
        async with log:
            for _ in range(BEFORE):
                message = await anext(log)
                self.bookmarks.append(message.bookmark)
                self.times.append(message.timestamp)
        await trio.sleep(10)  # they are older than the overlap of a start at another server

    async def connect(self) -> None:
        if isinstance(self.client, Client):
            await self.client.connect(URIS[0])
            await self.client.logon()
        await self.client.bookmark_subscribe("prices", sub_id="witness", handler=self._witness)
        for sub_id in ("s", "twin"):
            await self.subscribe(sub_id)

    def _witness(self, message: Message) -> None:
        self.witnessed.append(json.loads(message.data)["n"])
        message.discard()

    async def subscribe(self, sub_id: str) -> None:
        old, new = self.active.get(sub_id), self._follower(sub_id)
        before = self.count
        self.followers.append(new)
        error = await self.call("subscribe", partial(self._send, sub_id, new))
        if error is not None:
            self.refused = self.refused or error
            self.followers.remove(new)
            return
        if old is not None:
            old.whole = False
            if not self.gate.is_set():
                new.held = old.got
        if new.low == before:  # what was published meanwhile may come
            new.wanted[:] = [n for n in new.wanted if n >= self.count]
        self.active[sub_id] = new

    def _follower(self, sub_id: str) -> Follower:
        options, old = {*self.case.options}, self.active.get(sub_id)
        first, end = RANGE
        low, high, past = 0, None, self.count
        finished: set[int] = set()
        if options & {"range by bookmark", "range by time"}:
            low, high, past = first, end, end
        elif "now" in options or not (self.case.is_replay or "sow" in self.case.kind):
            low = self.count
        elif "recent" in options and old is not None:
            finished = old.finished
        filtered = "filter" in options
        wanted = [n for n in range(low, past) if not (filtered and n % 2) and n not in finished]
        return Follower(self.case, low, high, finished, filtered, filtered, wanted)

    def _bookmark(self) -> str:
        first, end = RANGE
        for option in self.case.options:
            if option == "range by bookmark":
                return f"[{self.bookmarks[first]}:{self.bookmarks[end]})"
            if option == "range by time":
                return f"[{self.times[first]}:{self.times[end]})"
            if option in BOOKMARKS:
                return option
        return "epoch"

    async def _send(self, sub_id: str, follower: Follower) -> None:
        case, client = self.case, self.client
        topic = "jobs" if case.kind == "queue" else "prices"
        options = ",".join(filter(None, (OPTIONS.get(each) for each in case.options)))
        given: dict[str, Any] = {"sub_id": sub_id, "options": options}
        given["filter"] = EVEN if "filter" in case.options else ""
        if case.is_replay:
            given["bookmark"] = self._bookmark()
        if case.kind == "sow":
            command = Command("sow", topic=topic, **given)
            if case.form == "handler":
                await client.execute_async(command, partial(self._handle, follower))
                return
            follower.stream = await client.execute(command)
        elif case.form == "handler":
            method = SUBSCRIBE[case.kind]
            await getattr(client, method)(topic, handler=partial(self._handle, follower), **given)
            return
        else:
            if case.kind in {"subscribe", "sow_and_subscribe"}:
                given["resumes"] = isinstance(client, HAClient)
            follower.stream = await getattr(client, STREAM[case.kind])(topic, **given).open()
        self.nursery.start_soon(self._take, follower, follower.stream)

    async def _handle(self, follower: Follower, message: Message) -> None:
        await self.gate.wait()
        follower.receive(message)

    async def _take(self, follower: Follower, stream: MessageStream) -> None:
        try:
            async for message in stream:
                await self._handle(follower, message)
        except HAClientError as error:
            follower.error = error
        await stream.aclose()

    async def call(self, what: str, call: Callable[[], Awaitable[object]]) -> HAClientError | None:
        """Make a call, which has to end: with an answer or one error of a class that fits."""
        allowed: tuple[type[HAClientError], ...] = (UsageError, CommandError)
        if isinstance(self.client, Client) or what == "move":
            allowed += (DisconnectedError,)
        error: HAClientError | None = None
        with trio.move_on_after(60) as limit:
            try:
                await call()
            except HAClientError as raised:
                error = raised
        if limit.cancelled_caught:
            self.problems.append(f"{what} has not returned")
        is_held = not self.gate.is_set() and isinstance(error, TimedOut)
        if error is not None and not is_held and not isinstance(error, allowed):
            self.problems.append(f"{what} raised {error!r}")
        return error

    async def change(self, change: str) -> None:
        client, both = self.client, ["s", "twin"]
        calls = {
            "to pause": partial(client.pause, both),
            "resume": partial(client.resume, both),
            "to live": partial(client.replace, "s", options="live"),
            "to rate": partial(client.replace, "s", options=OPTIONS["rate"]),
        }
        if change in calls:
            error = await self.call(change, calls[change])
            if error is not None and change in {"to pause", "resume"} and self._can_pause():
                self.problems.append(f"{change} raised {error!r}")
            return
        others: dict[str, Callable[[], Awaitable[object]]] = {
            "to filter": self._widen,
            "second": partial(self.subscribe, "s"),
            "unsubscribe": self._unsubscribe,
            "lost": self._lose,
            "disconnect": self._disconnect,
            "move": self._move,
            "full": self._fill,
        }
        await others[change]()

    def _can_pause(self) -> bool:
        is_whole = len(self.active) == 2 and all(each.whole for each in self.active.values())
        has_live = {"live", "to live"} & {*self.case.options, *self.case.changes}
        is_alone = self.gate.is_set() and not self.case.overlaps
        return self.case.kind == "bookmark" and is_whole and is_alone and not has_live

    async def _widen(self) -> None:
        active = self.active.get("s")
        if active is not None:
            active.narrow = False
        error = await self.call("filter", partial(self.client.replace, "s", filter="/n >= 0"))
        if active is not None:
            active.filtered = active.filtered and error is not None

    async def _unsubscribe(self) -> None:
        active = self.active.get("s")
        if active is not None:
            active.whole = False
        await self.call("unsubscribe", partial(self.client.unsubscribe, "s"))
        if active is not None and not self.case.overlaps:
            active.ended_at = self.count

    async def _lose(self) -> None:
        if self.client._core.connection is not None:
            self.client._core.connection.close()
        if isinstance(self.client, Client):
            await self._connect_again()

    async def _disconnect(self) -> None:
        await self.client.disconnect()
        await self._connect_again()

    async def _connect_again(self) -> None:
        for follower in self.active.values():
            follower.whole = False
        await self.publish(1)
        await self.connect()

    async def _move(self) -> None:
        assert isinstance(self.client, HAClient)
        self.server = 1 - self.server
        await self.call("move", partial(self.client.move_to, URIS[self.server]))

    async def _fill(self) -> None:
        self.gate = trio.Event()
        await self.publish(6)

    async def run(self) -> None:
        await self.begin()
        async with self.client:
            await self.connect()
            await self.publish(2)
            async with open_nursery() as nursery:
                for change in self.case.changes:
                    if self.case.overlaps:
                        nursery.start_soon(self.change, change)
                    else:
                        await self.change(change)
                        await self.publish(2)
            self.gate.set()
            await trio.sleep(1)
            for sub_ids in (["s", "twin"], ["s"], ["twin"]):
                await self.call("resume", partial(self.client.resume, sub_ids))
            await self.publish(2)
            await trio.sleep(60)
            self._check()

    def _check(self) -> None:
        if self.witnessed != [*range(self.count)]:
            self.problems.append(f"the witness got {self.witnessed} of {self.count}")
        for follower in self.active.values():
            follower.check()
        for follower in self.followers:
            self.problems += follower.problems
        changes = {*self.case.changes}
        if self.case.kind == "queue" and "twin" in self.active:
            got = {n for follower in self.followers for n in follower.got}
            step = 2 if all(each.narrow for each in self.followers) else 1
            missing = {*range(0, self.count, step)} - got
            if missing:
                self.problems.append(f"{sorted(missing)} are still in the queue")
            twice = sum(len(follower.got) for follower in self.followers) - len(got)
            if twice and self.case.keeps_links and not {"second", "unsubscribe"} & changes:
                self.problems.append(f"{twice} messages of the queue came twice")


def _now_us() -> int:
    return START_US + int(trio.current_time() * 1_000_000)


async def run(case: Case, rounds: Rounds) -> World:
    """One case from its begin to its end."""
    wall_clock.set(_now_us)  # of the clients: one clock for all
    with rounds.scope:
        async with (
            BrokerServer(CONFIG, wall_clock_us=_now_us),
            HAClient.memory_backed("p", servers=URIS[:1]) as publisher,
            open_nursery() as nursery,
        ):
            world = World(case, publisher, nursery)
            await world.run()
            nursery.cancel_scope.cancel()
    if rounds.scope.cancelled_caught:
        raise AssertionError(f"after {rounds.count} rounds there is still work")
    return world


def problems_of(case: Case) -> list[str]:
    """What is wrong, in one line each."""
    rounds = Rounds()
    clock = trio.testing.MockClock(autojump_threshold=0)
    try:
        return trio.run(run, case, rounds, clock=clock, instruments=[rounds]).problems
    except Exception as error:  # of any class: the client or the broker has ended with it
        return [f"ended with {error!r}"]
