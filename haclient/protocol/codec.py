"""From frames to messages.

The fast path decodes all headers of a chunk with one call: the headers are joined by newlines and
read by msgspec as a sequence of typed objects. Why the count of objects alone tells that each came
from its own frame: every header holds exactly one `}`, its last byte, and nothing that the typed
decoder accepts nests. So as many objects as headers means that each `}` closed an object, and none
stood in a string.

What the fast path refuses is tried header by header, and what is refused even alone is read by the
lenient decoder, which may find that the header's end was a `}` inside a string and that the true
end is further on in the body.

Last, `sow` frames are expanded: their body is a batch of records, each with a header of its own,
and each becomes a message.

The encoders live in `haclient.protocol.encoding`; they are here too, because the two belong
together.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Final

import msgspec

from haclient.errors import ProtocolError
from haclient.protocol.encoding import (
    PUBLISH_TAIL,
    encode_frame,
    encode_header,
    encode_string,
    publish_frame_without_store,
    publish_head,
    sow_batch,
)
from haclient.protocol.lenient import parse_header
from haclient.protocol.messages import Message, Unsigned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from haclient.protocol.lenient import Fields

__all__ = [
    "MAX_BATCH_RECORDS",
    "PUBLISH_TAIL",
    "MessageDecoder",
    "encode_frame",
    "encode_header",
    "encode_string",
    "publish_frame_without_store",
    "publish_head",
    "sow_batch",
]

MAX_BATCH_RECORDS: Final = 10_000
"""Most records in a `sow` frame: no server sends more (protocol 1.2), and without a limit a peer
could make a frame of empty records grow sixtyfold in memory."""

_REFUSED: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class _RecordHead(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The usual header of a record in a batch; whatever has more fields is read leniently."""

    l: Unsigned  # noqa: E741  the wire's name for the length of the data
    k: str = ""
    x: str = ""
    ts: str = ""


class MessageDecoder:
    """Reads the headers of frames that `FrameReader.split` has found.

    Args:
        expand_sow: Make a message of each record of a `sow` frame. A broker says no: what it
            receives under that name are requests.
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
            ProtocolError: A header, or a batch of records, cannot be read by any rule.
        """
        try:
            messages: list[Message] = self._decode_lines(b"\n".join(heads))
        except _REFUSED:
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
        except _REFUSED:
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
        and the data of that record fits; what follows has to be records, too.
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
        """Overlay the record's header at `position` on `record`; where its data starts."""
        end = body.find(b"}", position) + 1
        try:
            head = self._decode_record(body[position:end])
        except _REFUSED:
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
    except ProtocolError:
        if not body:
            raise
        whole = head + body  # the first brace was one inside a string
        fields, end = parse_header(whole)
        message.data = whole[end:]
    _overlay(message, fields)
    return message


def _overlay(message: Message, fields: Fields, keep: tuple[str, ...] = ()) -> None:
    for attribute, value in fields.items():
        if attribute not in keep:
            setattr(message, attribute, value)
