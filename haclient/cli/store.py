"""`haclient store`: look at store files, check them, prune them, take out what they hold (PS23).

All but `prune` change nothing and lock nothing, so a client may have the file in use meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from haclient.cli.exits import ExitCode, complain, exit_code_of, one_line
from haclient.cli.options import json_option, taking
from haclient.cli.progress import Progress, progress_bar
from haclient.cli.storing import entries_of, explanations_of, subscriptions_of, summary_of
from haclient.cli.writing import say
from haclient.errors import HAClientError, UsageError
from haclient.stores import prune as prune_files
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.tools.inspect import size_of, viewed

__all__ = ["store"]

_BIG_BYTES: Final = 16 * 1024 * 1024  # smaller files take no time


@click.group()
def store() -> None:
    """Look at store files, check, prune and export them."""


# Whether a file can be read is told when it is its turn: one that cannot must not stop the others.
_a_path = click.Path(path_type=Path, readable=False)
files_argument = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_a_path)
file_argument = click.argument("file", metavar="FILE", type=_a_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    files: tuple[Path, ...]
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Explained:
    file: Path
    sub_id: str | None
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exported:
    file: Path
    sqlite: Path | None


def _each(files: Iterable[Path], work: Callable[[Path, Callable[[int], None]], None]) -> int:
    """Do something with every file, whatever becomes of the others; the worst exit code."""
    worst = ExitCode.OK
    for path in files:
        try:
            with _progress(path) as progress:
                work(path, progress.tell)
        except (HAClientError, OSError) as error:  # such as a file that may not be read
            known = exit_code_of(error)
            worst = max(worst, ExitCode.FAILURE if known is None else known[0])
            complain(one_line(error))
    return worst


def _progress(path: Path) -> AbstractContextManager[Progress]:
    """A bar where reading takes long enough for one."""
    size = size_of(path) if path.exists() else 0
    return progress_bar(str(path), size) if size > _BIG_BYTES else nullcontext(Progress())


def _told(values: dict[str, Any], text: str, *, as_json: bool) -> None:
    say(msgspec.json.encode(values).decode() if as_json else text)


@store.command()
@files_argument
@json_option
@taking(_Files)
def show(request: _Files) -> int:
    """Say what each file is, whose, and what it holds."""

    def show_one(path: Path, progress: Callable[[int], None]) -> None:
        with viewed(path, progress) as found:
            values, text = summary_of(path, found)
            _told(values, text, as_json=request.as_json)

    return _each(request.files, show_one)


@store.command()
@files_argument
@json_option
@taking(_Files)
def verify(request: _Files) -> int:
    """Read each file from its beginning to its end; fails if one of them is damaged."""

    def verify_one(path: Path, progress: Callable[[int], None]) -> None:
        with viewed(path, progress) as found:
            count = sum(1 for _ in entries_of(found))
            values = {"path": str(path), "ok": True, "entries": count}
            _told(values, f"{path}: whole, {count} entries", as_json=request.as_json)

    return _each(request.files, verify_one)


@store.command()
@files_argument
@json_option
@taking(_Files)
def prune(request: _Files) -> int:
    """Rewrite bookmark logs without what is finished; the form for cron.

    Exit code 75: a client has one of the files in use. The others are pruned nevertheless.
    """

    def prune_one(path: Path, progress: Callable[[int], None]) -> None:
        (done,) = prune_files([path], on_progress=progress)
        values = {
            "path": str(path),
            "before_bytes": done.before_bytes,
            "after_bytes": done.after_bytes,
        }
        text = f"{path}: {done.before_bytes} bytes before, {done.after_bytes} now"
        _told(values, text, as_json=request.as_json)

    return _each(request.files, prune_one)


@store.command()
@file_argument
@click.option("--sub-id", help="Only this subscription. Default: all of them.")
@json_option
@taking(_Explained)
def explain(request: _Explained) -> None:
    """Say what would come again if the process that uses the bookmark store died now."""
    with viewed(request.file) as found:
        if isinstance(found, FilePublishStore):
            raise UsageError(f"{request.file}: explain is for bookmark stores; try show")
        for explanation in explanations_of(found, request.sub_id):
            _told(explanation.as_dict(), str(explanation), as_json=request.as_json)


@store.command()
@file_argument
@click.option(
    "--sqlite",
    metavar="DATABASE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write tables into this SQLite database. Default: JSON objects on standard output.",
)
@taking(_Exported)
def export(request: _Exported) -> None:
    """Take out what a store holds: subscriptions and entries, or unpersisted messages."""
    with viewed(request.file) as found:
        if request.sqlite is None:
            for kind, rows in _tables(found):
                for row in rows:
                    say(msgspec.json.encode({"record": kind, **row}).decode())
        else:
            _write_database(request.sqlite, _tables(found))


def _tables(found: Any) -> Iterator[tuple[str, Iterator[dict[str, Any]]]]:  # noqa: ANN401  # any store
    if isinstance(found, FilePublishStore):
        yield "messages", entries_of(found)
    else:
        yield "subscriptions", subscriptions_of(found)
        yield "entries", entries_of(found)


def _write_database(path: Path, tables: Iterable[tuple[str, Iterator[dict[str, Any]]]]) -> None:
    import sqlite3  # noqa: PLC0415  # these two cost more than all the rest of the command

    from sqlite_utils import Database  # noqa: PLC0415  # as above

    try:
        database = Database(path)
        try:
            with database.atomic():  # interrupted, it leaves what was there before
                for name, rows in tables:
                    database.table(name).drop(ignore=True)
                    database.table(name).insert_all(rows)
        finally:
            database.close()
    except sqlite3.Error as error:
        raise click.ClickException(f"{path}: {error}") from error
