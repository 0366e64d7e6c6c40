"""Clients that speak frames and note what they are told: publishers, readers, consumers.

They share the wire with the broker, and nothing else. Each belongs to a `Surroundings`, to which it
reports what must not be. All of them live longer than their connections: `connect` makes the next.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple, TypeAlias

import trio
from typing_extensions import override

from haclient.protocol.codec import MessageDecoder, encode_frame
from haclient.protocol.framing import FrameReader
from haclient.protocol.messages import Message
from haclient.transport.links.memory_network import MemoryLink, network

__all__ = [
    "Actor",
    "Consumer",
    "Key",
    "Live",
    "Publication",
    "Publisher",
    "Reader",
    "Surroundings",
    "Table",
    "key_of",
    "query",
]

ANSWER_S: Final = 120.0  # a command that is not answered by then never is
SMALL_PIPE: Final = 1500  # bytes in flight to a client that may be slow

Key: TypeAlias = tuple[str, int]
"""Publisher and number of a message."""


def key_of(message: Message) -> Key:
    """Which message this is a delivery of."""
    body = json.loads(message.data)
    return body["p"], body["n"]


class Surroundings(NamedTuple):
    """What clients share.

    Attributes:
        nursery: Of their tasks.
        problems: What must not be, in one line each.
        logon: Fields of every logon.
        bodies: What was published.
    """

    nursery: trio.Nursery
    problems: list[str]
    logon: dict[str, str]
    bodies: dict[Key, bytes]


class Connection:
    """One connection; a task of it hands each message to its actor."""

    def __init__(self, link: MemoryLink, actor: Actor) -> None:
        self._link = link
        self._actor = actor
        self._numbers = count(1)
        self._asked: dict[tuple[str, str], Message | None] = {}
        self._heard = trio.Condition()
        self.reads = trio.Event()
        self.reads.set()
        self.is_slow = False
        self.closed = False

    async def run(self) -> None:
        frames, decoder = FrameReader(), MessageDecoder()
        try:
            while True:
                await self.reads.wait()
                size = self._link.recv_into(frames.writable())
                if size is None:
                    await self._link.wait_readable()
                elif not size:
                    break
                else:
                    frames.received(size)
                    for message in decoder.decode(*frames.split()):
                        await self._take(message)
        except (OSError, trio.ClosedResourceError):
            pass  # the broker was killed, or this end was closed
        finally:
            self.close()
            await self._actor.lost(self)
            async with self._heard:
                self._heard.notify_all()

    async def _take(self, message: Message) -> None:
        key = message.command_id, message.ack_type
        if message.kind == "ack" and key in self._asked:
            self._asked[key] = message
            async with self._heard:
                self._heard.notify_all()
        self._actor.receive(self, message)

    def close(self) -> None:
        self.closed = True
        self._link.close()

    async def send(self, fields: dict[str, str | int], body: bytes = b"") -> None:
        rest = memoryview(encode_frame(fields, body))
        try:
            while rest and not self.closed:
                size = self._link.try_send(rest)
                if size is None:
                    await self._link.wait_writable()
                else:
                    rest = rest[size:]
        except (OSError, trio.ClosedResourceError):
            self.closed = True

    async def ask(self, body: bytes = b"", /, *, ack: str, **fields: str | int) -> Message | None:
        """Send a command and wait for its ack; `None` when the connection has ended before."""
        cid = f"{self._actor.name}-{next(self._numbers)}"
        self._asked[cid, ack] = None
        await self.send({**fields, "cid": cid, "a": ack}, body)
        with trio.move_on_after(ANSWER_S) as limit:
            async with self._heard:
                while self._asked[cid, ack] is None and not self.closed:
                    await self._heard.wait()
        if limit.cancelled_caught:
            self._actor.report(f"no answer to {fields}")
        return self._asked.pop((cid, ack))


class Actor(ABC):
    """A client of one broker.

    Attributes:
        name: Of the client.
        address: Of the broker.
        connection: The present one, or the last.
    """

    user = "ann"
    is_slow = False

    def __init__(self, name: str, address: str, around: Surroundings) -> None:
        self.name = name
        self.address = address
        self.around = around
        self.connection: Connection | None = None
        self._one = trio.Lock()

    @property
    def is_connected(self) -> bool:
        return self.connection is not None and not self.connection.closed

    def report(self, text: str) -> None:
        self.around.problems.append(f"{self.name}: {text}")

    def check_body(self, message: Message) -> Key:
        """Which message this is a delivery of; all of it has to be what was published."""
        key = key_of(message)
        if self.around.bodies.get(key) != message.data:
            self.report(f"{key} has another body: {message.data[:100]!r}")
        return key

    async def connect(self) -> None:
        """Connect, unless it is connected or nobody listens."""
        async with self._one:
            if not self.is_connected:
                with contextlib.suppress(ConnectionRefusedError):
                    await self._connect()

    async def _connect(self) -> None:
        link = await network().connect(self.address)
        if self.is_slow:
            link.receiving.capacity_bytes = SMALL_PIPE
        self.connection = connection = Connection(link, self)
        self.around.nursery.start_soon(connection.run)
        logon: dict[str, str] = {"c": "logon", "client_name": self.name, **self.around.logon}
        if logon.get("user_id"):
            logon["user_id"] = self.user
        answer = await connection.ask(ack="processed", **logon)
        if answer is not None and answer.status != "success":
            self.report(f"the logon was answered by {answer}")
        elif answer is not None:
            await self.logged_on(connection, answer)

    async def disconnect(self) -> None:
        """Close the connection, also one that is not read."""
        if self.connection is not None:
            self.connection.close()
            self.connection.reads.set()

    def stall(self, *, stalls: bool) -> None:
        """Read nothing from now on, or go on."""
        if self.connection is not None:
            if stalls:
                self.connection.reads = trio.Event()
                self.connection.is_slow = True
            else:
                self.connection.reads.set()

    @abstractmethod
    async def logged_on(self, connection: Connection, answer: Message) -> None: ...

    @abstractmethod
    def receive(self, connection: Connection, message: Message) -> None: ...

    async def lost(self, connection: Connection) -> None:  # noqa: B027  # most take no notice
        """The connection has ended."""


# -- publishing --------------------------------------------------------------------------------


@dataclass(slots=True)
class Publication:
    """A command of a publisher with a sequence.

    Attributes:
        sent_at: When it was sent first, in virtual seconds.
        acked_at: When it was acknowledged.
        deletes: The ids that it deletes, if it is a delete.
    """

    sequence: int
    fields: dict[str, str | int]
    body: bytes = b""
    id: str = ""
    deletes: tuple[str, ...] = ()
    sent_at: float = 0.0
    acked_at: float | None = None

    @property
    def topic(self) -> str:
        return str(self.fields["t"])

    @property
    def is_even(self) -> bool:
        return self.sequence % 2 == 0


class Publisher(Actor):
    """A client with a store; the sequence of a message is its number."""

    def __init__(self, name: str, address: str, around: Surroundings) -> None:
        super().__init__(name, address, around)
        self.sent: list[Publication] = []
        self.acked = 0
        self.repeats = False
        self._ready: Connection | None = None

    async def publish(self, topic: str, size: int, **fields: str | int) -> None:
        """Publish a message; its id is one of four of this publisher."""
        n = len(self.sent) + 1
        name = f"{self.name}-{n % 4}"
        body = {"p": self.name, "n": n, "id": name, "even": int(n % 2 == 0), "pad": "x" * size}
        header: dict[str, str | int] = {"c": "p", "t": topic, **fields}
        data = self.around.bodies[self.name, n] = json.dumps(body).encode()
        await self._send_new(Publication(n, header, data, name))

    async def delete(self, topic: str, which: int, **fields: str | int) -> None:
        """Delete a record by a filter, or by what fields say."""
        name = f"{self.name}-{which % 4}"
        header: dict[str, str | int] = {"c": "sow_delete", "t": topic}
        header |= fields or {"filter": f"/id = '{name}'"}
        await self._send_new(Publication(len(self.sent) + 1, header, b"", name, (name,)))

    async def _send_new(self, publication: Publication) -> None:
        publication.sent_at = trio.current_time()
        self.sent.append(publication)
        if self.connection is not None and self.connection is self._ready:
            await self._send(self.connection, publication)

    async def _send(self, connection: Connection, each: Publication) -> None:
        await connection.send({**each.fields, "s": each.sequence, "a": "persisted"}, each.body)

    @override
    async def logged_on(self, connection: Connection, answer: Message) -> None:
        persisted, seen = int(answer.bookmark.split("|")[1]), answer.sequence or 0
        if persisted < self.acked:
            self.report(f"{self.acked} was acknowledged, the logon says {persisted}")
        if not persisted <= seen <= len(self.sent):
            self.report(f"of {len(self.sent)}, {persisted} are persisted and {seen} were seen")
        self._learn(persisted)
        at = 0 if self.repeats else persisted
        while at < len(self.sent):  # more may be published meanwhile, and comes behind
            at += 1
            await self._send(connection, self.sent[at - 1])
        self._ready = connection

    def _learn(self, persisted: int) -> None:
        for each in self.sent[self.acked : persisted]:
            each.acked_at = trio.current_time()
        self.acked = max(self.acked, persisted)

    @override
    def receive(self, connection: Connection, message: Message) -> None:
        if message.kind == "ack" and message.ack_type == "persisted":
            if message.status != "success":
                self.report(f"{message.sequence} was refused: {message.reason}")
            if (message.sequence or 0) > len(self.sent):
                self.report(f"{message.sequence} was acknowledged and not sent")
            self._learn(message.sequence or 0)


# -- subscribing -------------------------------------------------------------------------------


class Reader(Actor):
    """A bookmark subscription, over as many connections as it takes.

    Attributes:
        segments: What it has received, each time from the begin of the log on.
        bookmarks: Of the last segment.
        refusals: Reasons why it had to begin again.
    """

    def __init__(
        self,
        name: str,
        address: str,
        around: Surroundings,
        *,
        topic: str = ".*",
        options: str = "",
        command: str = "subscribe",
    ) -> None:
        super().__init__(name, address, around)
        self.user = "bob" if name == "bob" else "ann"
        self.is_slow = "slow" in name
        self._topic = topic
        self._options = options
        self._command = command
        self.segments: list[list[Key]] = [[]]
        self.topics: dict[Key, str] = {}
        self.dead: list[Key] = []
        self.dead_at: dict[Key, float] = {}
        self.bookmarks: list[str] = []
        self.refusals: list[str] = []
        self.is_paused = False
        self.is_complete = False
        self._last = "0"

    @property
    def received(self) -> list[Key]:
        return self.segments[-1]

    def begin_after(self, bookmark: str) -> None:
        """Begin after a message, and not with the first one."""
        self._last = bookmark

    @override
    async def logged_on(self, connection: Connection, answer: Message) -> None:
        if await self._subscribe(connection) == "bookmark not found":
            self.refusals.append("bookmark not found")
            self.segments.append([])
            self.bookmarks, self._last = [], "0"
            await self._subscribe(connection)
        self.is_paused = False

    async def _subscribe(self, connection: Connection) -> str:
        options = ",".join(filter(None, ("bookmark_not_found=fail", self._options)))
        answer = await connection.ask(
            c=self._command,
            t=self._topic,
            sub_id="s",
            bm=self._last,
            opts=options,
            ack="processed",
        )
        if answer is None or answer.status == "success":
            return ""
        is_query = self._command != "subscribe"  # which needs all of the log
        if answer.reason != "bookmark not found" or (self._last == "0" and not is_query):
            self.report(f"refused: {answer.reason} {answer.detail}")
        return answer.reason

    async def replace(self) -> None:
        """Give the subscription a filter that takes everything; it keeps its place."""
        if self.connection is not None and self.is_connected:
            answer = await self.connection.ask(
                c="subscribe",
                t=self._topic,
                sub_id="s",
                filter="/n > 0",
                opts=",".join(filter(None, ("replace", self._options))),
                ack="processed",
            )
            if answer is not None and answer.status != "success":
                self.report(f"replace was refused: {answer.reason} {answer.detail}")

    async def pause(self, *, pauses: bool) -> None:
        """Pause, or go on."""
        if self.connection is not None and self.is_connected and pauses is not self.is_paused:
            self.is_paused = pauses
            word = "pause" if pauses else "resume"
            answer = await self.connection.ask(
                c="subscribe", sub_id="s", opts=word, ack="processed"
            )
            if answer is not None and answer.status != "success":
                self.report(f"{word} was refused: {answer.reason} {answer.detail}")

    @override
    def receive(self, connection: Connection, message: Message) -> None:
        if message.kind not in {"p", "publish"}:
            return
        key = self.check_body(message)
        self._last = message.bookmark
        if message.topic == "dead":
            self.dead.append(key)
            self.dead_at[key] = trio.current_time()
            return
        self.bookmarks.append(message.bookmark)
        self.received.append(key)
        self.topics[key] = message.topic


class Live(Actor):
    """A plain subscription; each connection begins anew.

    Attributes:
        spans: Of each connection, when it had subscribed, when it ended, and what came.
    """

    is_slow = True

    def __init__(
        self, name: str, address: str, around: Surroundings, *, topic: str, options: str = ""
    ) -> None:
        super().__init__(name, address, around)
        self._topic = topic
        self._options = options
        self.spans: list[Span] = []
        self.latest: dict[str, int] = {}

    @override
    async def logged_on(self, connection: Connection, answer: Message) -> None:
        self.spans.append(Span(connection))
        found = await connection.ask(
            c="subscribe", t=self._topic, sub_id="s", opts=self._options, ack="processed"
        )
        if found is not None and found.status != "success":
            self.report(f"refused: {found.reason} {found.detail}")
        self.spans[-1].begin = trio.current_time()

    @override
    def receive(self, connection: Connection, message: Message) -> None:
        if message.kind in {"p", "publish"}:
            body = json.loads(message.data)
            self.latest[body["id"]] = body["n"]
            self.spans[-1].received.append(self.check_body(message))

    @override
    async def lost(self, connection: Connection) -> None:
        for span in self.spans:
            if span.connection is connection:
                span.end = trio.current_time()


@dataclass(slots=True)
class Span:
    """What a plain subscription has received on one connection."""

    connection: Connection
    begin: float = float("inf")
    end: float = float("inf")
    received: list[Key] = field(default_factory=list[Key])

    @property
    def is_slow(self) -> bool:
        return self.connection.is_slow


class Table(Actor):
    """A query with a subscription, which keeps the records that it is told of."""

    is_slow = True

    def __init__(
        self, name: str, address: str, around: Surroundings, *, topic: str, page: int = 0
    ) -> None:
        super().__init__(name, address, around)
        self._topic = topic
        self._page = page
        self.records: dict[str, int] = {}
        self.keys: dict[str, str] = {}

    @override
    async def logged_on(self, connection: Connection, answer: Message) -> None:
        self.records = {}
        found = await connection.ask(
            c="sow_and_subscribe",
            t=self._topic,
            sub_id="s",
            query_id="s",
            opts=f"oof,top_n={self._page},skip_n=0" if self._page else "oof",
            orderby="/n DESC,/p" if self._page else "",
            ack="completed",
        )
        if found is not None and found.status != "success":
            self.report(f"refused: {found.reason} {found.detail}")

    @override
    def receive(self, connection: Connection, message: Message) -> None:
        if connection is not self.connection:
            return
        if message.kind in {"p", "publish", "sow"}:
            self.check_body(message)
            body = json.loads(message.data)
            self.records[body["id"]] = body["n"]
            self.keys[body["id"]] = message.sow_key
        elif (
            message.kind == "oof" and self.records.pop(json.loads(message.data)["id"], None) is None
        ):
            self.report(f"{message.data[:60]!r} is out of focus and never was in it")


# -- queues ------------------------------------------------------------------------------------


class Job:
    """A message of a queue as its consumers know it."""

    def __init__(self) -> None:
        self.deliveries = 0
        self.acked_at: float | None = None
        self.confirmed_at: float | None = None
        self.acked_at_once = False


class Consumer(Actor):
    """Consumes a queue; some messages it holds for a while, some it gives back."""

    def __init__(self, name: str, address: str, around: Surroundings, jobs: dict[Key, Job]) -> None:
        super().__init__(name, address, around)
        self.jobs = jobs
        self.held: list[tuple[Key, str]] = []
        self.holds_all = False
        self.is_quick = False
        self.is_at_most_once = False

    @staticmethod
    def new_jobs() -> dict[Key, Job]:
        """For all consumers of one queue."""
        return defaultdict(Job)

    @override
    async def logged_on(self, connection: Connection, answer: Message) -> None:
        self.held.clear()  # they come again
        found = await connection.ask(
            c="subscribe", t="jobs", sub_id="s", opts="max_backlog=3", ack="processed"
        )
        if found is not None and found.status != "success":
            self.report(f"refused: {found.reason} {found.detail}")

    @override
    def receive(self, connection: Connection, message: Message) -> None:
        if message.kind not in {"p", "publish"}:
            return
        key = self.check_body(message)
        job, now = self.jobs[key], trio.current_time()
        job.deliveries += 1
        if self.is_at_most_once and job.deliveries > 1:
            self.report(f"{key} came twice")
        if job.confirmed_at is not None and now > job.confirmed_at:
            self.report(f"{key} came after its acknowledgement was confirmed")
        is_first = job.deliveries == 1
        if not self.is_quick and (self.holds_all or (is_first and key[1] % 5 == 0)):
            self.held.append((key, message.bookmark))
            return
        option = "cancel" if not self.is_quick and is_first and key[1] % 5 == 1 else ""
        self.around.nursery.start_soon(self._finish, connection, key, message.bookmark, option)

    async def _finish(self, connection: Connection, key: Key, bookmark: str, option: str) -> None:
        job = self.jobs[key]
        if not option:
            job.acked_at = job.acked_at or trio.current_time()
        which = {"bm": bookmark} if bookmark else {"filter": f"/p = '{key[0]}' AND /n = {key[1]}"}
        answer = await connection.ask(
            c="sow_delete", t="jobs", opts=option, ack="processed", **which
        )
        if answer is not None and answer.status != "success":
            self.report(f"the ack of {key} was refused: {answer.reason}")
        elif answer is not None and not option:
            job.confirmed_at = job.confirmed_at or trio.current_time()

    async def finish_by_filter(self) -> None:
        """Acknowledge what is held by a filter; whoever has a message may acknowledge it."""
        held, self.held = self.held, []
        for key, _ in held:
            if self.connection is not None and self.is_connected:
                await self._finish(self.connection, key, "", "")

    async def acknowledge_held(self) -> None:
        """Acknowledge what is held, late or not."""
        self.holds_all, self.is_quick = False, True
        held, self.held = self.held, []
        for key, bookmark in held:
            if self.connection is not None and self.is_connected:
                await self._finish(self.connection, key, bookmark, "")


class Query(Actor):
    """One query, or one replay, of the log or of records."""

    def __init__(self, name: str, address: str, around: Surroundings) -> None:
        super().__init__(name, address, around)
        self.found: dict[str, int] = {}

    @override
    async def logged_on(self, connection: Connection, answer: Message) -> None:
        """Nothing is subscribed."""

    @override
    def receive(self, connection: Connection, message: Message) -> None:
        if message.kind == "sow":
            self.check_body(message)
            body = json.loads(message.data)
            if body["id"] in self.found:
                self.report(f"{body['id']} came twice")
            self.found[body["id"]] = body["n"]


async def query(
    address: str, around: Surroundings, topic: str, **fields: str | int
) -> dict[str, int] | str:
    """The records of a topic, number by id; a reason if it is refused."""
    client = Query("query", address, around)
    await client.connect()
    assert client.connection is not None
    answer = await client.connection.ask(
        c="sow", t=topic, query_id="q", bs=3, ack="completed", **fields
    )
    await client.disconnect()
    if answer is None:
        return "the connection was lost"
    return client.found if answer.status == "success" else answer.reason
