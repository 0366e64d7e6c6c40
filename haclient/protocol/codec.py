"""From frames to messages and from values to frames.

**Reading, the fast path.** `MessageDecoder` decodes all headers of a chunk with one call: the
headers are joined by newlines and read by msgspec as a sequence of typed objects. If the number of
objects equals the number of headers, each object came from its own frame: every header holds
exactly one `}`, as its last byte, and nothing that the typed decoder accepts can nest. So each `}`
closed an object, and none of them was inside a string.

**Reading, the slow path.** If the fast path refuses a chunk, its headers are decoded one by one. A
header that is refused even alone is read by the lenient parser, which may find that the supposed
end was a `}` inside a string and that the true end is further on in the body. Beyond JSON, the
lenient parser accepts:

* long and short field names; unknown fields are skipped, of duplicates the last wins;
* strings with raw control characters, unknown escapes (the character itself is kept), bytes that
  are not UTF-8 (kept as surrogate escapes) and half surrogate pairs (U+FFFD);
* names and strings without quotes, numbers with them; a number that does not fit 64 bits is absent;
* space anywhere between tokens, empty fields (`,,`), a missing `{`.

Whatever the typed decoder accepts gives the same result in the lenient parser; a property test
holds the two together. Headers never nest, so an object or a list as a value is malformed. Every
pattern is possessive: time is linear in the length of the input, however hostile it is. Errors name
the position, never the content, since a malformed header may hold a password.

**Records.** Last, `sow` frames are expanded: their body is a batch of records, each with a header
of its own, and each becomes a message.

**Writing.** Frames are built whole, with their length. Text is quoted, numbers are not; only what
has to be escaped is, since UTF-8 and even bytes that are not UTF-8 go out raw. A publish with a
store is the one frame that is not built here in full: `publish_head` gives the part before the
digits of the sequence, and the store, which assigns the sequence, appends digits, `PUBLISH_TAIL`
and body. Constant fields come first and the sequence last, so that the head can be kept for each
topic.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import repeat
from typing import Final, TypeAlias

import msgspec

from haclient.errors import ProtocolError, UsageError
from haclient.protocol.framing import LENGTH, MAX_FRAME_BYTES
from haclient.protocol.messages import BY_SPELLING, Message, Unsigned

HeaderFields: TypeAlias = "dict[str, str | int | None]"
"""Values by attribute of `Message`; `None` where a number could not be read."""

Payload: TypeAlias = bytes | bytearray | memoryview | str
"""What can be published: bytes as they are, text as UTF-8."""

_Kind: TypeAlias = tuple[str, int | None]  # of a publish: topic, and expiration in seconds

# -- values to frames --------------------------------------------------------

MAX_SEARCHED_BYTES: Final = 16 * 2**20
"""How far behind the first brace the end of a header is searched, if that was inside a string."""

PUBLISH_TAIL: Final = b"}"
"""The part of a publish between the sequence's digits and the body."""

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
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/=]*")


def encode_string(text: str) -> bytes:
    """The text with its quotes, escaped where it has to be; surrogate escapes become bytes.

    Raises:
        UsageError: The text has half of a surrogate pair, which cannot be encoded.
    """
    escaped = _TO_ESCAPE.sub(lambda found: _ESCAPES[found[0]], text)
    try:
        return b'"%b"' % escaped.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        # The text itself may be a password, and the original error would contain it, too.
        where = error.start
        raise UsageError(
            f"text for a header holds half a surrogate pair, its character {where}"
        ) from None


_encode_name = lru_cache(maxsize=256)(encode_string)  # of the few names that headers have


def encode_header(fields: Mapping[str, str | int]) -> bytes:
    """The header with these fields, by wire name, in this order.

    Raises:
        UsageError: A field's text cannot be encoded.
    """
    pairs = [
        b"%b:%b" % (_encode_name(name), encode_string(value))
        if isinstance(value, str)
        else b"%b:%d" % (_encode_name(name), value)
        for name, value in fields.items()
    ]
    return b"{%b}" % b",".join(pairs)


def encode_frame(fields: Mapping[str, str | int], body: bytes = b"") -> bytes:
    """A complete frame, with its length prefix.

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
) -> bytes:
    r"""The header of a stored publish, up to the digits of its sequence.

    The frame is its length, this head, decimal digits, `PUBLISH_TAIL` and the body::

        b'{"c":"p","t":"orders","a":"persisted","s":'

    Raises:
        UsageError: The topic is empty, a value has the wrong type, or the correlation id has
            characters outside of the Base64 alphabet.
    """
    check_topic(topic)
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
        check_number("expiration", expiration)
        fields["e"] = expiration
    fields["a"] = "persisted"
    return encode_header(fields)[:-1] + b',"s":'


def publish_heads(
    topics: str | Sequence[str],
    command: str,
    expiration: int | Sequence[int | None] | None,
    correlation_ids: Sequence[str],
    sow_keys: Sequence[str] = (),
) -> list[bytes]:
    """The headers of a batch of stored publishes: one for all messages, or one for each.

    Args:
        topics: The topic of all, or one for each.
        command: What each message is.
        expiration: The expiration of all in seconds, or one for each.
        correlation_ids: One for each, or none; empty ones are left out.
        sow_keys: Likewise.

    Raises:
        UsageError: As in `publish_head`.
    """
    if not isinstance(expiration, int | None):
        each = repeat(topics) if isinstance(topics, str) else topics
        kinds: list[_Kind] = list(zip(each, expiration, strict=False))
    elif isinstance(topics, str):
        kinds = [(topics, expiration)]
    else:
        kinds = [(topic, expiration) for topic in topics]

    def head(kind: _Kind, correlation_id: str = "", sow_key: str = "") -> bytes:
        topic, expires_s = kind
        return publish_head(
            topic,
            command=command,
            expiration=expires_s,
            correlation_id=correlation_id,
            sow_key=sow_key,
        )

    if sow_keys:
        every = repeat(kinds[0]) if len(kinds) == 1 else kinds
        ids = correlation_ids or repeat("")
        return list(map(head, every, ids, sow_keys))
    # Messages of one topic and expiration have one head, which is made once.
    if correlation_ids:
        return _heads_with_ids(kinds, correlation_ids, partial(head, correlation_id="0"))
    cached = {kind: head(kind) for kind in set(kinds)}
    return [cached[kind] for kind in kinds]


def _heads_with_ids(
    kinds: Sequence[_Kind], correlation_ids: Sequence[str], head: Callable[[_Kind], bytes]
) -> list[bytes]:
    """The heads of messages that differ in their correlation id; empty ids are left out.

    Args:
        kinds: One for all messages, or one for each.
        correlation_ids: One for each message.
        head: Makes the head for one kind and the correlation id `0`.
    """
    check_correlation_id("".join(correlation_ids))
    field = b',"x":"0"'
    parts: dict[_Kind, tuple[bytes, bytes]] = {}
    for kind in set(kinds):
        # Quotes within the topic are escaped, so that the field is found and not a part of it.
        before, _, after = head(kind).rpartition(field)
        parts[kind] = before, after
    heads: list[bytes] = []
    each = repeat(kinds[0]) if len(kinds) == 1 else kinds
    for kind, correlation_id in zip(each, correlation_ids, strict=False):
        before, after = parts[kind]
        shown = b',"x":"%b"' % correlation_id.encode() if correlation_id else b""
        heads.append(b"%b%b%b" % (before, shown, after))
    return heads


def sow_batch(
    outer: Mapping[str, str | int], records: Iterable[tuple[Mapping[str, str | int], bytes]]
) -> bytes:
    """One `sow` frame with several records.

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
    """Check that the protocol allows a correlation id.

    Raises:
        UsageError: It has characters outside of the Base64 alphabet.
    """
    if not _BASE64.fullmatch(correlation_id):
        raise UsageError(
            f"a correlation id has letters, digits, '+', '/' and '=', not {correlation_id!r}"
        )


def check_text(name: str, value: object) -> None:
    """Check that a value is text: a topic may have been given as bytes.

    Args:
        name: What the value is for, such as `topic`.
        value: What was given.

    Raises:
        UsageError: It is not a `str`.
    """
    if isinstance(value, str):
        return
    todo = "decode it first" if isinstance(value, bytes | bytearray) else "give text"
    raise UsageError(f"{name} has to be a str, found {type(value).__name__} {value!r:.40}: {todo}")


def check_topic(topic: object) -> None:
    """Check that a topic is text without control characters, such as the line feed of a file.

    Raises:
        UsageError: It is not.
    """
    check_text("topic", topic)
    text = str(topic)
    if not text.isprintable() and (found := _CONTROL.search(text)) is not None:
        raise UsageError(
            f"topic {text!r:.60} has a control character at {found.start()}: strip it first"
        )


def check_number(name: str, value: object) -> None:
    """Check that a value is a whole number, 0 or more.

    Args:
        name: What the value is for, such as `expiration`.
        value: What was given.

    Raises:
        UsageError: It is something else.
    """
    if not isinstance(value, int) or value < 0:
        raise UsageError(f"{name} is a whole number of at least 0, not {value!r:.40}")


def _frame(header: bytes, body: bytes) -> bytes:
    length = len(header) + len(body)
    if length > MAX_FRAME_BYTES:
        raise UsageError(
            f"a frame of {length} bytes is too large: no peer accepts more than {MAX_FRAME_BYTES}"
        )
    return b"".join((LENGTH.pack(length), header, body))


def check_payload(data: object) -> None:
    """Check that a payload can be published.

    The check takes time, so it runs only after writing the data has failed.

    Raises:
        UsageError: It is neither text nor bytes, or text that is not Unicode.
    """
    if isinstance(data, str):
        try:
            data.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"data is text with half of a surrogate pair at {error.start}, which UTF-8 cannot "
                "say: encode it first, such as with errors='surrogateescape'"
            ) from None
        return
    try:
        memoryview(data)  # type: ignore[arg-type]  # whether it is a buffer is the question
    except TypeError:  # neither text nor a buffer
        is_json = isinstance(data, dict | list | tuple | int | float | None)
        todo = "use publish_json" if is_json else "encode it first, such as with json.dumps"
        raise UsageError(
            f"data is bytes, bytearray, memoryview or str, not {type(data).__name__}: {todo}"
        ) from None


def as_bytes(data: Payload) -> bytes:
    """A payload as the bytes to send.

    Raises:
        UsageError: It is neither text nor bytes.
    """
    if not isinstance(data, bytes):
        check_payload(data)  # bytes(5) would be five zeros
    return data.encode() if isinstance(data, str) else bytes(data)


# A header may be cut at a `}` within a value: then the password has no closing quote.
_PASSWORD: Final = re.compile(r'("(?:pw|password)"\s*:\s*")(?:[^"\\]|\\.)*')


def shown_header(head: bytes) -> str:
    """A header as text, the password masked."""
    return _PASSWORD.sub(r"\1***", head.decode("utf-8", "backslashreplace"))


# -- the lenient parser ------------------------------------------------------

_QUOTED: Final = rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_START: Final = re.compile(rb"[ \t\r\n]*+\{?")
_NAME: Final = re.compile(
    rb"[ \t\r\n,]*+(?:" + _QUOTED + rb"|([^ \t\r\n\"{}\[\]:,]++))[ \t\r\n]*+:[ \t\r\n]*+", re.DOTALL
)
_VALUE: Final = re.compile(
    rb"(?:" + _QUOTED + rb"|((?:[^\"{}\[,][^,}]*+)?+))[ \t\r\n]*+(?=[,}])", re.DOTALL
)
_END: Final = re.compile(rb"[ \t\r\n,]*+\}")
_ESCAPE: Final = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))",
    re.DOTALL,
)
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LARGEST: Final = 2**64 - 1
_MOST_DIGITS: Final = 20


MAX_FIELDS: Final = 1000
"""Fields of a header that is read leniently; a million of them would take two seconds."""


def parse_header(data: bytes, start: int = 0) -> tuple[HeaderFields, int]:
    """Read the header that begins at `start`: its fields, and where it ends.

    Raises:
        ProtocolError: No header begins there, or it has too many fields.
    """
    fields: HeaderFields = {}
    count = 0
    position = _match(_START, data, start).end()
    while (end := _END.match(data, position)) is None:
        name = _match(_NAME, data, position)
        value = _match(_VALUE, data, name.end())
        position = value.end()
        count += 1
        if count > MAX_FIELDS:
            raise ProtocolError(f"a header has more than {MAX_FIELDS} fields")
        header = BY_SPELLING.get(header_text(name[1] if name[2] is None else name[2]))
        if header is not None:
            fields[header.attribute] = _value(value, number=header.kind is int)
    return fields, end.end()


def _match(pattern: re.Pattern[bytes], data: bytes, position: int) -> re.Match[bytes]:
    found = pattern.match(data, position)
    if found is None:
        raise ProtocolError(
            f"a header is malformed at its byte {position}: "
            "wanted a name and a value, or the closing brace"
        )
    return found


def _value(found: re.Match[bytes], *, number: bool) -> str | int | None:
    bare: bytes | None = found[2]
    text = header_text(found[1]) if bare is None else header_text(bare.rstrip())
    if number:
        return _number(text)
    return "" if bare is not None and text == "null" else text


def _number(text: str) -> int | None:
    digits = text.lstrip("0") or text[:1]
    if digits.isascii() and digits.isdigit():
        number = int(digits) if len(digits) <= _MOST_DIGITS else _LARGEST + 1
        return number if number <= _LARGEST else None
    try:  # 12.0 and 1e3 are what the typed decoder takes for 12 and 1000
        return msgspec.convert(text, Unsigned | None, strict=False)
    except (msgspec.MsgspecError, ValueError):  # not a valid number
        return None


def header_text(raw: bytes) -> str:
    """The text of a JSON string without its quotes; bytes that are not UTF-8 become surrogates."""
    text = raw.decode("utf-8", "surrogateescape")
    return _ESCAPE.sub(_unescaped, text) if "\\" in text else text


def _unescaped(found: re.Match[str]) -> str:
    high, low, code, other = found.groups()
    if other is not None:
        return _ESCAPED.get(other, other)
    if high is not None:
        return chr(0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF))
    character = chr(int(code, 16))
    return "\ufffd" if "\ud800" <= character <= "\udfff" else character


# -- frames to messages ------------------------------------------------------

MAX_BATCH_RECORDS: Final = 10_000
"""Most records in a `sow` frame: no server sends more, and without a limit a peer
could make a frame of empty records grow sixtyfold in memory."""

_REFUSED: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class _RecordHead(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The usual header of a record in a batch; a header with more fields is read leniently."""

    l: Unsigned  # noqa: E741  the wire's name for the length of the data
    k: str = ""
    x: str = ""
    ts: str = ""


class MessageDecoder:
    """Reads the headers of frames that `FrameReader.split` has found.

    Args:
        expand_sow: Turn each record of a `sow` frame into a message. A broker sets this to false,
            because the `sow` frames that it receives are requests.
    """

    def __init__(self, *, expand_sow: bool = True) -> None:
        self._expand_sow = expand_sow
        decoder = msgspec.json.Decoder(Message, strict=False)
        self._decode_lines = decoder.decode_lines
        self._decode_one = decoder.decode
        self._decode_record = msgspec.json.Decoder(_RecordHead, strict=False).decode

    def decode(self, heads: list[bytes], bodies: list[bytes]) -> list[Message]:
        """The messages of some frames, in order: one for each frame, or for each record of a `sow`.

        Raises:
            ProtocolError: A header or a batch of records is malformed, even for the lenient parser.
        """
        try:
            messages: list[Message] = self._decode_lines(b"\n".join(heads))
        except _REFUSED:  # one header in the chunk is unusual: read them one by one
            messages = []
        if len(messages) != len(heads):
            messages = list(map(self._decode_alone, heads, bodies))
            return self._expanded(messages) if self._expand_sow else messages
        some_sow = False
        for message, body in zip(messages, bodies, strict=True):
            message.data = body
            if message.kind == "sow":
                some_sow = True
        return self._expanded(messages) if some_sow and self._expand_sow else messages

    def _decode_alone(self, head: bytes, body: bytes) -> Message:
        try:
            message = self._decode_one(head)
        except _REFUSED:  # an unknown or misspelled field
            return _decode_leniently(head, body)
        message.data = body
        return message

    def _expanded(self, messages: list[Message]) -> list[Message]:
        result: list[Message] = []
        for message in messages:
            if message.kind != "sow":
                result.append(message)
            elif self._is_batch(message):
                result.extend(self._records(message))
            elif message.data:
                result.append(message)
        return result

    def _is_batch(self, message: Message) -> bool:
        """Whether the body of a `sow` frame is a batch of records rather than plain data.

        A peer may leave out `bs`. Then the body is a batch if a record header stands at its start
        and the data of that record fits; everything after it must be records, too.
        """
        body = message.data
        if body.lstrip()[:1] != b"{":
            return False
        if message.batch_size is not None:
            return True
        record = Message()
        try:
            start = self._record_header(record, body, 0)
        except ProtocolError:  # data that happens to begin with a brace
            return False
        return record.length is not None and start + record.length <= len(body)

    def _records(self, batch: Message) -> Iterator[Message]:
        body = batch.data
        outer = batch.copy()
        outer.data = b""
        outer.length = None
        position = 0
        count = 0
        while position < len(body):
            count += 1
            if count > MAX_BATCH_RECORDS:
                raise ProtocolError(f"a sow frame has more than {MAX_BATCH_RECORDS} records")
            record = copy.copy(outer)
            start = self._record_header(record, body, position)
            position = start + (record.length or 0)
            if record.length is None or position > len(body):
                raise ProtocolError(
                    f"record {count} of a sow frame of {len(body)} bytes says it has "
                    f"{record.length} bytes, {len(body) - start} are left"
                )
            record.data = body[start:position]
            yield record

    def _record_header(self, record: Message, body: bytes, position: int) -> int:
        """Copy the record header at `position` into `record` and return where its data starts."""
        end = body.find(b"}", position) + 1
        try:
            head = self._decode_record(body[position:end])
        except _REFUSED:  # a record header that only the lenient decoder can read
            fields, end = parse_header(body, position)
            _overlay(record, fields, keep=("kind", "batch_size"))
            return end
        record.length = head.l
        record.sow_key = head.k or record.sow_key
        record.correlation_id = head.x or record.correlation_id
        record.timestamp = head.ts or record.timestamp
        return end


def _decode_leniently(head: bytes, body: bytes) -> Message:
    message = Message()
    try:
        fields, _ = parse_header(head)
        message.data = body
    except ProtocolError:  # a brace inside a string was taken for the end
        if not body:
            raise
        # The first brace was one inside a string.
        fields, end = parse_header(head + body[:MAX_SEARCHED_BYTES])
        message.data = body[end - len(head) :]
    _overlay(message, fields)
    return message


def _overlay(message: Message, fields: HeaderFields, keep: tuple[str, ...] = ()) -> None:
    for attribute, value in fields.items():
        if attribute not in keep:
            setattr(message, attribute, value)
