"""The input rows of a task, with a check that they are complete.

When a part of a plan fails while a task reads its rows (an executor with shuffle blocks is lost, or
a user function raises), Spark ends the stream of rows to the worker. Arrow takes an end between two
batches for the end of the rows, so PySpark's iterator ends as if the rows were complete. Spark
ignores whatever such a task returns, but its publishes stay: in a lane that is published exactly
once, each row would take the sequence number of another one.

A worker gets its rows through a socket, which Spark keeps open for writing until the task returns.
So the rows are incomplete if Spark no longer writes to that socket when they end. PySpark does not
pass the socket to a writer. Therefore every socket of the process is watched, and the check fails
if one of them was open for writing when the rows began and is not when they end. If that was a
connection of the user, closed by its server meanwhile, one attempt of a task fails needlessly.
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
# The other side has stopped writing. Systems other than Linux have one flag for that and a hangup.
_ENDED: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def all_rows(batches: Iterable[T]) -> Iterator[T]:
    """The batches of a task, from the iterator that PySpark passes to a writer, not yet started.

    Raises:
        DisconnectedError: Spark has ended the rows early; the next attempt gets all of them.
    """
    sockets = _sockets()
    open_at_start = sockets - _ended(sockets)
    yield from batches
    if _ended(open_at_start):
        raise DisconnectedError(
            "Spark stopped sending the rows of this task early: an executor that has some of them "
            "was lost, or the plan failed. None of the rows is published; the next attempt gets all"
        )


def _sockets() -> set[int]:
    """The file descriptors of this process that are sockets."""
    found: set[int] = set()
    for number in [int(each.name) for each in _OPEN_FILES.iterdir()]:
        try:
            is_socket = stat.S_ISSOCK(os.fstat(number).st_mode)
        except OSError:  # closed meanwhile: that of the listing itself, or of another thread
            continue
        if is_socket:
            found.add(number)
    return found


def _ended(sockets: set[int]) -> set[int]:
    """Those of the sockets to which the other side does not write any more."""
    poll = select.poll()
    for each in sockets:
        poll.register(each, _ENDED)
    return {number for number, events in poll.poll(0) if events & _ENDED}
