"""The verdict of examples/main_job.py must be able to be bad."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "examples/main_job.py"


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> object:
    return load(monkeypatch)["compare"]


def load(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    # A dataclass with slots looks its module up by name.
    monkeypatch.setitem(sys.modules, "main_job", ModuleType("main_job"))
    return runpy.run_path(str(SCRIPT), run_name="main_job")


def verdict(compare: object, *, expected: str, printed: str, seams: list[int]) -> dict[str, int]:
    assert callable(compare)
    found = compare(
        [letter.encode() for letter in expected],
        [letter.encode() for letter in printed],
        seams=seams,
        kills=1,
        starts=4,
        seconds=0.0,
    )
    names = ("lost", "duplicated", "redelivered_undiscarded", "out_of_order")
    assert found.good == (not any(getattr(found, name) for name in (*names[:2], names[3])))
    return {name: getattr(found, name) for name in names if getattr(found, name)}


@pytest.mark.parametrize(
    ("expected", "printed", "seams", "found"),
    [
        ("pqrs", "pqrs", [], {}),
        ("pqrs", "pqrs", [0, 2], {}),
        ("pqrs", "pqqrs", [2], {"redelivered_undiscarded": 1}),
        ("pqrs", "pqqrs", [3], {"duplicated": 1}),
        ("pqrs", "pqqqrs", [2], {"redelivered_undiscarded": 1, "duplicated": 1}),
        ("pqrs", "pqs", [2], {"lost": 1}),
        ("pqrs", "pqsr", [], {"out_of_order": 1}),
        ("pqrs", "pqpqrs", [2], {"duplicated": 2, "out_of_order": 1}),
        ("pqqrs", "pqqrs", [2], {}),
        ("pqpq", "pqpq", [], {}),
        ("pq", "pqx", [], {"duplicated": 1}),
        ("pq", "", [], {"lost": 2}),
    ],
)
def test_a_verdict_counts_what_went_wrong(
    compare: object, expected: str, printed: str, seams: list[int], found: dict[str, int]
) -> None:
    assert verdict(compare, expected=expected, printed=printed, seams=seams) == found


def test_kills_that_came_after_everything_are_no_proof(compare: object) -> None:
    assert callable(compare)
    found = compare([b"p"], [b"p"], seams=[], kills=0, starts=3, seconds=0.0)
    assert found.lost == found.duplicated == found.out_of_order == 0
    assert not found.good


def test_the_rows_of_the_example_are_installed_and_differ(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    default_file = load(monkeypatch)["default_file"]
    assert callable(default_file)
    lines = default_file(tmp_path).read_bytes().splitlines()
    assert len(lines) > 3000
    assert len(set(lines)) == len(lines)
