"""The header fields of the `amps` protocol, as one table.

Everything that reads or writes a header is built from this table: the fields of `Message` and their
wire names, the spellings that the lenient decoder knows, and the order in which a `Command` writes
its fields. A field has one name in Python, one that we write, and any number that we read, since
peers may use the long or the short name.

Fields of the protocol's past (`data_only`, `send_empty`, `send_oof`, the timers ...) are not
listed: they are skipped like any unknown field, their modern form is an option.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["BY_SPELLING", "HEADERS", "WIRE_NAMES", "Header"]


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
