from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from haclient_stores.file_publish import FilePublishStore
from haclient_stores.hybrid_publish import HybridPublishStore
from haclient_stores.logged_bookmark import LoggedBookmarkStore
from haclient_stores.publish_log import PublishLog
from haclient_stores.ring_publish import RingPublishStore

RUNS = 20
PUBLISHER_RUNS = 8  # of each kind of store

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

SUBSCRIBER = """
import json, os, random, sys
from haclient_stores.logged_bookmark import LoggedBookmarkStore
rng = random.Random(int(sys.argv[2]))
store = LoggedBookmarkStore(sys.argv[1])
store.open_for("victim")
log = store.subscription("s")
log.begin(acked=False, start=None)
point = {int(b.publisher_id): b.sequence for b in log.recovery_point()}
at = {p: point.get(p, 0) for p in (1, 2, 3)}
hands = []
while True:
    batch = []
    for _ in range(rng.randint(1, 30)):
        p = rng.choice((1, 2, 3))
        at[p] += 1
        batch.append((p, at[p]))
    numbers = list(log.log_batch([f"{p}|{q}|" for p, q in batch]))
    hands += [(n, m) for n, m in zip(numbers, batch) if n]
    rng.shuffle(hands)
    while len(hands) > rng.randint(0, 40):
        number, message = hands.pop()
        log.discard(number)
        os.write(1, b"%d|%d|\\n" % message)
    if rng.random() < 0.05:
        store.prune()
    if rng.random() < 0.05:
        store.sync()
"""


def run_and_kill(code: str, path: Path, seed: int, *others: str, lines: int) -> list[str]:
    """Let a process work, kill it after so many lines, and return all that it has reported."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(seed), *others],
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        reported = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        reported += process.stdout.readlines()
    assert reported[0], "the process died by itself"
    return [line.decode().strip() for line in reported if line.endswith(b"\n")]


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
    last = 0
    for run in range(-(-request.config.getoption("--kills") // len(OPEN)) or PUBLISHER_RUNS):
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
        waiting = range(max(store.last_persisted + 1, store.lowest_unpersisted), promised + 1)
        assert found[: len(waiting)] == list(waiting), "something is missing"
        assert found == sorted(set(found))
        last = store.last_sequence
        store.close()


def check_frame(sequence: int, frame: bytes) -> int:
    """The frame is whole, and as it was stored; the repeated byte of its body tells its number."""
    start = b'{"s":%d}' % sequence
    body = frame[4 + len(start) :]
    assert frame[4:] == start + body[:1] * len(body)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return sequence


@pytest.mark.row("BS14")
@pytest.mark.row("BS16")
def test_a_killed_subscriber_remembers_every_discard_that_returned(tmp_path: Path) -> None:
    rng = random.Random(12)
    path = tmp_path / "s.bm"
    discarded: set[str] = set()
    for run in range(RUNS):
        discarded.update(run_and_kill(SUBSCRIBER, path, run, lines=rng.randint(1, 600)))
        store = LoggedBookmarkStore(path)
        log = store.subscription("s")
        for bookmark in discarded:
            assert log.is_discarded(bookmark), json.dumps(bookmark)
        for item in log.recovery_point():
            publisher, sequence = str(item).split("|")[:2]
            below = {f"{publisher}|{number}|" for number in range(1, int(sequence) + 1)}
            # One discard may have been written and not reported by each of the killed processes.
            assert len(below - discarded) <= run + 1
        store.close()
