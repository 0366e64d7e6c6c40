"""docs/architecture.md names files and functions: each has to exist under that name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from haclient.session.recovery import Recovery
from support.sources import tree

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\|[^|]*\| `([\w/]+\.py)` \| (`[^|]+`) \|$", re.MULTILINE)
ROWS = [
    (file, name) for file, names in ROW.findall(PAGE) for name in names.strip("`").split("`, `")
]
PATH = re.compile(r"`((?:haclient|stores|fake_server|tests)/[\w/]+(?:\.py)?)`")


def test_the_page_has_the_paths_of_a_publish_a_message_and_a_record() -> None:
    assert len(ROWS) >= 90
    assert len(ROW.findall(PAGE)) == len(
        re.findall(r"^\|[^|]*\| `[^|`]*\.py` \|", PAGE, re.MULTILINE)
    )


@pytest.mark.parametrize(("file", "name"), sorted(set(ROWS)))
def test_a_named_function_is_in_the_named_file(file: str, name: str) -> None:
    assert name in set(_definitions(tree(ROOT / file)))


@pytest.mark.parametrize("path", sorted(set(PATH.findall(PAGE))))
def test_a_named_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_reconnect_table_has_the_states_in_the_order_of_the_plan() -> None:
    states = re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE)
    assert states == [state.name for state in Recovery]


def test_no_modules_import_each_other_in_a_circle_not_even_for_types() -> None:
    circles = list(_circles(_imports()))
    assert not circles, "\n".join(["", *(" <-> ".join(circle) for circle in circles)])


def test_a_circle_is_found_with_the_names_of_its_modules() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": set[str]()}
    assert list(_circles(graph)) == [["b", "c"]]
    assert list(_circles({**graph, "e": {"a"}})) == [["a", "b", "c", "d", "e"]]


def _imports() -> dict[str, set[str]]:
    """By module of the three packages, the modules of them that it imports, at run time or not."""
    paths: dict[str, Path] = {}
    for package in ("haclient", "stores/haclient_stores", "fake_server/haclient_fake_server"):
        folder = ROOT / package
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            paths[".".join(parts).removesuffix(".__init__")] = path
    return {name: _imported(name, path, set(paths)) for name, path in paths.items()}


def _imported(name: str, path: Path, known: set[str]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        match node:
            case ast.Import(names=names):
                found |= {each.name for each in names}
            case ast.ImportFrom(module=str(module), names=names, level=0):
                inner = {f"{module}.{each.name}" for each in names}
                found |= inner & known
                if not inner <= known:  # a name that is no module belongs to the module itself
                    found.add(module)
            case _:
                pass
    return (found & known) - {name}


def _circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Modules that reach each other, as sorted lists of names."""
    reach = {name: _reachable(graph, name) for name in graph}
    seen: set[str] = set()
    for name in sorted(graph):
        circle = sorted(other for other in reach[name] if name in reach[other])
        if circle and name not in seen:
            seen |= set(circle)
            yield circle


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def _definitions(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{inner.name}"
