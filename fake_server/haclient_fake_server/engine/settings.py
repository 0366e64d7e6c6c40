"""The configuration of the engine; `haclient_fake_server.config` adds what the shells need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from haclient.errors import HAClientError, UsageError
from haclient.protocol.framing import MAX_PUBLISH_BYTES
from haclient.protocol.uri import Uri
from haclient_fake_server.engine.filters import FilterError, compile_expression, compile_filter
from haclient_fake_server.engine.filters.bodies import COMPOSITE_PREFIX, has_fields
from haclient_fake_server.engine.filters.parser import parse_path
from haclient_fake_server.engine.patterns import (
    TopicMatcher,
    TopicPatternError,
    is_regex_topic,
    topic_problem,
)
from haclient_stores.bookmark import BookmarkRange, MostRecent, parse_bookmark

MESSAGE_TYPES: Final = frozenset(
    {
        "bflat",
        "binary",
        "bson",
        "fix",
        "json",
        "msgpack",
        "nvfix",
        "protobuf",
        "struct",
        "xml",
    }
)
"""The message types of AMPS, which every broker knows, besides those of composite messages."""

MAX_MESSAGE_TYPE: Final = 255
"""Characters of a message type: it is the key of the definitions of its topics in the journal."""

TOPIC_BYTES: Final = 1000
"""What a topic takes in memory beside its name."""

MAX_QUEUE_TIME_S: Final = 10 * 365 * 86_400
"""The longest lease or expiration of a queue, ten years: longer ones mean `None`."""


@dataclass(frozen=True, slots=True)
class LogTopic:
    """Topics to record in the journal.

    Attributes:
        pattern: A topic, or a regular expression (see `patterns`).
        message_type: Only topics of this type; empty for all types.
        filter: Only messages that match it. The others are delivered as those of a topic that is
            not recorded. A topic that several of these name is recorded by any of them.
    """

    pattern: str
    message_type: str = ""
    filter: str = ""

    def __post_init__(self) -> None:
        """Check the values."""
        try:
            TopicMatcher(self.pattern)
            compile_filter(self.filter or "1")
        except HAClientError as error:
            raise UsageError(f"log topic {self.pattern!r}: {error}") from error

    def records_all_of(self, topic: str, message_type: str) -> bool:
        """Whether it records every message of a topic."""
        is_of_type = self.message_type in {"", message_type}
        return is_of_type and not self.filter and TopicMatcher(self.pattern).matches(topic)


@dataclass(frozen=True, slots=True)
class SowTopic:
    """A topic with a state of the world.

    Attributes:
        name: The topic, literally.
        is_pattern: The name is a regular expression (see `patterns`): each topic that matches has a
            state of its own. Literal topics come first, then the first pattern that matches.
        file_backed: Keep the records in a database next to the journal, so that a broker that
            starts reads only what follows in the log, and what comes before may be removed. The
            journal must record the topic.
        keys: Paths of its key fields, `("/id",)`; empty when the publisher gives the key.
        message_type: The message type of its records.
        history: Whether queries may ask for the records of an earlier moment. The journal must
            record the topic; of a pattern, those topics that it records have a history.
        expiration_s: How long a record lives whose publisher gives it no `expiration`, in seconds;
            0 for ever. With `None` records do not expire, whatever their publishers say.

    Raises:
        UsageError: A key is not a path.
    """

    name: str
    keys: tuple[str, ...] = ()
    message_type: str = "json"
    history: bool = False
    expiration_s: float | None = None
    is_pattern: bool = False
    file_backed: bool = False

    def __post_init__(self) -> None:
        """Check the keys."""
        for key in self.keys:
            try:
                parse_path(key)
            except FilterError as error:
                raise UsageError(f"sow topic {self.name!r}: key {key!r}: {error.detail}") from error


EVERY_USER: Final = "*"
"""The name in an entitlement that stands for every user."""

_ACCESS: Final = ("read", "publish", "all", "replicate")


@dataclass(frozen=True, slots=True)
class Entitlement:
    """Something that a user may do; see `entitlements`.

    Attributes:
        user: The user; `*` for every user.
        access: `read`, `publish`, `all` for both, or `replicate`, to send a broker's log.
        topic: A topic, or a regular expression (see `patterns`).
        filter: A content filter for the messages; empty for all of them.

    Raises:
        UsageError: A value is out of range, or a text cannot be read.
    """

    user: str
    access: str
    topic: str
    filter: str = ""

    def __post_init__(self) -> None:
        """Check the values."""
        wrong = f"entitlement of user {self.user!r} for {self.topic!r}: "
        if not self.user or not self.topic:
            raise UsageError(f"{wrong}wanted a user and a topic")
        if self.access not in _ACCESS:
            raise UsageError(f"{wrong}access {self.access!r}, wanted one of {', '.join(_ACCESS)}")
        if self.filter and self.access == "replicate":
            raise UsageError(f"{wrong}'replicate' takes no filter: all of a log is sent")
        try:
            TopicMatcher(self.topic)
            compile_filter(self.filter or "1")
        except HAClientError as error:
            raise UsageError(f"{wrong}{error}") from error


_QUEUE_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "semantics": ("at-least-once", "at-most-once"),
    "delivery": ("", "fast", "round-robin", "proportional"),
    "leasing": ("sublet", "strict"),
    "max_cancels_rule": ("above", "at"),
    "expiration_model": ("default", "queue", "latest", "earliest"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTopic:
    """A message queue: a view over topics that the journal records.

    Attributes:
        name: Its name, literally, also a dot in it. Consumers subscribe to it.
        topics: The underlying topics, literal or regular expressions; empty for the topic with the
            queue's own name, whose plain subscriptions then are subscriptions to the queue.
        message_type: The message type of its messages.
        default_publish_target: Where a publish to the queue's name goes if the underlying topics
            are not one literal topic; empty to refuse it.
        semantics: Whether a delivery leases the message, or removes it.
        lease_s: How long a consumer may have a message, in seconds; `None` for ever.
        max_backlog: How many unacknowledged messages all consumers together may have; `None` for
            no limit.
        max_per_subscription_backlog: How many unacknowledged messages one consumer may have.
        delivery: Which consumer gets the next message (see `engine.queues.roster`); empty for
            `proportional`, or `round-robin` with at-most-once, which has no other.
        leasing: Which connections may acknowledge a leased message: with `sublet` all, with
            `strict` only the one that has it.
        max_deliveries: After so many deliveries a message that returns expires; 0 for no limit.
        max_cancels: How often a message may be cancelled; 0 for no limit.
        max_cancels_rule: Whether it expires when the count is `above` that number or `at` it.
        expiration_s: How long a message may wait, in seconds; `None` for ever.
        expiration_model: What counts: with `default` the message's own expiration if it has one,
            else the queue's; with `queue` the queue's; with `latest` the later of the two, with
            `earliest` the earlier.
        priority: An expression; the message with the highest value is delivered first.
        barrier: A filter; a message that matches is delivered to all consumers when all earlier
            messages are done, and later messages wait for it.
        recovery_point: Where a new queue begins in the log: `epoch`, `now`, or a bookmark or
            timestamp as on the wire.
        dead_letter: A topic, or another queue, that gets a copy of every message that expires;
            empty for none.
        file_backed: Keep the state of the queue in a file next to the journal, so that a broker
            that starts reads only what follows in the log. The file is a cache.

    Raises:
        UsageError: A value is wrong, or two of them contradict each other.
    """

    name: str
    topics: tuple[str, ...] = ()
    message_type: str = "json"
    default_publish_target: str = ""
    semantics: Literal["at-least-once", "at-most-once"] = "at-least-once"
    lease_s: float | None = None
    max_backlog: int | None = None
    max_per_subscription_backlog: int = 1
    delivery: Literal["", "fast", "round-robin", "proportional"] = ""
    leasing: Literal["sublet", "strict"] = "sublet"
    max_deliveries: int = 0
    max_cancels: int = 0
    max_cancels_rule: Literal["above", "at"] = "above"
    expiration_s: float | None = None
    expiration_model: Literal["default", "queue", "latest", "earliest"] = "default"
    priority: str = ""
    barrier: str = ""
    recovery_point: str = "epoch"
    dead_letter: str = ""
    file_backed: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        checks = (
            self._check_characters,
            self._check_topics,
            self._check_words,
            self._check_numbers,
            self._check_expressions,
            self._check_recovery_point,
        )
        for check in checks:
            problem = check()
            if problem:
                raise UsageError(f"queue {self.name!r}: {problem}")

    @property
    def underlying(self) -> tuple[str, ...]:
        """The underlying topics."""
        return self.topics or (self.name,)

    @property
    def matchers(self) -> tuple[TopicMatcher, ...]:
        """What matches the underlying topics; a dot in the queue's own name is no pattern."""
        if not self.topics:
            return (TopicMatcher(self.name, non_regex_topic=True),)
        return tuple(map(TopicMatcher, self.topics))

    @property
    def publish_target(self) -> str:
        """The topic that a publish to the queue's name goes to; empty to refuse it."""
        if self.default_publish_target or self.takes_over_topic:
            return self.default_publish_target or self.name
        literal = len(self.topics) == 1 and not is_regex_topic(self.topics[0])
        return self.topics[0] if literal else ""

    @property
    def takes_over_topic(self) -> bool:
        """Whether it has the name of an underlying topic: all subscriptions to it are its own."""
        return any(matcher.matches(self.name) for matcher in self.matchers)

    @property
    def chosen_delivery(self) -> str:
        """Which consumer gets the next message."""
        if self.semantics == "at-most-once":
            return "round-robin"
        return self.delivery or "proportional"

    def _check_characters(self) -> str:
        topics = (self.name, *self.underlying, self.default_publish_target, self.dead_letter)
        return next((problem for each in topics if (problem := topic_problem(each))), "")

    def _check_topics(self) -> str:
        name = self.name.replace(".", "")  # a dot is common in names
        if not name or is_regex_topic(name) or self.name.startswith("/HACLIENT/"):
            return "wanted a name that is not empty, no regular expression, not under /HACLIENT/"
        try:
            matchers = self.matchers
        except TopicPatternError as error:
            return f"topics: {error}"
        if not all(self.underlying):
            return "topics has an empty one"
        target = self.default_publish_target
        if target and not any(matcher.matches(target) for matcher in matchers):
            return f"default_publish_target {target!r} is none of its topics"
        if self.dead_letter and any(matcher.matches(self.dead_letter) for matcher in matchers):
            return f"dead_letter {self.dead_letter!r} is one of its own topics"
        return ""

    def _check_words(self) -> str:
        for name, words in _QUEUE_WORDS.items():
            found: object = getattr(self, name)
            if found not in words:
                known = ", ".join(word for word in words if word)
                return f"{name}={found!r}: wanted one of {known}"
        if self.semantics == "at-most-once" and self.delivery not in {"", "round-robin"}:
            return f"delivery={self.delivery!r}: at-most-once has round-robin alone"
        return ""

    def _check_numbers(self) -> str:
        for name, lowest in (
            ("max_backlog", 1),
            ("max_per_subscription_backlog", 1),
            ("max_deliveries", 0),
            ("max_cancels", 0),
        ):
            count: object = getattr(self, name)
            optional = name == "max_backlog" and count is None
            if not optional and (type(count) is not int or count < lowest):
                return f"{name}={count!r}: wanted {lowest} or more"
        for name in ("lease_s", "expiration_s"):
            value: object = getattr(self, name)
            if value is not None and not (
                isinstance(value, int | float) and 0 < value <= MAX_QUEUE_TIME_S
            ):
                return f"{name}={value!r}: wanted more than 0 seconds, {MAX_QUEUE_TIME_S} at most"
        return ""

    def _check_expressions(self) -> str:
        if self.priority and self.barrier:
            return "priority and barrier exclude each other"
        name = "priority" if self.priority else "barrier"
        if (self.priority or self.barrier) and not has_fields(self.message_type):
            return f"{name}: messages of type {self.message_type!r} have no fields"
        try:
            if self.priority:
                compile_expression(self.priority)
            if self.barrier:
                compile_filter(self.barrier)
        except FilterError as error:
            return f"{name}: {error}"
        return ""

    def _check_recovery_point(self) -> str:
        if self.recovery_point in {"epoch", "now"}:
            return ""
        try:
            point = parse_bookmark(self.recovery_point)
        except UsageError:
            point = None
        if point is None or isinstance(point, MostRecent | BookmarkRange):
            return (
                f"recovery_point={self.recovery_point!r}: wanted epoch, now, a bookmark or a time "
                "such as 20260131T093000Z"
            )
        return ""


@dataclass(frozen=True, slots=True)
class ReplicateTo:
    """A replication destination: another instance that receives everything this one logs.

    Attributes:
        uri: Where it listens for clients, `tcp://[USER:PASSWORD@]HOST:PORT`.
        mode: `sync` holds persisted acks back until the destination has acknowledged, `async` does
            not.
        downgrade_after_s: When a record has waited for the destination for this many seconds, it
            counts as asynchronous until it has caught up; `None` for never.
        heartbeat_s: Heartbeat interval in seconds. After two and a half silent intervals the
            destination is considered dead, and dialled again.

    Raises:
        UsageError: The address, the mode or a time is malformed.
    """

    uri: str
    mode: Literal["sync", "async"] = "sync"
    downgrade_after_s: float | None = None
    heartbeat_s: float = 3.0

    def __post_init__(self) -> None:
        """Check the values."""
        address = self.address
        if self.mode not in {"sync", "async"}:
            raise UsageError(f"replicate to {address}: mode {self.mode!r}, not sync or async")
        for name, value in (
            ("downgrade_after_s", self.downgrade_after_s),
            ("heartbeat_s", self.heartbeat_s),
        ):
            if value is not None and not value > 0:
                raise UsageError(f"replicate to {address}: {name}={value}, wanted seconds")

    @property
    def parsed(self) -> Uri:
        """The address, taken apart."""
        return Uri.parse(self.uri if "/amps" in self.uri else f"{self.uri.rstrip('/')}/amps")

    @property
    def address(self) -> str:
        """How logs and the methods of the server name the destination, without user or password."""
        uri = self.parsed
        host = f"[{uri.host}]" if ":" in uri.host else uri.host
        return f"{uri.scheme}://{host}:{uri.port}"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The configuration of the engine.

    Attributes:
        name: The instance name: part of the ids of messages published without a sequence.
        users: Passwords by user; `None` turns authentication off.
        entitlements: What they may do; with none, each may do everything.
        log_topics: The topics that the journal records; none when empty.
        sow_topics: Topics with a state of the world.
        ack_interval_s: How long persisted acks are collected unless the logon says otherwise.
        replication_ack_interval_s: How long acks to other instances are collected.
        version: The server version of the logon ack.
        replicate_to: Where it sends its log.
        queues: The message queues.
        max_message_bytes: A delta publish that would make a larger record is refused.
        message_types: Message types besides those of AMPS and of the topics.
        max_topic_bytes: The limit of the memory of all topics together, with `TOPIC_BYTES` and
            its name for each; every segment of the journal repeats the names of those that are
            logged. Beyond it a publish to a new topic is refused; a replicated publish is
            accepted, since its origin has it.
        query_step_bytes: What one step of a query or delete of records looks at, in bytes of
            bodies; others are served between two steps.
        conflation_time: In what the intervals of `conflation` are measured while a subscription is
            replayed: the time of the `replay`, or that of the `messages`.
        max_held_bytes: A subscriber is cut as slow if, before it has read the records of its query,
            more than this was published to it.
        max_held_together_bytes: The same for all of them together: then the one with the most.
    """

    name: str = "broker"
    users: Mapping[str, str] | None = None
    entitlements: tuple[Entitlement, ...] = ()
    log_topics: tuple[LogTopic, ...] = (LogTopic(".*"),)
    sow_topics: tuple[SowTopic, ...] = ()
    ack_interval_s: float = 1.0
    replication_ack_interval_s: float = 0.0
    version: str = "5.3.5.0.reference"
    replicate_to: tuple[ReplicateTo, ...] = ()
    queues: tuple[QueueTopic, ...] = ()
    max_message_bytes: int = MAX_PUBLISH_BYTES
    message_types: tuple[str, ...] = ()
    max_topic_bytes: int = 256 * 2**20
    query_step_bytes: int = 512 * 1024
    max_held_bytes: int = 256 * 2**20
    max_held_together_bytes: int = 2**30
    conflation_time: Literal["replay", "messages"] = "replay"

    @property
    def known_types(self) -> frozenset[str]:
        """The message types that clients may log on with, besides composite ones."""
        of_topics = {
            *(each.message_type for each in self.log_topics),
            *(each.message_type for each in self.sow_topics),
            *(each.message_type for each in self.queues),
        }
        return MESSAGE_TYPES | {*self.message_types} | of_topics - {""}

    def knows_type(self, message_type: str) -> bool:
        """Whether clients may log on with a message type."""
        return message_type.startswith(COMPOSITE_PREFIX) or message_type in self.known_types

    def __post_init__(self) -> None:
        """Check the values."""
        check_queues(self.queues, self.sow_topics, self.log_topics)
        if self.conflation_time not in {"replay", "messages"}:
            raise UsageError(f"conflation_time={self.conflation_time!r}: wanted replay or messages")
        if self.entitlements and self.users is None:
            raise UsageError("entitlements need users, whose passwords show who they are")
        for log_topic in self.log_topics:
            if problem := topic_problem(log_topic.pattern):
                raise UsageError(f"log topic {log_topic.pattern!r}: {problem}")
        for topic in self.sow_topics:
            self._check_sow_topic(topic)
        addresses = [to.address for to in self.replicate_to]
        if len(set(addresses)) < len(addresses):
            raise UsageError(f"an instance is named twice to replicate to: {addresses}")
        if addresses and not self.log_topics:
            raise UsageError("replication sends the log, and no topic is logged")

    def _check_sow_topic(self, topic: SowTopic) -> None:
        if topic.name.startswith("/HACLIENT/"):
            raise UsageError(
                f"sow topic {topic.name!r}: names under /HACLIENT/ are the broker's own, "
                "give it another one"
            )
        if problem := topic_problem(topic.name):
            raise UsageError(f"sow topic {topic.name!r}: {problem}")
        if topic.is_pattern:
            try:
                TopicMatcher(topic.name)
            except TopicPatternError as error:
                raise UsageError(f"sow topic {topic.name!r}: {error}") from error
        lifetime_s = topic.expiration_s
        if lifetime_s is not None and not 0 <= lifetime_s <= MAX_QUEUE_TIME_S:
            raise UsageError(
                f"sow topic {topic.name!r}: expiration_s={lifetime_s!r}, wanted 0 to "
                f"{MAX_QUEUE_TIME_S} seconds, or None"
            )
        log = [replace(each, filter="") for each in self.log_topics]
        is_logged, is_whole = (
            any(each.records_all_of(topic.name, topic.message_type) for each in found)
            for found in (log, self.log_topics)
        )
        if topic.is_pattern:  # which topics it will have is not known
            is_logged, is_whole = True, not any(each.filter for each in self.log_topics)
        if is_logged and not is_whole:
            raise UsageError(
                f"sow topic {topic.name!r}: the log has only a part of its messages, from which "
                "it cannot be rebuilt: record all of them, or none"
            )
        if topic.history and not is_logged:
            raise UsageError(
                f"sow topic {topic.name!r} keeps a history, which is in the log, but no log "
                "topic matches it: add one, or leave the history out"
            )
        if topic.file_backed and not is_logged:
            raise UsageError(
                f"sow topic {topic.name!r} is file-backed, and what its file lacks is in the log, "
                "but no log topic matches it: add one, or leave file_backed out"
            )


def check_queues(
    queues: Iterable[QueueTopic], sow_topics: Iterable[SowTopic], log_topics: Iterable[LogTopic]
) -> None:
    """Check queues against each other and against the other topics.

    Raises:
        UsageError: A name is taken, a topic is not logged that has to be, or a queue gets its own
            dead letters.
    """
    queues, log_topics = tuple(queues), tuple(log_topics)
    targets = {(queue.message_type, queue.name): queue.publish_target for queue in queues}
    taken = {(topic.message_type, topic.name): "a topic with a state" for topic in sow_topics}
    for queue in queues:
        name = (queue.message_type, queue.name)
        if name in taken:
            raise UsageError(f"queue {queue.name!r}: {taken[name]} has that name")
        taken[name] = "another queue"
        literal = [matcher.text for matcher in queue.matchers if not matcher.is_regex]
        dead_letter = targets.get((queue.message_type, queue.dead_letter), queue.dead_letter)
        _check_dead_letter(queue, dead_letter)
        for topic in (*literal, *filter(None, (dead_letter, queue.default_publish_target))):
            if not any(each.records_all_of(topic, queue.message_type) for each in log_topics):
                raise UsageError(f"queue {queue.name!r}: {topic!r} is not in the transaction log")
        if not log_topics:
            raise UsageError(f"queue {queue.name!r}: a queue needs a log, and no topic is logged")
        types = {"", queue.message_type}
        if len(literal) < len(queue.matchers) and any(
            each.filter and each.message_type in types for each in log_topics
        ):  # which topics it will have is not known
            raise UsageError(
                f"queue {queue.name!r}: a queue over a pattern needs a log of whole topics, and a "
                "log topic has a filter: name the topics of the queue, or leave the filter out"
            )
    _check_circles(queues, targets)


def _check_circles(queues: tuple[QueueTopic, ...], targets: Mapping[tuple[str, str], str]) -> None:
    """Refuse dead letters that return to their queue by way of others: they would circulate."""
    for begin in queues:
        reached: dict[str, None] = {}
        waiting = [begin]
        while waiting:
            queue = waiting.pop()
            topic = targets.get((queue.message_type, queue.dead_letter), queue.dead_letter)
            for fed in queues if topic else ():
                if fed.message_type != queue.message_type or fed.name in reached:
                    continue
                if any(matcher.matches(topic) for matcher in fed.matchers):
                    reached[fed.name] = None
                    waiting.append(fed)
        if begin.name in reached:
            raise UsageError(
                f"queue {begin.name!r}: its dead letters return to it by way of "
                f"{', '.join(map(repr, reached))}: have one of them use a topic without a queue"
            )


def _check_dead_letter(queue: QueueTopic, topic: str) -> None:
    """Check where dead letters go to if they are sent to a queue: its `topic`, empty for none."""
    if not queue.dead_letter:
        return
    what = f"queue {queue.name!r}: dead_letter {queue.dead_letter!r}"
    if not topic:
        raise UsageError(f"{what} is a queue without a topic for publishes: name that topic")
    if any(matcher.matches(topic) for matcher in queue.matchers):
        raise UsageError(f"{what} publishes to {topic!r}, one of its own topics")
