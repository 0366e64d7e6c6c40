"""What a run consists of, as data: its nodes, and a script of work and faults.

A plan follows from a seed alone, so the seed repeats the run; a shorter script is the same plan
with some of its steps left out (`keeping`), named by their numbers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from typing_extensions import override

__all__ = [
    "BookmarkStoreKind",
    "ConsumerPlan",
    "DurabilityKind",
    "Links",
    "Plan",
    "Prunes",
    "PublishStoreKind",
    "PublisherPlan",
    "QueuePlan",
    "Replication",
    "Step",
    "SubscriberPlan",
    "WhenFull",
    "step_of",
]

PublishStoreKind: TypeAlias = Literal["file", "ring", "hybrid", "memory", "ring_memory", "none"]
BookmarkStoreKind: TypeAlias = Literal["logged", "ring", "memory", "adapter"]
DurabilityKind: TypeAlias = Literal["process", "group", "fsync"]
WhenFull: TypeAlias = Literal["", "wait", "raise"]
Prunes: TypeAlias = Literal["", "messages", "size", "idle"]


ExpirationModel: TypeAlias = Literal["default", "queue", "latest", "earliest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that is done, and how long the script waits before it.

    Attributes:
        number: Its place in the whole script.
        kind: A method of `simulator.Simulator` of the name `do_<kind>`.
        node: What it is done to; empty: the broker with the most connections.
        other: The second node, of a partition; the operation, of a disk fault; or when exactly.
        count: How many messages or bytes; an error number; or a seed for what is chosen by chance.
        seconds: How long it lasts, or by how much a clock jumps.
        after: Virtual seconds between the step before and this one.
    """

    number: int
    kind: str
    node: str = ""
    other: str = ""
    count: int = 0
    seconds: float = 0.0
    after: float = 0.0

    @override
    def __str__(self) -> str:
        """One line of a script."""
        text = f"{self.number:4} +{self.after:.3f}s {self.kind} {self.node or 'the busiest broker'}"
        for name in ("other", "count", "seconds"):
            if getattr(self, name):
                text += f" {name}={getattr(self, name)}"
        return text


def step_of(
    kind: str,
    node: str,
    *,
    other: str = "",
    count: int = 0,
    seconds: float = 0.0,
    after: float = 0.0,
) -> Step:
    """A step that gets its number when the whole script is known."""
    return Step(
        number=0, kind=kind, node=node, other=other, count=count, seconds=seconds, after=after
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """One broker sends its log to another."""

    source: str
    target: str
    mode: Literal["sync", "async"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherPlan:
    """One publishing process.

    Attributes:
        name: Its client name.
        store: The kind of its store; without one, what is in flight is lost with its connection.
        servers: Brokers, best first.
        pad: Each message is longer by so many bytes.
        durability: Of its store.
        when_full: What becomes of a publish when the store is full; empty for one without a limit
            (a ring always has one).
        no_messages: After every so manieth message comes a publish that is none: one that is
            refused, or one to a topic that is not logged; 0 for none.
        expiration_s: The expiration of each of its messages; None for none.
    """

    name: str
    store: PublishStoreKind
    servers: tuple[str, ...]
    pad: int = 0
    durability: DurabilityKind = "process"
    when_full: WhenFull = ""
    no_messages: int = 0
    expiration_s: int | None = None

    @property
    def forgets(self) -> bool:
        """Whether its store ends with its process."""
        return self.store in {"memory", "ring_memory", "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberPlan:
    """One subscribing process.

    Attributes:
        name: Its client name.
        servers: Brokers, best first.
        topics: A topic or pattern for each of its subscriptions.
        eager: The share of messages that are discarded at once.
        keeps: Every so manieth message is never discarded; 0 for none.
        slow_s: How long its handler takes for a message, at most.
        rotates: Whether each of its processes has another server as its best.
        store: The kind of its store; `adapter` is one in memory with its points in a topic.
        durability: Of its store.
        prunes: What its store's policy prunes for; empty for none.
    """

    name: str
    servers: tuple[str, ...]
    topics: tuple[str, ...]
    eager: float = 0.5
    keeps: int = 0
    slow_s: float = 0.0
    rotates: bool = False
    store: BookmarkStoreKind = "logged"
    durability: DurabilityKind = "process"
    prunes: Prunes = ""

    @property
    def in_order(self) -> bool:
        """Whether it discards in order, which is what a ring is for."""
        return self.store == "ring"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlan:
    """A queue over the jobs; the first broker has it, and no other.

    Attributes:
        name: Its name; that of the topic for a queue that takes its topic over.
        semantics: Whether a delivery is a lease or a removal.
        lease_s: How long a lease lasts; None for ever.
        backlog: The most that one consumer may have.
        delivery: Which consumer is served; empty for the default.
        leasing: Whether only the holder of a lease may end it.
        max_deliveries: A message that was delivered so often expires; 0 for never.
        max_cancels: A message that was cancelled more often expires; 0 for never.
        expiration_s: How long a message may wait; None for ever.
        expiration_model: Whether that counts or the message's own expiration.
        message_expiration_s: The expiration that publishers give each message; None for none.
        priority: Whether it serves messages by priority.
        barrier: Whether some messages are barriers.
        dead_letters: The topic that gets what expires; empty for none.
    """

    name: str
    semantics: Literal["at-least-once", "at-most-once"] = "at-least-once"
    lease_s: float | None = None
    backlog: int = 8
    delivery: Literal["", "fast", "round-robin", "proportional"] = ""
    leasing: Literal["sublet", "strict"] = "sublet"
    max_deliveries: int = 0
    max_cancels: int = 0
    expiration_s: float | None = None
    expiration_model: ExpirationModel = "default"
    message_expiration_s: int | None = None
    priority: bool = False
    barrier: bool = False
    dead_letters: str = ""

    @property
    def is_at_most_once(self) -> bool:
        """Whether a delivery removes the message."""
        return self.semantics == "at-most-once"

    @property
    def lifetime_s(self) -> float | None:
        """How long a message may wait by its own expiration and the queue's; None for ever."""
        own_s, queue_s = self.message_expiration_s, self.expiration_s
        if own_s is None or self.expiration_model == "queue":
            return queue_s
        if queue_s is None or self.expiration_model == "default":
            return own_s
        return max(own_s, queue_s) if self.expiration_model == "latest" else min(own_s, queue_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPlan:
    """One process that consumes queues.

    Attributes:
        name: Its client name.
        queues: The queues that it subscribes to.
        backlog: What it asks for.
        workers: How many handlers of a queue run at one time.
        by_hand: Whether the application acknowledges, at some time after its handler has returned.
        fails: The share of deliveries that its handler raises an error for.
        dies: The share of deliveries in whose middle the process is killed.
        hangs: The share of deliveries that take longer than their lease.
        extends: The share of deliveries whose lease is extended before they go on.
        slow_s: How long a delivery takes, at most.
        gives_up: Whether a failure expires the message, instead of returning it.
        answers: Whether its handler publishes an answer, and waits until that is persisted.
        at_lease_end: What the client does for a handler that takes long: nothing, `cut` it off
            when the lease ends, or `extend` the lease.
    """

    name: str
    queues: tuple[str, ...]
    backlog: int = 5
    workers: int = 1
    by_hand: bool = False
    fails: float = 0.0
    dies: float = 0.0
    hangs: float = 0.0
    extends: float = 0.0
    slow_s: float = 0.0
    gives_up: bool = False
    answers: bool = False
    at_lease_end: Literal["", "cut", "extend"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """How connections are; each draws its own values below these."""

    latency_s: float = 0.0
    receive_bytes: int = 2**30
    send_bytes: int = 2**30
    capacity_bytes: int = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole run.

    Attributes:
        fsync: Whether brokers sync each batch: only then may they lose their power.
        finishes: Whether subscribers discard all but what they keep, before they start once more.
        queues: Queues of the first broker.
        consumers: Who consumes them.
        queued_bytes: What each queue of a client may hold; 0 to draw it for each client.
    """

    seed: int
    brokers: tuple[str, ...]
    replications: tuple[Replication, ...]
    publishers: tuple[PublisherPlan, ...]
    subscribers: tuple[SubscriberPlan, ...]
    readers: tuple[str, ...] = ()
    fsync: bool = False
    finishes: bool = True
    heartbeat_s: float = 2.0
    links: Links = field(default_factory=Links)
    script: tuple[Step, ...] = ()
    queues: tuple[QueuePlan, ...] = ()
    consumers: tuple[ConsumerPlan, ...] = ()
    queued_bytes: int = 0

    def keeping(self, numbers: Collection[int]) -> Plan:
        """The same plan with these steps only; the others' waits are kept."""
        kept: list[Step] = []
        after = 0.0
        for step in self.script:
            after += step.after
            if step.number in numbers:
                kept.append(replace(step, after=after))
                after = 0.0
        return replace(self, script=tuple(kept))
