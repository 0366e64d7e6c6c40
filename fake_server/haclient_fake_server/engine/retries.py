"""What is due is done here; and the broker's own work is tried again where it has failed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Final, cast

from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.outbox import Outbox
from haclient_fake_server.engine.timers import Action, Clock
from haclient_stores.errors import StoreCorrupt, StoreError

MAX_ATTEMPTS: Final = 10
"""After so many failures in a row, work of the broker waits for the next start. Failures of the
disk may pass: then it is tried again without a limit."""

MAX_RETRY_S: Final = 60.0
"""The longest wait before it is tried again; the first is a second, and each doubles it."""

_LONGEST_WAIT: Final = 7
"""The first attempt with that wait behind it."""


class Retries:
    """Runs the deadlines, so that a fault of one does not end the broker.

    Args:
        clock: Has the deadlines.
        outbox: Where faults are reported.
        connections: By number.
    """

    def __init__(self, clock: Clock, outbox: Outbox, connections: Mapping[int, Connection]) -> None:
        self._clock = clock
        self._outbox = outbox
        self._connections = connections
        self._attempts = Counter[Hashable]()  # failures since it was done last, by key

    def run_due(self) -> None:
        """Do what is due. A fault ends the connection that it serves, or it is tried again."""
        timers = self._clock.timers
        for key, action, client in timers.take_due(self._clock.now):
            try:
                action()
            except Exception as error:  # a fault of one deadline must not end the broker
                connection = self._connections.get(client)
                if connection is not None:
                    self._outbox.fail(connection, error)
                elif not client:
                    self.try_again(key, action, error)
            else:
                if self._attempts.pop(key, 0):
                    timers.release(key)

    def try_again(self, key: Hashable, action: Action, error: Exception) -> None:
        """Report a fault in the broker's own work, and try it again after a while.

        Args:
            key: That of its deadline.
            action: What to do.
            error: The fault.
        """
        what, clock = _text_of(key), self._clock
        attempts = self._attempts[key] + 1
        if isinstance(error, StoreError) and not isinstance(error, StoreCorrupt):
            attempts = min(attempts, _LONGEST_WAIT)  # of the disk; damage may be seen after it
        self._attempts[key] = attempts
        wait_s = min(2.0 ** (attempts - 1), MAX_RETRY_S)
        if attempts >= MAX_ATTEMPTS:
            what += f": given up until the next start, after {attempts} attempts"
            wait_s = math.inf
        clock.timers.hold(key, clock.now + wait_s)  # something else may set it meanwhile
        clock.timers.set(key, clock.now, action)
        self._outbox.report_fault(what, error)


def _text_of(key: object) -> str:
    """What a deadline is for."""
    parts = cast("tuple[object, ...]", key) if isinstance(key, tuple) else (key,)
    return " ".join(map(str, parts))
