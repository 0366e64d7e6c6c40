"""docs/architecture.md names files and functions: each has to exist under that name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from haclient.session.recovery import NEXT

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\|[^|]*\| `(?P<file>[\w/]+\.py)` \| `(?P<name>[\w.]+)` \|$", re.MULTILINE)
PATH = re.compile(r"`((?:haclient|stores|fake_server|tests)/[\w/]+(?:\.py)?)`")


def test_the_page_has_the_paths_of_a_publish_a_message_and_a_record() -> None:
    assert len(ROW.findall(PAGE)) >= 30


@pytest.mark.parametrize(("file", "name"), sorted(set(ROW.findall(PAGE))))
def test_a_named_function_is_in_the_named_file(file: str, name: str) -> None:
    assert name in set(_definitions(ast.parse((ROOT / file).read_text(encoding="utf-8"))))


@pytest.mark.parametrize("path", sorted(set(PATH.findall(PAGE))))
def test_a_named_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_reconnect_table_has_the_states_in_the_order_of_the_plan() -> None:
    states = re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE)
    assert states[:-1] == [state.name for state in NEXT]
    assert states[1:] == [state.name for state in NEXT.values()]


def _definitions(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{inner.name}"
