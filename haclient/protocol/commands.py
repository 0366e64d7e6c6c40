"""Commands: what a client can ask of a server, as an object (CC18).

A `Command` holds header fields and a body by their Python names, given as keywords or by chained
setters, and writes itself as wire fields in one fixed order. It knows no client: executing it is
the client's business, which also fills in ids, acks and the resolved bookmark.

Setting a bookmark is all it takes to make a subscription a bookmark subscription (CC14).
"""

from __future__ import annotations

import copy
import enum
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, Self

from typing_extensions import override

from haclient.errors import UsageError
from haclient.protocol.encoding import check_text
from haclient.protocol.headers import HEADERS, WIRE_NAMES
from haclient.protocol.validation import validate
from haclient_stores.bookmark import MOST_RECENT

if TYPE_CHECKING:
    from haclient.protocol.acks import AckType
    from haclient.protocol.options import Options
    from haclient_stores.bookmark import StartPoint

__all__ = ["Command", "CommandName"]


class CommandName(enum.StrEnum):
    """Every command by its full name; `CommandName("p")` is `PUBLISH` too (protocol 2.4)."""

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
        """What is written: `p` for a publish, the full name of all others."""
        return "p" if self is CommandName.PUBLISH else self.value


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
        top_n: Most records, or messages of a replay.
        options: An `Options` or an option string.
        bookmark: Where to start; or what is acknowledged, in a `sow_delete` on a queue.
        sub_id: Id of the subscription; several, or `all`, in an `unsubscribe`.
        query_id: Id of the query.
        command_id: Names the command in its acks; the client assigns one where it is empty.
        ack_type: Acks wanted, as a comma list.
        sow_key: Key of a publish to a topic without key fields.
        sow_keys: Keys, as a comma list.
        expiration: Lifetime of the record in seconds.
        correlation_id: Attached to the message; letters, digits, `+`, `/`, `=`.
        sequence: The publisher's sequence number.
        client_name: Of a logon or flush.
        user_id: Of a logon.
        password: Of a logon; never shown (AT12).
        message_type: Of a logon.
        version: Of a logon.
        timeout: How long the client waits for the command, in seconds; not sent.

    Raises:
        UsageError: There is no such command.
    """

    command: CommandName | str
    topic: str = ""
    data: bytes | str = b""
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
        """The body as it is sent."""
        return self.data.encode() if isinstance(self.data, str) else self.data

    def to_fields(self) -> dict[str, str | int]:
        """The header as wire names and values: the command first, what is not set left out.

        Raises:
            UsageError: The bookmark is `MOST_RECENT`, which only a client can resolve; or a value
                has the wrong type.
        """
        result: dict[str, str | int] = {"c": self.name.wire}
        for attribute, wire in _FIELDS:
            value: object = getattr(self, attribute)
            if value is None or value == "":
                continue
            if isinstance(value, int) and attribute in _NUMBERS:
                result[wire] = value
                continue
            if attribute not in _WRITTEN_BY_STR:
                check_text(attribute, value)
            if text := str(value):
                result[wire] = text
        if result.get("bm") == str(MOST_RECENT):
            raise UsageError("MOST_RECENT is resolved by a bookmark store and never sent")
        return result

    def validate(self) -> None:
        """Refuse what no server could carry out.

        Raises:
            UsageError: What is missing, what is too much, or what cannot be read.
        """
        validate(self)

    def copy(self) -> Command:
        """Another command with the same values."""
        return copy.copy(self)

    def set_topic(self, topic: str) -> Self:
        """Set the topic; returns the command, like all setters."""
        self.topic = topic
        return self

    def set_data(self, data: bytes | str) -> Self:
        """Set the body."""
        self.data = data
        return self

    def set_filter(self, content_filter: str) -> Self:
        """Set the content filter."""
        self.filter = content_filter
        return self

    def set_order_by(self, order_by: str) -> Self:
        """Set the order of a query's records."""
        self.order_by = order_by
        return self

    def set_batch_size(self, batch_size: int | None) -> Self:
        """Set how many records come in one frame."""
        self.batch_size = batch_size
        return self

    def set_top_n(self, top_n: int | None) -> Self:
        """Set how many records, or messages of a replay, come at most."""
        self.top_n = top_n
        return self

    def set_options(self, options: Options | str) -> Self:
        """Set the options."""
        self.options = options
        return self

    def set_bookmark(self, bookmark: StartPoint | str) -> Self:
        """Set where to start: this alone makes a bookmark subscription (CC14)."""
        self.bookmark = bookmark
        return self

    def set_sub_id(self, sub_id: str) -> Self:
        """Set the id of the subscription."""
        self.sub_id = sub_id
        return self

    def set_query_id(self, query_id: str) -> Self:
        """Set the id of the query."""
        self.query_id = query_id
        return self

    def set_command_id(self, command_id: str) -> Self:
        """Set the id by which acks name the command."""
        self.command_id = command_id
        return self

    def set_ack_type(self, ack_type: str) -> Self:
        """Set which acks are wanted, as a comma list."""
        self.ack_type = ack_type
        return self

    def add_ack_type(self, ack_type: AckType | str) -> Self:
        """Ask for one more ack."""
        self.ack_type = f"{self.ack_type},{ack_type}" if self.ack_type else str(ack_type)
        return self

    def set_sow_key(self, sow_key: str) -> Self:
        """Set the key of the record."""
        self.sow_key = sow_key
        return self

    def set_sow_keys(self, sow_keys: str) -> Self:
        """Set the keys, as a comma list."""
        self.sow_keys = sow_keys
        return self

    def set_expiration(self, expiration: int | None) -> Self:
        """Set the lifetime of the record in seconds."""
        self.expiration = expiration
        return self

    def set_correlation_id(self, correlation_id: str) -> Self:
        """Set what is attached to the message."""
        self.correlation_id = correlation_id
        return self

    def set_sequence(self, sequence: int | None) -> Self:
        """Set the publisher's sequence number."""
        self.sequence = sequence
        return self

    def set_client_name(self, client_name: str) -> Self:
        """Set the client name."""
        self.client_name = client_name
        return self

    def set_user_id(self, user_id: str) -> Self:
        """Set the user."""
        self.user_id = user_id
        return self

    def set_password(self, password: str) -> Self:
        """Set the password."""
        self.password = password
        return self

    def set_message_type(self, message_type: str) -> Self:
        """Set the type of the connection's bodies."""
        self.message_type = message_type
        return self

    def set_version(self, version: str) -> Self:
        """Set the version that a logon names."""
        self.version = version
        return self

    def set_timeout(self, timeout: float | None) -> Self:
        """Set how long the client waits, in seconds."""
        self.timeout = timeout
        return self

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
