"""A reporter and a connection for parts of a client that are tested alone."""

from __future__ import annotations

from haclient.session.session import Received, Session
from haclient.transport.back_pressure import AckWaits, BackPressure
from haclient.transport.connection import Connection
from haclient.transport.links.link import Link
from haclient.transport.reporter import CallQueue, Reporter
from haclient.transport.writer import SendGate, Writer
from haclient_stores.publish_stores.memory import MemoryPublishStore


def unheard(clock_us: int = 1_700_000_000_000_000) -> Reporter:
    """A reporter to which nobody listens."""
    return Reporter("c", lambda: clock_us)


class _Nobody:
    def received(self, received: Received, /) -> None:
        pass

    def caught_up(self, until: float, *, is_last: bool) -> None:
        pass


def unheard_connection(link: Link, session: Session) -> Connection:
    """A connection of a session; what it receives is passed to nothing else."""
    return Connection(
        link,
        session,
        writer=Writer(link, MemoryPublishStore(), SendGate(1 << 40)),
        owner=_Nobody(),
        back_pressure=BackPressure(AckWaits(), CallQueue()),
    )
