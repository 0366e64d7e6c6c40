"""SIGKILL of a real subscriber whose worker threads or processes finish out of order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from support.killing import run_and_kill, runs_of

WORK = """
import os, random, time

def work(message):
    for _ in range(random.randrange(4000)):
        pass
    key, sequence = message.sow_key, message.bookmark.split("|")[1]
    os.write(1, b"%s %s\\n" % (key.encode(), sequence.encode()))  # one write: whole lines
"""

SUBSCRIBER = """
import sys
path, seed, kind, folder = sys.argv[1:]
sys.path.insert(0, folder)
import random
import trio
from haclient.protocol.messages import Message
from haclient.stores import LoggedBookmarkStore
from haclient.streams import MessageStream
from haclient.transport.message_queue import MessageQueue
from haclient.workers import ProcessPool, ThreadPool, run_workers
from work_module import work

async def main():
    rng = random.Random(int(seed))
    store = LoggedBookmarkStore(path)
    store.open_for("victim")
    log = store.subscription("s")
    log.begin(acked=False, start=None)
    at = max((b.sequence for b in log.recovery_point()), default=0)
    delivery = MessageQueue(200)

    async def nothing():
        return "s"

    stream = MessageStream(delivery, open_=nothing, close=nothing)
    await stream.open()
    async with trio.open_nursery() as nursery:
        pool = (ProcessPool if kind == "processes" else ThreadPool)(3)
        nursery.start_soon(
            lambda: run_workers(stream, work, pool, key=lambda m: m.sow_key, max_waiting=20)
        )
        while True:
            bookmarks = [f"1|{number}|" for number in range(at + 1, at + 1 + rng.randint(1, 20))]
            at += len(bookmarks)
            numbers = log.log_batch(bookmarks)
            batch = [
                Message(bookmark=b, number=n, owner=log, sow_key=str(int(b[2:-1]) % 7))
                for b, n in zip(bookmarks, numbers) if n
            ]
            if batch:
                delivery.put(batch, len(batch))
            await delivery.drained()
            await trio.lowlevel.checkpoint()

if __name__ == "__main__":
    trio.run(main)
"""


@pytest.mark.timeout(3600)
@pytest.mark.row("MS10")
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_the_recovery_point_of_a_killed_subscriber_passes_no_message_that_was_not_processed(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(10)
    path = tmp_path / "s.bm"
    (tmp_path / "work_module.py").write_text(WORK, encoding="utf-8")
    processed: set[int] = set()
    reached = 0
    for run in range(runs_of(request.config, kinds=2)):
        lines = run_and_kill(SUBSCRIBER, path, run, kind, str(tmp_path), lines=rng.randint(20, 400))
        last: dict[str, int] = {}
        for line in lines:
            key, _, sequence = line.partition(" ")
            assert last.get(key, 0) < int(sequence)  # the order of each key
            last[key] = int(sequence)
            processed.add(int(sequence))
        store = LoggedBookmarkStore(path)
        recovery_point = store.subscription("s").recovery_point()
        point = max((int(str(each).split("|")[1]) for each in recovery_point), default=0)
        store.close()
        assert set(range(1, point + 1)) - processed == set()
        assert point >= reached
        reached = point
    assert reached > 0
