"""Pruning bookmark logs from outside, such as from cron, while no client has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.checks import check_callable
from haclient_stores.disk.ownership import check_path
from haclient_stores.errors import UsageError
from haclient_stores.tools.inspect import kind_of, size_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Pruned", "prune"]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What became of a file.

    Attributes:
        path: The file.
        before_bytes: Its size before.
        after_bytes: Its size now.
    """

    path: Path
    before_bytes: int
    after_bytes: int


def prune(
    paths: Iterable[str | Path], *, on_progress: Callable[[int], object] | None = None
) -> list[Pruned]:
    """Prune bookmark logs, one after the other; stores that never grow are left as they are.

    Args:
        paths: The files.
        on_progress: Called with the bytes read so far of the file that is pruned.

    Raises:
        StoreLocked: A client has the file in use; those before it are pruned.
        StoreError: There is no store at a path.
        UsageError: One of these is no path, or they are one path; nothing is pruned.
    """
    done: list[Pruned] = []
    check_callable("on_progress", on_progress)
    for path in _checked(paths):
        before_bytes = size_of(path) if path.exists() else 0
        if kind_of(path) is LoggedBookmarkStore:
            store = LoggedBookmarkStore(path, on_progress=on_progress)
            try:
                store.prune()
            finally:
                store.close()
        done.append(Pruned(path, before_bytes, size_of(path)))
    return done


def _checked(paths: object) -> list[Path]:
    """All of them as paths; one alone is refused, for a text would be a path for each letter."""
    if isinstance(paths, (str, bytes)) or not isinstance(paths, Iterable):
        raise UsageError(f"paths is a list of files, not {paths!r}")
    given = cast("Iterable[str | Path]", paths)
    return [check_path(path, "the file of a store") for path in given]
