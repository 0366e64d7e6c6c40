"""A message body as the filter language sees it: paths that hold values.

The body is parsed once, when the first filter asks, and each path is looked up once; all filters,
keys and orders of one message share its `Document`. A body that is damaged, or of a message type
without fields, has none, so all its paths are NULL (see `bodies`).

Nested objects become paths. Arrays have no level of their own: `{"C": [{"x": 1}, {"x": 2}]}` holds
`/C/x` = 1, 2. A subscript selects from the values that its own step has collected, so `/C[1]/x` and
`/C/x[1]` are both 2. An object has no value; true and false are 1 and 0. A key that is given twice
in one object counts once, with its last value. Bytes count as text, other values of MessagePack
that JSON does not have are NULL; its maps have fields with names that are text.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Final, NamedTuple

from haclient_fake_server.engine.filters.bodies import Json, parse_json, parser_of
from haclient_fake_server.engine.filters.values import Value, normal


class Step(NamedTuple):
    """One level of a path: a field name and the subscript after it, if any."""

    name: str
    subscript: int | None = None


class Path(NamedTuple):
    """An absolute path: its canonical text, which identifies it, and its levels."""

    text: str
    steps: tuple[Step, ...]


class _NotYet:
    """Placeholder for a body that was not parsed yet."""


_NOT_YET: Final = _NotYet()


class Document:
    """One message body, parsed when the first path is asked for.

    Attributes:
        body: The bytes as they were published.
    """

    __slots__ = ("_parse", "_root", "_values", "body")

    def __init__(self, body: bytes, message_type: str = "json") -> None:
        self.body: Final = body
        self._parse: Final = parser_of(message_type)
        self._root: Json | _NotYet = _NOT_YET
        self._values: Final[dict[str, tuple[Value, ...]]] = {}

    @property
    def has_fields(self) -> bool:
        """Whether the body is an object or array; all paths of another are NULL."""
        return isinstance(self._parsed(), dict | list)

    def values(self, path: Path) -> tuple[Value, ...]:
        """All values at `path` in document order; empty when it is missing or an empty array."""
        found = self._values.get(path.text)
        if found is None:
            found = self._values[path.text] = _gather(self._parsed(), path.steps)
        return found

    def first(self, path: Path) -> Value:
        """The first value at `path`, or NULL; what arithmetic and functions use."""
        values = self.values(path)
        return values[0] if values else None

    def key_text(self, path: Path) -> str | None:
        """The first value at `path` as text, by which records are told apart; `None` for NULL.

        `1` and `"1"` are one text, `1` and `1.0` are two. A number that neither a 64-bit integer
        nor a float holds counts as it is written.
        """
        value = self.first(path)
        if isinstance(value, float) and self._parse is parse_json:
            return self._as_written(path, str(value))
        return None if value is None else str(value)

    def _as_written(self, path: Path, value: str) -> str:
        """The text of a float: as it is written where that says more."""
        try:
            root: Json = json.loads(
                self.body.decode("utf-8", "surrogateescape"), parse_int=str, parse_float=str
            )
        except (RecursionError, ValueError):  # deeper than this parser can follow
            return value
        written = str(_gather(root, path.steps)[0])
        try:
            return value if Decimal(written) == Decimal(value) else written
        except ArithmeticError:  # an exponent beyond all decimals
            return written

    def _parsed(self) -> Json:
        if isinstance(self._root, _NotYet):
            self._root = self._parse(self.body)
        return self._root


def _gather(root: Json, steps: tuple[Step, ...]) -> tuple[Value, ...]:
    node = root
    for name, subscript in steps:  # objects alone: almost all there is, in a third of the time
        if subscript is not None or not isinstance(node, dict):
            return _gather_from_arrays(root, steps)
        if name not in node:
            return ()
        node = node[name]
    if isinstance(node, float) or (isinstance(node, str) and node):
        return (node,)  # most values by far: they are `normal` already
    if isinstance(node, list):
        return _gather_from_arrays(root, steps)
    return () if isinstance(node, dict) else (normal(node),)


def _gather_from_arrays(root: Json, steps: tuple[Step, ...]) -> tuple[Value, ...]:
    nodes = _flatten([root])
    for step in steps:
        nodes = _flatten(_children(nodes, step.name))
        if step.subscript is not None:
            nodes = nodes[step.subscript : step.subscript + 1]
    return tuple(normal(node) for node in nodes if not isinstance(node, dict | list))


def _children(nodes: list[Json], name: str) -> list[Json]:
    return [node[name] for node in nodes if isinstance(node, dict) and name in node]


def _flatten(nodes: list[Json]) -> list[Json]:
    """The same nodes with arrays replaced by their elements, however deep.

    Arrays on arrays can be as deep as the JSON parser allows, hence no recursion.
    """
    flat: list[Json] = []
    waiting = nodes[::-1]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(reversed(node))
        else:
            flat.append(node)
    return flat
