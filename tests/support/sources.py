"""The sources as syntax trees, each parsed once in a process."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

__all__ = ["tree"]


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file of Python."""
    # A million nodes and no cycle: the collector would take longer than the parser.
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()
        gc.freeze()
