from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from haclient_stores.file_publish import FilePublishStore
from haclient_stores.logged_bookmark import LoggedBookmarkStore

RUNS = 20

PUBLISHER = """
import json, os, random, sys
from haclient_stores.file_publish import FilePublishStore
rng = random.Random(int(sys.argv[2]))
store = FilePublishStore(sys.argv[1], segment_bytes=64 * 1024)
store.open_for("victim")
if not store.last_sequence:
    store.reconcile(seen=0, persisted=0, clock_us=1_000_000)
while True:
    body = bytes([store.last_sequence % 251]) * rng.choice((0, 10, 100, 1000, 70_000))
    number = store.append(b'{"s":', b"}", body)
    os.write(1, b"%d %d\\n" % (number, store.last_persisted))
    if rng.random() < 0.3:
        store.advance(len(store.peek()))
    if rng.random() < 0.1:
        store.discard_up_to(rng.randint(store.last_persisted, number))
    if rng.random() < 0.02:
        store.sync()
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


def run_and_kill(code: str, path: Path, seed: int, *, lines: int) -> list[str]:
    """Let a process work, kill it after so many lines, and return all that it has reported."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(seed)],
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        reported = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        reported += process.stdout.readlines()
    assert reported[0], "the process died by itself"
    return [line.decode().strip() for line in reported if line.endswith(b"\n")]


@pytest.mark.row("PS11")
@pytest.mark.row("PS22")
def test_a_killed_publisher_loses_nothing_that_store_returned_for(tmp_path: Path) -> None:
    rng = random.Random(11)
    path = tmp_path / "p"
    last = 0
    for run in range(RUNS):
        reported = run_and_kill(PUBLISHER, path, run, lines=rng.randint(1, 400))
        numbers = [int(line.split()[0]) for line in reported]
        persisted = max(int(line.split()[1]) for line in reported)
        assert numbers[0] > last, "a number was used twice"
        store = FilePublishStore(path, segment_bytes=64 * 1024)
        assert store.client_name == "victim"
        assert store.last_sequence >= numbers[-1]
        assert store.last_persisted >= persisted
        expected = store.last_persisted + 1
        for sequence, frame in store.replay():
            assert sequence == expected
            expected += 1
            body = frame[frame.index(b"}", 4) + 1 :]
            assert frame[4 : len(frame) - len(body)] == b'{"s":%d}' % sequence
            assert body == bytes([(sequence - 1) % 251]) * len(body)
            assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert expected == store.last_sequence + 1
        last = store.last_sequence
        store.close()


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
