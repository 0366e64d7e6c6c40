"""`--format TEXT`: how a message is printed, with `{tokens}` for its parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import click

from haclient.cli.lines import parse_delimiter
from haclient.cli.output import as_json_line, as_line
from haclient.errors import UsageError
from haclient.protocol.messages import Message

Form = Callable[[Message], bytes]

_FIELDS: Final = {
    "bookmark": "bookmark",
    "command": "command",
    "correlation_id": "correlation_id",
    "key": "sow_key",
    "sequence": "sequence",
    "timestamp": "timestamp",
    "topic": "topic",
    "user": "user_id",
}
TOKENS: Final = tuple(sorted((*_FIELDS, "data", "length")))

_PIECES: Final = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]|[^{}]+")

format_option = click.option(
    "--format",
    "format",
    metavar="TEXT",
    help="How to print a message, such as '{timestamp} {key} {data}'. Tokens: "
    + ", ".join(f"{{{token}}}" for token in TOKENS)
    + r"; {{ and }} are braces, \t and \0 what they say. A line end follows.",
)


def _part(piece: str) -> Form:
    if piece in {"{{", "}}"}:
        return _literal(piece[0])
    if piece[0] not in "{}":
        return _literal(piece)
    name = piece[1:-1]
    if name == "data":
        return lambda message: message.data
    if name == "length":
        return lambda message: str(len(message.data)).encode()
    if name in _FIELDS:
        return _field(_FIELDS[name])
    known = ", ".join(f"{{{token}}}" for token in TOKENS)
    raise UsageError(f"--format: {piece!r} is no token: wanted {known}, or {{{{ for a brace")


def _literal(text: str) -> Form:
    data = parse_delimiter(text)
    return lambda _: data


def _field(name: str) -> Form:
    def value(message: Message) -> bytes:
        found: object = getattr(message, name)
        return b"" if found is None else str(found).encode()

    return value


def parse_format(text: str) -> Form:
    """The function that prints a message as the text says.

    Args:
        text: Literal text with `{tokens}`; what a message does not have is empty.

    Raises:
        UsageError: A token or an escape is unknown.
    """
    parts = [_part(piece) for piece in _PIECES.findall(text)]
    return lambda message: b"".join([part(message) for part in parts]) + b"\n"


def message_form(text: str | None, *, as_json: bool) -> Form:
    """How a command prints its messages, by its options `--format` and `--json`.

    Raises:
        UsageError: Both were given, or the format is wrong.
    """
    if text is None:
        return as_json_line if as_json else as_line
    if as_json:
        raise UsageError("--format and --json: give one of them")
    return parse_format(text)
