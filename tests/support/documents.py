"""What the documents show: code blocks, command lines in them, and links to other files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "blocks", "command_lines", "links"]

SHELL = {"console", "sh", "bash"}
_FENCE = re.compile(r"^```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")
_OPERATORS = {"|", "||", "&&", "&", ";", ">", ">>", "<"}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a Markdown file."""

    language: str
    text: str


def blocks(markdown: str) -> list[Block]:
    """All fenced blocks, in order."""
    return [Block(found["language"], found["text"]) for found in _FENCE.finditer(markdown)]


def links(markdown: str) -> list[str]:
    """The targets of all links to files, without their anchors."""
    found = (match["target"] for match in _LINK.finditer(_FENCE.sub("", markdown)))
    return [target for target in found if "://" not in target]


def command_lines(markdown: str) -> Iterator[list[str]]:
    """The words behind `haclient` of every command line in a shell block."""
    for block in blocks(markdown):
        if block.language in SHELL:
            for line in _typed(block):
                yield from _haclient_commands(line)


def _typed(block: Block) -> Iterator[str]:
    """The lines that a reader types: behind a prompt where there are prompts."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        yield from (line.removeprefix("$ ") for line in lines if line.startswith("$ "))
    else:
        yield from lines


def _haclient_commands(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    command: list[str] = []
    for word in [*lexer, ";"]:
        if word not in _OPERATORS:
            command.append(word)
            continue
        if command and Path(command[0]).name == "haclient":
            yield command[1:]
        command = []
