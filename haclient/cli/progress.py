"""Progress of long work: a bar on a terminal, nothing on a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

__all__ = ["progress_bar"]


def _ignore(_done: int) -> None:
    """Nobody looks."""


@contextmanager
def progress_bar(what: str, total: int | None) -> Generator[Callable[[int], None]]:
    """A function that is told how much is done; it draws only when stderr is a terminal."""
    if not sys.stderr.isatty():
        yield _ignore
        return
    # Loaded only here: a pipe needs none of it.
    from rich.console import Console  # noqa: PLC0415 - 40 ms that only a terminal should pay
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - as above

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)
