"""The frames of replication: commands of this project in the framing of the protocol.

==========================  ===========================================================
`replication_logon`         sender to receiver, first: instance name, credentials, version
`ack` of `replication`      the answer: its instance name, and as body its *vector*: 16 bytes per
                            publisher, id and highest sequence seen, little-endian;
                            `opts` `max_frame=BYTES` is the longest frame that it reads
`replicate`                 sender to receiver: `s` is the position of its last record in the
                            sender's log; the body is data records, marks and removals from
                            queues as in the journal, a topic's definition before its first
                            record on this connection; with `opts` `more` in place of `s`,
                            the next frame continues the body
`ack` of `replicated`       receiver to sender: everything up to the position `s` is written here,
                            except for what the body names: 32 bytes per publisher, its id, the
                            lowest and the highest sequence and the number of the records that
                            the receiver has dropped, as it has later ones
`heartbeat`                 both ways, as between client and server
==========================  ===========================================================

None of these commands is one of the protocol, and a connection that began with `replication_logon`
accepts no other command: neither side can be mistaken for a client.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from typing_extensions import override

from haclient.errors import ProtocolError
from haclient.protocol.codec import encode_frame
from haclient.protocol.framing import MAX_FRAME_BYTES

LOGON: Final = "replication_logon"
REPLICATE: Final = "replicate"
VERSION: Final = "2"
MORE: Final = "more"
_MAX_FRAME: Final = "max_frame="
_HEADER_BYTES: Final = 128
"""The header of a frame of records is shorter."""
_ENTRY: Final = struct.Struct("<QQ")
_MISSING: Final = struct.Struct("<QQQQ")


class Missing(NamedTuple):
    """Records of one publisher that a receiver lacks and has dropped.

    Attributes:
        publisher_id: Id of the publisher.
        first: The lowest of their sequences.
        last: The highest.
        records: How many there are.
    """

    publisher_id: int
    first: int
    last: int
    records: int

    @override
    def __str__(self) -> str:
        if self.first == self.last:
            return f"the record of publisher {self.publisher_id} with the sequence {self.first}"
        return (
            f"{self.records} records of publisher {self.publisher_id}"
            f" with sequences from {self.first} to {self.last}"
        )


def logon(instance: str, *, user: str, password: str, beat_interval_s: float) -> bytes:
    """The first frame of a sender.

    Args:
        instance: Its instance name.
        user: User name, if the address has one.
        password: Password, if the address has one.
        beat_interval_s: Heartbeat interval in seconds, for both sides.
    """
    fields: dict[str, str | int] = {
        "c": LOGON,
        "client_name": instance,
        "opts": f"start,{beat_interval_s:g}",
        "version": VERSION,
    }
    if user:
        fields |= {"user_id": user, "pw": password}
    return encode_frame(fields)


def welcome(
    instance: str, vector: Mapping[int, int], *, max_frame_bytes: int = MAX_FRAME_BYTES
) -> bytes:
    """The answer to a logon: who the receiver is, what it has, and the longest frame it reads."""
    fields: dict[str, str | int] = {
        "c": "ack",
        "a": "replication",
        "status": "success",
        "client_name": instance,
        "version": VERSION,
        "opts": f"{_MAX_FRAME}{max_frame_bytes}",
    }
    return encode_frame(fields, b"".join(map(_ENTRY.pack, vector.keys(), vector.values())))


def refusal(reason: str) -> bytes:
    """The last frame of a receiver that ends the connection."""
    return encode_frame({"c": "ack", "a": "replication", "status": "failure", "reason": reason})


def decode_vector(data: bytes) -> dict[int, int]:
    """By publisher id, the highest sequence that the receiver has seen.

    Raises:
        ProtocolError: The bytes are no vector.
    """
    if len(data) % _ENTRY.size:
        raise ProtocolError(f"a replication vector of {len(data)} bytes: wanted 16 per publisher")
    return dict(_ENTRY.iter_unpack(data))


def decode_max_frame(options: str) -> int:
    """The longest frame that a receiver reads; an older version does not say it.

    Raises:
        ProtocolError: It is not a number.
    """
    if not options.startswith(_MAX_FRAME):
        return MAX_FRAME_BYTES
    size = options.removeprefix(_MAX_FRAME)
    if not (size.isascii() and size.isdecimal()):
        raise ProtocolError(f"{options[:40]!r}: wanted {_MAX_FRAME} and a number of bytes")
    return int(size)


def records(
    parts: Sequence[bytes], position: int, *, max_frame_bytes: int = MAX_FRAME_BYTES
) -> bytes:
    """One frame of records, or several where it would be too long.

    Args:
        parts: Encoded records.
        position: Of the last one, in the sender's log.
        max_frame_bytes: The longest frame that the receiver reads.
    """
    body = b"".join(parts)
    room = max(max_frame_bytes - _HEADER_BYTES, 1)
    last = max(len(body) - 1, 0) // room * room
    frames = [
        encode_frame({"c": REPLICATE, "opts": MORE}, body[at : at + room])
        for at in range(0, last, room)
    ]
    frames.append(encode_frame({"c": REPLICATE, "s": position}, body[last:]))
    return b"".join(frames)


def written(position: int, missing: Iterable[Missing] = ()) -> bytes:
    """The ack of everything that was sent up to a position.

    Args:
        position: In the sender's log.
        missing: Records that were dropped.
    """
    fields: dict[str, str | int] = {
        "c": "ack",
        "a": "replicated",
        "status": "success",
        "s": position,
    }
    return encode_frame(fields, b"".join(_MISSING.pack(*each) for each in missing))


def decode_missing(data: bytes) -> list[Missing]:
    """The records that a receiver has dropped.

    Raises:
        ProtocolError: The bytes are no such list.
    """
    if len(data) % _MISSING.size:
        raise ProtocolError(f"{len(data)} bytes of missing records: wanted 32 per publisher")
    return [Missing(*each) for each in _MISSING.iter_unpack(data)]
