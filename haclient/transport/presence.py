"""When this client was last connected, kept where the next process finds it (design 5).

A process that resumes on another server than the one before needs a time as well as bookmarks: that
server may have messages of a publisher that this client has not heard of, before all that the
bookmarks name. Within one process the time of the loss serves; across processes the bookmark store
keeps it, where it can (`note_alive` and `alive_us`, as the logged store has them).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

import trio

from haclient.errors import StoreError

__all__ = ["RemembersPresence", "alive_since_us", "note_alive_until"]

_NOTE_EVERY_S: Final = 1.0  # well below any sensible overlap
_logger = logging.getLogger(__name__)


@runtime_checkable
class RemembersPresence(Protocol):
    """A bookmark store that keeps a time."""

    @property
    def alive_us(self) -> int:
        """When its client was last connected, in microseconds since 1970; 0 when unknown."""
        ...

    def note_alive(self, now_us: int) -> None:
        """It is connected now."""
        ...


def alive_since_us(store: object, overlap_s: float) -> int:
    """A time before anything that an earlier process may have missed; 0 when nobody knows."""
    if not isinstance(store, RemembersPresence) or not store.alive_us:
        return 0
    return max(1, store.alive_us - int(overlap_s * 1_000_000))


async def note_alive_until(lost: trio.Event, store: object, clock_us: Callable[[], int]) -> None:
    """Note every second that the client is connected; returns when the connection is lost."""
    if not isinstance(store, RemembersPresence):
        await lost.wait()
        return
    while not lost.is_set():
        try:
            store.note_alive(clock_us())
        except StoreError as error:  # an older time is as safe, it only repeats more
            _logger.warning("%s", error)
        with trio.move_on_after(_NOTE_EVERY_S):
            await lost.wait()
