"""From values to frames (protocol 1.1, 2.2, 2.3.5).

Frames are built whole, with their length. Text is quoted, numbers are not; only what has to be
escaped is, since UTF-8 and even bytes that are not UTF-8 go out raw.

A publish with a store is the one frame that is not built here in full: `publish_head` gives what
stands before the digits of the sequence, and the store, which assigns the sequence, appends digits,
`PUBLISH_TAIL` and body. Constant fields come first and the sequence last, so that the head can be
kept for each topic.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from haclient.errors import UsageError
from haclient.protocol.framing import LENGTH, MAX_FRAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "PUBLISH_TAIL",
    "check_correlation_id",
    "check_text",
    "encode_frame",
    "encode_header",
    "encode_string",
    "publish_frame_without_store",
    "publish_head",
    "sow_batch",
]

PUBLISH_TAIL: Final = b"}"
"""What stands between the sequence's digits and the body of a publish."""

_TO_ESCAPE: Final = re.compile(r'["\\\x00-\x1f]')
_ESCAPES: Final = {chr(code): f"\\u{code:04x}" for code in range(0x20)} | {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
_BASE64: Final = re.compile(r"[A-Za-z0-9+/=]*")


def encode_string(text: str) -> bytes:
    """The text with its quotes, escaped as protocol 2.3.5 says; surrogate escapes become bytes.

    Raises:
        UsageError: The text holds half a surrogate pair, which no bytes stand for.
    """
    escaped = _TO_ESCAPE.sub(lambda found: _ESCAPES[found[0]], text)
    try:
        return b'"%b"' % escaped.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        # The text itself may be a password, and would stand in the error that is the cause, too.
        where = error.start
        raise UsageError(
            f"text for a header holds half a surrogate pair, its character {where}"
        ) from None


def encode_header(fields: Mapping[str, str | int]) -> bytes:
    """The header with these fields, by wire name, in this order.

    Raises:
        UsageError: A text cannot be encoded.
    """
    return b"{%b}" % b",".join(
        b"%b:%b" % (encode_string(name), _value(value)) for name, value in fields.items()
    )


def encode_frame(fields: Mapping[str, str | int], body: bytes = b"") -> bytes:
    """The whole frame, with its length.

    Raises:
        UsageError: A text cannot be encoded, or the frame is too large to be accepted.
    """
    return _frame(encode_header(fields), body)


def publish_head(
    topic: str,
    *,
    command: str = "p",
    expiration: int | None = None,
    correlation_id: str = "",
    sow_key: str = "",
    persisted: bool = True,
) -> bytes:
    r"""The header of a stored publish, up to the digits of its sequence (PS4, protocol 3.2).

    The frame is its length, this head, decimal digits, `PUBLISH_TAIL` and the body::

        b'{"c":"p","t":"orders","a":"persisted","s":'

    Raises:
        UsageError: There is no topic, a value has the wrong type, or the correlation id is not of
            the Base64 alphabet.
    """
    fields = _publish_fields(topic, command, expiration, correlation_id, sow_key)
    if persisted:
        fields["a"] = "persisted"
    return encode_header(fields)[:-1] + b',"s":'


def publish_frame_without_store(
    topic: str,
    body: bytes,
    *,
    command: str = "p",
    expiration: int | None = None,
    correlation_id: str = "",
    sow_key: str = "",
) -> bytes:
    """The whole frame of a publish that nobody keeps: no sequence, no ack wanted (protocol 3.2).

    Raises:
        UsageError: As in `publish_head`; or the frame is too large to be accepted.
    """
    fields = _publish_fields(topic, command, expiration, correlation_id, sow_key)
    return _frame(encode_header(fields), body)


def sow_batch(
    outer: Mapping[str, str | int], records: Iterable[tuple[Mapping[str, str | int], bytes]]
) -> bytes:
    """One `sow` frame with several records (protocol 8.2).

    Args:
        outer: Fields of the frame, by wire name; the number of records is added as `bs`.
        records: Fields and data of each record; the length of the data is added as `l`.

    Raises:
        UsageError: A text cannot be encoded, or the frame is too large to be accepted.
    """
    parts: list[bytes] = []
    for fields, data in records:
        parts.append(encode_header({**fields, "l": len(data)}))
        parts.append(data)
    return _frame(encode_header({**outer, "bs": len(parts) // 2}), b"".join(parts))


def check_correlation_id(correlation_id: str) -> None:
    """Refuse what the protocol does not allow as a correlation id (protocol 2.1).

    Raises:
        UsageError: It has other characters than those of the Base64 alphabet.
    """
    if not _BASE64.fullmatch(correlation_id):
        raise UsageError(
            f"a correlation id has letters, digits, '+', '/' and '=', not {correlation_id!r}"
        )


def check_text(name: str, value: object) -> None:
    """Refuse anything but text, such as a topic given as bytes.

    Args:
        name: What the value is for, such as `topic`.
        value: What was given.

    Raises:
        UsageError: It is no `str`.
    """
    if isinstance(value, str):
        return
    todo = "decode it first" if isinstance(value, bytes | bytearray | memoryview) else "give text"
    raise UsageError(f"{name} has to be a str, found {type(value).__name__} {value!r:.40}: {todo}")


def _value(value: str | int) -> bytes:
    return encode_string(value) if isinstance(value, str) else b"%d" % value


def _frame(header: bytes, body: bytes) -> bytes:
    length = len(header) + len(body)
    if length > MAX_FRAME_BYTES:
        raise UsageError(
            f"a frame of {length} bytes is too large: no peer accepts more than {MAX_FRAME_BYTES}"
        )
    return b"".join((LENGTH.pack(length), header, body))


def _publish_fields(
    topic: str, command: str, expiration: int | None, correlation_id: str, sow_key: str
) -> dict[str, str | int]:
    check_text("topic", topic)
    if not topic:
        raise UsageError("a publish needs a topic")
    fields: dict[str, str | int] = {"c": command, "t": topic}
    if sow_key:
        check_text("sow_key", sow_key)
        fields["k"] = sow_key
    if correlation_id:
        check_text("correlation_id", correlation_id)
        check_correlation_id(correlation_id)
        fields["x"] = correlation_id
    if expiration is not None:
        if not isinstance(expiration, int) or expiration < 0:
            raise UsageError(f"expiration is a whole number of seconds, not {expiration!r}")
        fields["e"] = expiration
    return fields
