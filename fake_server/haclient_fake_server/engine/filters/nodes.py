"""The syntax tree of a filter.

Chains of equal precedence are one node with many parts, not a tree as deep as the chain is long:
`a AND b AND c` is one `AllOf`, and `1 + 2 - 3` one `Chain`. So the depth of a tree is that of the
parentheses, NOTs and signs in the text, and those have a limit. The negated forms (`NOT IN`,
`NOT LIKE` and so on) are `Not` around the positive one, which is how they are defined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from haclient_fake_server.engine.filters.document import Path
from haclient_fake_server.engine.filters.values import Value


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: Value


@dataclass(frozen=True, slots=True)
class Field:
    """The value of a message at a path."""

    path: Path


@dataclass(frozen=True, slots=True)
class Negate:
    """A minus sign."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Chain:
    """Left-to-right arithmetic of one precedence: an operand, then (operator, operand) pairs."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """One of the eight comparison operators."""

    symbol: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Between:
    """Whether an element lies within both limits, limits included."""

    operand: Node
    low: Node
    high: Node


@dataclass(frozen=True, slots=True)
class In:
    """Whether an element equals one of a set."""

    operand: Node
    choices: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """Whether a pattern is found in an element; a raw pattern is plain text."""

    operand: Node
    pattern: str
    raw: bool
    position: int


@dataclass(frozen=True, slots=True)
class Affix:
    """Whether an element begins (or ends) with one of a set of texts."""

    operand: Node
    choices: tuple[Node, ...]
    ends: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether there is no value."""

    operand: Node


@dataclass(frozen=True, slots=True)
class IsNan:
    """Whether the value is the float that is not a number."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Not:
    """Logical negation; of NULL it is NULL."""

    operand: Node


@dataclass(frozen=True, slots=True)
class AllOf:
    """AND: the first part that is not true decides."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """OR: the first part that is not false decides, and NULL is not false."""

    parts: tuple[Node, ...]


Node: TypeAlias = (
    Literal
    | Field
    | Negate
    | Chain
    | Compare
    | Between
    | In
    | Like
    | Affix
    | IsNull
    | IsNan
    | Not
    | AllOf
    | AnyOf
)
