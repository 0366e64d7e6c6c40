"""One message, in either direction, and the table of its header fields.

All code that reads or writes a header is built from `HEADERS`: the fields of `Message` and their
wire names, the spellings that the lenient decoder knows, and the order in which a `Command` writes
its fields. A field has one name in Python, one name that we write, and any number of names that we
read, since peers may use the long or the short name. Obsolete fields of the protocol (`data_only`,
`send_empty`, `send_oof`, the timers ...) are not listed: they are skipped like any unknown field,
and options have replaced them.

`Message` has a field for each header and the body. It is at the same time the type that msgspec
decodes headers into, so that a received message costs one allocation; the hot path depends on four
of its properties:

* it is not tracked by the garbage collector. A message that has an `owner` therefore keeps that
  owner alive, and a cycle through a message is never collected: an object that queues messages of
  which it is the owner must empty the queue when it closes;
* an unknown field makes the fast decoder give up, instead of skipping what may be the long name of
  a known field; the lenient decoder then sorts it out;
* four fields do not exist on the wire (`data`, `number`, `owner`, `lease`). Their types accept
  nothing that a peer could send under any name;
* its values are immutable, so a message may be kept after a handler has returned.

Absent text is an empty string, an absent number `None`. Header bytes that are not UTF-8 are kept as
surrogate escapes and are written back as the bytes they were.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from typing import (
    Annotated,
    Final,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    overload,
    runtime_checkable,
)

import msgspec
from msgspec import Meta
from typing_extensions import override

from haclient.errors import ProtocolError, UsageError
from haclient.protocol.decode_errors import decode_error, unpack_error
from haclient_stores.bookmark import Bookmark

T = TypeVar("T")

__all__ = [
    "BY_SPELLING",
    "HEADERS",
    "WIRE_NAMES",
    "Header",
    "Message",
    "MessageLease",
    "MessageOwner",
    "Unsigned",
]


class Header(NamedTuple):
    """One header field.

    Attributes:
        attribute: Its name in Python, as an attribute of `Message` and `Command`.
        wire: The name that we write.
        kind: `int` for what is written without quotes, `str` for all others.
        spellings: Every name that we read, `wire` among them.
    """

    attribute: str
    wire: str
    kind: type[int | str]
    spellings: frozenset[str]


def _text(attribute: str, wire: str, *others: str) -> Header:
    return Header(attribute, wire, str, frozenset({wire, *others}))


def _number(attribute: str, wire: str, *others: str) -> Header:
    return Header(attribute, wire, int, frozenset({wire, *others}))


HEADERS: Final[tuple[Header, ...]] = (
    _text("kind", "c", "cmd"),
    _text("command_id", "cid", "cmd_id"),
    _text("topic", "t", "topic"),
    _text("sids", "sids"),
    _text("sub_id", "sub_id"),
    _text("query_id", "query_id"),
    _text("filter", "filter", "f"),
    _text("order_by", "orderby"),
    _number("batch_size", "bs", "batch_size"),
    _number("top_n", "top_n"),
    _text("options", "opts", "o"),
    _text("bookmark", "bm", "bookmark"),
    _text("sow_key", "k", "sow_key"),
    _text("sow_keys", "sow_keys"),
    _text("correlation_id", "x", "correlation_id"),
    _text("timestamp", "ts", "timestamp"),
    _text("lease_period", "lp", "leaseperiod", "lease_period"),
    _text("client_name", "client_name"),
    _text("user_id", "user_id"),
    _text("password", "pw", "password"),
    _text("message_type", "mt", "message_type"),
    _text("version", "version", "v"),
    _text("ack_type", "a", "ack_type"),
    _text("status", "status"),
    _text("reason", "reason"),
    _text("detail", "detail"),
    _text("log_starts", "log_starts"),
    _number("expiration", "e", "expiration"),
    _number("length", "l", "msg_len"),
    _number("group_sequence", "gseq", "group_sequence_number"),
    _number("matches", "matches"),
    _number("topic_matches", "topic_matches"),
    _number("records_returned", "records_returned"),
    _number("records_inserted", "records_inserted"),
    _number("records_updated", "records_updated"),
    _number("records_deleted", "records_deleted"),
    _number("sequence", "s", "seq"),
)

WIRE_NAMES: Final[dict[str, str]] = {header.attribute: header.wire for header in HEADERS}
"""What we write, by the name in Python."""

BY_SPELLING: Final[dict[str, Header]] = {
    spelling: header for header in HEADERS for spelling in header.spellings
}
"""What we read, by any of its names."""


Unsigned = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A number that the fast decoder takes; the upper half of 64 bits is the lenient one's."""

_NeverDecodedInt = Annotated[int, Meta(gt=0, lt=0)]
_NeverDecodedBytes = Annotated[bytes, Meta(min_length=1, max_length=0)]

_NOT_ON_THE_WIRE: Final = ("data", "number", "owner", "lease")
_RENAMED: Final = {**WIRE_NAMES, **{name: f"\x7f{name}" for name in _NOT_ON_THE_WIRE}}


@runtime_checkable
class MessageOwner(Protocol):
    """The log that a message belongs to; `Message.discard` calls it."""

    def discard(self, number: int, /) -> object:
        """Discard a message; an unknown number, or a second call, does nothing.

        Args:
            number: The message's number in the bookmark store.
        """


@runtime_checkable
class MessageLease(Protocol):
    """The lease of the messages that one queue subscription received together."""

    @abstractmethod
    def is_deliverable(self, message: Message, /) -> bool:
        """Whether a message has yet to be processed.

        It is not if its lease is over, since the server redelivers it; nor if it was processed
        before the last connection was lost, in which case this acknowledges it again.

        Args:
            message: One of these messages.
        """

    @abstractmethod
    def acknowledge(self, message: Message, option: str, /) -> object:
        """Acknowledge a message; a second call does nothing.

        Args:
            message: One of these messages.
            option: Empty for a processed message, `cancel` or `expire`.
        """

    @abstractmethod
    def extend(self, message: Message, seconds: float, /) -> object:
        """Extend the lease of a message.

        Args:
            message: One of these messages.
            seconds: How much longer to hold it, from now on.
        """

    @abstractmethod
    def deadline(self, message: Message, /) -> float | None:
        """When the lease of a message ends, on trio's clock; `None` if that is unknown, or never.

        Args:
            message: One of these messages.
        """


class Message(msgspec.Struct, gc=False, forbid_unknown_fields=True, kw_only=True, rename=_RENAMED):
    """A message or an ack, as received; or a command, as a broker receives it.

    A message that was pickled, or copied with `copy.deepcopy`, has its headers and its body, and
    belongs to no client: its `discard`, `ack` and `extend_lease` do nothing. Call them on the
    original, in the process that received it.

    Attributes:
        kind: The command as it was written; see `command` for its full name.
        command_id: The id of the command that an ack belongs to.
        topic: The topic of the message.
        sids: The subscriptions that it is for, as a comma list; see `sub_ids`.
        sub_id: One subscription (a list in `unsubscribe`).
        query_id: The query that a SOW record belongs to.
        filter: Content filter of a request.
        order_by: Order of a query's records.
        batch_size: Records per frame: the requested number, or the actual one.
        top_n: The maximum number of records, or of replayed messages.
        options: The option string.
        bookmark: Position in the transaction log, in wire form; see `position`.
        sow_key: Key of the record.
        sow_keys: Keys of a request, as a comma list.
        correlation_id: The correlation id that the publisher attached.
        timestamp: When the server processed the publish, ISO 8601 with microseconds.
        lease_period: When the lease of a queue message ends; empty if it has none.
        client_name: Name of the client.
        user_id: User of the connection, or of the publisher.
        password: Never shown by `repr`.
        message_type: Type of the connection's bodies.
        version: Version of the peer.
        ack_type: The requested acks, as a comma list; in an ack, its own type.
        status: `success`, `failure` or `retry`.
        reason: The server's explanation of the status.
        detail: What exactly was refused, in an ack of the reference broker.
        log_starts: Recent starts of the server's log, in a logon ack of the reference broker; in
            its persisted acks the youngest of them with a position that the log has reached.
        expiration: Lifetime of the record in seconds.
        length: Length of the body in bytes, if the peer sends it.
        group_sequence: Number of this frame within a query's result.
        matches: Records that the filter matched.
        topic_matches: Records that the query examined.
        records_returned: Records that a query returned.
        records_inserted: Records that were new.
        records_updated: Records that were changed.
        records_deleted: Records that a `sow_delete` removed.
        sequence: The publisher's sequence number.
        data: The body.
        number: The bookmark store's number for this message; 0 if no store has logged it.
        owner: Where `discard` goes.
        lease: Where `ack` goes; `None` for a message of no queue, or one that was acknowledged.
    """

    kind: str = ""
    command_id: str = ""
    topic: str = ""
    sids: str = ""
    sub_id: str = ""
    query_id: str = ""
    filter: str = ""
    order_by: str = ""
    batch_size: Unsigned | None = None
    top_n: Unsigned | None = None
    options: str = ""
    bookmark: str = ""
    sow_key: str = ""
    sow_keys: str = ""
    correlation_id: str = ""
    timestamp: str = ""
    lease_period: str = ""
    client_name: str = ""
    user_id: str = ""
    password: str = ""
    message_type: str = ""
    version: str = ""
    ack_type: str = ""
    status: str = ""
    reason: str = ""
    detail: str = ""
    log_starts: str = ""
    expiration: Unsigned | None = None
    length: Unsigned | None = None
    group_sequence: Unsigned | None = None
    matches: Unsigned | None = None
    topic_matches: Unsigned | None = None
    records_returned: Unsigned | None = None
    records_inserted: Unsigned | None = None
    records_updated: Unsigned | None = None
    records_deleted: Unsigned | None = None
    sequence: Unsigned | None = None
    data: _NeverDecodedBytes = b""
    number: _NeverDecodedInt = 0
    owner: MessageOwner | None = None
    lease: MessageLease | None = None

    @property
    def command(self) -> str:
        """The full name of the command: `publish` for `p` too."""
        return "publish" if self.kind == "p" else self.kind

    @property
    def sub_ids(self) -> list[str]:
        """The ids of all subscriptions that this message is for."""
        ids = self.sids or self.sub_id
        return [sub_id for sub_id in map(str.strip, ids.split(",")) if sub_id]

    @property
    def position(self) -> Bookmark | None:
        """Publisher and sequence of this message; `None` if it has no bookmark.

        Raises:
            ProtocolError: The server sent a bookmark that does not name exactly one message.
        """
        if not self.bookmark:
            return None
        try:
            return Bookmark.parse(self.bookmark)
        except UsageError as error:
            raise ProtocolError(f"the server sent a malformed bookmark: {error}") from error

    @property
    def text(self) -> str:
        """The body as text for people to read; bytes that are not UTF-8 become U+FFFD."""
        return self.data.decode("utf-8", "replace")

    @overload
    def json(self) -> object: ...

    @overload
    def json(self, type: type[T]) -> T: ...  # msgspec's word for it

    def json(self, type: type[object] = object) -> object:  # noqa: A002  # likewise
        """The body, parsed as JSON; see `haclient.Topic` for topics whose bodies have one type.

        Args:
            type: What it has to be: a struct of msgspec, a dataclass, `list[int]`, ...

        Returns:
            A value of this type; by default objects, lists, text, numbers, booleans or `None`.

        Raises:
            DecodeError: It is not valid JSON, or not of this type; `data` has the bytes.
        """
        try:
            return msgspec.json.decode(self.data, type=type)
        except Exception as error:  # of any kind: a type may check itself
            raise decode_error(error, self.data, codec="json", topic=self.topic) from error

    def msgpack(self) -> object:
        """The body, parsed as MessagePack.

        Returns:
            The unpacked value: timestamps as `datetime`, other extension types as
            `msgpack.ExtType`. `Topic(name, type, format="msgpack")` reads typed values.

        Raises:
            DecodeError: It is not valid MessagePack; `data` has the bytes.
        """
        import msgpack  # noqa: PLC0415  # loaded only for MessagePack bodies

        try:
            return msgpack.unpackb(self.data, strict_map_key=False, timestamp=3)
        except Exception as error:  # such as a key that cannot be one
            raise unpack_error(error, self.data, topic=self.topic) from error

    def discard(self) -> None:
        """Mark this message as finished, so that it is never delivered again.

        It does nothing for a message that no bookmark store has logged, or when called again.
        """
        if self.owner is not None:
            self.owner.discard(self.number)

    def ack(self, *, cancel: bool = False, expire: bool = False) -> None:
        """Acknowledge this message of a queue.

        Without an option the message has been processed and leaves the queue. Such
        acknowledgements are collected and sent together; see `ack_batch_size`, `ack_timeout` and
        `flush_acks`. With an option the acknowledgement is sent at once.

        A second call does nothing, nor does a call for a message that is not of a queue. Like
        `discard` it may be called in any thread.

        Args:
            cancel: Give the message back: the queue redelivers it to any consumer, or expires it
                after too many cancels. Nothing is sent after the end of its lease, which has
                returned it already.
            expire: Remove the message as expired, because no consumer can process it.

        Raises:
            UsageError: Both were given.
        """
        if cancel and expire:
            raise UsageError("a message is cancelled or expired, not both: give one of the two")
        if self.lease is not None:
            self.lease.acknowledge(self, "cancel" if cancel else "expire" if expire else "")

    def extend_lease(self, seconds: float) -> None:
        """Extend the lease of this message of a queue; the extension is sent at once.

        It does nothing for a message without a lease, or one that was acknowledged. Like `discard`
        it may be called in any thread.

        Args:
            seconds: Seconds from now until the lease ends; a lease is never shortened.

        Raises:
            UsageError: It is not above 0.
        """
        if self.lease is not None:
            self.lease.extend(self, seconds)

    @property
    def lease_deadline(self) -> float | None:
        """When the lease of this message ends, on trio's clock in seconds.

        It is calculated from the time left at the receipt, so a step of the time of day does not
        change it. `None` without a lease, after the acknowledgement, and if the server's time
        cannot be right.
        """
        return None if self.lease is None else self.lease.deadline(self)

    def __enter__(self) -> Self:
        """`with message:` discards or acknowledges it at the end, unless the block raises."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, traceback: object, /
    ) -> None:
        if kind is None:
            self.discard()
            self.ack()

    @override
    def __reduce__(
        self,
    ) -> tuple[Callable[[tuple[str | int | None, ...], bytes], Message], tuple[object, ...]]:
        """Pickle the message without the client that it belongs to."""
        return _detached, (tuple(getattr(self, name) for name in WIRE_NAMES), self.data)

    def __deepcopy__(self, memo: object) -> Message:
        return _detached(tuple(getattr(self, name) for name in WIRE_NAMES), self.data)

    def copy(self) -> Message:
        """A copy, independent of this message.

        Returns:
            Another message with the same values.
        """
        return copy.copy(self)

    @override
    def __repr__(self) -> str:
        return f"Message({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    @override
    def __rich_repr__(self) -> list[tuple[str, object]]:
        """The fields that `repr` and rich show: no password, and only the length of the body."""
        shown: list[tuple[str, object]] = []
        for name in WIRE_NAMES:
            value: object = getattr(self, name)
            if value not in ("", None):
                shown.append((name, "***" if name == "password" else value))
        if self.number:
            shown.append(("number", self.number))
        shown.append(("length_of_data", len(self.data)))
        return shown


def _detached(headers: tuple[str | int | None, ...], data: bytes) -> Message:
    """A message that belongs to no client.

    Args:
        headers: Its headers, in the order of `WIRE_NAMES`.
        data: Its body.
    """
    message = Message(data=data)
    for name, value in zip(WIRE_NAMES, headers, strict=True):
        setattr(message, name, value)
    return message
