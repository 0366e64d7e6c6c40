"""Parsing and checking of subscribes and queries, before anything is changed.

Every error raises `Refused`. An option that a command does not have, or that this broker does not
support, is refused and named in the log: a client must not believe that it got what it asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient_fake_server.engine.acks import Reason, Refused
from haclient_fake_server.engine.connections import Selection, Style
from haclient_fake_server.engine.entitlements import Access
from haclient_fake_server.engine.field_selection import FieldSelection, SelectError
from haclient_fake_server.engine.filters import Document, FilterError, compile_filter
from haclient_fake_server.engine.patterns import TopicMatcher, TopicPatternError, topic_problem

_COMMON: Final = frozenset(
    {"no_sowkey", "non_regex_topic", "select", "send_empties", "timestamp", "top_n"}
)
"""`send_empties` is the default."""

_CONFLATION: Final = frozenset({"conflation", "conflation_key"})

_DELTA: Final = frozenset({"bookmark", "no_empties", "oof", "send_keys"})

WITHOUT_OPTIONS: Final = frozenset({"delta_publish", "flush", "p", "publish", "unsubscribe"})
"""Commands that have no options but `none`, which means nothing."""

_CARRIED_OUT: Final[dict[str, frozenset[str]]] = {
    "subscribe": _COMMON
    | _CONFLATION
    | {"bookmark", "bookmark_not_found", "fully_durable", "live", "oof"}
    | {"max_backlog", "pause", "rate", "rate_max_gap", "replace", "resume"},
    # Every record has all its fields, the keys among them: that is all that `send_keys` asks for.
    "sow": _COMMON | {"send_keys", "skip_n"},
    "sow_and_subscribe": _COMMON
    | _CONFLATION
    | {"bookmark", "bookmark_not_found", "oof", "pause", "rate", "rate_max_gap", "replace"}
    | {"send_keys", "skip_n"},
    "delta_subscribe": _COMMON | _CONFLATION | _DELTA | {"max_backlog", "replace"},
    "sow_and_delta_subscribe": _COMMON | _CONFLATION | _DELTA | {"replace", "skip_n"},
    "sow_delete": frozenset({"cancel", "expire", "lease_extension", "non_regex_topic"}),
    # There is no message type here for which `pretty` would make a difference.
    "logon": frozenset({"ack_conflation", "pretty"}),
    **dict.fromkeys(WITHOUT_OPTIONS, frozenset[str]()),
}
"""The options that each command may have; `live` and `fully_durable` have no effect on a
subscription without a bookmark. `max_backlog` and the options of an acknowledgement are for queues;
who executes the command refuses them for other topics."""
DELTA_COMMANDS: Final = frozenset({"delta_subscribe", "sow_and_delta_subscribe"})
_ONLY_WITH_BOOKMARK: Final = ("bookmark_not_found",)
_NOT_WITH_BOOKMARK: Final = ("oof",)


MAX_PENDING_COMMANDS: Final = 16
"""Commands of one connection that are carried out in steps and have not ended: a client that does
not wait for answers is refused more."""

SYSTEM_PREFIX: Final = "/HACLIENT/"
"""What the topics of the broker's own begin with: see `system_topics`."""

SYSTEM_TOPIC_REFUSAL: Final = "the broker's own topics answer the command sow alone"

_ALL: Final = tuple(field.name for field in fields(Options))


@dataclass(frozen=True, slots=True)
class Request:
    """A valid subscribe or query.

    Attributes:
        message: The command.
        options: Its options.
        matcher: Its topics.
        filter: Its content filter, if it has one.
        fields: The fields that it asks for; `None` for whole messages.
        filter_text: The text of the filter, with that of what its user may read.
        is_restricted: Whether its user may read some messages of the topic and no others.
    """

    message: Message
    options: Options
    matcher: TopicMatcher
    filter: Callable[[Document], bool] | None
    fields: FieldSelection | None = None
    filter_text: str = ""
    is_restricted: bool = False

    @property
    def style(self) -> int:
        """The optional headers that it requests."""
        style = Style.PLAIN
        if self.message.bookmark or self.options.bookmark:
            style |= Style.BOOKMARK
        if self.options.timestamp:
            style |= Style.TIMESTAMP
        if self.options.no_sowkey:
            style |= Style.NO_SOW_KEY
        if self.options.live and self.message.bookmark:
            style |= Style.LIVE
        if self.message.kind in DELTA_COMMANDS:
            style |= Style.DELTA
        if self.options.no_empties:
            style |= Style.NO_EMPTIES
        if self.options.send_keys:
            style |= Style.SEND_KEYS
        return style

    @property
    def selection(self) -> Selection:
        """The selection of the subscription that it creates."""
        oof = self.options.oof
        whole = oof or self.is_restricted
        return Selection(self.matcher, self.filter, self.style, oof, self.fields, whole)

    def wanted_of(self, body: bytes, message_type: str) -> bytes:
        """The part of a body that it asks for."""
        return body if self.fields is None else self.fields.apply(body, message_type)

    def seen_of(self, records: int, matches: int) -> int:
        """How many records of a topic to report: only those that its user may read."""
        return matches if self.is_restricted else records

    @property
    def top_n(self) -> int | None:
        """Most messages or records; the option wins over the header."""
        return self.message.top_n if self.options.top_n is None else self.options.top_n


def read_options(message: Message) -> Options:
    """The options of a command.

    Raises:
        Refused: One is unknown, malformed or not supported; the detail names it.
    """
    try:
        options = Options.parse(message.options)
    except UsageError as error:
        raise Refused(Reason.INVALID_OPTIONS, str(error)) from error
    carried_out = _CARRIED_OUT[message.kind]
    for name in _ALL:
        if name not in carried_out and _is_set(getattr(options, name)):
            raise Refused(
                Reason.INVALID_OPTIONS,
                f"{name} is not supported with {message.kind} by this broker",
            )
    if options.live and options.fully_durable:
        raise Refused(Reason.INVALID_OPTIONS, "live and fully_durable contradict each other")
    if message.bookmark and message.kind in DELTA_COMMANDS:
        raise Refused(Reason.INVALID_BOOKMARK, f"{message.kind} takes no bookmark")
    refused = _NOT_WITH_BOOKMARK if message.bookmark else _ONLY_WITH_BOOKMARK
    for name in refused:
        if getattr(options, name):
            needs = "cannot have" if message.bookmark else "needs"
            raise Refused(Reason.INVALID_OPTIONS, f"{name} {needs} a bookmark")
    return options


def _is_set(value: object) -> bool:
    return value is not None and value is not False and value != ()


def is_system_topic(topic: str) -> bool:
    """Whether a topic is one of the broker's own, or of those that later versions may have."""
    return topic.startswith(SYSTEM_PREFIX)


def read_request(message: Message, options: Options, access: Access | None = None) -> Request:
    """A subscribe, query or delete, checked.

    Args:
        message: The command.
        options: Its options.
        access: What its user may do with topics; `None` for everything.

    Raises:
        Refused: The topic is missing, one of the broker's own, or none of the user's, or the
            pattern, the filter or the select list is malformed.
    """
    if not message.topic:
        raise Refused(Reason.INVALID_TOPIC, "no topic")
    if problem := topic_problem(message.topic):
        raise Refused(Reason.INVALID_TOPIC, problem)
    if is_system_topic(message.topic):
        raise Refused(Reason.NOT_ENTITLED, SYSTEM_TOPIC_REFUSAL)
    try:
        matcher = TopicMatcher(
            message.topic,
            non_regex_topic=options.non_regex_topic,
            allowed=None if access is None else access.is_free,
        )
        filter_ = compile_filter(message.filter) if message.filter else None
    except (TopicPatternError, FilterError) as error:
        raise Refused(error.reason, error.detail) from error
    try:
        fields_ = FieldSelection(options.select) if options.select else None
    except SelectError as error:
        raise Refused(Reason.INVALID_OPTIONS, str(error)) from error
    text, is_restricted = message.filter, False
    if access is not None and not matcher.is_regex:
        if message.kind == "sow_delete" and not message.filter:
            access.check_free(message.topic, "delete by keys or data")
        if options.oof:
            access.check_free(message.topic, "oof")
        text, filter_ = access.with_filter(message.topic, text, filter_)
        is_restricted = not access.is_free(message.topic)
    return Request(message, options, matcher, filter_, fields_, text, is_restricted)
