"""SIGKILL of a real process at random points, while another thread prunes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from support.killing import run_and_kill, runs_of

SUBSCRIBER = """
import os, random, sys, threading
from haclient.stores import LoggedBookmarkStore, RingBookmarkStore
path, seed, kind = sys.argv[1:]
rng = random.Random(int(seed))
store = LoggedBookmarkStore(path) if kind == "logged" else RingBookmarkStore(path)
store.open_for("victim")
log = store.subscription("s")
log.begin(acked=False, start=None)

def upkeep():
    while True:
        store.prune()
        store.sync()

threading.Thread(target=upkeep, daemon=True).start()
at = {p: 0 for p in (1, 2, 3)}
at.update({b.publisher_id: b.sequence for b in log.recovery_point()})
hands = []
while True:
    batch = []
    for _ in range(rng.randint(1, 30)):
        p = rng.choice((1, 2, 3))
        at[p] += 1
        batch.append((p, at[p]))
    numbers = list(log.log_batch([f"{p}|{q}|" for p, q in batch]))
    hands += [(n, m) for n, m in zip(numbers, batch) if n]
    if kind == "logged":
        rng.shuffle(hands)
    else:
        hands.reverse()
    while len(hands) > rng.randint(0, 40) or (hands and kind == "ring"):
        number, message = hands.pop()
        log.discard(number)
        os.write(1, b"%d|%d|\\n" % message)
"""


@pytest.mark.timeout(3600)
@pytest.mark.row("BS14", "BS15", "BS16")
@pytest.mark.parametrize("kind", ["logged", "ring"])
def test_a_killed_subscriber_remembers_every_discard_while_another_thread_prunes(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(12)
    path = tmp_path / "s.bm"
    discarded: set[str] = set()
    for run in range(runs_of(request.config, kinds=2)):
        discarded.update(run_and_kill(SUBSCRIBER, path, run, kind, lines=rng.randint(1, 600)))
        store = LoggedBookmarkStore(path) if kind == "logged" else RingBookmarkStore(path)
        log = store.subscription("s")
        forgotten = [bookmark for bookmark in discarded if not log.is_discarded(bookmark)]
        assert forgotten == []
        for item in log.recovery_point():
            publisher, sequence = str(item).split("|")[:2]
            below = {f"{publisher}|{number}|" for number in range(1, int(sequence) + 1)}
            # One discard may have been written and not reported by each of the killed processes.
            assert len(below - discarded) <= run + 1
        store.close()
