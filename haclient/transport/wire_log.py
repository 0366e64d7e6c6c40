"""Frames and states in the log, for bug reports: logger `haclient.wire` at DEBUG.

`> peer header` for each frame that was sent, `< peer header` for each that was received, `= client
state` for each state. Bodies are left out and passwords are replaced. Only connections that were
opened while the level was DEBUG are logged, because frame boundaries are known only from the first
byte on. A connection that is not logged pays one comparison for each chunk.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Final

from haclient.protocol.framing import MAX_FRAME_BYTES, FrameReader

_logger = logging.getLogger("haclient.wire")
# A header may be cut at a `}` within a value: then the password has no closing quote.
_PASSWORD: Final = re.compile(r'("(?:pw|password)"\s*:\s*")(?:[^"\\]|\\.)*')


class WireLog:
    """The frames of one connection."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._sent = FrameReader(MAX_FRAME_BYTES)

    @classmethod
    def if_enabled(cls, peer: str) -> WireLog | None:
        """A log for a new connection, if frames are logged."""
        return cls(peer) if _logger.isEnabledFor(logging.DEBUG) else None

    def received(self, heads: Iterable[bytes]) -> None:
        """Frames with these headers have arrived."""
        for head in heads:
            _logger.debug("< %s %s", self._peer, _shown(head))

    def sent(self, data: memoryview | bytes) -> None:
        """The next bytes have left, in pieces of any size."""
        for head in self._sent.feed(data)[0]:
            _logger.debug("> %s %s", self._peer, _shown(head))


def log_state(client_name: str, state: str) -> None:
    """A client has reached a state."""
    _logger.debug("= %s %s", client_name, state)


def _shown(head: bytes) -> str:
    return _PASSWORD.sub(r"\1***", head.decode("utf-8", "backslashreplace"))
