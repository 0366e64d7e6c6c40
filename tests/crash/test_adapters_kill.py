"""SIGKILL of a real process whose recovery points are in SQLite: through an adapter, or its own."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
import trio

from haclient.recovery_points.sqlite import SqliteRecoveryPointAdapter
from haclient_stores.adapters.transactional import TransactionalRecoveryPoint
from haclient_stores.bookmark import BookmarkList
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.killing import run_and_kill, runs_of

ADAPTED = """
import os, random, sys
import trio
from haclient.stores import MemoryBookmarkStore, SqliteRecoveryPointAdapter
from haclient.transport.reporter import Reporter
from haclient.transport.store_maintenance import StoreMaintenance
path, seed = sys.argv[1:]
rng = random.Random(int(seed))

async def main():
    store = MemoryBookmarkStore(SqliteRecoveryPointAdapter(path))
    reporter = Reporter("victim", lambda: 0)
    maintenance = StoreMaintenance(store, reporter=reporter)
    await maintenance.recover("victim")
    log = store.subscription("s")
    log.begin(acked=False, start=None)
    log.entered("east:9007")
    log.completed("")
    at = {p: 0 for p in (1, 2, 3)}
    at.update({b.publisher_id: b.sequence for b in log.recovery_point()})
    now = store.recovery_points
    heard = next((point.caught_up_us for point in now()), 0)
    hands = []
    async with trio.open_nursery() as nursery:
        while True:
            batch = []
            for _ in range(rng.randint(1, 30)):
                p = rng.choice((1, 2, 3))
                at[p] += 1
                batch.append((p, at[p]))
            hands += zip(log.log_batch([f"{p}|{q}|" for p, q in batch]), batch)
            heard += 1
            os.write(1, b"arrived %d %d %d %d\\n" % (heard, *at.values()))
            log.caught_up(heard)
            rng.shuffle(hands)
            while len(hands) > rng.randint(0, 40):
                number, message = hands.pop()
                os.write(1, b"discarded %d|%d|\\n" % message)
                log.discard(number)
            await maintenance.run_due(trio.current_time())
            await trio.sleep(0)

trio.run(main)
"""

TRANSACTIONAL = """
import os, random, sqlite3, sys
from types import SimpleNamespace
from haclient.stores import TransactionalRecoveryPoint
path, seed = sys.argv[1:]
rng = random.Random(int(seed))
connection = sqlite3.connect(path)
connection.execute("pragma synchronous = off")  # what a kill leaves is the same
connection.execute("create table if not exists results (bookmark text)")
store = TransactionalRecoveryPoint(connection)
store.open_for("victim")
log = store.subscription("s")
log.begin(acked=False, start=None)
at = {p: 0 for p in (1, 2, 3)}
at.update({b.publisher_id: b.sequence for b in log.recovery_point()})
hands = []
while True:
    batch = []
    for _ in range(rng.randint(1, 30)):
        p = rng.choice((1, 2, 3))
        at[p] += 1
        batch.append(f"{p}|{at[p]}|")
    hands += [(n, m) for n, m in zip(log.log_batch(batch), batch) if n]
    rng.shuffle(hands)
    while len(hands) > rng.randint(0, 40):
        number, bookmark = hands.pop()
        with connection:
            connection.execute("insert into results values (?)", [bookmark])
            store.save(SimpleNamespace(sub_id="s", bookmark=bookmark))
        os.write(1, b"saved\\n")
        log.discard(number)
"""


@pytest.mark.timeout(3600)
@pytest.mark.row("RP1", "RP6", "RP9")
def test_a_point_is_never_ahead_of_what_was_discarded(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Nor does its time leave out anything that had arrived by then and was not discarded."""
    rng = random.Random(12)
    path = tmp_path / "points.db"
    discarded: set[tuple[int, int]] = set()
    moved = 0
    before: dict[int, int] = {}
    runs = runs_of(request.config)
    for run in range(20 * runs):
        if run >= runs and moved >= runs / 2:
            break
        arrived: dict[int, list[int]] = {}
        for line in run_and_kill(ADAPTED, path, run, lines=rng.randint(50, 6000)):
            what, *rest = line.split()
            if what == "discarded":
                publisher, sequence = rest[0].split("|")[:2]
                discarded.add((int(publisher), int(sequence)))
            else:
                heard, *at = map(int, rest)
                arrived[heard] = at
        store = MemoryBookmarkStore(SqliteRecoveryPointAdapter(path))
        points = trio.run(SqliteRecoveryPointAdapter(path).recover, "victim")
        store.seed(points)
        for point in points:
            newest = {b.publisher_id: b.sequence for b in BookmarkList.parse(point.bookmark)}  # type: ignore[union-attr]  # no times in it
            assert all(newest[each] >= before[each] for each in before)
            for each, last in newest.items():
                assert {(each, n) for n in range(before.get(each, 0) + 1, last + 1)} <= discarded
            for each, last in enumerate(arrived.get(point.caught_up_us, ()), 1):
                assert {(each, n) for n in range(newest.get(each, 0) + 1, last + 1)} <= discarded
            moved += newest != before
            before = newest
    assert moved >= runs / 2, "killed each time before a point was written"


@pytest.mark.timeout(3600)
@pytest.mark.row("BS23", "BS24")
def test_what_a_killed_process_has_saved_and_its_results_are_the_same(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(12)
    path = tmp_path / "results.db"
    for run in range(runs_of(request.config)):
        run_and_kill(TRANSACTIONAL, path, run, lines=rng.randint(1, 400))
        with closing(sqlite3.connect(path)) as connection:
            results = Counter(row[0] for row in connection.execute("select * from results"))
            store = TransactionalRecoveryPoint(connection)
            store.open_for("victim")
            highest = 1 + max(int(mark.split("|")[1]) for mark in results)
            marks = [f"{p}|{n}|" for p in (1, 2, 3) for n in range(1, highest + 1)]
            done = {mark for mark in marks if store.is_discarded("s", mark)}
        assert set(results.values()) == {1}, "each message has its effect once"
        assert done == set(results)
