from __future__ import annotations

from typing import Any, cast

import pytest
import trio

from haclient.errors import UsageError
from haclient_fake_server.testing.faults import Cut, How, Kill, Refuse, Slow
from haclient_fake_server.testing.wires import Wire


class Connection:
    """A connection that writes down what happens to it."""

    def __init__(self) -> None:
        self.open = True
        self.lossy = False
        self.lost: list[How] = []
        self.changes = 0

    def lose(self, how: How) -> None:
        self.lost.append(how)

    def changed(self) -> None:
        self.changes += 1


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def connection(wire: Wire) -> Connection:
    made = Connection()
    wire.join(made)
    return made


def test_a_cut_without_a_place_loses_what_is_open_and_nothing_later(
    wire: Wire, connection: Connection
) -> None:
    wire.apply(Cut(how="end"))
    later = Connection()
    wire.join(later)
    assert (connection.lost, later.lost, wire.waiting) == (["end"], [], ())


@pytest.mark.row("FI1")
def test_a_cut_with_a_place_falls_once_on_whichever_connection_gets_there(
    wire: Wire, connection: Connection
) -> None:
    cut = Cut(how="silence", at_byte=4)
    wire.apply(cut)
    later = Connection()
    wire.join(later)
    assert wire.waiting == (cut,)
    assert wire.feed(connection, "down", b"abc") == (b"abc", None)
    assert wire.feed(later, "up", b"abcdef") == (b"abcdef", None)
    assert wire.feed(later, "down", b"abcdef") == (b"abcd", "silence")
    assert not wire.waiting
    assert wire.feed(connection, "down", b"abcdef") == (b"abcdef", None)


def test_blocking_holds_back_new_connections_until_it_is_healed(
    wire: Wire, connection: Connection
) -> None:
    wire.block("up")
    barrier = wire.barrier
    wire.block("down", dropped=True)
    assert isinstance(barrier, trio.Event)
    assert wire.barrier is barrier
    assert dict(wire.blocked) == {"up": False, "down": True}
    seen = connection.changes
    wire.heal()
    assert barrier.is_set()
    assert wire.barrier is None
    assert not wire.blocked
    assert connection.changes > seen
    wire.heal()


def test_healing_undoes_everything_and_resets_what_has_lost_bytes(
    wire: Wire, connection: Connection
) -> None:
    whole = Connection()
    wire.join(whole)
    connection.lossy = True
    for fault in (Slow(latency_s=1.0), Refuse(), Cut(at_byte=1)):
        wire.apply(fault)
    assert (wire.slow.latency_s, wire.refusing) == (1.0, True)
    wire.heal()
    assert (wire.slow, wire.refusing, wire.waiting) == (Slow(), False, ())
    assert (connection.lost, whole.lost) == (["reset"], [])
    assert wire.feed(whole, "down", b"ab") == (b"ab", None)


def test_connections_that_nobody_has_any_more_are_forgotten(
    wire: Wire, connection: Connection
) -> None:
    assert wire.connections == 1
    connection.open = False
    assert wire.connections == 0
    wire.apply(Cut())
    assert connection.lost == []


@pytest.mark.parametrize("found", ["cut", None, Kill("east")])
def test_what_a_wire_cannot_suffer_is_refused(wire: Wire, found: object) -> None:
    with pytest.raises(UsageError, match=r"wanted a fault, one of Cut, Slow, Refuse$"):
        wire.apply(cast("Any", found))
