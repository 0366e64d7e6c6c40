"""A publish store in a directory, which survives a killed process and a stopped machine.

It is the segment log over mapped files. `publish_log` explains each durability, and
`publish_store_size` computes how large a store has to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from typing_extensions import override

from haclient_stores.disk.durable_file import Durability, DurabilityOptions
from haclient_stores.disk.files import Disk
from haclient_stores.errors import UsageError
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.segment_file import SEAL_BYTES
from haclient_stores.publish_stores.segment_log import Limits
from haclient_stores.publish_stores.store_directory import StoreDirectory

__all__ = [
    "DEFAULT_FILE_BYTES",
    "DEFAULT_FILE_SEGMENT_BYTES",
    "Durability",
    "FilePublishStore",
    "StoreSize",
    "publish_store_size",
]

DEFAULT_FILE_BYTES: Final = 4 * 2**30
DEFAULT_FILE_SEGMENT_BYTES: Final = 4 * 2**20
# What a frame adds to a body: length, command, topic, sequence, ack; a seal when each is synced.
_HEADER_BYTES: Final = 96 + SEAL_BYTES
_SLACK: Final = 1.25  # a ring has room for new frames once all of a whole eighth are persisted
# The first segment is not wholly persisted yet, the last is not full yet, and a third does not fit.
_PART_FILLED_BYTES: Final = 3 * DEFAULT_FILE_SEGMENT_BYTES


class FilePublishStore(PublishLog):
    """Keeps unpersisted messages in files.

    Args:
        path: The store's directory; created when it is missing.
        segment_bytes: The size of each file; files are recycled.
        max_bytes: The maximum size of the store; beyond it `store` raises `StoreFull`.
        durability: What the client waits for; see `publish_log`.
        group_interval_s: How often the client syncs at durability `group`, in seconds.
        error_on_publish_gap: Whether `reconcile` raises `PublishGap` or only records it.
        resize_handler: Asked with the new size in bytes before the store grows; False refuses.
        truncate_on_close: When nothing waits for an ack, `close` removes all files but a page that
            says where numbering continues, and the next `store` creates them again.
        disk: The file system; simulations pass their own.

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
        directory = StoreDirectory(path, disk, options, segment_bytes=segment_bytes)
        super().__init__(
            directory, directory, limits=limits, error_on_publish_gap=error_on_publish_gap
        )
        self._files = directory

    @property
    @override
    def path(self) -> Path:
        """The store's directory."""
        return self._files.path

    @property
    def notes(self) -> dict[str, str]:
        """Small texts that belong to the store, such as the line a file publisher started from."""
        return self._files.notes

    def set_note(self, key: str, value: str) -> None:
        """Keep a text beside the messages; it is on the disk when this returns.

        Args:
            key: What it is.
            value: The text.

        Raises:
            UsageError: One of the two is not a text, or another thread uses the store.
            StoreFull: The disk has no room for it.
        """
        self._thread.check()
        self._files.set_note(key, value)


@dataclass(frozen=True, slots=True)
class StoreSize:
    """The size of a publish store.

    Attributes:
        messages: How many messages it has to hold.
        bytes: How many bytes that takes, headers and part-filled segments included: the `max_bytes`
            or `capacity_bytes` of a store.
    """

    messages: int
    bytes: int


def publish_store_size(
    messages_per_second: float,
    message_bytes: float,
    *,
    downgrade_age_s: float,
    check_period_s: float,
) -> StoreSize:
    """The store size that a publisher needs while a sync destination of its server is down.

    The server withholds its acks until it downgrades the destination: when what it has not
    confirmed is older than `downgrade_age_s`, which the server checks every `check_period_s`. A
    store that holds what is published in that time never fills up for that reason. 10 000 messages
    a second, 60 s and 15 s make 750 000 messages.

    Args:
        messages_per_second: The highest rate that lasts so long.
        message_bytes: The average body.
        downgrade_age_s: The server's limit, in seconds.
        check_period_s: How often the server checks that, in seconds.

    Raises:
        UsageError: A rate, a size or a time is not a number, negative or not finite, or the
            store would be larger than anything.
    """
    given = (messages_per_second, message_bytes, downgrade_age_s, check_period_s)
    if not all(_is_possible(value) for value in given):
        raise UsageError(f"rates, sizes and times are finite and not negative, not {given}")
    try:
        messages = math.ceil(messages_per_second * (downgrade_age_s + check_period_s))
        filled = math.ceil(messages * (message_bytes + _HEADER_BYTES) * _SLACK)
    except OverflowError:
        raise UsageError(f"no store is as large as {given} ask for") from None
    return StoreSize(messages, filled + _PART_FILLED_BYTES)


def _is_possible(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
