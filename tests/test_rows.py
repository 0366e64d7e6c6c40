"""Every requirement row that is called done has a test that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.rows import expand, marked_rows, marked_rows_in, read_rows, row_order

TESTS = Path(__file__).parent


def test_every_row_that_is_done_has_a_test() -> None:
    missing = set(read_rows(TESTS / "rows.txt")) - set(marked_rows(TESTS))
    assert not missing, f"rows without a test: {' '.join(sorted(missing, key=row_order))}"


def test_no_row_is_listed_twice() -> None:
    rows = read_rows(TESTS / "rows.txt")
    assert sorted(set(rows)) == sorted(rows)


def test_every_marked_row_looks_like_a_row() -> None:
    assert [expand(row) for row in marked_rows(TESTS)] == [[row] for row in marked_rows(TESTS)]


def test_a_range_of_rows_is_written_out() -> None:
    assert expand("PS9-PS11") == ["PS9", "PS10", "PS11"]


@pytest.mark.parametrize("word", ["ps1", "PS", "12", "PS3-PS1", "PS1-BS3", "PS1-"])
def test_a_malformed_row_is_refused_by_name(word: str) -> None:
    with pytest.raises(ValueError, match=word):
        expand(word)


def test_marks_are_found_on_functions_modules_and_parameters() -> None:
    source = """
import pytest
pytestmark = [pytest.mark.row("PS1"), pytest.mark.trio]

@pytest.mark.row("PS2", "PS3")
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.row("PS4"))])
def test_x(x): ...
"""
    assert sorted(marked_rows_in(source)) == ["PS1", "PS2", "PS3", "PS4"]
