"""The thread of a client, for parts of a client that are tested alone."""

from __future__ import annotations

from haclient.transport.tasks import ClientThread


def bound_thread() -> ClientThread:
    """The calling thread, as that of a client that is open."""
    thread = ClientThread()
    thread.bind()
    return thread
