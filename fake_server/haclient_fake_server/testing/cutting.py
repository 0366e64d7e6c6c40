"""Where a connection is cut: bytes in, bytes out, and the place among them (row FI1).

A `Lane` is one direction of one connection. It follows the frames from the first byte on, so that a
cut may be armed at any time and still falls where a frame begins. While a cut waits for a frame,
only whole frames pass: whether one is the ack that is waited for is not known before its end.
"""

from __future__ import annotations

from typing import Final

from haclient.errors import HAClientError
from haclient.protocol.codec import MessageDecoder
from haclient.protocol.framing import LENGTH, MAX_FRAME_BYTES, FrameReader
from haclient_fake_server.testing.faults import Cut

__all__ = ["Lane"]

_DECODER: Final = MessageDecoder(expand_sow=False)


class Lane:
    """One direction of one connection, watched for the places of cuts."""

    def __init__(self) -> None:
        self._cuts: list[_Waiting] = []
        self._kept = b""  # of a frame that is not whole, while a cut waits for a frame
        self._left = 0  # of the present frame
        self._length = b""  # of a frame of which not even the length is known

    def arm(self, cut: Cut) -> None:
        """Watch for the place of a cut from here on."""
        self._cuts.append(_Waiting(cut))

    def disarm(self, cut: Cut) -> None:
        """Watch for it no more; nothing happens when it is not armed."""
        self._cuts = [each for each in self._cuts if each.cut is not cut]

    def feed(self, data: bytes | memoryview) -> tuple[bytes, Cut | None]:
        """Take what was sent: what of it arrives now, and the cut that is due after that.

        After a cut the lane is of no more use.
        """
        self._kept += data
        passed: list[bytes] = []
        while piece := self._piece():
            self._kept = self._kept[len(piece) :]
            starts = not (self._left or self._length)
            due = [(each.reached(piece, starts=starts), each.cut) for each in self._cuts]
            for count, cut in sorted(due, key=lambda each: each[0]):
                if count <= len(piece):
                    return b"".join((*passed, piece[:count])), cut
            self._follow(piece)
            passed.append(piece)
        return b"".join(passed), None

    def _piece(self) -> bytes:
        """What passes next in one go: the rest of a frame, a whole one, or anything there is."""
        if all(each.cut.at_byte is not None for each in self._cuts):
            return self._kept
        if self._left or self._length:
            return self._kept[: self._left or LENGTH.size - len(self._length)]
        if len(self._kept) < LENGTH.size:
            return b""
        size = LENGTH.size + LENGTH.unpack_from(self._kept)[0]
        if size > MAX_FRAME_BYTES:  # nothing that the receiver would take: its affair
            return self._kept
        return self._kept[:size] if len(self._kept) >= size else b""

    def _follow(self, data: bytes) -> None:
        """Find out where the frame ends that the end of `data` is in."""
        at, end = 0, len(data)
        while at < end:
            if self._left:
                step = min(self._left, end - at)
                self._left -= step
            else:
                step = min(LENGTH.size - len(self._length), end - at)
                self._length += data[at : at + step]
                if len(self._length) == LENGTH.size:
                    (self._left,) = LENGTH.unpack(self._length)
                    self._length = b""
            at += step


class _Waiting:
    """A cut, and what has passed since it was armed."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self._bytes = 0
        self._frames = 0

    def reached(self, piece: bytes, *, starts: bool) -> int:
        """How much of a piece passes before the cut; more than there is when it is not in there."""
        cut = self.cut
        before, self._bytes = self._bytes, self._bytes + len(piece)
        if cut.at_byte is not None:
            return cut.at_byte - before
        if starts:  # else the frame had begun before the cut was armed
            self._frames += 1
            if cut.in_frame == self._frames:
                return len(piece) // 2
            if cut.in_frame is None and _is_ack(piece, cut.before_ack or cut.after_ack):
                return 0 if cut.before_ack else len(piece)
        return len(piece) + 1


def _is_ack(frame: bytes, kind: str) -> bool:
    try:
        (message,) = _DECODER.decode(*FrameReader().feed(frame))
    except (HAClientError, ValueError):  # not ours to judge, or an empty frame
        return False
    return message.kind == "ack" and kind in {message.ack_type, "*"}
