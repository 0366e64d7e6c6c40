"""What the log holds."""

from __future__ import annotations

import pytest

from haclient.protocol.identity import publisher_id
from haclient_fake_server.engine import identity
from haclient_fake_server.engine.batch import BatchBuilder
from haclient_fake_server.engine.identity import Publisher
from haclient_fake_server.engine.replication import holdings
from haclient_fake_server.engine.replication.holdings import Holdings
from support.engine import World


def lacking(world: World, publisher: Publisher, sequences: range) -> list[int]:
    batch = BatchBuilder(next_position=world.journal.next_position, next_topic_id=1, now_us=0)
    found = Holdings(world.journal, batch)
    return [sequence for sequence in sequences if found.lacks(publisher, sequence)]


def test_a_publisher_remembers_the_runs_of_its_messages() -> None:
    publisher = Publisher(1)
    for sequence in (5, 6, 7, 10, 10, 11, 20):
        if sequence != publisher.logged + 1:
            publisher.begin_run(sequence)
        publisher.logged = sequence
    assert [publisher.holds(sequence) for sequence in (4, 5, 7, 8, 10, 11, 12, 20, 21)] == [
        None,
        True,
        True,
        False,
        True,
        True,
        False,
        True,
        False,
    ]


def test_of_too_many_runs_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "MAX_RUNS", 4)
    publisher = Publisher(1)
    for sequence in range(2, 22, 2):
        publisher.begin_run(sequence)
        publisher.logged = sequence
    assert publisher.holds(2) is None
    assert [publisher.holds(sequence) for sequence in (16, 17, 18, 19, 20)] == [
        True,
        False,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("chunk_bytes", [1, 256 * 1024])
def test_after_a_restart_the_journal_is_looked_at(
    chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holdings, "CHUNK_BYTES", chunk_bytes)
    world = World()
    peer, other = world.client("p"), world.client("q")
    for sequence in (3, 4, 7, 8, 9, 12):
        peer.publish(sequence)
        other.publish(sequence)
    publisher = Publisher(publisher_id("p"))
    publisher.seen = 12
    assert lacking(world, publisher, range(1, 13)) == [1, 2, 5, 6, 10, 11]
