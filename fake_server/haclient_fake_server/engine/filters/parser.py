"""From tokens to the syntax tree: recursive descent over the filter grammar.

One method per rule, weakest binding first: OR, AND, NOT, comparison, sum, product, sign, primary.
The text has a length limit and the nesting a depth limit, so no text can exhaust the stack; every
error in a text raises `FilterError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

from haclient_fake_server.engine.filters.lexer import FilterError, Kind, Token, parse_path, tokenize
from haclient_fake_server.engine.filters.nodes import (
    Affix,
    AllOf,
    AnyOf,
    Between,
    Chain,
    Compare,
    Field,
    In,
    IsNan,
    IsNull,
    Like,
    Literal,
    Negate,
    Node,
    Not,
)
from haclient_fake_server.engine.filters.values import COMPARISONS, calculate, normal

MAX_FILTER_CHARACTERS: Final = 65_536
"""Longer filters are refused: each message is tested against each filter."""

MAX_NESTING: Final = 40
"""Parentheses, NOTs and signs within one another; each takes some ten frames of the stack."""

_SUMS: Final = {"+": "+", "-": "-"}
_PRODUCTS: Final = {"*": "*", "/": "/", "%": "%", "MOD": "%"}
_CONSTANTS: Final[dict[str, int | None]] = {"NULL": None, "TRUE": 1, "FALSE": 0}
_KEYWORDS: Final = frozenset(
    ("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "BEGINS", "ENDS", "WITH", "IS", "NAN", "MOD")
)


def parse_filter(text: str) -> Node:
    """The syntax tree of `text`.

    Raises:
        FilterError: The text is too long or no filter.
    """
    if len(text) > MAX_FILTER_CHARACTERS:
        raise FilterError(
            MAX_FILTER_CHARACTERS,
            expected=f"at most {MAX_FILTER_CHARACTERS} characters",
            found=f"{len(text)}",
        )
    return _Parser(tokenize(text)).whole()


class _Parser:
    """One pass over the tokens of one filter."""

    __slots__ = ("_at", "_depth", "_tokens")

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens: Final = tokens
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._any_of()
        if self._token.kind is not Kind.END:
            raise self._wrong("an operator or the end")
        return node

    # --- tokens ---------------------------------------------------------

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _is(self, text: str) -> bool:
        """Whether the token is this keyword or symbol."""
        return self._token.word == text

    def _take(self, text: str) -> bool:
        found = self._token.word == text
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._wrong(repr(text))

    def _wrong(self, expected: str) -> FilterError:
        token = self._token
        return FilterError(token.position, expected=expected, found=str(token))

    def _nested(self, rule: Callable[[], Node]) -> Node:
        """The node that `rule` reads, one nesting level deeper."""
        if self._depth >= MAX_NESTING:
            raise self._wrong(f"at most {MAX_NESTING} levels of nesting")
        self._depth += 1
        node = rule()
        self._depth -= 1
        return node

    # --- logic ----------------------------------------------------------

    def _any_of(self) -> Node:
        parts = [self._all_of()]
        while self._take("OR"):
            parts.append(self._all_of())
        return AnyOf(tuple(parts)) if len(parts) > 1 else parts[0]

    def _all_of(self) -> Node:
        parts = [self._not()]
        while self._take("AND"):
            parts.append(self._not())
        return AllOf(tuple(parts)) if len(parts) > 1 else parts[0]

    def _not(self) -> Node:
        if self._take("NOT"):
            return Not(self._nested(self._not))
        return self._comparison()

    # --- comparison -----------------------------------------------------

    def _comparison(self) -> Node:
        left = self._sum()
        if self._token.word in COMPARISONS:
            return Compare(self._next().word, left, self._sum())
        if self._take("IS"):
            return self._is_test(left)
        if self._take("NOT"):
            return Not(self._keyword_test(left) or self._no_keyword_test())
        return self._keyword_test(left) or left

    def _is_test(self, left: Node) -> Node:
        negated = self._take("NOT")
        test: Node
        if self._take("NULL"):
            test = IsNull(left)
        elif self._take("NAN"):
            test = IsNan(left)
        else:
            raise self._wrong("NULL or NAN")
        return Not(test) if negated else test

    def _keyword_test(self, left: Node) -> Node | None:
        """The test that the next keyword begins, or None when it begins none."""
        if self._take("BETWEEN"):
            low = self._sum()
            self._expect("AND")
            return Between(left, low, self._sum())
        if self._take("IN"):
            return In(left, self._choices())
        if self._take("LIKE"):
            return self._like(left)
        if self._is("BEGINS") or self._is("ENDS"):
            return self._affix(left)
        return None

    def _no_keyword_test(self) -> Node:
        raise self._wrong("BETWEEN, IN, LIKE, BEGINS WITH or ENDS WITH")

    def _like(self, left: Node) -> Node:
        token = self._token
        if token.kind not in (Kind.STRING, Kind.RAW_STRING):
            raise self._wrong("a pattern in quotes")
        self._next()
        raw = token.kind is Kind.RAW_STRING
        return Like(left, str(token.value), raw, token.position)

    def _affix(self, left: Node) -> Node:
        ends = self._next().word == "ENDS"
        self._expect("WITH")
        if self._is("("):
            return Affix(left, self._choices(), ends)
        if self._token.kind not in (Kind.STRING, Kind.RAW_STRING):
            raise self._wrong("texts in parentheses, or one in quotes")
        return Affix(left, (self._primary(),), ends)

    def _choices(self) -> tuple[Node, ...]:
        self._expect("(")
        choices = [self._sum()]
        while self._take(","):
            choices.append(self._sum())
        self._expect(")")
        return tuple(choices)

    # --- arithmetic -----------------------------------------------------

    def _sum(self) -> Node:
        return self._chain(self._product, _SUMS)

    def _product(self) -> Node:
        return self._chain(self._sign, _PRODUCTS)

    def _chain(self, operand: Callable[[], Node], symbols: dict[str, str]) -> Node:
        first = operand()
        rest: list[tuple[str, Node]] = []
        while self._token.word in symbols:
            rest.append((symbols[self._next().word], operand()))
        return Chain(first, tuple(rest)) if rest else first

    def _sign(self) -> Node:
        if self._take("-"):
            operand = self._nested(self._sign)
            if isinstance(operand, Literal) and isinstance(operand.value, int | float):
                return Literal(calculate("-", 0, operand.value))
            return Negate(operand)
        return self._primary()

    def _primary(self) -> Node:
        token = self._token
        match token.kind:
            case Kind.NUMBER | Kind.STRING | Kind.RAW_STRING:
                self._next()
                return Literal(normal(token.value))
            case Kind.PATH:
                self._next()
                return Field(parse_path(token.text, token.position))
            case Kind.WORD:
                return self._word()
            case Kind.SYMBOL | Kind.END:
                return self._parenthesis()
            case _:
                assert_never(token.kind)

    def _parenthesis(self) -> Node:
        if not self._take("("):
            raise self._wrong("a path or a value")
        node = self._nested(self._any_of)
        self._expect(")")
        return node

    def _word(self) -> Node:
        token = self._token
        if token.word in _CONSTANTS:
            self._next()
            return Literal(_CONSTANTS[token.word])
        if token.word in _KEYWORDS:
            raise self._wrong("a path or a value")
        self._next()
        what = "function" if self._is("(") else "word"
        raise FilterError(
            token.position, expected="a path or a value", found=f"the unknown {what} {token}"
        )
