"""Prune a store, or have the client that uses it do it: `haclient store prune --wait`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from haclient.errors import StoreError, StoreLocked
from haclient.stores import LoggedBookmarkStore, Pruned, prune
from haclient_stores.bookmark_stores.prune_request import PruneRequest
from haclient_stores.disk.files import RealDisk
from haclient_stores.tools.store_files import size_of, viewed

LOOK_EVERY_S: Final = 0.1
"""How often the answer is looked for; the client looks for requests about once a second."""


def prune_unused(path: Path, *, on_progress: Callable[[int], object] | None = None) -> Pruned:
    """Prune one store that no client has in use.

    Raises:
        StoreLocked: A client has it in use.
        StoreError: There is no store at the path.
    """
    try:
        (done,) = prune([path], on_progress=on_progress)
    except StoreLocked as error:
        if not error.in_this_process:
            error.add_note("--wait SECONDS asks that client to prune it")
        raise
    return done


def kept_text(path: Path) -> str:
    """A text for what a pruned store still holds."""
    with viewed(path) as store:
        if not isinstance(store, LoggedBookmarkStore):
            return "left as it is: a store of this kind has nothing to prune"
        handles = store.subscriptions.values()
        undiscarded = sum(handle.undiscarded_count for handle in handles)
        subscriptions = "1 subscription" if len(handles) == 1 else f"{len(handles)} subscriptions"
        return f"pruned to {undiscarded} undiscarded of {subscriptions}"


async def prune_in_use(
    path: Path, *, wait_s: float, on_progress: Callable[[int], object] | None = None
) -> Pruned:
    """Prune one store; if a client has it in use, have that client do it and wait.

    Args:
        path: The file.
        wait_s: Seconds to wait for the client.
        on_progress: Called with the bytes read so far of a file that is not in use.

    Returns:
        The size of the file before and after.

    Raises:
        StoreLocked: The client has not answered within the time, or belongs to this process.
        StoreError: The client could not prune it: the message has its reason. Or there is no store
            at the path, or no file can be created beside it.
        OSError: There is no file at the path.
    """
    before_bytes = size_of(path)
    request, is_asked = PruneRequest(RealDisk(), path), False
    deadline = trio.current_time() + wait_s
    try:
        while True:
            try:  # again and again, since the client may end meanwhile
                (done,) = prune([path], on_progress=on_progress)
            except StoreLocked as error:
                if error.in_this_process or trio.current_time() >= deadline:
                    raise _unanswered(error, wait_s) if is_asked else error from None
            else:
                return Pruned(path, before_bytes, done.after_bytes)
            if not is_asked:
                request.make()
                is_asked = True
            answer = request.take_answer()
            if answer is not None:
                is_asked = False
                if answer:
                    raise StoreError(f"{path}: the client that has it in use answers: {answer}")
                return Pruned(path, before_bytes, size_of(path))
            await trio.sleep(min(LOOK_EVERY_S, max(0.0, deadline - trio.current_time())))
    finally:
        if is_asked:
            request.withdraw()


def _unanswered(error: StoreLocked, wait_s: float) -> StoreLocked:
    return StoreLocked(
        error.path,
        error.owner,
        f"in use by another process as client {error.owner!r}, which has not pruned it within "
        f"{wait_s:g} s: it may be busy, or stopped, or use a version of haclient that does not "
        "look for requests; wait for longer, or prune when it has ended",
    )
