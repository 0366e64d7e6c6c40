r"""From filter text to tokens and to the syntax tree: recursive descent over the filter grammar.

**Tokens.** One pattern per kind of token, tried in turn at each position. Three things are worth
knowing:

* `/` begins a path when a name follows at once; a division has whitespace on both sides.
* `-` and `.` may be part of a path's name, as in XML: `/trade-id`. Subtraction from a path needs
  a space before it.
* Escapes in strings make bytes (`\xHH` and three octal digits), so two of them may be one
  character. Raw strings `r'...'` have no escapes at all.

**The tree.** Chains of equal precedence are one node with many parts, not a tree as deep as the
chain is long: `a AND b AND c` is one `AllOf`, and `1 + 2 - 3` one `Chain`. So the depth of a tree
is that of the parentheses, NOTs and signs in the text, and those have a limit. The negated forms
(`NOT IN`, `NOT LIKE` and so on) are `Not` around the positive one, which is how they are defined.

**The parser.** One method per rule, weakest binding first: OR, AND, NOT, comparison, sum, product,
sign, primary (a path, a value, or a function of them). The text has a length limit and the nesting
a depth limit, so no text can exhaust the stack; every error in a text raises `FilterError`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, assert_never

from typing_extensions import override

from haclient.errors import HAClientError
from haclient_fake_server.engine.filters.document import Path, Step
from haclient_fake_server.engine.filters.functions import FUNCTIONS
from haclient_fake_server.engine.filters.values import (
    COMPARISONS,
    Value,
    calculate,
    normal,
    number_from,
)
from haclient_fake_server.engine.patterns import to_bytes


class FilterError(HAClientError):
    """A filter, path or order cannot be parsed.

    Attributes:
        reason: The reason in a failure ack; for an order the broker sends `invalid orderby`.
        position: Where in the text, in characters from 0.
        expected: What was expected there.
        found: What was found instead.
        detail: The three of them, as the ack of a refusal has them.
    """

    reason: Final = "bad filter"

    def __init__(self, position: int, *, expected: str, found: str) -> None:
        super().__init__(f"bad filter at character {position}: expected {expected}, found {found}")
        self.detail = f"character {position}: expected {expected}, found {found}"
        self.position = position
        self.expected = expected
        self.found = found


class TokenKind(enum.Enum):
    """The kinds of tokens; the values are their names in error messages."""

    NUMBER = "number"
    STRING = "string"
    RAW_STRING = "raw string"
    PATH = "path"
    WORD = "word"
    SYMBOL = "symbol"
    END = "the end"


class Token(NamedTuple):
    """One token.

    Attributes:
        kind: Its kind.
        text: The text as written.
        position: Where it begins, in characters from 0.
        value: The number or string that it stands for.
        word: Its name in the grammar: a word in upper case, or a symbol; else empty.
    """

    kind: TokenKind
    text: str
    position: int
    value: Value = None
    word: str = ""

    @override
    def __str__(self) -> str:
        return self.kind.value if self.kind is TokenKind.END else repr(_short(self.text))


_SPACES: Final = " \t\r\n\f\v"
_TOKEN: Final = re.compile(
    r"""[ \t\r\n\f\v]*(?:
      (?P<RAW_STRING> [rR] (?: '[^']*' | "[^"]*" ) )
    | (?P<STRING>     '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" )
    | (?P<NUMBER>     (?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)? )
    | (?P<PATH>       (?: / [^\s/()\[\],=<>!+*%'"|&^~;?{}\\]+ (?: \[[0-9]+\] )? )+
                    | \[/ (?: [^\[\]] | \[[0-9]+\] )* \] )
    | (?P<WORD>       [A-Za-z_][A-Za-z0-9_]* )
    | (?P<SYMBOL>     == | != | <> | <= | >= | [=<>+*%(),-] | (?<!\S)/(?!\S) )
    )""",
    re.VERBOSE | re.DOTALL,
)
_STEP: Final = re.compile(r"/([^/\[\]]+)(?:\[([0-9]{1,9})\])?")
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|([0-7]{3})|(.))", re.DOTALL)
_NAMED_ESCAPES: Final = {
    b"a": b"\a",
    b"b": b"\b",
    b"t": b"\t",
    b"n": b"\n",
    b"f": b"\f",
    b"r": b"\r",
}
_SHOWN_CHARACTERS: Final = 40

MAX_TOKENS: Final = 20_000
"""Tokens of one filter: each takes 6 us to parse, in one step, and up to 300 bytes of memory."""


def tokenize(text: str) -> list[Token]:
    """All tokens of `text`; the last is always `TokenKind.END`.

    Raises:
        FilterError: Something in the text is not a token, or there are too many.
    """
    tokens: list[Token] = []
    text = text.rstrip(_SPACES)
    position = 0
    while position < len(text):
        if len(tokens) == MAX_TOKENS:
            expected = f"at most {MAX_TOKENS} paths, values, words and symbols"
            raise FilterError(position, expected=expected, found="more")
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unreadable(text, position)
        name = str(match.lastgroup)
        tokens.append(_token(TokenKind[name], match[name], match.start(name)))
        position = match.end()
    tokens.append(Token(TokenKind.END, "", len(text)))
    return tokens


def parse_path(text: str, position: int = 0) -> Path:
    """The path that `text` spells, plain (`/a/b[0]`) or in brackets (`[/a b]`).

    Args:
        text: The path and nothing else.
        position: Where it stands in a longer text, for the error.

    Raises:
        FilterError: It is not an absolute path.
    """
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    steps: list[Step] = []
    end = 0
    while match := _STEP.match(inner, end):
        steps.append(Step(match[1], None if match[2] is None else int(match[2])))
        end = match.end()
    if end != len(inner) or not steps:
        raise FilterError(position, expected="an absolute path such as /a/b", found=_quoted(text))
    return Path(_canonical(steps), tuple(steps))


def _canonical(steps: list[Step]) -> str:
    return "".join(f"/{name}" if index is None else f"/{name}[{index}]" for name, index in steps)


def _token(kind: TokenKind, text: str, position: int) -> Token:
    match kind:
        case TokenKind.NUMBER:
            return Token(kind, text, position, number_from(text))
        case TokenKind.STRING:
            return Token(kind, text, position, _unescape(text[1:-1]))
        case TokenKind.RAW_STRING:
            return Token(kind, text, position, text[2:-1])
        case TokenKind.WORD:
            return Token(kind, text, position, word=text.upper())
        case TokenKind.SYMBOL:
            return Token(kind, text, position, word=text)
        case TokenKind.PATH | TokenKind.END:
            return Token(kind, text, position)
        case _:
            assert_never(kind)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_escaped, to_bytes(text)).decode("utf-8", "surrogateescape")


def _escaped(match: re.Match[bytes]) -> bytes:
    hexadecimal, octal, other = match.groups()
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    return _NAMED_ESCAPES.get(other, other)


def _unreadable(text: str, position: int) -> FilterError:
    """The error for unreadable text at `position`, with the likely intention."""
    rest = text[position:].lstrip(_SPACES)
    position = len(text) - len(rest)
    match rest[0]:
        case "'" | '"' as quote:
            expected = f"a closing {quote} for the string"
        case "/":
            expected = "a path such as /a/b, or a division with a space on both sides"
        case "[":
            expected = "a path in brackets such as [/name with space]"
        case _:
            expected = "a path, a value or an operator"
    return FilterError(position, expected=expected, found=_quoted(rest))


def _quoted(text: str) -> str:
    return repr(_short(text))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


# -- tokens --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: Value


@dataclass(frozen=True, slots=True)
class Field:
    """The value of a message at a path."""

    path: Path


@dataclass(frozen=True, slots=True)
class Call:
    """The value of a function, by its name in upper case."""

    name: str
    arguments: tuple[Node, ...]
    position: int


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
    | Call
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


# -- the syntax tree -----------------------------------------------------------------------------


MAX_FILTER_CHARACTERS: Final = 65_536
"""Longer filters are refused: each message is tested against each filter."""

MAX_NESTING: Final = 40
"""Parentheses, NOTs and signs within one another; each takes some ten frames of the stack."""

MAX_CALLS: Final = 200
"""Function calls in one filter: each may copy a long value, for each message."""

MAX_PATTERNS: Final = 100
"""Patterns in one filter: each takes time to compile, and memory for as long as it is used."""

_SUMS: Final = {"+": "+", "-": "-"}
_PRODUCTS: Final = {"*": "*", "/": "/", "%": "%", "MOD": "%"}
_CONSTANTS: Final[dict[str, int | None]] = {"NULL": None, "TRUE": 1, "FALSE": 0}
_KEYWORDS: Final = frozenset(
    ("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "BEGINS", "ENDS", "WITH", "IS", "NAN", "MOD")
)


def parse_filter(
    text: str, *, max_calls: int = MAX_CALLS, max_patterns: int = MAX_PATTERNS
) -> Node:
    """The syntax tree of `text`.

    Args:
        text: The filter.
        max_calls: How many function calls it may have.
        max_patterns: How many patterns it may have; raw ones are plain texts and do not count.

    Raises:
        FilterError: The text is too long, has too many calls or patterns, or is no filter.
    """
    if len(text) > MAX_FILTER_CHARACTERS:
        raise FilterError(
            MAX_FILTER_CHARACTERS,
            expected=f"at most {MAX_FILTER_CHARACTERS} characters",
            found=f"{len(text)}",
        )
    return _Parser(tokenize(text), max_calls=max_calls, max_patterns=max_patterns).whole()


class _Parser:
    """One pass over the tokens of one filter."""

    __slots__ = ("_at", "_calls", "_depth", "_max_calls", "_max_patterns", "_patterns", "_tokens")

    def __init__(self, tokens: list[Token], *, max_calls: int, max_patterns: int) -> None:
        self._tokens: Final = tokens
        self._max_calls: Final = max_calls
        self._max_patterns: Final = max_patterns
        self._calls = 0
        self._patterns = 0
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._any_of()
        if self._token.kind is not TokenKind.END:
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

    def _count_call(self, token: Token) -> None:
        self._calls += 1
        if self._calls > self._max_calls:
            expected = f"at most {self._max_calls} function calls"
            raise FilterError(token.position, expected=expected, found="one more")

    def _count_pattern(self, token: Token) -> None:
        self._patterns += 1
        if self._patterns > self._max_patterns:
            expected = f"at most {self._max_patterns} patterns"
            raise FilterError(token.position, expected=expected, found="one more")

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
        if token.kind not in (TokenKind.STRING, TokenKind.RAW_STRING):
            raise self._wrong("a pattern in quotes")
        self._next()
        raw = token.kind is TokenKind.RAW_STRING
        if not raw:
            self._count_pattern(token)
        return Like(left, str(token.value), raw, token.position)

    def _affix(self, left: Node) -> Node:
        ends = self._next().word == "ENDS"
        self._expect("WITH")
        if self._is("("):
            return Affix(left, self._choices(), ends)
        if self._token.kind not in (TokenKind.STRING, TokenKind.RAW_STRING):
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
            case TokenKind.NUMBER | TokenKind.STRING | TokenKind.RAW_STRING:
                self._next()
                return Literal(normal(token.value))
            case TokenKind.PATH:
                self._next()
                return Field(parse_path(token.text, token.position))
            case TokenKind.WORD:
                return self._word()
            case TokenKind.SYMBOL | TokenKind.END:
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
        if token.word in FUNCTIONS and self._is("("):
            self._count_call(token)
            if FUNCTIONS[token.word].pattern_at >= 0:
                self._count_pattern(token)
            return self._nested(lambda: self._call(token))
        what = "function" if self._is("(") else "word"
        raise FilterError(
            token.position, expected="a path or a value", found=f"the unknown {what} {token}"
        )

    def _call(self, token: Token) -> Node:
        arguments: list[Node] = []
        self._expect("(")
        if not self._is(")"):
            arguments.append(self._any_of())
            while self._take(","):
                arguments.append(self._any_of())
        self._expect(")")
        function, count = FUNCTIONS[token.word], len(arguments)
        if count < function.fewest or (function.most is not None and count > function.most):
            most = "or more" if function.most is None else f"to {function.most}"
            counts = f"{function.fewest} {most}"
            if function.fewest == function.most:
                counts = str(function.fewest)
            expected = f"{counts} values for {token.word}"
            raise FilterError(token.position, expected=expected, found=str(count))
        return Call(token.word, tuple(arguments), token.position)
