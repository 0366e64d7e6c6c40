"""SIGKILL of a real publisher at random points, for each kind of store in files."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.hybrid import HybridPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.ring import RingPublishStore
from support.killing import run_and_kill, runs_of

PUBLISHER = """
import json, os, random, sys
from haclient.stores import FilePublishStore, HybridPublishStore, RingPublishStore, StoreFull
rng = random.Random(int(sys.argv[2]))
store = {
    "file": lambda path: FilePublishStore(path, segment_bytes=64 * 1024),
    "ring": lambda path: RingPublishStore(path, 1024 * 1024),
    "hybrid": lambda path: HybridPublishStore(
        path, memory_bytes=128 * 1024, segment_bytes=64 * 1024
    ),
}[sys.argv[3]](sys.argv[1])
store.open_for("victim")
if not store.last_sequence:
    store.reconcile(seen=0, persisted=0, clock_us=1_000_000)
while True:
    body = bytes([store.last_sequence % 251]) * rng.choice((0, 10, 100, 1000, 70_000))
    try:
        number = store.append(b'{"s":', b"}", body)
    except StoreFull:
        store.advance(len(store.peek()))
        store.discard_up_to(store.last_sequence - 1)
        continue
    os.write(1, b"%d %d\\n" % (number, store.last_persisted))
    if rng.random() < 0.3:
        store.advance(len(store.peek()))
    if rng.random() < 0.1:
        store.discard_up_to(rng.randint(store.last_persisted, number))
    if rng.random() < 0.02:
        store.sync()
        os.write(1, b"%d %d %d\\n" % (number, store.last_persisted, number))
"""

OPEN: dict[str, Callable[[Path], PublishLog]] = {
    "file": lambda path: FilePublishStore(path, segment_bytes=64 * 1024),
    "ring": lambda path: RingPublishStore(path, 1024 * 1024),
    "hybrid": lambda path: HybridPublishStore(
        path, memory_bytes=128 * 1024, segment_bytes=64 * 1024
    ),
}


@pytest.mark.row("PS11", "PS13", "PS22")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", OPEN)
def test_a_killed_publisher_loses_nothing_that_its_store_has_promised(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(11)
    path = tmp_path / "p"
    last, left = 0, list[int]()
    for run in range(runs_of(request.config, kinds=len(OPEN))):
        reported = run_and_kill(PUBLISHER, path, run, kind, lines=rng.randint(1, 400))
        lines = [[int(word) for word in line.split()] for line in reported]
        assert lines[0][0] > last, "a number was used twice"
        store = OPEN[kind](path)
        assert store.client_name == "victim"
        assert store.last_sequence >= lines[-1][0]
        assert store.last_persisted >= max(line[1] for line in lines)
        found = [check_frame(sequence, frame) for sequence, frame in store.replay()]
        synced = max([line[2] for line in lines if len(line) == 3], default=0)
        promised = lines[-1][0] if kind != "hybrid" else synced
        # A store in memory skips the numbers that a killed process may have used.
        waiting = [*left, *range(lines[0][0], promised + 1)]
        lowest = max(store.last_persisted + 1, store.lowest_unpersisted)
        waiting = [number for number in waiting if number >= lowest]
        assert found[: len(waiting)] == waiting, "something is missing"
        assert found == sorted(set(found))
        last, left = store.last_sequence, found
        store.close()


def check_frame(sequence: int, frame: bytes) -> int:
    """The frame is whole, and as it was stored; the repeated byte of its body tells its number."""
    start = b'{"s":%d}' % sequence
    body = frame[4 + len(start) :]
    assert frame[4:] == start + body[:1] * len(body)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return sequence
