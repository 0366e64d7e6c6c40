"""Progress of long work: a bar on a terminal, nothing on a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Progress", "progress_bar"]


def _ignore(_: object) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where work tells how far it is.

    Attributes:
        tell: Called with how much is done.
        say: Called with a line about what has just happened.
    """

    tell: Callable[[int], None] = _ignore
    say: Callable[[str], None] = _ignore


@contextmanager
def progress_bar(what: str, total: int | None) -> Generator[Progress]:
    """A bar that is drawn only when stderr is a terminal."""
    if not sys.stderr.isatty():
        yield Progress()
        return
    # Loaded only here: a pipe needs none of it.
    from rich.console import Console  # noqa: PLC0415 - 40 ms that only a terminal should pay
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - as above
    from rich.progress import Progress as Bar  # noqa: PLC0415 - as above

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield Progress(
            tell=lambda done: bar.update(task, completed=done),
            say=lambda text: bar.console.print(text, highlight=False),
        )
