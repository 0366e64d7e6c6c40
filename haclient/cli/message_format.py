"""`--format TEXT`: how a message is printed, with `{tokens}` for its parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import click
import msgspec

from haclient.cli.lines import parse_delimiter
from haclient.cli.output import as_json_line, as_line
from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.session.dead_letter import DeadLetter

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
TOKENS: Final = tuple(sorted((*_FIELDS, "data", "dead_letter", "length")))

_PIECES: Final = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]|[^{}]+")

format_option = click.option(
    "--format",
    "format",
    metavar="TEXT",
    help="How to print a message, such as '{timestamp} {key} {data}'. Tokens: "
    + ", ".join(f"{{{token}}}" for token in TOKENS)
    + r"; {{ and }} are braces, \t and \0 what they say. A line end follows.",
)
pretty_option = click.option(
    "--pretty", is_flag=True, help="Print JSON over several lines, indented, for people."
)


def _part(piece: str) -> Form:
    if piece in {"{{", "}}"}:
        return _literal(piece[0])
    if piece[0] not in "{}":
        return _literal(piece)
    name = piece[1:-1]
    if name == "data":
        return lambda message: message.data
    if name == "dead_letter":
        return _dead_letter
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
        return b"" if found is None else str(found).encode(errors="surrogateescape")

    return value


def _dead_letter(message: Message) -> bytes:
    """Why the message became a dead letter, as JSON; empty for any other message."""
    try:
        return msgspec.json.encode(DeadLetter.context(message))
    except UsageError:
        return b""


def _pretty(form: Form) -> Form:
    """The same form with JSON indented; other text is not changed."""

    def value(message: Message) -> bytes:
        line = form(message)
        try:
            return msgspec.json.format(line, indent=2).strip() + b"\n"
        except (msgspec.DecodeError, RecursionError):  # the second: nested too deeply
            return line

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


def message_form(text: str | None, *, as_json: bool, pretty: bool = False) -> Form:
    """How a command prints its messages, by its options `--format`, `--json` and `--pretty`.

    Raises:
        UsageError: `--format` and one of the others were given, or the format is wrong.
    """
    if text is None:
        form = as_json_line if as_json else as_line
        return _pretty(form) if pretty else form
    if as_json or pretty:
        raise UsageError(f"--format and {'--json' if as_json else '--pretty'}: give one of them")
    return parse_format(text)
