"""Just enough of a server to measure a client: it logs everybody on and keeps nothing.

Publishes are walked by their length and answered with one persisted ack per read, which carries
the last whole frame's sequence. A client whose name says so gets no persisted ack at all. A
subscribe is answered with an encoded blast in one piece.
"""

from __future__ import annotations

import json
import socket
import struct

from benchmarks.blast import PUBLISHER, SUB_ID, Blast, frame, incoming

__all__ = ["NO_ACKS", "serve_amps"]

NO_ACKS = "no-acks"
"""A client with this in its name never gets a persisted ack."""

_PERSISTED = b'{"c":"ack","a":"persisted","status":"success","s":%d}'
_BUFFER = bytearray(1 << 20)
_PUBLISH = ord("p")
_COMMAND_AT = 6
"""Where the command's first letter stands: `{"c":"p`."""


class _Conversation:
    """What one connection asks, and the answers."""

    def __init__(self, connection: socket.socket, *, mute: bool) -> None:
        self._connection = connection
        self._mute = mute
        self._acks = not mute
        self._last = 0

    def publishes(self, last: bytearray) -> None:
        """Frames up to this one are publishes: acknowledge them all."""
        header = last[: last.index(b"}")]
        self._last = int(header[header.rindex(b'"s":') + 4 :]) if b'"s":' in header else 0
        if self._acks and self._last:
            self._connection.sendall(frame(_PERSISTED % self._last))

    def control(self, data: bytearray) -> None:
        """Answer one command that is no publish."""
        asked = json.loads(data[: data.index(b"}") + 1])
        match asked["c"]:
            case "logon":
                self._logon(asked)
            case "subscribe":
                self._subscribe(asked)
            case _:
                self._acknowledge(asked, set(str(asked.get("a", "")).split(",")))

    def _say(self, fields: dict[str, str | int]) -> None:
        self._connection.sendall(frame(json.dumps(fields, separators=(",", ":")).encode()))

    def _acknowledge(self, asked: dict[str, str], kinds: set[str], **more: str | int) -> None:
        for kind in ("received", "processed", "completed", "persisted"):
            if kind in kinds:
                said: dict[str, str | int] = {"c": "ack", "a": kind, "status": "success"}
                self._say(said | ({"cid": asked["cid"]} if "cid" in asked else {}) | more)

    def _logon(self, asked: dict[str, str]) -> None:
        name = asked.get("client_name", "")
        self._acks = NO_ACKS not in name and not self._mute
        self._acknowledge(
            asked, {"processed"}, s=0, bm=f"{PUBLISHER}|0|", client_name=name, version="5.3.4.0"
        )

    def _subscribe(self, asked: dict[str, str]) -> None:
        blast, sub_id = Blast.parse(asked["t"]), asked.get("sub_id", SUB_ID)
        kinds = set(asked.get("a", "").split(","))
        self._acknowledge(asked, kinds & {"processed"}, sub_id=sub_id)
        self._connection.sendall(incoming(blast))
        last = f"{PUBLISHER}|{blast.count}|"
        self._acknowledge(asked, kinds & {"completed", "persisted"}, sub_id=sub_id, bm=last)


def _last_alike(buffer: bytearray, start: int, stop: int, end: int) -> tuple[int, int]:
    """First and last byte of the last publish in a row of equally long ones; of this one at least.

    A walk over a million frames would take longer than all that is measured. Whatever stands in
    between and is not of this length leaves no frame's beginning where the last one's has to be.
    """
    size = stop - start + 4
    behind = (end - stop) // size * size
    begins = buffer[start - 4 : start + _COMMAND_AT + 1]
    if buffer[start - 4 + behind : start + behind + _COMMAND_AT + 1] == begins:
        return start + behind, stop + behind
    return start, stop


def serve_amps(connection: socket.socket, first: bytes, *, mute: bool = False) -> None:
    """Serve one client until it goes away; `first` has been read already, `mute` never acks."""
    conversation = _Conversation(connection, mute=mute)
    buffer = _BUFFER  # one connection at a time
    buffer[: len(first)] = first
    view, end, unpack = memoryview(buffer), len(first), struct.Struct(">I").unpack_from
    while True:
        offset, last = 0, -1
        while end - offset >= 4:
            start = offset + 4
            stop = start + unpack(buffer, offset)[0]
            if stop > end:
                break
            if buffer[start + _COMMAND_AT] == _PUBLISH:
                last, stop = _last_alike(buffer, start, stop, end)
            else:
                if last >= 0:
                    conversation.publishes(buffer[last:offset])
                    last = -1
                conversation.control(buffer[start:stop])
            offset = stop
        if last >= 0:
            conversation.publishes(buffer[last:offset])
        buffer[: end - offset] = buffer[offset:end]
        end -= offset
        count = connection.recv_into(view[end:])
        if not count:
            return
        end += count
