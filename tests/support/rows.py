"""Which requirement rows are done, and which tests say that they show them.

Two ways to know the second: from the sources alone (`marked_rows`, which needs no import and so
also counts the tests that this run deselected) and from what pytest collected (`row_index`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from support.sources import tree

__all__ = ["is_row", "marked_rows", "marked_rows_in", "read_rows", "row_index", "row_order"]

_ROW = re.compile(r"[A-Z]+[0-9]+")


def is_row(word: str) -> bool:
    """Letters and a number, such as PS12."""
    return _ROW.fullmatch(word) is not None


def read_rows(path: Path) -> dict[str, str]:
    """Row -> its few words, from a file like tests/rows.txt.

    Raises:
        ValueError: A line has no row, no words, or a row for the second time.
    """
    rows: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            row, _, words = line.partition(" ")
            if not is_row(row) or not words.strip() or row in rows:
                raise ValueError(f"{path.name}, line {number}: {line!r} is not a new row and words")
            rows[row] = words.strip()
    return rows


@cache
def marked_rows(tests: Path) -> frozenset[str]:
    """The rows with which a test below this folder is marked."""
    paths = sorted(tests.rglob("test_*.py"))
    return frozenset(row for path in paths for row in marked_rows_in(tree(path)))


def marked_rows_in(module: ast.Module) -> Iterator[str]:
    """The arguments of every `pytest.mark.row(...)` of a test module, as decorator or elsewhere.

    Also of `[pytest.mark.row(row) for row in ("PS1", "PS2")]`.
    """
    for node in ast.walk(module):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="row"), args=arguments
            ):
                yield from (text for argument in arguments for text in _texts(argument))
            case ast.ListComp(
                elt=ast.Call(func=ast.Attribute(attr="row")),
                generators=[ast.comprehension() as loop],
            ):
                yield from _texts(loop.iter)
            case _:
                pass


def _texts(node: ast.AST) -> Iterator[str]:
    """The text constants of an expression."""
    for child in ast.walk(node):
        match child:
            case ast.Constant(value=str(text)):
                yield text
            case _:
                pass


def row_index(items: Iterable[pytest.Item]) -> dict[str, list[str]]:
    """Row -> the collected tests that carry it, both in a reader's order.

    The cases of one parametrized test are one test here.
    """
    index: dict[str, dict[str, None]] = {}
    for item in items:
        for marker in item.iter_markers("row"):
            for row in marker.args:
                index.setdefault(row, {})[item.nodeid.partition("[")[0]] = None
    return {row: list(index[row]) for row in sorted(index, key=row_order)}


def row_order(row: str) -> tuple[str, int]:
    """Sorts PS2 before PS12."""
    return row.rstrip("0123456789"), int(re.sub(r"\D", "", row) or 0)
