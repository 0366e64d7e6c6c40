"""Finds the official client in programs, and what to change there.

The source is parsed, never run. Names of the module are certain: they are looked up among the
imports. A method is found by its name alone, since the class of an object is not known. Methods
that `haclient.compat` lacks or that differ are listed if the program imports the official client.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

import haclient.compat
from haclient.compat.names import NAMES, Name

_MODULE: Final = "AMPS"
_ALL: Final = "*"  # what imports all names of a module
_IMPORT: Final = f"write `from haclient import compat as {_MODULE}`"
_CLASSES: Final = {each.official: each for each in NAMES if "." not in each.official}
_MEMBERS: Final = {each.official.rpartition(".")[2]: each for each in NAMES if "." in each.official}
# Many other classes have methods with these names, so they are not listed.
_COMMON: Final = frozenset(
    {"ack", "close", "connect", "execute", "get_data", "name", "log", "persisted", "prune"}
    | {"publish", "replay", "reset", "sow", "store", "subscribe", "timeout"}
)


class Finding(NamedTuple):
    """A place in a program that has to be changed, or behaves differently.

    Attributes:
        line: The line, from 1 on.
        column: The column, from 1 on.
        is_needed: Whether the program does not work without the change.
        text: What is found, and what to do.
    """

    line: int
    column: int
    is_needed: bool
    text: str


def findings(source: str) -> list[Finding]:
    """Find what to change in a program, and what behaves differently.

    Args:
        source: The text of the program.

    Returns:
        The findings in the order of the program; none if it does not import the official client.

    Raises:
        SyntaxError: The text is not Python.
    """
    tree = ast.parse(source)
    modules = set[str]()
    found: list[Finding] = []
    for node in ast.walk(tree):
        found.extend(_imports(node, modules))
    if found:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                found.extend(_attribute(node, modules))
            elif isinstance(node, ast.Name) and _ALL in modules and node.id in _CLASSES:
                found.extend(_of_module(node, node.id))
    return sorted(found)


def _imports(node: ast.AST, modules: set[str]) -> Iterator[Finding]:
    """The imports of the official client; adds the names of the module, or `*`, to `modules`."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.partition(".")[0] == _MODULE:
                modules.add(alias.asname or _MODULE)
                yield _finding(
                    node, _IMPORT.replace(f"as {_MODULE}", f"as {alias.asname or _MODULE}")
                )
    elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == _MODULE:
        yield _finding(node, "write `from haclient.compat import ...`")
        for alias in node.names:
            if alias.name == _ALL:
                modules.add(_ALL)
            else:
                yield from _of_module(node, alias.name)


def _attribute(node: ast.Attribute, modules: set[str]) -> Iterator[Finding]:
    if isinstance(node.value, ast.Name) and node.value.id in modules:
        yield from _of_module(node, node.attr)
        return
    known = _MEMBERS.get(node.attr)
    if known is not None and known.status != "same" and node.attr not in _COMMON:
        yield _of_name(node, known)


def _of_module(node: ast.expr | ast.stmt, name: str) -> Iterator[Finding]:
    known = _CLASSES.get(name)
    if known is not None and known.status != "same":
        yield _of_name(node, known)
    elif known is None and name not in haclient.compat.__all__:
        yield _finding(node, f"{name}: haclient.compat has no such name")


def _of_name(node: ast.expr | ast.stmt, known: Name) -> Finding:
    if known.status == "absent":
        return _finding(node, f"{known.official}: {known.note}; in haclient: {known.native}")
    return _finding(node, f"{known.official}: {known.note}", is_needed=False)


def _finding(node: ast.expr | ast.stmt, text: str, *, is_needed: bool = True) -> Finding:
    return Finding(node.lineno, node.col_offset + 1, is_needed, text)
