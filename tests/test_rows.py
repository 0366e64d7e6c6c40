"""Every requirement row that is called done has a test that says so."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.rows import is_row, marked_rows, marked_rows_in, read_rows, row_order

TESTS = Path(__file__).parent


def test_every_row_that_is_done_has_a_test() -> None:
    missing = set(read_rows(TESTS / "rows.txt")) - marked_rows(TESTS)
    assert not missing, f"rows without a test: {' '.join(sorted(missing, key=row_order))}"


def test_every_marked_row_looks_like_a_row() -> None:
    assert [row for row in marked_rows(TESTS) if not is_row(row)] == []


@pytest.mark.parametrize("line", ["ps1 words", "PS words", "PS1", "PS1-PS3 words", "PS9 again"])
def test_a_malformed_line_is_refused_with_its_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text(f"# comment\n\nPS9  words\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.txt, line 4"):
        read_rows(path)


def test_marks_are_found_on_functions_modules_and_parameters() -> None:
    source = """
import pytest
pytestmark = [pytest.mark.row("PS1"), *[pytest.mark.row(row) for row in ("PS5", "PS6")]]

@pytest.mark.row("PS2", "PS3")
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.row("PS4"))])
def test_x(x): ...
"""
    assert sorted(marked_rows_in(ast.parse(source))) == ["PS1", "PS2", "PS3", "PS4", "PS5", "PS6"]
