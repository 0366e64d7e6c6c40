"""Opening stores after a restart, and how large a bookmark record is."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.blast import PUBLISHER, SUB_ID, payload
from benchmarks.scenario import Scenario, Setting
from haclient.stores import FilePublishStore, LoggedBookmarkStore

__all__ = ["SCENARIOS"]

_COUNT = 300_000
_OWNER = "bench"
_HEAD, _TAIL = b'{"c":"p","t":"orders","a":"persisted","s":', b"}"
_MILLION = 1_000_000


def _bytes_below(path: Path) -> int:
    """What a store takes on disk: a file, or all files of a directory."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _publish_rows(setting: Setting) -> dict[str, float]:
    count, path, body = int(_COUNT * setting.scale), setting.fresh_path(), payload(100)
    store = FilePublishStore(path)
    store.open_for(_OWNER)
    store.reconcile(seen=0, persisted=0, clock_us=1_700_000_000_000_000)
    for _ in range(count):
        store.store(_HEAD, _TAIL, body)
    store.close()
    start = time.perf_counter()
    store = FilePublishStore(path)
    took = time.perf_counter() - start
    assert store.unpersisted_count == count
    store.close()
    return {"seconds to recover a million publishes": took * _MILLION / count}


def _bookmark_rows(setting: Setting) -> dict[str, float]:
    count, path = int(_COUNT * setting.scale), setting.fresh_path()
    store = LoggedBookmarkStore(path)
    store.open_for(_OWNER)
    chunk = 1000
    log = store.subscription(SUB_ID)
    log.begin(acked=False, start=None)
    for first in range(1, count + 1, chunk):
        numbers = log.log_batch([f"{PUBLISHER}|{n}|" for n in range(first, first + chunk)])
        for number in numbers:
            log.discard(number)
    store.close()
    records = 2 * (count // chunk) * chunk
    start = time.perf_counter()
    LoggedBookmarkStore(path).close()
    took = time.perf_counter() - start
    return {
        "seconds to recover a million bookmark records": took * _MILLION / records,
        "bytes per bookmark record": _bytes_below(path) / records,
    }


SCENARIOS = [
    Scenario("recovery", "", _publish_rows),
    Scenario("recovery", "", _bookmark_rows),
]
