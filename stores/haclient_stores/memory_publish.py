"""A publish store in the memory of the process (PS10): it survives lost links, not the process.

It is the segment log over anonymous memory: the same code as the file store, without checksums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores.errors import StoreLocked
from haclient_stores.files import Region, Writable, anonymous_region
from haclient_stores.publish_log import PublishLog, owned_text
from haclient_stores.segment import Limits, Segment, Space
from haclient_stores.window import PublishWindow

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DEFAULT_MEMORY_BYTES", "DEFAULT_MEMORY_SEGMENT_BYTES", "MemoryPublishStore"]

DEFAULT_MEMORY_BYTES: Final = 2**30
DEFAULT_MEMORY_SEGMENT_BYTES: Final = 2**20
_SPARE_SEGMENTS: Final = 4  # enough to roll without new memory while acks keep up


class _MemorySegment(Segment):
    __slots__ = ("region",)

    def __init__(self, region: Region, *, first: int) -> None:
        super().__init__(first=first, begin=0, size=len(region.view))
        self.region = region

    @property
    @override
    def view(self) -> memoryview:
        return self.region.view

    @property
    @override
    def writable(self) -> Writable:
        return self.region.writable


class _MemorySpace(Space):
    begin = 0

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._spare: list[Region] = []

    @override
    def create(self, first: int, size: int) -> Segment:
        if size == self._segment_bytes and self._spare:
            region = self._spare.pop()
            region.view[:4] = bytes(4)
        else:
            region = anonymous_region(size)
        return _MemorySegment(region, first=first)

    @override
    def release(self, segment: Segment) -> None:
        # What is not kept is unmapped as soon as nobody looks at it any more.
        standard = segment.size == self._segment_bytes
        if standard and len(self._spare) < _SPARE_SEGMENTS and isinstance(segment, _MemorySegment):
            self._spare.append(segment.region)

    @override
    def park(self, segment: Segment) -> None:
        """Memory is where it is."""

    @override
    def seal(self, segment: Segment, end: int, next_sequence: int) -> bool:
        return True

    @override
    def note(self, window: PublishWindow, *, numbering: bool) -> None:
        """The window is in the same memory."""


class MemoryPublishStore(PublishLog):
    """Keeps unpersisted messages in memory (PS1-PS10, PS14).

    Args:
        segment_bytes: Memory is taken in pieces of this size.
        max_bytes: More than this is never taken: `store` then raises `StoreFull`.
        error_on_publish_gap: Whether `reconcile` raises `PublishGap` or only records it (PS9).
        resize_handler: Asked with the new size in bytes before the store grows; False refuses.
    """

    def __init__(
        self,
        *,
        segment_bytes: int = DEFAULT_MEMORY_SEGMENT_BYTES,
        max_bytes: int = DEFAULT_MEMORY_BYTES,
        error_on_publish_gap: bool = False,
        resize_handler: Callable[[int], bool] | None = None,
    ) -> None:
        super().__init__(
            _MemorySpace(segment_bytes),
            PublishWindow(),
            limits=Limits(segment_bytes, max_bytes, resize_handler),
            error_on_publish_gap=error_on_publish_gap,
        )
        self._client_name = ""

    @property
    @override
    def client_name(self) -> str:
        return self._client_name

    @override
    def open_for(self, client_name: str) -> None:
        if self._client_name not in {"", client_name}:
            raise StoreLocked(
                "memory", self._client_name, owned_text(self._client_name, client_name)
            )
        self._client_name = client_name

    @override
    def sync(self) -> None:
        """Memory does not survive the process, so there is nothing to wait for."""

    @override
    def close(self) -> None:
        """Nothing is held but memory; the store may be used again by the next client."""
