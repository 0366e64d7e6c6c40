"""What the documents show: code blocks, command lines in them, and links to other files."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from haclient.cli.demo.processes import reserved_ports

__all__ = [
    "FORMS",
    "Block",
    "Step",
    "Terminal",
    "blocks",
    "command_lines",
    "links",
    "programs",
    "steps",
]

SHELL = {"console", "sh", "bash"}
FORMS = ("trio", "asyncio", "blocking")
"""The tabs of a program; the first one is the one that a reader sees."""
_FENCE = re.compile(r"^```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
_TAB = re.compile(r"^:::(?:\{tab-item\} (\w+))?$", re.MULTILINE)  # where one begins or ends
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")
_OPERATORS = {"|", "||", "&&", "&", ";", ">", ">>", "<"}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a Markdown file.

    Attributes:
        language: The word behind its fence.
        text: What is in it.
        tab: The name of the tab that it is in; empty outside of tabs.
    """

    language: str
    text: str
    tab: str


def blocks(markdown: str) -> list[Block]:
    """All fenced blocks, in order."""
    return [
        Block(found["language"], found["text"], _tab_at(markdown[: found.start()]))
        for found in _FENCE.finditer(markdown)
    ]


def _tab_at(before: str) -> str:
    fences: list[str] = _TAB.findall(before)
    return fences[-1] if fences else ""


def programs(markdown: str, form: str = "trio") -> list[str]:
    """The programs of a page, of those in tabs the ones of this form."""
    return [
        block.text
        for block in blocks(markdown)
        if block.language == "python" and block.tab in {"", form}
    ]


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


@dataclass(frozen=True, slots=True)
class Step:
    """A command that a reader types, and the output that the page shows for it."""

    command: str
    shown: list[str]


def steps(markdown: str) -> Iterator[Step]:
    """The commands of all console blocks, in order."""
    for block in blocks(markdown):
        if block.language == "console":
            _, *typed = re.split(r"^\$ ", block.text.replace("\\\n", " "), flags=re.MULTILINE)
            for text in typed:
                command, *shown = text.splitlines()
                yield Step(command, shown)


class Terminal:
    """A shell in an empty directory, to which the commands of a page are given.

    What it prints goes to a terminal, as a reader has one: commands draw there what they draw for
    him. Its commands come through a pipe, so that nothing is echoed.

    Ports 9007 and 9008 of the pages are replaced by free ones, since tests run beside each other.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._work = directory / "work"
        self._environment = {**environment, "PATH": f"{directory}/bin:{os.environ['PATH']}"}
        self._stack = ExitStack()
        self._ports: dict[str, int] = {}
        self._output = directory / "terminal"
        self._shown = 0

    def __enter__(self) -> Self:
        numbers = self._stack.enter_context(reserved_ports(2))
        self._ports = dict(zip(("9007", "9008"), numbers, strict=True))
        binaries = self._directory / "bin"
        binaries.mkdir()
        for name, arguments in (("haclient", "-m haclient"), ("python", "")):
            binary = binaries / name
            binary.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
            binary.chmod(0o700)
        self._work.mkdir()
        # The environment of the reader is this one already.
        self.save(".venv/bin/activate", "")
        reader, writer = pty.openpty()
        self._shell = subprocess.Popen(
            # -m: what is started with & is in the background of the terminal.
            [shutil.which("bash") or "bash", "-m", "-s"],
            stdin=subprocess.PIPE,
            stdout=writer,
            stderr=writer,
            text=True,
            cwd=self._work,
            env={"COLUMNS": "100", "TERM": "xterm", **self._environment},
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - no thread runs yet
        )
        os.close(writer)
        copying = threading.Thread(target=_copy, args=(reader, self._output.open("wb")))
        copying.start()
        self._stack.callback(copying.join)
        return self

    def __exit__(self, *_: object) -> None:
        for process in _session_of(self._shell.pid):  # what it has left in the background, too
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._shell.communicate()
        self._stack.close()

    def save(self, name: str, text: str) -> None:
        """Save a program of a page as a file in the directory of the reader."""
        path = self._work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._translated(text), encoding="utf-8")

    def type(self, step: Step, *, limit_s: float) -> None:
        """Type a command and wait until it has ended with 0 and its output has been shown.

        Raises:
            AssertionError: It failed, or printed something else.
        """
        assert self._shell.stdin is not None
        ended = self._directory / "ended"
        ended.unlink(missing_ok=True)
        self._shell.stdin.write(f"{self._translated(step.command)}\necho $? > {ended}\n")
        self._shell.stdin.flush()
        deadline = time.perf_counter() + limit_s
        shown = [self._translated(line) for line in step.shown]
        while not (ended.exists() and ended.read_text().endswith("\n") and self._has(shown)):
            output = self._new_output()
            assert time.perf_counter() < deadline, f"{step.command}: not {shown} but {output}"
            select.select([], [], [], 0.02)
        output = self._new_output()
        assert ended.read_text() == "0\n", f"{step.command}: {output}"
        self._shown = self._output.stat().st_size

    def _has(self, shown: list[str]) -> bool:
        """Whether what is shown has been printed; a page may leave out output altogether."""
        return not shown or self._new_output() == shown

    def _new_output(self) -> list[str]:
        """What was printed, without what the shell and a command in the background add to it."""
        written = _CONTROL.sub("", self._output.read_bytes()[self._shown :].decode())
        lines = [line.rpartition("\r")[2] for line in written.replace("\r\n", "\n").splitlines()]
        aside = re.compile(r"haclient: warning: client \S+|.*line \d+: +\d+ Killed ")
        return [line for line in lines if not aside.match(line)]

    def _translated(self, text: str) -> str:
        for number, free in self._ports.items():
            text = text.replace(f":{number}", f":{free}")
        return text


def _session_of(leader: int) -> list[int]:
    """The processes of a session: its jobs are process groups of their own."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            if entry.name.isdigit() and os.getsid(int(entry.name)) == leader:
                found.append(int(entry.name))
    return found


def _take_terminal() -> None:
    """Make the terminal of the output the one that controls this new session."""
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


def _copy(reader: int, output: BinaryIO) -> None:
    """Write what is shown at a terminal to a file, until its processes have ended."""
    with output, suppress(OSError):
        while shown := os.read(reader, 1 << 16):
            output.write(shown)
            output.flush()
    os.close(reader)
