"""A publish store in a directory (PS11), which survives a killed process and a stopped machine.

It is the segment log over mapped files. `publish_log` says what each durability means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores.disk.durable_file import Durability, DurabilityOptions
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.segment import Limits
from haclient_stores.publish_stores.store_directory import Directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from haclient_stores.disk.files import Disk

__all__ = ["DEFAULT_FILE_BYTES", "DEFAULT_FILE_SEGMENT_BYTES", "Durability", "FilePublishStore"]

DEFAULT_FILE_BYTES: Final = 4 * 2**30
DEFAULT_FILE_SEGMENT_BYTES: Final = 4 * 2**20


class FilePublishStore(PublishLog):
    """Keeps unpersisted messages in files (PS1-PS12, PS14, PS20-PS22).

    Args:
        path: The store's directory; created when it is missing.
        segment_bytes: Files are made of this size and recycled.
        max_bytes: More than this is never taken: `store` then raises `StoreFull`.
        durability: What the client waits for; see `publish_log`.
        group_interval_s: How often the client syncs at durability `group`, in seconds.
        error_on_publish_gap: Whether `reconcile` raises `PublishGap` or only records it (PS9).
        resize_handler: Asked with the new size in bytes before the store grows; False refuses.
        truncate_on_close: When nothing waits for an ack, `close` removes all files but a page that
            says how numbers go on, and the next `store` makes them anew (PS24).
        disk: Where files are; another one in simulations.

    Raises:
        StoreLocked: Another process has the store open.
        StoreCorrupt: A file does not match its checksums.
    """

    def __init__(  # noqa: PLR0913  keyword-only settings, each with a default
        self,
        path: str | Path,
        *,
        segment_bytes: int = DEFAULT_FILE_SEGMENT_BYTES,
        max_bytes: int = DEFAULT_FILE_BYTES,
        durability: Durability = "process",
        group_interval_s: float = 0.01,
        error_on_publish_gap: bool = False,
        resize_handler: Callable[[int], bool] | None = None,
        truncate_on_close: bool = False,
        disk: Disk | None = None,
    ) -> None:
        limits = Limits(segment_bytes, max_bytes, resize_handler)
        options = DurabilityOptions(durability, group_interval_s, truncate_on_close)
        self._directory = Directory(path, disk, options, segment_bytes=segment_bytes)
        super().__init__(
            self._directory,
            self._directory.files,
            limits=limits,
            error_on_publish_gap=error_on_publish_gap,
        )

    @property
    @override
    def path(self) -> Path:
        """The store's directory."""
        return self._directory.path

    @property
    def notes(self) -> dict[str, str]:
        """Small texts that belong to the store, such as the line a file publisher started from."""
        return self._directory.notes

    def set_note(self, key: str, value: str) -> None:
        """Keep a text beside the messages; it is on the disk when this returns."""
        self._directory.set_note(key, value)
