"""Subscriptions, and the router that finds the receivers of a message. Pure.

A *subscription* here is anything that receives messages for one command: a subscribe, a query,
both. The server names the receivers of a publish in `sids`, of a query's records in `query_id`, of
an ack in `cid`. The router keeps one table from those ids to subscriptions and caches each `sids`
text that it has split, since every message carries one of the same few texts.

**A lost link.** What becomes of a subscription then (`LOST`) follows from its kind, and from
whether another connection is expected.
"""

from __future__ import annotations

import enum
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Protocol

from haclient.errors import DisconnectedError, HAClientError, SubIdInUse
from haclient.protocol.messages import Message, MessageOwner
from haclient.protocol.options import Options
from haclient.session.leases import QueueLeases
from haclient.session.pauses import PauseState
from haclient.session.resume import ResumeContext, ResumePosition
from haclient_stores.bookmark import EPOCH, MOST_RECENT
from haclient_stores.interfaces import SubscriptionLog

QUERIES: Final = frozenset({"sow", "sow_and_subscribe", "sow_and_delta_subscribe"})
"""Commands with a result from the State of the World."""

LASTING: Final = frozenset(
    {"subscribe", "delta_subscribe", "sow_and_subscribe", "sow_and_delta_subscribe"}
)
"""Commands whose messages come until `unsubscribe`."""

_MOST_RECENT: Final = str(MOST_RECENT)
_LONGEST_AUTO_CONFLATION_S: Final = 10.0  # of an interval that a server chooses by itself
_REMEMBERED_ROUTES = 1024  # distinct `sids` texts; more than any client has subscriptions


class Marker(enum.Enum):
    """A marker between messages in a subscription's queue."""

    CAUGHT_UP = enum.auto()  # the query and the replay are complete: what follows is live
    GAP = enum.auto()  # the connection was lost here: messages may be missing
    REPLAY = enum.auto()  # the connection was lost here: what is missing is redelivered
    REPLACED = enum.auto()  # the command was replaced: what is before is not redelivered
    ENDED = enum.auto()  # nothing follows


class Phase(enum.Enum):
    """The phases of a subscription."""

    OPENING = enum.auto()  # its opener still waits for the server's answer
    OPEN = enum.auto()
    LOST = enum.auto()  # the connection was lost first: its opener sends it again


class SubscriptionQueue(Protocol):
    """Where a subscription's messages go; it never waits and never refuses."""

    @property
    def is_stream(self) -> bool:
        """Whether a stream takes them, and not a handler."""
        return False

    def put(self, batch: list[Message], size: int) -> None:
        """Messages in order, about `size` bytes together."""

    def mark(self, marker: Marker) -> None:
        """A point in the order of messages."""

    def fail(self, error: HAClientError) -> None:
        """The server has ended the subscription by an error, after it had accepted it."""

    def end(self, reason: HAClientError | None = None, *, raises: bool = False) -> None:
        """Nothing follows what is queued; `reason` is raised to the consumer only if `raises`."""

    @abstractmethod
    def drop(self, *, keep_replaced: bool = False) -> list[Message]:
        """Drop what was not delivered, and return it, in order.

        Args:
            keep_replaced: Keep messages from before the last replace, which a resume lacks.
        """

    def skip_rest(self) -> None:
        """Deliver nothing more of what the consumer has taken: it is redelivered elsewhere."""
        return  # so that it is not abstract

    def unprocessed(self) -> list[Message]:
        """The messages that a handler has yet to return from: those that it has, then the queue."""
        return []


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """A command that has a receiver, with everything that it requests from the server.

    It is built once from the application's command and never changed. What depends on the
    connection (command id, resolved bookmark, options of a resume) is passed to `header` each time
    it is sent.

    Attributes:
        fields: The header by wire name, complete except for the command id.
        body: The body.
        sub_id: The id of the receiver.
        query_id: The id of its query; empty for commands that query nothing.
        user_acks: Ack types that the application asked for, delivered like messages.
        command: The command's name on the wire.
        bookmark: Where to start, as the application requested; empty without a bookmark.
        options: The option string.
        parsed: The same as a value.
    """

    fields: Mapping[str, str | int]
    body: bytes
    sub_id: str
    query_id: str
    user_acks: frozenset[str]
    command: str = field(init=False, compare=False)
    bookmark: str = field(init=False, compare=False)
    options: str = field(init=False, compare=False)
    parsed: Options = field(init=False, compare=False)

    def __post_init__(self) -> None:
        command, options = str(self.fields["c"]), str(self.fields.get("opts", ""))
        bookmark = str(self.fields.get("bm", "")) if command in LASTING else ""
        for name, value in (
            ("command", command),
            ("bookmark", bookmark),
            ("options", options),
            ("parsed", Options.parse(options)),
        ):
            object.__setattr__(self, name, value)  # they are asked often

    @classmethod
    def complete(
        cls, fields: Mapping[str, str | int], body: bytes, *, command_id: str, has_store: bool
    ) -> SubscribeRequest:
        """Add the ids and acks that are missing.

        Args:
            fields: The header fields from the application, by wire name.
            body: The body.
            command_id: Names the receiver where no id was given.
            has_store: Whether a bookmark store tracks the subscription. Without one `MOST_RECENT`
                is the start of the log.
        """
        header = {name: value for name, value in fields.items() if name != "cid"}
        command = str(header["c"])
        asked = frozenset(filter(None, str(header.get("a", "")).replace(" ", "").split(",")))
        asked -= {"none"}
        acks = {"processed", *asked}
        if command in QUERIES:
            acks.add("completed")
        if command in LASTING and "bm" in header:
            acks.add("completed")
            if not has_store and header["bm"] == _MOST_RECENT:
                header["bm"] = str(EPOCH)
            if has_store and command == "subscribe":  # nothing else gets persisted acks
                acks.add("persisted")
        named = header.get("sub_id") or header.get("query_id")
        sub_id = str((command in LASTING | QUERIES and named) or command_id)
        query_id = str(header.get("query_id") or sub_id) if command in QUERIES else ""
        if command in LASTING:
            header["sub_id"] = sub_id
        if query_id:
            header["query_id"] = query_id
        header["a"] = ",".join(sorted(acks))
        return cls(MappingProxyType(header), body, sub_id, query_id, asked)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids under which its messages arrive, without repetition."""
        if self.query_id in {"", self.sub_id}:
            return (self.sub_id,)
        return self.sub_id, self.query_id

    @property
    def what(self) -> str:
        """The command in words, for error messages."""
        return f"{self.command} on {self.fields.get('t', '')!r}"

    @property
    def is_conflated(self) -> bool:
        """Whether messages are held back and merged, so that acks are no recovery points."""
        return self.parsed.conflation not in {None, "none"}

    @property
    def server_holds_s(self) -> float:
        """Seconds for which the server is asked to hold messages back; infinite if unknown."""
        if self.parsed.fully_durable:  # its messages wait for replicas, which may be down
            return math.inf
        if self.parsed.conflation == "auto":
            return _LONGEST_AUTO_CONFLATION_S
        return self.parsed.conflation_s or 0.0

    @property
    def is_in_log_order(self) -> bool:
        """Whether its messages come in the order of the log, apart from the records of a query.

        Conflated messages do not, nor do the messages of a page, which it shows when they enter it.
        """
        return not self.is_conflated and self.parsed.skip_n is None

    @property
    def is_paused(self) -> bool:
        """Whether the server is asked to hold the messages back."""
        return self.parsed.pause

    @property
    def gets_persisted_acks(self) -> bool:
        """Whether persisted acks cover the discarded messages."""
        return self.command == "subscribe"

    @property
    def ends_after(self) -> frozenset[str]:
        """What must arrive before the command is complete; empty for commands without an end."""
        if self.command == "sow":
            # Its records are complete then: `completed`, before or after it, says nothing more,
            # unless it comes alone (see `Session`).
            return frozenset({"group_end"}) | (self.user_acks & {"completed", "stats"})
        if self.command in LASTING:
            return frozenset()
        return self.user_acks or frozenset({"processed"})

    def header(self, command_id: str, *, bookmark: str, options: str) -> dict[str, str | int]:
        """The header to be sent.

        Args:
            command_id: Names the command in its acks.
            bookmark: The bookmark to send; empty for none.
            options: The option string to send.
        """
        if self.command not in LASTING:  # the moment of a query, which no store resolves
            bookmark = str(self.fields.get("bm", ""))
        header = {**self.fields, "cid": command_id, "bm": bookmark, "opts": options}
        return {name: value for name, value in header.items() if value != ""}

    def changed(self, fields: Mapping[str, str | int]) -> SubscribeRequest:
        """The same request with other values for some fields; the ids stay."""
        kept = {name: value for name, value in fields.items() if name not in {"cid", "sub_id"}}
        header = {**self.fields, **kept, "a": self.fields["a"]}
        changed, backlog = replace(self, fields=MappingProxyType(header)), self.parsed.max_backlog
        if backlog is None or changed.parsed.max_backlog is not None:
            return changed
        # A consumer of a queue gives its backlog apart from its options: new ones have none.
        header["opts"] = str(replace(changed.parsed, max_backlog=backlog))
        return replace(self, fields=MappingProxyType(header))

    def paused(self, *, is_paused: bool) -> SubscribeRequest:
        """The same request, begun paused or not; `live`, which excludes a pause, gives way."""
        live = self.parsed.live and not is_paused
        options = replace(self.parsed, pause=is_paused, resume=False, live=live)
        return self.changed({"opts": str(options)})


_OF_RESULT: Final = frozenset({"sow", "group_end"})


class Subscription:
    """One command's receiver.

    Attributes:
        request: The current request; replacing or pausing the subscription changes it.
        sub_id: The id that its messages show, and that `unsubscribe` takes.
        command_id: The id of its command, which some acks carry alone.
        log: Its part of the bookmark store; `None` if the store does not track it.
        owner: Where `discard` of its messages goes; the log itself by default.
        phase: Its phase.
        accepted: Called once, when the server accepts the command and before its first message.
        user_acks: Ack types that the user asked for, delivered like messages.
        ends_after: What must still arrive before it ends; always empty for subscriptions that last
            until `unsubscribe`.
        markers: Whether `group_begin` and `group_end` are delivered like messages.
        position: How much it has received on the link, and where it resumes.
        leases: What it does for the messages of a queue; `None` if its topic can be none.
        pauses: Whether the server holds it back, and whether the application wants that.
        has_group: Whether the records of its query have begun on this connection.
        is_query_answered: Whether all records of its query have arrived, and none was dropped.
        replaced_by: The number of the replace that is in force, in the order of sending; 0 if none.
        entered: Its number in the order in which the client has entered subscriptions.
    """

    __slots__ = (
        "accepted",
        "command_id",
        "ends_after",
        "entered",
        "has_group",
        "is_query",
        "is_query_answered",
        "leases",
        "log",
        "markers",
        "owner",
        "pauses",
        "phase",
        "position",
        "query_id",
        "queue",
        "replaced_by",
        "request",
        "sub_id",
        "user_acks",
    )

    def __init__(  # noqa: PLR0913  # the parts of one entry, all by keyword
        self,
        request: SubscribeRequest,
        queue: SubscriptionQueue,
        *,
        command_id: str = "",
        log: SubscriptionLog | None = None,
        owner: MessageOwner | None = None,
        markers: bool = False,
        leases: QueueLeases | None = None,
    ) -> None:
        self.request = request
        self.sub_id = request.sub_id
        self.command_id = command_id
        self.query_id = request.query_id
        self.queue = queue
        self.log = log
        self.owner = owner or log
        self.accepted: Callable[[], None] | None = None
        self.user_acks = request.user_acks
        self.ends_after = set(request.ends_after)
        self.is_query = bool(self.ends_after)
        self.pauses = PauseState()
        self.has_group = self.is_query_answered = False
        self.replaced_by = 0
        self.entered = 0
        self.markers = markers
        self.phase = Phase.OPENING
        self.position = ResumePosition(log)
        self.leases = leases
        self.prepare()

    @property
    def is_of_queue(self) -> bool:
        """Whether its messages come from a queue, as far as the server has said."""
        return self.leases is not None and self.leases.is_queue

    @property
    def is_redelivered(self) -> bool:
        """Whether messages that it has not finished come again after a lost connection."""
        leases = self.leases
        return self.log is not None or (
            leases is not None and leases.is_queue and not leases.is_once
        )

    @property
    def is_paused(self) -> bool:
        """Whether the application has paused it, or may have."""
        return self.pauses.may_be_paused_by_application

    @property
    def is_paused_by_client(self) -> bool:
        """Whether only the client itself, whose queue is full, has paused it, or may have."""
        return self.pauses.may_be_paused and not self.is_paused

    def sending(self, now: float) -> None:
        """Its command is about to be sent, on this connection or a new one."""
        is_paused, self.has_group, self.is_query_answered = self.request.is_paused, False, False
        self.position.sending(now)
        self.position.server_holds_s = self.request.server_holds_s
        self.position.is_paced = self.request.parsed.rate is not None
        self.pauses.begin(is_paused=is_paused)
        if is_paused:
            self.position.hold(now)
        if self.log is not None:
            self.log.paused = is_paused

    def note_held(self, now: float) -> None:
        """Note whether the server may be holding messages back.

        While it may, its acks are no recovery points, and nothing newer has arrived.
        """
        held = self.pauses.may_be_paused
        if held:
            self.position.hold(now)
        else:
            self.position.release(now)
        if self.log is not None:
            self.log.paused = held

    def keep_paused(self) -> None:
        """Have it resubscribed as the application wants it, paused or not."""
        is_paused = self.pauses.is_paused_by_application
        if self.request.is_paused != is_paused:
            self.request = self.request.paused(is_paused=is_paused)

    def note(self, what: str) -> None:
        """Note that an ack type or `group_end` has arrived."""
        self.ends_after.discard(what)

    def is_answered_by(self, ack: Message) -> bool:
        """Whether a successful ack is all that comes of a query: some servers send no empty group.

        A `completed` with a position is that of a replay, where a bookmark asks for one.
        """
        is_of_replay = ack.bookmark and self.request.bookmark
        is_alone = ack.ack_type == "completed" and not self.has_group and not is_of_replay
        return bool(self.query_id) and is_alone

    @property
    def is_complete(self) -> bool:
        """Whether it is a query of which nothing more is due."""
        return self.is_query and not self.ends_after

    # What differs for queries of the past (`haclient.session.historical`).

    def prepare(self) -> None:
        """Called once, at the end of the construction."""

    def take_records(self, run: list[Message]) -> int:  # noqa: ARG002  # see above
        """How many messages at the front of a run are records, which no store tracks."""
        return 0

    def is_caught_up_with(self, what: str) -> bool:
        """Whether an ack or `group_end` says that everything older has arrived."""
        return what in {"completed", "group_end"}

    def ends_replay(self, ack: Message) -> bool:  # noqa: ARG002  # see above
        """Whether a `completed` means that everything older was sent."""
        return True

    @property
    def can_be_paused(self) -> bool:
        """Whether the server can be asked to pause it while its queue is full."""
        return self.request.command == "subscribe" and bool(self.request.bookmark)

    def bookmark_candidates(self, resume: ResumeContext, *, resumes: bool) -> tuple[str, ...]:
        """The bookmarks at which it may begin, the best first.

        Args:
            resume: Where the subscriptions of its client resume.
            resumes: Whether it resumes where the bookmark store says, if that tracks it.
        """
        request, log = self.request, self.log
        if log is None or not resumes:
            return (request.bookmark,)
        last = self.position.last_bookmark if request.is_in_log_order else ""
        return resume.bookmarks(log, last, is_conflated=request.is_conflated)

    def covering(
        self,
        bookmarks: tuple[str, ...],
        queued: Sequence[Message] = (),  # noqa: ARG002  # see above
    ) -> tuple[str, ...]:
        """Bookmarks at which it may resume, extended by what its consumer has.

        Args:
            bookmarks: Where nothing that it lacks is missing.
            queued: Messages that are dropped before the resume.
        """
        return bookmarks

    def end(self, reason: HAClientError) -> None:
        """End it with its connection; what has arrived is still delivered."""
        self.queue.end(reason, raises=self.is_query)

    def fail(self, error: HAClientError) -> None:
        """End it with an error: a stream raises it, a handler's task ends."""
        self.queue.end(error, raises=True)

    def lost(self, reason: HAClientError, *, is_kept: bool, is_followed: bool) -> bool:
        """Its connection is lost: do what `LOST` says.

        Args:
            reason: Why.
            is_kept: Whether it is sent again on another connection.
            is_followed: Whether another connection is expected.

        Returns:
            Whether it goes on, and messages may be missing.
        """
        actions = LOST[kind_of(self, is_kept=is_kept), is_followed]
        for action in actions:
            match action:
                case LossAction.DROP_QUEUED:
                    self.drop_queued(keep_replaced=is_kept)
                case LossAction.DROP_ALL:
                    self.drop_queued()
                case LossAction.SEND_AGAIN:
                    self.phase = Phase.LOST
                case LossAction.MARK_REPLAY:
                    self.queue.mark(Marker.REPLAY)
                case LossAction.MARK_GAP:
                    self.queue.mark(Marker.GAP)
                case LossAction.FAIL:
                    self.fail(self._not_continued(reason))
                case LossAction.END:
                    self.end(reason)
        return LossAction.MARK_GAP in actions

    def _not_continued(self, reason: HAClientError) -> HAClientError:
        """The error of a stream that nothing continues on the next connection."""
        error = DisconnectedError(
            f"the stream {self.sub_id!r} ended with its connection, and messages may be missing "
            f"from here on: {reason}: open it again, open it with resumes=True to go on after a "
            "gap, or use a bookmark_stream to miss nothing"
        )
        error.__cause__ = reason
        return error

    def drop_queued(self, *, keep_replaced: bool = False) -> list[Message]:
        """Drop its undelivered messages, which a resume redelivers, and return them.

        Args:
            keep_replaced: Whether it resumes with the current command: then messages of a replaced
                command are kept, since they would not be redelivered.
        """
        dropped = self.queue.drop(keep_replaced=keep_replaced)
        self.note_dropped(dropped)
        if not _OF_RESULT.isdisjoint(message.kind for message in dropped):
            self.is_query_answered = False  # whoever reads it has not got its whole result
        return dropped

    def note_dropped(self, messages: Sequence[Message]) -> None:
        """Note messages that were dropped before they were delivered: they are redelivered."""
        numbers = [message.number for message in messages if message.number > 0]
        if numbers and self.log is not None:
            self.log.dropped(numbers)


class Router:
    """The table from ids to subscriptions of one connection."""

    __slots__ = ("_by_command", "_by_id", "_routes")

    def __init__(self) -> None:
        self._by_id: dict[str, Subscription] = {}
        self._by_command: dict[str, Subscription] = {}
        self._routes: dict[str, tuple[Subscription, ...]] = {}

    def all(self) -> list[Subscription]:
        """Every subscription once, in the order of entry."""
        return list(dict.fromkeys(self._by_id.values()))

    def __contains__(self, subscription: Subscription) -> bool:
        return self._by_id.get(subscription.sub_id) is subscription

    def get(self, one_id: str) -> Subscription | None:
        """The subscription that is entered under this id."""
        return self._by_id.get(one_id)

    def of_ack(self, command_id: str, query_id: str, sub_id: str) -> Subscription | None:
        """The subscription that an ack belongs to: by command, else by query, else by its id."""
        return (
            self._by_command.get(command_id) or self._by_id.get(query_id) or self._by_id.get(sub_id)
        )

    def add(self, subscription: Subscription) -> None:
        """Add a subscription, before its command is sent, so that its first message is routed.

        Raises:
            SubIdInUse: Another one of this connection has the same id.
        """
        ids = _ids(subscription)
        self.check_free(ids)
        for one_id in ids:
            self._by_id[one_id] = subscription
        if subscription.command_id:
            self._by_command[subscription.command_id] = subscription
        self._routes.clear()

    def name_command(self, subscription: Subscription, command_id: str) -> None:
        """Route the acks of another command to a subscription, which that one has replaced."""
        if self._by_command.get(subscription.command_id) is subscription:
            del self._by_command[subscription.command_id]
        subscription.command_id = command_id
        self._by_command[command_id] = subscription

    def check_free(self, ids: Iterable[str]) -> None:
        """Check that these ids are free.

        Raises:
            SubIdInUse: Another subscription of this connection has one of them.
        """
        for one_id in ids:
            if one_id in self._by_id:
                raise SubIdInUse(
                    f"the subscription id {one_id!r} is active on this connection: unsubscribe "
                    "it first, or choose another id"
                )

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription; late messages for it are unrouted. A second call does nothing."""
        for one_id in _ids(subscription):
            if self._by_id.get(one_id) is subscription:
                del self._by_id[one_id]
        if self._by_command.get(subscription.command_id) is subscription:
            del self._by_command[subscription.command_id]
        self._routes.clear()

    def route(self, ids: str) -> tuple[Subscription, ...]:
        """The receivers named by a `sids` text: ids joined by commas, blanks allowed."""
        found = self._routes.get(ids)
        if found is None:
            named = (self._by_id.get(one_id.strip()) for one_id in ids.split(","))
            found = tuple(dict.fromkeys(one for one in named if one is not None))
            if len(self._routes) >= _REMEMBERED_ROUTES:
                self._routes.clear()
            self._routes[ids] = found
        return found


def _ids(subscription: Subscription) -> tuple[str, ...]:
    """Its ids without repetition, in a fixed order."""
    return tuple(dict.fromkeys((subscription.sub_id, subscription.query_id or subscription.sub_id)))


# -- what becomes of a subscription when its link is lost ------------------------------------------


class Kind(enum.Enum):
    """The kinds of subscriptions that lose their link in different ways."""

    OPENING = enum.auto()  # its opener waits for the server's answer
    TRACKED = enum.auto()  # a bookmark store knows where it resumes
    QUEUE = enum.auto()  # the server redelivers what is not acknowledged
    REPEATED_QUERY = enum.auto()  # its query is sent again
    PLAIN = enum.auto()  # it is sent again, and misses what is published meanwhile
    UNKEPT = enum.auto()  # it would go on, but nothing sends it again
    UNKEPT_QUEUE = enum.auto()
    QUERY = enum.auto()  # it ends by itself, and its result is incomplete


class LossAction(enum.Enum):
    """What is done with it."""

    DROP_QUEUED = enum.auto()  # but for what a replaced command has brought: that does not return
    DROP_ALL = enum.auto()  # undelivered messages
    SEND_AGAIN = enum.auto()  # by its opener
    MARK_REPLAY = enum.auto()  # what is missing is redelivered
    MARK_GAP = enum.auto()  # messages may be missing
    FAIL = enum.auto()  # its stream raises
    END = enum.auto()  # what has arrived is still delivered


_ENDS: Final = (LossAction.END,)
_QUEUE_ENDS: Final = (LossAction.DROP_ALL, LossAction.END)  # its messages are back in the queue
LOST: Final[Mapping[tuple[Kind, bool], tuple[LossAction, ...]]] = {
    (Kind.OPENING, True): (LossAction.DROP_QUEUED, LossAction.SEND_AGAIN),
    (Kind.TRACKED, True): (LossAction.DROP_QUEUED, LossAction.MARK_REPLAY),
    (Kind.QUEUE, True): (LossAction.DROP_ALL, LossAction.MARK_REPLAY),
    (Kind.REPEATED_QUERY, True): (LossAction.DROP_QUEUED, LossAction.MARK_GAP),
    (Kind.PLAIN, True): (LossAction.MARK_GAP,),
    (Kind.UNKEPT, True): (LossAction.FAIL,),
    (Kind.UNKEPT_QUEUE, True): (LossAction.DROP_ALL, LossAction.FAIL),
    (Kind.QUERY, True): _ENDS,
    **{(kind, False): _ENDS for kind in Kind},
    (Kind.QUEUE, False): _QUEUE_ENDS,
    (Kind.UNKEPT_QUEUE, False): _QUEUE_ENDS,
}
"""What is done, by the kind and by whether another connection is expected."""


def kind_of(subscription: Subscription, *, is_kept: bool) -> Kind:
    """The kind of a subscription.

    Args:
        subscription: The subscription.
        is_kept: Whether it is sent again on another connection.
    """
    if subscription.phase is Phase.OPENING:
        return Kind.OPENING
    if subscription.is_query:
        return Kind.QUERY
    if subscription.is_of_queue and subscription.is_redelivered:
        return Kind.QUEUE if is_kept else Kind.UNKEPT_QUEUE
    if not is_kept:
        return Kind.UNKEPT
    if subscription.log is not None:
        return Kind.TRACKED
    return Kind.REPEATED_QUERY if subscription.query_id else Kind.PLAIN
