r"""From filter text to tokens.

One pattern per kind of token, tried in turn at each position. Three things are worth knowing:

* `/` begins a path when a name follows at once; a division has whitespace on both sides.
* `-` and `.` may be part of a path's name, as in XML: `/trade-id`. Subtraction from a path needs
  a space before it.
* Escapes in strings make bytes (`\xHH` and three octal digits), so two of them may be one
  character. Raw strings `r'...'` have no escapes at all.
"""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple, assert_never

from typing_extensions import override

from haclient.errors import HAClientError
from haclient_fake_server.engine.filters.document import Path, Step
from haclient_fake_server.engine.filters.values import Value, number_from
from haclient_fake_server.engine.patterns import to_bytes


class FilterError(HAClientError):
    """A filter, path or order cannot be parsed.

    Attributes:
        reason: The reason in a failure ack; for an order the broker sends `invalid orderby`.
        position: Where in the text, in characters from 0.
        expected: What was expected there.
        found: What was found instead.
    """

    reason: Final = "bad filter"

    def __init__(self, position: int, *, expected: str, found: str) -> None:
        super().__init__(f"bad filter at character {position}: expected {expected}, found {found}")
        self.position = position
        self.expected = expected
        self.found = found


class Kind(enum.Enum):
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

    kind: Kind
    text: str
    position: int
    value: Value = None
    word: str = ""

    @override
    def __str__(self) -> str:
        return self.kind.value if self.kind is Kind.END else repr(_short(self.text))


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


def tokenize(text: str) -> list[Token]:
    """All tokens of `text`; the last is always `Kind.END`.

    Raises:
        FilterError: Something in the text is no token.
    """
    tokens: list[Token] = []
    text = text.rstrip(_SPACES)
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unreadable(text, position)
        name = str(match.lastgroup)
        tokens.append(_token(Kind[name], match[name], match.start(name)))
        position = match.end()
    tokens.append(Token(Kind.END, "", len(text)))
    return tokens


def parse_path(text: str, position: int = 0) -> Path:
    """The path that `text` spells, plain (`/a/b[0]`) or in brackets (`[/a b]`).

    Args:
        text: The path and nothing else.
        position: Where it stands in a longer text, for the error.

    Raises:
        FilterError: It is no absolute path.
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


def _token(kind: Kind, text: str, position: int) -> Token:
    match kind:
        case Kind.NUMBER:
            return Token(kind, text, position, number_from(text))
        case Kind.STRING:
            return Token(kind, text, position, _unescape(text[1:-1]))
        case Kind.RAW_STRING:
            return Token(kind, text, position, text[2:-1])
        case Kind.WORD:
            return Token(kind, text, position, word=text.upper())
        case Kind.SYMBOL:
            return Token(kind, text, position, word=text)
        case Kind.PATH | Kind.END:
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
