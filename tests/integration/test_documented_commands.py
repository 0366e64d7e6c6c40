"""The commands of the pages, typed one after the other in an empty directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.documents import Terminal, steps
from support.process import LIMIT_S, python_environment

pytestmark = pytest.mark.in_parts

DOCS = Path(__file__).parents[2] / "docs"
DEMO = "haclient demo"  # the small form has a test in tests/unit/cli/demo
ELSEWHERE = ("python3 -m venv", ". .venv/bin/activate", "cd ")  # makes the environment


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("page", "left_out"),
    [
        ("tutorial.md", ELSEWHERE),
        # The tutorial has the demo; the test of a cluster takes free ports.
        ("command-line.md", (DEMO, "haclient broker cluster")),
        ("queues.md", ()),
    ],
)
def test_a_page_is_true_as_it_is_typed(
    page: str, left_out: tuple[str, ...], tmp_path: Path, *, full_length: bool
) -> None:
    if not full_length:
        left_out = (*left_out, DEMO)
    with Terminal(tmp_path, python_environment()) as terminal:
        for step in steps((DOCS / page).read_text(encoding="utf-8")):
            if not step.command.startswith(left_out):
                terminal.type(step, limit_s=LIMIT_S)
