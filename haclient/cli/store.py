"""The contents of a store, as rows and as text for `haclient store`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import click
import msgspec
import trio

from haclient.cli.options import POSITIVE_NUMBER, FilePath, json_option, with_request
from haclient.cli.output import (
    Progress,
    coloured,
    payload_field,
    print_report,
    print_result,
    progress_bar,
)
from haclient.cli.store_prune import kept_text, prune_in_use, prune_unused
from haclient.cli.termination import ExitCode, print_failure
from haclient.errors import HAClientError, ProtocolError, UsageError
from haclient.protocol.codec import MessageDecoder
from haclient.protocol.framing import FrameReader
from haclient.protocol.messages import Message
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.tools.store_files import (
    BookmarkFile,
    StoreFile,
    parked_files,
    size_of,
    viewed,
)


def subscriptions_of(store: BookmarkFile) -> Iterator[dict[str, Any]]:
    """One row for each subscription."""
    for sub_id, handle in store.subscriptions.items():
        yield {
            "sub_id": sub_id,
            "recovery_point": str(handle.recovery_point()),
            "undiscarded": handle.undiscarded_count,
        }


def entries_of(store: StoreFile) -> Iterator[dict[str, Any]]:
    """One row for each message that is undiscarded, or unpersisted."""
    if isinstance(store, FilePublishStore):
        yield from _messages(store)
    else:
        for sub_id in store.subscriptions:
            for number, bookmark, discarded in store.entries(sub_id):
                yield {
                    "sub_id": sub_id,
                    "number": number,
                    "bookmark": str(bookmark),
                    "discarded": discarded,
                }


def _message(frame: bytes) -> Message:
    """The message in a frame; an empty one if the frame is damaged."""
    with suppress(ProtocolError):
        for message in MessageDecoder().decode(*FrameReader().feed(frame)):
            return message
    return Message(kind="p")


def _messages(store: FilePublishStore) -> Iterator[dict[str, Any]]:
    for sequence, frame in store.replay():
        message = _message(frame)
        yield {
            "sequence": sequence,
            "command": message.kind,
            "topic": message.topic,
            "filter": message.filter,
            **payload_field(message.data),
        }


def summary_of(path: Path, store: StoreFile) -> tuple[dict[str, Any], str]:
    """The type and contents of a store, as values and as text."""
    values: dict[str, Any] = {
        "path": str(path),
        "kind": _kind_of(store),
        "owner": store.client_name,
        "bytes": size_of(path),
    }
    owner = f"client {store.client_name!r}" if store.client_name else "nobody yet"
    head = f"{path}: {values['kind']} store of {owner}, {values['bytes']} bytes"
    if isinstance(store, FilePublishStore):
        values |= {
            "unpersisted": store.unpersisted_count,
            "lowest_unpersisted": store.lowest_unpersisted,
            "last_persisted": store.last_persisted,
            "last_sequence": store.last_sequence,
        }
        text = (
            f"  {store.unpersisted_count} unpersisted, the lowest {store.lowest_unpersisted}; "
            f"last persisted {store.last_persisted}, last sequence {store.last_sequence}"
        )
        parked = [
            {
                "sequence": sequence,
                "topic": _message(frame).topic,
                "bytes": len(frame),
                "path": str(file),
            }
            for sequence, file in parked_files(path).items()
            for frame in [file.read_bytes()]
        ]
        form = "  parked {sequence}: topic {topic!r}, {bytes} bytes, {path}"
        lines = [form.format(**each) for each in parked]
        return {**values, "parked": parked}, "\n".join([head, text, *lines])
    rows = list(subscriptions_of(store))
    form = "  {sub_id}: {recovery_point}, {undiscarded} undiscarded"
    lines = [form.format(**row) for row in rows]
    return {**values, "subscriptions": rows}, "\n".join([head, *lines])


def _kind_of(store: StoreFile) -> str:
    if isinstance(store, FilePublishStore):
        return "publish"
    return "ring bookmark" if isinstance(store, RingBookmarkStore) else "logged bookmark"


_Report: TypeAlias = tuple[dict[str, Any], str]  # as JSON, and as text
_BIG_BYTES: Final = 16 * 1024 * 1024  # smaller files take no time


@click.group()
def store() -> None:
    """Show, check, prune and export store files."""


# Each file is checked when it is opened: one that cannot be read must not stop the others.
_a_path = FilePath(path_type=Path, readable=False)
files_argument = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_a_path)
file_argument = click.argument("file", metavar="FILE", type=_a_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    files: tuple[Path, ...]
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pruned(_Files):
    wait: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dropped:
    file: Path
    sequences: tuple[int, ...]
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Explained:
    file: Path
    sub_id: str | None
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExportedStore:
    file: Path
    sqlite: Path | None


def _each(request: _Files, report: Callable[[Path, Callable[[int], None]], _Report]) -> int:
    """Print a report of every file, whatever becomes of the others; the worst exit code."""
    worst = ExitCode.OK
    for path in request.files:
        try:
            size = size_of(path) if path.exists() else 0
            is_big = size > _BIG_BYTES
            with progress_bar(str(path), size) if is_big else nullcontext(Progress()) as bar:
                print_report(*report(path, bar.update), as_json=request.as_json)
        except (HAClientError, OSError) as error:  # such as a file that may not be read
            worst = max(worst, print_failure(error))
    return worst


@store.command()
@files_argument
@json_option
@with_request(_Files)
def show(request: _Files) -> int:
    """Show the type, owner and contents of each file."""

    def show_one(path: Path, progress: Callable[[int], None]) -> _Report:
        with viewed(path, progress) as found:
            return summary_of(path, found)

    return _each(request, show_one)


@store.command()
@files_argument
@json_option
@with_request(_Files)
def verify(request: _Files) -> int:
    """Read each file to its end; fails if one is damaged."""

    def verify_one(path: Path, progress: Callable[[int], None]) -> _Report:
        with viewed(path, progress) as found:
            count = sum(1 for _ in entries_of(found))
        values = {"path": str(path), "ok": True, "entries": count}
        return values, f"{path}: {coloured('whole', is_good=True)}, {count} entries"

    return _each(request, verify_one)


@store.command()
@files_argument
@click.option(
    "--wait",
    type=POSITIVE_NUMBER,
    metavar="SECONDS",
    help="Have the client that uses a file prune it, and wait for so long. Default: leave it.",
)
@json_option
@with_request(_Pruned)
def prune(request: _Pruned) -> int:
    """Rewrite bookmark logs without what is finished; for cron.

    Exit code 75: a client has one of the files in use, and has not pruned it within --wait. The
    others are pruned nevertheless.
    """

    def prune_one(path: Path, progress: Callable[[int], None]) -> _Report:
        wait_s = request.wait
        if wait_s is None:
            done = prune_unused(path, on_progress=progress)
        else:
            done = trio.run(partial(prune_in_use, path, wait_s=wait_s, on_progress=progress))
        before, after = done.before_bytes, done.after_bytes
        values = {"path": str(path), "before_bytes": before, "after_bytes": after}
        return values, f"{path}: {kept_text(path)}; {before} bytes before, {after} now"

    # A file that is given twice, also by a link, is pruned once.
    once: dict[str, Path] = {}
    for path in request.files:
        once.setdefault(os.path.realpath(path), path)
    return _each(replace(request, files=tuple(once.values())), prune_one)


@store.command("drop-parked")
@file_argument
@click.option(
    "--sequence",
    "sequences",
    type=click.IntRange(1),
    multiple=True,
    metavar="N",
    help="Only this publish; may be given several times. Default: all of them.",
)
@json_option
@with_request(_Dropped)
def drop_parked(request: _Dropped) -> None:
    """Remove the messages that no server took, as `show` lists them.

    A client with on_rejected_frame="park" moves them out of its publish store.
    """
    found = parked_files(request.file)
    for sequence in request.sequences or found:
        if sequence not in found:
            raise UsageError(f"{request.file}: no publish {sequence} is parked beside it; try show")
        found[sequence].unlink()
        values = {"path": str(found[sequence]), "sequence": sequence}
        print_report(values, f"{found[sequence]}: removed", as_json=request.as_json)


@store.command()
@file_argument
@click.option("--sub-id", help="Only this subscription. Default: all of them.")
@json_option
@with_request(_Explained)
def explain(request: _Explained) -> None:
    """Show what would be redelivered if the store's process died now."""
    with viewed(request.file) as found:
        if isinstance(found, FilePublishStore):
            raise UsageError(f"{request.file}: explain is for bookmark stores; try show")
        chosen = list(found.subscriptions) if request.sub_id is None else [request.sub_id]
        for explanation in map(found.explain, chosen):
            print_report(explanation.as_dict(), str(explanation), as_json=request.as_json)


@store.command()
@file_argument
@click.option(
    "--sqlite",
    metavar="DATABASE",
    type=FilePath(path_type=Path, dir_okay=False),
    help="Write tables into this SQLite database. Default: JSON objects on standard output.",
)
@with_request(_ExportedStore)
def export(request: _ExportedStore) -> None:
    """Export the contents of a store as JSON, or to SQLite.

    Those of a bookmark store are subscriptions and entries, those of a publish store messages.
    """
    with viewed(request.file) as found:
        if request.sqlite is None:
            for kind, rows in _tables(found):
                for row in rows:
                    print_result(msgspec.json.encode({"record": kind, **row}).decode())
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
                    database.table(name).insert_all(rows, alter=True)
        finally:
            database.close()
    except sqlite3.Error as error:
        raise click.ClickException(f"{path}: {error}") from error
