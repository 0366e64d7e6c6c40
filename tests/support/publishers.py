"""The publish stores that processes are killed with, and that disks fill up under."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.hybrid import HybridPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.ring import RingPublishStore

__all__ = ["OPEN"]

OPEN: dict[str, Callable[[Path], PublishLog]] = {
    "file": lambda path: FilePublishStore(path, segment_bytes=64 * 1024),
    "ring": lambda path: RingPublishStore(path, 1024 * 1024),
    "hybrid": lambda path: HybridPublishStore(
        path, memory_bytes=128 * 1024, segment_bytes=64 * 1024
    ),
}
