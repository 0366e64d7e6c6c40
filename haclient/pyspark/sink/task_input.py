"""The rows of a task, and whether they are all of them.

Where a part of a plan fails while a task reads its rows (an executor is lost that has blocks of the
shuffle, a function of the user raises), Spark ends what it sends to the worker. Arrow takes an end
between two batches for the end of the rows, so PySpark's iterator ends as if these had been all.
Nothing that a task returns then counts, but what it has published stays: in a lane that is
published exactly once, each row would have the place of another one.

A worker gets its rows by a socket, which Spark keeps open for writing until the task has returned.
So rows that have ended while Spark no longer writes to that socket are not all. PySpark does not
give a writer its socket: each that is open in the process is watched, and one counts that was open
for writing when the rows began and is not when they end. Should that be a connection of the user,
which its server has closed meanwhile, then one attempt of a task fails without need.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from haclient.errors import DisconnectedError

T = TypeVar("T")

_OPEN_FILES: Final = Path("/dev/fd")
# The other side writes no more. Systems other than Linux have one flag for that and for a hangup.
_ENDED: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def all_rows(batches: Iterable[T]) -> Iterator[T]:
    """The batches of a task, with an error in place of an end that comes too early.

    Args:
        batches: What PySpark gives to a writer, not yet begun.

    Yields:
        Each of them.

    Raises:
        DisconnectedError: Spark has ended them in the middle. It is for the next attempt.
    """
    sockets = _sockets()
    open_at_start = sockets - _ended(sockets)
    yield from batches
    if _ended(open_at_start):
        raise DisconnectedError(
            "Spark stopped sending the rows of this task in the middle: an executor was lost that "
            "has some of them, or the plan failed. None of them is taken for the whole; the next "
            "attempt of the task gets all"
        )


def _sockets() -> set[int]:
    """The file descriptors of this process that are sockets."""
    found: set[int] = set()
    for number in [int(each.name) for each in _OPEN_FILES.iterdir()]:
        try:
            is_socket = stat.S_ISSOCK(os.fstat(number).st_mode)
        except OSError:  # closed since: that of the listing itself, or one of another thread
            continue
        if is_socket:
            found.add(number)
    return found


def _ended(sockets: set[int]) -> set[int]:
    """Those of some sockets to which the other side writes no more."""
    poll = select.poll()
    for each in sockets:
        poll.register(each, _ENDED)
    return {number for number, events in poll.poll(0) if events & _ENDED}
