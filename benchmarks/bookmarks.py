"""Bookmark stores by themselves: what a message costs, and what a prune takes.

How much memory a prune needs is only told in a process that does nothing else:
`python -m benchmarks.bookmarks FILE` prunes a file and prints its rows as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.blast import PUBLISHER, SUB_ID
from benchmarks.machine import CLIENT_CORE, pin
from benchmarks.scenario import Scenario, Setting, module_process
from haclient.stores import LoggedBookmarkStore, MemoryBookmarkStore, RingBookmarkStore

__all__ = ["SCENARIOS"]

_COUNT = 200_000
_MANY = 16_000
_PRUNED_RECORDS = 10_000_000
_CHUNK = 500  # messages in one chunk of 64 KiB
_LIVE_EVERY = 10_000  # one message in so many stays undiscarded
_Store = LoggedBookmarkStore | MemoryBookmarkStore | RingBookmarkStore


def _log_and_discard(
    store: _Store, count: int, *, publishers: int = 1, acked: bool = False, live_every: int = 0
) -> float:
    """Seconds for so many messages, each discarded in order; publishers take turns."""
    log = store.subscription(SUB_ID)
    log.begin(acked=acked, start=None)
    took = 0.0
    for first in range(1, count + 1, _CHUNK):
        numbers = range(first, first + _CHUNK)
        bookmarks = [f"{PUBLISHER + n % publishers}|{n}|" for n in numbers]
        start = time.perf_counter()
        for number in log.log_batch(bookmarks):
            if not live_every or number % live_every:
                log.discard(number)
        if acked:
            log.persisted(bookmarks[-1])
        took += time.perf_counter() - start
    return took


def _message_rows(setting: Setting) -> dict[str, float]:
    count = max(_CHUNK, int(_COUNT * setting.scale) // _CHUNK * _CHUNK)
    stores: dict[str, _Store] = {
        "memory": MemoryBookmarkStore(),
        "logged": LoggedBookmarkStore(setting.fresh_path()),
        "ring": RingBookmarkStore(setting.fresh_path()),
    }
    rows: dict[str, float] = {}
    for name, store in stores.items():
        rows[f"log and discard, {name}"] = _log_and_discard(store, count) / count * 1e6
        store.close()
    rows["log and discard, logged over memory"] = (
        rows["log and discard, logged"] - rows["log and discard, memory"]
    )
    return rows


def _publisher_rows(setting: Setting) -> dict[str, float]:
    """Many publishers; a ring takes no more of them than `_MANY`."""
    rows: dict[str, float] = {}
    for label, publishers, acked in (
        ("acks", 1, True),
        ("100 publishers", 100, False),
        ("a publisher for each", _MANY, False),
    ):
        count = max(_CHUNK, int(_MANY * setting.scale) // _CHUNK * _CHUNK)
        for name, kind in (("logged", LoggedBookmarkStore), ("ring", RingBookmarkStore)):
            store = kind(setting.fresh_path())
            took = _log_and_discard(store, count, publishers=publishers, acked=acked)
            rows[f"log and discard, {name}, {label}"] = took / count * 1e6
            store.close()
    return rows


def _prune_rows(setting: Setting) -> dict[str, float]:
    """From cron: the file is read, pruned and closed, as `haclient store prune` does."""
    count = max(_CHUNK, int(_PRUNED_RECORDS / 2 * setting.scale) // _CHUNK * _CHUNK)
    path = setting.fresh_path()
    store = LoggedBookmarkStore(path)
    _log_and_discard(store, count, live_every=_LIVE_EVERY)
    store.close()
    process = module_process("benchmarks.bookmarks", str(path))
    out, _ = process.communicate(timeout=600)
    took, grown = json.loads(out)
    return {
        "seconds to prune ten million records": took * _PRUNED_RECORDS / (2 * count),
        "MiB that a prune adds to the process": grown / 1024,
    }


def _peak_kib() -> int:
    """The most memory that this program has had; `ru_maxrss` would count who has started it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    """Prune a file; print the seconds and the KiB that it took."""
    pin(CLIENT_CORE)
    before, start = _peak_kib(), time.perf_counter()
    store = LoggedBookmarkStore(sys.argv[1])
    store.prune()
    store.close()
    took = time.perf_counter() - start
    sys.stdout.write(json.dumps([took, _peak_kib() - before]))


SCENARIOS = [
    Scenario("bookmarks", "us", _message_rows),
    Scenario("publishers", "us", _publisher_rows),
    Scenario("prune", "", _prune_rows),
]

if __name__ == "__main__":
    main()
