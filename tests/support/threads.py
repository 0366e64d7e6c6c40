"""What the tests of `haclient.blocking` need of threads; see `support.loops`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

__all__ = [
    "at_once",
    "begin",
    "in_other_thread",
    "in_thread",
    "rest_of",
    "result_of",
    "start",
    "until",
]

F = TypeVar("F", bound=Callable[..., None])
T = TypeVar("T")
Running = Future


def in_thread(test: F) -> F:
    """Run a test as it is."""
    return test


def begin(call: Callable[[], T]) -> Running[T]:
    """Make a call in a thread of its own."""
    result: Running[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # whoever asks for the result gets it
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result


def result_of(running: Running[T]) -> T:
    """Wait for the end of such a call."""
    return running.result()


def at_once(*calls: Callable[[], None]) -> None:
    """Make calls in threads of their own, and wait for them."""
    for running in [begin(call) for call in calls]:
        result_of(running)


def in_other_thread(function: Callable[[], T]) -> T:
    """Call a function that blocks, which it may do here."""
    return function()


def start(call: Callable[[], object]) -> None:
    """Make a call, to its end."""
    call()


def rest_of(items: Iterable[T]) -> list[T]:
    """All that follows."""
    return list(items)


def until(condition: Callable[[], object]) -> None:
    """Wait for what has no event."""
    while not condition():
        time.sleep(0.001)  # noqa: TID251  # no loop runs here
