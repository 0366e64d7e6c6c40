"""What waits for synchronous destinations, and for how long."""

from __future__ import annotations

import pytest

from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.publishers import KnownPublisher
from haclient_fake_server.engine.replication.durability import (
    MAX_UNCONFIRMED_RANGES,
    Durability,
    UnconfirmedRange,
)


def waiting() -> Durability:
    durability = Durability()
    durability.waits = True
    return durability


def write(durability: Durability, first: int, after: int, before: int = 0) -> None:
    publisher = KnownPublisher(7)
    publisher.before_batch = before
    durability.written(first, after, [publisher], last=(7, after - 1), now=float(first))


def reach(durability: Durability, position: int, *, end: int) -> bool:
    return durability.advance_confirmed(position, end=end, last=(7, end - 1))


@pytest.mark.row("RE4", "AK6")
def test_an_ack_is_released_when_everything_up_to_its_batch_is_confirmed() -> None:
    durability = waiting()
    connection = Connection(1, peer="test", now=0.0)
    durability.hold(connection, b"one")
    write(durability, 1, 3)
    durability.hold(connection, b"two")
    write(durability, 3, 5)
    assert connection.held == 2
    assert not reach(durability, 1, end=5)
    assert list(durability.released()) == []
    assert reach(durability, 2, end=5)
    assert list(durability.released()) == [(connection, b"one")]
    assert (durability.limit, durability.passed) == (3, (7, 2))
    assert reach(durability, 4, end=5)
    assert list(durability.released()) == [(connection, b"two")]
    assert (durability.limit, connection.held) == (5, 0)


def test_an_ack_without_records_waits_for_those_before_it() -> None:
    durability = waiting()
    connection = Connection(1, peer="test", now=0.0)
    write(durability, 1, 3)
    durability.hold(connection, b"flush")
    durability.written(3, 3, (), last=(7, 2), now=0.0)
    reach(durability, 1, end=3)
    assert list(durability.released()) == []
    reach(durability, 2, end=3)
    assert list(durability.released()) == [(connection, b"flush")]


def test_nothing_waits_for_a_connection_that_has_gone() -> None:
    durability = waiting()
    gone, other = (Connection(number, peer="test", now=0.0) for number in (1, 2))
    durability.forget(gone)
    for connection in (gone, other):
        durability.hold(connection, b"ack")
    write(durability, 1, 2)
    durability.forget(gone)
    reach(durability, 1, end=2)
    assert list(durability.released()) == [(other, b"ack")]


@pytest.mark.row("ID8")
def test_the_highest_sequence_below_those_that_are_not_confirmed_is_known() -> None:
    durability = waiting()
    write(durability, 1, 3, before=10)
    write(durability, 3, 5, before=20)
    assert [
        durability.confirmed_of(KnownPublisher(7)),
        durability.confirmed_of(KnownPublisher(8)),
    ] == [10, 0]
    reach(durability, 2, end=5)
    assert durability.confirmed_of(KnownPublisher(7)) == 20
    reach(durability, 4, end=5)
    assert durability.confirmed_of(KnownPublisher(7)) == 0


@pytest.mark.row("RE5")
def test_when_nothing_is_waited_for_everything_is_confirmed() -> None:
    durability = waiting()
    write(durability, 1, 3)
    durability.waits = False
    assert reach(durability, 0, end=3)
    assert (durability.limit, durability.oldest) == (3, None)
    write(durability, 3, 5)
    assert durability.oldest is None


def test_a_long_outage_makes_confirmation_coarser_and_not_the_queue_longer() -> None:
    durability = waiting()
    for number in range(1, 3 * MAX_UNCONFIRMED_RANGES):
        write(durability, number, number + 1, before=number)
    oldest = durability.oldest
    assert oldest is not None
    assert (oldest.first, oldest.since, durability.confirmed_of(KnownPublisher(7))) == (1, 1.0, 1)
    assert oldest.after > 2
    assert not reach(durability, 1, end=3 * MAX_UNCONFIRMED_RANGES)
    assert reach(durability, oldest.after - 1, end=3 * MAX_UNCONFIRMED_RANGES)
    assert durability.passed == (7, oldest.after - 1)
    assert durability.confirmed_of(KnownPublisher(7)) == oldest.after
    assert reach(durability, 3 * MAX_UNCONFIRMED_RANGES - 1, end=3 * MAX_UNCONFIRMED_RANGES)


@pytest.mark.row("ID8", "RE4")
def test_a_publisher_is_not_forgotten_when_its_range_is_merged_into_another() -> None:
    """Each second batch is of another publisher; no order of merging leaves one out."""
    durability = waiting()
    for number in range(1, 3 * MAX_UNCONFIRMED_RANGES):
        publisher = KnownPublisher(7 + number % 2)
        publisher.before_batch = number
        durability.written(
            number,
            number + 1,
            [publisher],
            last=(publisher.id, number),
            now=float(number),
        )
    assert [durability.confirmed_of(KnownPublisher(each)) for each in (7, 8, 9)] == [2, 1, 0]


@pytest.mark.row("RE11")
def test_it_goes_on_where_it_was() -> None:
    durability = waiting()
    durability.restore([UnconfirmedRange(4, 6, {7: 40}, (7, 41), 0.0)], limit=4, passed=(7, 39))
    assert (durability.limit, durability.passed) == (4, (7, 39))
    assert durability.confirmed_of(KnownPublisher(7)) == 40
    assert not reach(durability, 3, end=6)
    assert reach(durability, 5, end=6)
