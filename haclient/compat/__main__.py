"""`python -m haclient.compat FILE...`: what to change in programs of the official client."""

from __future__ import annotations

import os
import sys
import tokenize
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from haclient.compat.linter import findings

_USAGE = "usage: python -m haclient.compat FILE_OR_DIRECTORY..."


def main(arguments: Sequence[str]) -> int:
    """List what to change.

    Args:
        arguments: Files, and directories whose `.py` files are read.

    Returns:
        0 when nothing has to be changed, 1 when something has, 2 for bad arguments or files.
    """
    if not arguments or arguments[0].startswith("-"):
        is_asked = bool(arguments) and arguments[0] in {"-h", "--help"}
        _write(_USAGE, sys.stdout if is_asked else sys.stderr)
        return 0 if is_asked else 2
    code = 0
    for given in map(Path, arguments):
        paths = [given]
        if given.is_dir():
            paths = sorted(path for path in given.rglob("*.py") if not path.is_dir())
        for path in paths:
            code = max(code, _check(path))
    return code


def _check(path: Path) -> int:
    try:
        with tokenize.open(path) as file:  # in the encoding that the program names
            found = findings(file.read())
    except (
        OSError,
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
    ) as error:  # ValueError: not a text, or with a NUL byte; the last two: nested too deeply
        reason = error.msg if isinstance(error, SyntaxError) else error
        if isinstance(error, (RecursionError, MemoryError)):
            reason = "an expression is nested too deeply"
        _write(f"haclient: error: {path}: cannot be read as Python: {reason}", sys.stderr)
        return 2
    for each in found:
        word = "change" if each.is_needed else "note"
        _write(f"{path}:{each.line}:{each.column}: {word}: {each.text}", sys.stdout)
    return int(any(each.is_needed for each in found))


def _write(line: str, file: TextIO) -> None:
    file.write(f"{line}\n")


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
