"""Whether a publish is what ends each connection that it is sent on. Pure.

A server that does not take a frame, such as one above its limit, gives no answer: it closes the
connection as soon as it has read the length. A client that keeps what is not persisted sends the
same frame on the next connection, and nothing behind it ever arrives.

A server that fails for another reason looks the same. So before the last try the client sends
nothing for a while: a server that closes this connection too does not mind the frame.
"""

from __future__ import annotations

from typing import Final

MAX_LOSSES: Final = 3
"""Connections in a row that are lost with the same publish in flight before it is rejected."""

QUIET_S: Final = 1.0
"""How long the last of these connections has to last before the publish is sent, in seconds."""

_SOON_S: Final = 5.0  # after the publishes begin: a server that minds a frame closes at once
_SMALL_BYTES: Final = 16 * 1024  # no server has so low a limit


class RejectedFrames:
    """Counts the losses of connections with the same publish in flight."""

    __slots__ = ("_losses", "_sequence")

    def __init__(self) -> None:
        self._sequence = 0
        self._losses = 0

    def note_loss(self, sequence: int, size: int, *, after_s: float) -> None:
        """Note that a server has closed a connection on which publishes were sent.

        Args:
            sequence: The first that it has not acknowledged; 0 if there is none.
            size: The size of its frame, in bytes.
            after_s: How long before that the client began to send publishes, in seconds.
        """
        is_suspicious = sequence and size >= _SMALL_BYTES and after_s <= _SOON_S
        before = self._losses if sequence == self._sequence else 0
        self._sequence, self._losses = sequence, before + 1 if is_suspicious else 0

    def suspects(self, sequence: int) -> bool:
        """Whether one more loss rejects this publish: wait for `QUIET_S` before it is sent."""
        return sequence == self._sequence and self._losses == MAX_LOSSES - 1

    @property
    def is_rejected(self) -> bool:
        """Whether no server takes the publish."""
        return self._losses >= MAX_LOSSES
