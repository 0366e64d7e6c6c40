"""A publish store in the memory of the process (PS10): it survives lost links, not the process.

It is the segment log over anonymous memory: the same code as the file store, without checksums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from haclient_stores.publish_stores.home import MemoryHome
from haclient_stores.publish_stores.memory_space import MemorySpace
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.segment import Limits

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DEFAULT_MEMORY_BYTES", "DEFAULT_MEMORY_SEGMENT_BYTES", "MemoryPublishStore"]

DEFAULT_MEMORY_BYTES: Final = 2**30
DEFAULT_MEMORY_SEGMENT_BYTES: Final = 2**20


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
        limits = Limits(segment_bytes, max_bytes, resize_handler)
        super().__init__(
            MemoryHome(),
            MemorySpace(segment_bytes),
            limits=limits,
            error_on_publish_gap=error_on_publish_gap,
        )
