"""What all our publish stores share: the segment log, spoken to as a `FrameLog`.

A store is this class plus a `Space` that says where segments live. It is a subclass of the log and
not a wrapper around it, because `append` is called for each message and one more call would cost a
fifth of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from haclient_stores.interfaces import FrameLog
from haclient_stores.segments import SegmentLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from haclient_stores.errors import PublishGap
    from haclient_stores.segment import Limits, Space
    from haclient_stores.window import PublishWindow

__all__ = ["PublishLog", "owned_text"]


def owned_text(owner: str, client_name: str) -> str:
    """The reason why a store is refused to a client of another name."""
    return (
        f"belongs to the client {owner!r}, not to {client_name!r}: sequence numbers are counted "
        "for each client name, so use a store of its own for each"
    )


class PublishLog(SegmentLog, FrameLog):
    """A publish store over any space.

    Attributes:
        error_on_publish_gap: Whether `reconcile` raises `PublishGap` or only records it (PS9).
    """

    def __init__(
        self, space: Space, window: PublishWindow, *, limits: Limits, error_on_publish_gap: bool
    ) -> None:
        super().__init__(space, window, limits=limits)
        self.error_on_publish_gap = error_on_publish_gap
        self._gap: PublishGap | None = None

    store = SegmentLog.append  # pyright: ignore[reportAssignmentType]  one function for both

    @property
    @override
    def unpersisted_count(self) -> int:
        return self._window.count

    @property
    @override
    def lowest_unpersisted(self) -> int:
        return self._window.lowest

    @property
    @override
    def last_persisted(self) -> int:
        return self._window.last_persisted

    @property
    @override
    def last_sequence(self) -> int:
        return self._window.last_sequence

    @property
    @override
    def gap(self) -> PublishGap | None:
        return self._gap

    @override
    def replay(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        return self.frames(after)

    @override
    def replay_single(self, sequence: int) -> bytes | None:
        for found, frame in self.frames(sequence - 1):
            return frame if found == sequence else None
        return None

    @override
    def number_above(self, sequence: int) -> None:
        super().number_above(sequence)

    @override
    def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
        """Take over the logon ack.

        Raises:
            PublishGap: The server lacks what was acknowledged, and `error_on_publish_gap` is set.
            StoreError: See `PublishWindow.reconcile`.
        """
        self._gap = self._window.gap(persisted)
        if self._gap is not None and self.error_on_publish_gap:
            raise self._gap
        super().reconcile(seen=seen, persisted=persisted, clock_us=clock_us)
