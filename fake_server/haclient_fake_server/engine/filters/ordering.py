"""The order of query results: `order_by`.

A comma list of paths, each with ASC (the default) or DESC after it. Comparing strings with numbers
gives no consistent order (`'10' < '9'`, but `9 < 10`), so sorting uses its own: NULL, then numbers,
then strings by their bytes; DESC reverses all of that. The sort is stable.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias, TypeVar

from typing_extensions import override

from haclient.errors import HAClientError
from haclient_fake_server.engine.filters.document import Document, Path
from haclient_fake_server.engine.filters.parser import (
    MAX_FILTER_CHARACTERS,
    FilterError,
    Token,
    TokenKind,
    parse_path,
    tokenize,
)
from haclient_fake_server.engine.filters.values import Number, Value

MAX_FIELDS: Final = 100
"""Each field of an order costs time for each record."""

T = TypeVar("T")
SortKey: TypeAlias = tuple[int, Number, str]


class OrderByError(HAClientError):
    """An `order_by` cannot be parsed.

    Attributes:
        reason: The reason in the failure ack.
        position: Where in the text, in characters from 0.
        expected: What was expected there.
        found: What was found instead.
        detail: The three of them, as the ack of a refusal has them.
    """

    reason: Final = "invalid orderby"

    def __init__(self, position: int, *, expected: str, found: str) -> None:
        super().__init__(
            f"invalid orderby at character {position}: expected {expected}, found {found}"
        )
        self.detail = f"character {position}: expected {expected}, found {found}"
        self.position = position
        self.expected = expected
        self.found = found


class Term(NamedTuple):
    """One path of an order."""

    path: Path
    descending: bool


class Descending(NamedTuple):
    """A sort key in falling order; only ranks of one order are compared with each other."""

    key: SortKey

    @override
    def __lt__(self, other: tuple[object, ...]) -> bool:
        return isinstance(other, Descending) and other.key < self.key

    @override
    def __gt__(self, other: tuple[object, ...]) -> bool:
        return isinstance(other, Descending) and other.key > self.key


Rank: TypeAlias = tuple[SortKey | Descending, ...]


class OrderBy(NamedTuple):
    """A parsed order; false when it asks for none."""

    terms: tuple[Term, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms)

    def rank(self, document: Document) -> Rank:
        """Where a body belongs: bodies in this order have rising ranks."""
        return tuple(
            Descending(_sort_key(document.first(path)))
            if descending
            else _sort_key(document.first(path))
            for path, descending in self.terms
        )

    def sort(self, items: Iterable[T], *, document: Callable[[T], Document]) -> list[T]:
        """The items in this order; `document` gives the body of each, and is asked once."""
        rows = [(document(item), item) for item in items]
        for path, descending in reversed(self.terms):
            rows.sort(key=lambda row: _sort_key(row[0].first(path)), reverse=descending)
        return [item for _, item in rows]


def parse_order_by(text: str) -> OrderBy:
    """The order that `text` describes; blank text asks for none.

    Raises:
        OrderByError: The text is not a comma list of paths with ASC or DESC.
    """
    if not text.strip():
        return OrderBy()
    if len(text) > MAX_FILTER_CHARACTERS:
        raise OrderByError(
            MAX_FILTER_CHARACTERS,
            expected=f"at most {MAX_FILTER_CHARACTERS} characters",
            found=str(len(text)),
        )
    try:
        tokens = tokenize(text)
    except FilterError as error:
        raise _translated(error) from error
    return OrderBy(tuple(_terms(tokens)))


def _terms(tokens: list[Token]) -> Iterator[Term]:
    """Read `path [ASC|DESC]` and a comma, until the end comes in place of a comma."""
    waiting = iter(tokens)
    for number in itertools.count(1):
        first = next(waiting)
        if number > MAX_FIELDS:
            raise _wrong(first, f"at most {MAX_FIELDS} fields")
        if first.kind is not TokenKind.PATH:
            raise _wrong(first, "a path such as /a/b")
        path = _path(first)
        token = next(waiting)
        descending = token.word == "DESC"
        if descending or token.word == "ASC":
            token = next(waiting)
        yield Term(path, descending)
        if token.kind is TokenKind.END:
            return
        if token.word != ",":
            raise _wrong(token, "ASC, DESC, a comma or the end")


def _path(token: Token) -> Path:
    try:
        return parse_path(token.text, token.position)
    except FilterError as error:
        raise _translated(error) from error


def _translated(error: FilterError) -> OrderByError:
    return OrderByError(error.position, expected=error.expected, found=error.found)


def _wrong(token: Token, expected: str) -> OrderByError:
    return OrderByError(token.position, expected=expected, found=str(token))


def _sort_key(value: Value) -> SortKey:
    if value is None:
        return (0, 0, "")
    if isinstance(value, str):
        return (2, 0, value)
    return (1, value, "")
