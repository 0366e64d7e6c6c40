"""Finds the official client in programs, and what to change there.

The source is parsed, never run. Names of the module and of its classes are certain: they are looked
up among the imports. A method is found by its name alone, since the class of an object is not
known. Methods that `haclient.compat` lacks or that differ are listed if the program imports the
official client, or `haclient.compat` already.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
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


_STREAMS: Final = frozenset(
    {"execute", "subscribe", "bookmark_subscribe", "delta_subscribe", "sow"}
    | {"sow_and_subscribe", "sow_and_delta_subscribe"}
)
"""The methods that return a stream where no handler is given."""


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
        The findings in the order of the program; none if it imports neither the official client nor
        `haclient.compat`.

    Raises:
        SyntaxError: The text is not Python.
    """
    tree = ast.parse(source)
    imported = _Imported(set(), {})
    found: list[Finding] = []
    for node in ast.walk(tree):
        found.extend(_imports(node, imported))
    if imported.modules or imported.classes:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                found.extend(_attribute(node, imported))
            elif isinstance(node, ast.Name) and _ALL in imported.modules and node.id in _CLASSES:
                found.extend(_of_module(node, node.id))
            elif isinstance(node, ast.For):
                found.extend(_loop(node))
        found.extend(_unclosed(tree))
    return sorted(found)


class _Imported(NamedTuple):
    """What the names of a program stand for.

    Attributes:
        modules: The names of the module, and `*` if all of its names were imported.
        classes: The imported names of the module, by their names in the program.
    """

    modules: set[str]
    classes: dict[str, str]


def _imports(node: ast.AST, imported: _Imported) -> Iterator[Finding]:
    """The imports of the official client; adds what is imported, also from `haclient.compat`."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.partition(".")[0] == _MODULE:
                name = alias.asname or _MODULE
                imported.modules.add(name)
                yield _finding(node, _IMPORT.replace(f"as {_MODULE}", f"as {name}"))
            elif alias.name == haclient.compat.__name__ and alias.asname:
                imported.modules.add(alias.asname)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield from _imports_from(node, imported)


def _imports_from(node: ast.ImportFrom, imported: _Imported) -> Iterator[Finding]:
    names = {alias.asname or alias.name: alias.name for alias in node.names}
    if node.module == "haclient":
        imported.modules.update(name for name, found in names.items() if found == "compat")
        return
    is_official = (node.module or "").partition(".")[0] == _MODULE
    if is_official:
        yield _finding(node, "write `from haclient.compat import ...`")
    if is_official or node.module == haclient.compat.__name__:
        if names.pop(_ALL, ""):
            imported.modules.add(_ALL)
        imported.classes.update(names)
        for name in names.values():
            yield from _of_module(node, name)


def _attribute(node: ast.Attribute, imported: _Imported) -> Iterator[Finding]:
    owner = node.value
    if isinstance(owner, ast.Name) and owner.id in imported.modules:
        yield from _of_module(node, node.attr)
        return
    known = _MEMBERS.get(node.attr)
    if known is not None and known.status != "same" and node.attr not in _COMMON:
        yield _of_name(node, known)
        return
    kind = _class(owner, imported)
    if isinstance(kind, type) and not hasattr(kind, node.attr):
        yield _finding(node, f"{kind.__name__}.{node.attr}: haclient.compat has no such name")


def _loop(node: ast.For) -> Iterator[Finding]:
    """Find a loop over an unnamed stream that a `break` leaves."""
    called = node.iter.func if isinstance(node.iter, ast.Call) else None
    if isinstance(called, ast.Attribute) and called.attr in _STREAMS and _has_break(node.body):
        text = (
            f"{called.attr}: after a break the stream is unsubscribed when it is collected; to do "
            f"it at once write `with client.{called.attr}(...) as messages:` around the loop"
        )
        yield _finding(node, text, is_needed=False)


def _has_break(nodes: Iterable[ast.AST]) -> bool:
    """Whether a loop with these statements may be left by a `break` of its own."""
    for node in nodes:
        if isinstance(node, ast.Break):
            return True
        has_own = isinstance(node, ast.For | ast.While | ast.FunctionDef | ast.ClassDef)
        if not has_own and _has_break(ast.iter_child_nodes(node)):
            return True
    return False


def _unclosed(tree: ast.Module) -> Iterator[Finding]:
    """Find each `disconnect` of a program that closes no client."""
    if any(isinstance(node, ast.With) for node in ast.walk(tree)):
        return
    calls = [
        node.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    if any(call.attr == "close" for call in calls):
        return
    text = (
        "disconnect: it releases thread, descriptors and files, and messages that came before can "
        "be discarded no more; to drain first write `client.close()`, or `with AMPS.Client(...) as "
        "client:`"
    )
    for call in calls:
        if call.attr == "disconnect":
            yield _finding(call, text, is_needed=False)


def _class(node: ast.expr, imported: _Imported) -> object:
    """What `haclient.compat` has under this expression; `None` if it is something else."""
    if isinstance(node, ast.Name):
        return getattr(haclient.compat, imported.classes.get(node.id, ""), None)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        is_module = node.value.id in imported.modules
        return getattr(haclient.compat, node.attr, None) if is_module else None
    return None


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
