"""Commands that a client can send to a server, and the acks that it can request.

A `Command` holds header fields and a body by their Python names, and encodes itself as wire fields
in one fixed order. It does not depend on a client: the client executes it, and fills in ids, acks
and the resolved bookmark. `dataclasses.replace` makes a changed copy.

Setting a bookmark turns a subscription into a bookmark subscription.

A command requests acks by a comma list and gets one ack message for each requested type, and no
others. Lists are read leniently: spaces, empty items and `none` are ignored.

`validate` refuses a command that no server could execute, before it is sent. Each rule is a
function of the command that raises `UsageError`; a table says which rules a command has to pass.
Anything that depends on the server's configuration is left to the server.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient.errors import (
    AuthenticationError,
    BadFilter,
    BadRegexTopic,
    BadSowKey,
    BookmarkNotFound,
    CommandError,
    HAClientError,
    InvalidBookmark,
    InvalidOptions,
    InvalidOrderBy,
    InvalidTopic,
    NameInUse,
    NotEntitled,
    SubIdInUse,
    UsageError,
)
from haclient.protocol.codec import (
    Payload,
    as_bytes,
    check_correlation_id,
    check_number,
    check_text,
    check_topic,
)
from haclient.protocol.messages import HEADERS, WIRE_NAMES
from haclient.protocol.options import Options
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW, Bookmark, BookmarkList, parse_bookmark
from haclient_stores.checks import check_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from haclient_stores.bookmark import StartPoint

    Rule = Callable[["Command"], None]

__all__ = [
    "MAX_BATCH_SIZE",
    "AckType",
    "Command",
    "CommandName",
    "Status",
    "command_error",
    "format_acks",
    "parse_acks",
    "validate",
]

MAX_BATCH_SIZE: Final = 10_000
"""More records in one frame are an error."""


class CommandName(enum.StrEnum):
    """Every command by its full name; `CommandName("p")` is `PUBLISH` too."""

    ACK = "ack"
    DELTA_PUBLISH = "delta_publish"
    DELTA_SUBSCRIBE = "delta_subscribe"
    FLUSH = "flush"
    GROUP_BEGIN = "group_begin"
    GROUP_END = "group_end"
    HEARTBEAT = "heartbeat"
    LOGON = "logon"
    OOF = "oof"
    PUBLISH = "publish"
    SOW = "sow"
    SOW_AND_DELTA_SUBSCRIBE = "sow_and_delta_subscribe"
    SOW_AND_SUBSCRIBE = "sow_and_subscribe"
    SOW_DELETE = "sow_delete"
    START_TIMER = "start_timer"
    STOP_TIMER = "stop_timer"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"

    @classmethod
    @override
    def _missing_(cls, value: object) -> CommandName | None:
        return cls.PUBLISH if value == "p" else None

    @property
    def wire(self) -> str:
        """The name on the wire: `p` for a publish, the full name for all others."""
        return "p" if self is CommandName.PUBLISH else self.value


class AckType(enum.StrEnum):
    """The stage of processing that an ack reports."""

    RECEIVED = "received"
    PARSED = "parsed"
    PROCESSED = "processed"
    PERSISTED = "persisted"
    COMPLETED = "completed"
    STATS = "stats"


class Status(enum.StrEnum):
    """The outcome that an ack reports."""

    SUCCESS = "success"
    FAILURE = "failure"
    RETRY = "retry"


def parse_acks(text: str) -> frozenset[AckType]:
    """The ack types of a list like `processed, completed`.

    Args:
        text: The list; `none` and empty words are skipped.

    Returns:
        The types, without an order.

    Raises:
        UsageError: A word is not an ack type; the message names it.
    """
    words = map(str.strip, text.split(","))
    return frozenset([_ack_type(word) for word in words if word not in {"", "none"}])


def format_acks(acks: Iterable[AckType | str]) -> str:
    """The list on the wire, in the order of `AckType`, each type once.

    Args:
        acks: Ack types, or their words.

    Returns:
        A comma list.

    Raises:
        UsageError: A word is not an ack type.
    """
    wanted = {_ack_type(ack) for ack in acks}
    return ",".join(ack for ack in AckType if ack in wanted)


def _ack_type(word: str) -> AckType:
    try:
        return AckType(word)
    except ValueError:
        known = ", ".join(AckType)
        raise UsageError(f"{word!r} is no ack type; there are {known}") from None


_MOST_RECENT: Final = str(MOST_RECENT)
_BOOKMARK_WORDS: Final[dict[str, StartPoint]] = {
    "epoch": EPOCH,
    "now": NOW,
    "recent": MOST_RECENT,
}
"""What a bookmark may be called in any case; no server knows these words."""


@dataclass(slots=True, repr=False)
class Command:
    """One command, before it is sent.

    Attributes:
        command: Its name; text is accepted and turned into a `CommandName`.
        topic: Literal, or a regular expression where the command takes one.
        data: The body; text is sent as UTF-8.
        filter: Content filter.
        order_by: Order of the records of a query.
        batch_size: Records in one frame.
        top_n: The maximum number of records, or of messages of a replay.
        options: An `Options` or an option string.
        bookmark: Where to start; or what is acknowledged, in a `sow_delete` on a queue.
        sub_id: Id of the subscription; several, or `all`, in an `unsubscribe`.
        query_id: Id of the query.
        command_id: The id that its acks carry; the client assigns one if it is empty. None of
            another command: the refusal of a publish ends a subscription with the same id. `flush`
            and what begins with `sow_delete-` are ids of the client itself.
        ack_type: Requested acks, as a comma list.
        sow_key: Key of a publish to a topic without key fields.
        sow_keys: Keys, as a comma list.
        expiration: Lifetime of the record in seconds.
        correlation_id: Attached to the message; letters, digits, `+`, `/`, `=`.
        sequence: The publisher's sequence number.
        client_name: Of a logon or flush.
        user_id: Of a logon.
        password: Of a logon; never shown.
        message_type: Of a logon.
        version: Of a logon.
        timeout: How long the client waits for the command, in seconds; not sent.

    Raises:
        UsageError: The command is unknown.
    """

    command: CommandName | str
    topic: str = ""
    data: Payload = b""
    filter: str = ""
    order_by: str = ""
    batch_size: int | None = None
    top_n: int | None = None
    options: Options | str = ""
    bookmark: StartPoint | str = ""
    sub_id: str = ""
    query_id: str = ""
    command_id: str = ""
    ack_type: str = ""
    sow_key: str = ""
    sow_keys: str = ""
    expiration: int | None = None
    correlation_id: str = ""
    sequence: int | None = None
    client_name: str = ""
    user_id: str = ""
    password: str = ""
    message_type: str = ""
    version: str = ""
    timeout: float | None = None

    def __post_init__(self) -> None:
        try:
            self.command = CommandName(self.command)
        except ValueError:
            raise UsageError(f"there is no command {self.command!r}") from None

    @property
    def name(self) -> CommandName:
        """The command's name."""
        return CommandName(self.command)

    @property
    def body(self) -> bytes:
        """The body as it is sent.

        Raises:
            UsageError: The data is neither text nor bytes.
        """
        return as_bytes(self.data)

    @property
    def start(self) -> str:
        """The bookmark as it is sent: `epoch`, `now` and `recent`, in any case, are its words.

        `recent` is resolved by the client; everything else stays as it was given.
        """
        text = str(self.bookmark)
        return str(_BOOKMARK_WORDS.get(text.strip().lower(), text))

    def to_fields(self) -> dict[str, str | int]:
        """The header by wire name: the command comes first, and unset fields are left out.

        Returns:
            The values by wire name.

        Raises:
            UsageError: The bookmark is `MOST_RECENT`, which only a client can resolve; or a value
                has the wrong type.
        """
        result: dict[str, str | int] = {"c": self.name.wire}
        for attribute, wire in _FIELDS:
            value: object = self.start if attribute == "bookmark" else getattr(self, attribute)
            if value is None or value == "":
                continue
            if isinstance(value, int) and attribute in _NUMBERS:
                result[wire] = value
                continue
            if attribute == "topic":
                check_topic(value)
            elif attribute not in _WRITTEN_BY_STR:
                check_text(attribute, value)
            if text := str(value):
                result[wire] = text
        if result.get("bm") == _MOST_RECENT:
            raise UsageError("MOST_RECENT is resolved by a bookmark store and never sent")
        return result

    def validate(self) -> None:
        """Check that a server could execute this command.

        Raises:
            UsageError: A field is missing, not allowed, or malformed; the message names it.
        """
        validate(self)

    @override
    def __repr__(self) -> str:
        shown = [repr(self.name.value)]
        for field in fields(self)[1:]:
            value: object = getattr(self, field.name)
            if value not in ("", b"", None):
                shown.append(f"{field.name}={_HIDDEN.get(field.name) or repr(value)}")
        return f"Command({', '.join(shown)})"


_FIELDS: Final = tuple(
    (attribute, wire)
    for attribute, wire in WIRE_NAMES.items()
    if attribute in {field.name for field in fields(Command)}
)
_NUMBERS: Final = frozenset(header.attribute for header in HEADERS if header.kind is int)
_WRITTEN_BY_STR: Final = frozenset({"options", "bookmark"})  # objects whose text is the wire form
_HIDDEN: Final = {"password": "'***'", "data": "..."}


# -- what can be refused before it is sent -----------------------------------


def validate(command: Command) -> None:
    """Check a command against every rule that applies to it.

    Args:
        command: The command to check.

    Raises:
        UsageError: The command breaks a rule; the first one is reported.
    """
    for rule in (*_FOR_ALL, *_RULES.get(command.name, ())):
        rule(command)


def _words_can_be_read(command: Command) -> None:
    for name in ("sub_id", "query_id", "ack_type", "correlation_id"):
        check_text(name, getattr(command, name))
    parse_acks(command.ack_type)
    check_correlation_id(command.correlation_id)
    if command.name != "heartbeat":  # its options are words of its own
        _options(command)
    _bookmark(command)


def _numbers_are_in_range(command: Command) -> None:
    for name in ("top_n", "expiration"):
        number: object = getattr(command, name)
        if number is not None:
            check_number(name, number)
    check_count("batch_size", command.batch_size, 1, MAX_BATCH_SIZE, optional=True)
    check_count("sequence", command.sequence, 1, 2**64 - 1, optional=True)


def _needs_topic(command: Command) -> None:
    if not command.topic:
        raise UsageError(f"a {command.name} needs a topic")


def _has_no_bookmark(command: Command) -> None:
    if _bookmark(command) is not None:
        raise UsageError(f"a {command.name} takes no bookmark")


def _bookmark_options_need_a_bookmark(command: Command) -> None:
    options = _options(command)
    start = _bookmark(command)
    if start is None and options.bookmark_not_found is not None:
        raise UsageError("the option bookmark_not_found needs a bookmark")
    if start is not None and options.oof and command.name == "subscribe":
        raise UsageError("a bookmark subscription cannot have the option oof")


def _top_n_needs_a_replay(command: Command) -> None:
    if command.top_n is not None and _bookmark(command) in {None, NOW}:
        raise UsageError(f"top_n of a {command.name} needs a bookmark other than NOW")


def _skip_n_of_a_query_needs_an_order(command: Command) -> None:
    if _options(command).skip_n is not None and not command.order_by:
        raise UsageError("the option skip_n of a sow needs order_by")


def _deletes_by_one_criterion(command: Command) -> None:
    given = [
        name
        for name, value in (
            ("filter", command.filter),
            ("sow_keys", command.sow_keys),
            ("bookmark", command.start),
            ("data", command.body),
        )
        if value
    ]
    if len(given) != 1:
        raise UsageError(
            "a sow_delete needs exactly one of filter, sow_keys, bookmark and data, "
            f"found {' and '.join(given) or 'none'}"
        )


def _acknowledges_messages(command: Command) -> None:
    positions = _bookmark(command)
    items = positions.items if isinstance(positions, BookmarkList) else (positions,)
    if positions is not None and not all(isinstance(item, Bookmark) for item in items):
        raise UsageError(f"a sow_delete acknowledges messages by their bookmarks, not {positions}")


def _id_is_one(command: Command) -> None:
    """Servers send several ids joined by commas, and tolerate blanks around each."""
    for name in ("sub_id", "query_id", "command_id"):  # the last one where no other is given
        text: str = getattr(command, name)
        if "," in text or text != text.strip() or text == "all":
            raise UsageError(
                f"a {name} has no comma and no blank at its ends and is not 'all', unlike {text!r}"
            )


def _needs_an_id(command: Command) -> None:
    if not (command.sub_id or command.query_id):
        raise UsageError("an unsubscribe needs a sub_id (several, or 'all') or a query_id")


def _needs_client_name(command: Command) -> None:
    if not command.client_name:
        raise UsageError("a logon needs a client name")


def _options(command: Command) -> Options:
    options = command.options
    return options if isinstance(options, Options) else Options.parse(options)


def _bookmark(command: Command) -> StartPoint | None:
    text = command.start
    if not text:
        return None
    start = parse_bookmark(text)
    if start == MOST_RECENT:
        raise UsageError("MOST_RECENT is resolved by a bookmark store and never sent")
    return start


_FOR_ALL: Final[tuple[Rule, ...]] = (_words_can_be_read, _numbers_are_in_range)
_RULES: Final[dict[str, tuple[Rule, ...]]] = {
    "publish": (_needs_topic, _has_no_bookmark),
    "delta_publish": (_needs_topic, _has_no_bookmark),
    "subscribe": (
        _needs_topic,
        _id_is_one,
        _bookmark_options_need_a_bookmark,
        _top_n_needs_a_replay,
    ),
    "delta_subscribe": (
        _needs_topic,
        _id_is_one,
        _has_no_bookmark,
        _bookmark_options_need_a_bookmark,
    ),
    "sow": (_needs_topic, _id_is_one, _skip_n_of_a_query_needs_an_order),
    "sow_and_subscribe": (_needs_topic, _id_is_one),
    "sow_and_delta_subscribe": (_needs_topic, _id_is_one, _has_no_bookmark),
    "sow_delete": (_needs_topic, _deletes_by_one_criterion, _acknowledges_messages),
    "unsubscribe": (_needs_an_id,),
    "logon": (_needs_client_name,),
}


# -- what a server refuses ----------------------------------------------------

_BY_REASON: Final[tuple[tuple[str, type[HAClientError]], ...]] = (
    ("bad filter", BadFilter),
    ("bad regex", BadRegexTopic),
    ("bad sow key", BadSowKey),
    ("invalid topic", InvalidTopic),
    ("not entitled", NotEntitled),
    ("auth failure", AuthenticationError),
    ("name in use", NameInUse),
    ("already exists", SubIdInUse),
    ("subid in use", SubIdInUse),
    ("invalid options", InvalidOptions),
    ("invalid orderby", InvalidOrderBy),
    ("bookmark not found", BookmarkNotFound),
    ("invalid bookmark", InvalidBookmark),
)


def command_error(what: str, reason: str, detail: str = "") -> HAClientError:
    """The error for a failure ack.

    Reasons are free text. The documented ones are looked for in it; any other becomes a plain
    `CommandError` that carries the text.

    Args:
        what: The command that was refused, in words.
        reason: The server's reason.
        detail: What exactly it refused, if the server sends that.

    Returns:
        The error to raise.
    """
    text = f"{what}: {reason or 'refused without a reason'}" + (f": {detail}" if detail else "")
    lowered = reason.lower()
    for key, kind in _BY_REASON:
        if key not in lowered:
            continue
        if issubclass(kind, CommandError):
            return kind(text, reason=reason, detail=detail)
        return kind(text)
    return CommandError(text, reason=reason, detail=detail)
