"""Which requirement rows are done, and which tests say that they show them.

Two ways to know the second: from the sources alone (`marked_rows`, which needs no import and so
also counts the tests that this run deselected) and from what pytest collected (`row_index`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

__all__ = ["expand", "marked_rows", "marked_rows_in", "read_rows", "row_index", "row_order"]

_ROW = re.compile(r"([A-Z]+)([0-9]+)(?:-([A-Z]+)([0-9]+))?")


def expand(word: str) -> list[str]:
    """`PS12` as `["PS12"]`, `PS1-PS3` as `["PS1", "PS2", "PS3"]`."""
    match = _ROW.fullmatch(word)
    if match is None:
        raise ValueError(f"{word!r} is not a row (PS12) and not a range of rows (PS1-PS12)")
    letters, first, other_letters, last = match.groups()
    if last is None:
        return [word]
    if other_letters != letters or int(last) < int(first):
        raise ValueError(f"{word!r} is not a range: both ends need the same letters, in order")
    return [f"{letters}{number}" for number in range(int(first), int(last) + 1)]


def read_rows(path: Path) -> list[str]:
    """The rows that a file like tests/rows.txt lists, in its order."""
    lines = (line.partition("#")[0] for line in path.read_text(encoding="utf-8").splitlines())
    return [row for line in lines for word in line.split() for row in expand(word)]


def marked_rows(tests: Path) -> dict[str, set[Path]]:
    """Row -> test files that mark something with it."""
    found: dict[str, set[Path]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        for row in marked_rows_in(path.read_text(encoding="utf-8")):
            found.setdefault(row, set()).add(path)
    return found


def marked_rows_in(source: str) -> Iterator[str]:
    """The arguments of every `pytest.mark.row(...)` of a test module, as decorator or elsewhere."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="row"), args=arguments
            ):
                yield from (str(ast.literal_eval(argument)) for argument in arguments)
            case _:
                pass


def row_index(items: Iterable[pytest.Item]) -> dict[str, list[str]]:
    """Row -> the collected tests that carry it, both in a reader's order."""
    index: dict[str, list[str]] = {}
    for item in items:
        for marker in item.iter_markers("row"):
            for row in marker.args:
                index.setdefault(row, []).append(item.nodeid)
    return {row: index[row] for row in sorted(index, key=row_order)}


def row_order(row: str) -> tuple[str, int]:
    """Sorts PS2 before PS12."""
    return row.rstrip("0123456789"), int(re.sub(r"\D", "", row) or 0)
