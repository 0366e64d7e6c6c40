"""A reporter for parts of a client that are tested alone."""

from __future__ import annotations

from haclient.transport.events import Events
from haclient.transport.reporter import Reporter


def unheard(clock_us: int = 1_700_000_000_000_000) -> Reporter:
    """A reporter to which nobody listens."""
    return Reporter("c", lambda: clock_us, Events())
