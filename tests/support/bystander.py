"""A client in a process of its own that publishes to itself all the time, and how long it waits.

`python -m support.bystander URI` answers each line on stdin with the longest round trip since the
last one, in milliseconds. A thread of a test would measure that test's own work, too.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Final, Self

from conformance.wire import Wire
from support.process import python_environment

BETWEEN_S: Final = 0.02
"""From one round trip to the next, so that the bystander is no load itself."""


class Bystander:
    """The process, as a test sees it.

    Args:
        uri: The address of the server.
    """

    def __init__(self, uri: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.bystander", uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=python_environment(),
        )
        self.longest_ms()  # from now on it is connected

    def longest_ms(self) -> float:
        """The longest round trip since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class _Waits:
    """The longest of the waits, one that goes on included."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._longest = 0.0
        self._since: float | None = None

    def begin(self) -> None:
        with self._lock:
            self._since = time.perf_counter()

    def end(self) -> None:
        with self._lock:
            self._longest = max(self._longest, self._waiting())
            self._since = None

    def take(self) -> float:
        with self._lock:
            longest, self._longest = max(self._longest, self._waiting()), 0.0
            return longest

    def _waiting(self) -> float:
        return 0.0 if self._since is None else time.perf_counter() - self._since


def _answer(waits: _Waits) -> None:
    for _ in sys.stdin:
        sys.stdout.write(f"{waits.take() * 1e3}\n")
        sys.stdout.flush()


def main() -> None:
    """Publish until the process is killed."""
    waits = _Waits()
    with Wire(sys.argv[1]) as wire:
        wire.subscribe("bystander")
        threading.Thread(target=_answer, args=(waits,), daemon=True).start()
        pause = threading.Event()  # which nobody sets
        while not pause.wait(BETWEEN_S):
            waits.begin()
            wire.publish("bystander", b"1")
            wire.next_message()
            waits.end()


if __name__ == "__main__":
    main()
