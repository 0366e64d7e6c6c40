"""docs/architecture.md names files and functions: each has to exist under that name."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from haclient.client import HAClient
from haclient.options import ClientOptions, HAOptions
from haclient.session.recovery import Recovery
from support.sources import tree

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\|[^|]*\| `([\w/]+\.py)` \| (`[^|]+`) \|$", re.MULTILINE)
ROWS = [
    (file, name) for file, names in ROW.findall(PAGE) for name in names.strip("`").split("`, `")
]
PATH = re.compile(r"`((?:haclient|stores|fake_server|tests)/[\w/]+(?:\.py)?)`")

LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}


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


CORE = (
    *("*.py", "client", "contrib", "facade", "protocol", "recovery_points", "servers", "session"),
    *("transport", "workers"),
)
"""The folders of the client proper."""


def test_the_client_stays_small() -> None:
    """Ceilings: what needs more takes it from elsewhere, or says why it is worth that."""
    assert len(_modules("*.py")) <= 14
    assert len(_modules("transport")) <= 22
    assert len([name for name in dir(HAClient) if not name.startswith("_")]) <= 48
    assert len(ClientOptions.__annotations__.keys() | HAOptions.__annotations__.keys()) <= 28
    code = {folder: sum(map(_code_lines, _modules(folder))) for folder in CORE}
    pure = code["session"] + code["protocol"]
    assert pure >= 0.45 * (pure + code["transport"] + code["client"])
    assert sum(code.values()) <= 17_700
    assert sum(map(_code_lines, _modules("pyspark"))) <= 7_500
    paths = [path for folder in CORE for path in _modules(folder)]
    assert (
        sum(isinstance(node, ast.Lambda) for path in paths for node in ast.walk(tree(path))) <= 22
    )
    assert sum(map(_comments, paths)) >= 0.05 * sum(code.values())


def _modules(folder: str) -> list[Path]:
    """The modules of a folder of the client, or of its root."""
    pattern = folder if folder.endswith(".py") else f"{folder}/**/*.py"
    return sorted((ROOT / "haclient").glob(pattern))


def _tokens(path: Path) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)


def _code_lines(path: Path) -> int:
    """The lines without docstrings, comments and blanks."""
    lines: set[int] = set()
    for token in _tokens(path):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
            case _:
                pass
    return len(lines)


def _comments(path: Path) -> int:
    return sum(token.type == tokenize.COMMENT for token in _tokens(path))


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
