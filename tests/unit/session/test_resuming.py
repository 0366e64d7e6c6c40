from __future__ import annotations

import pytest

from haclient.session.resuming import Refusals, resuming_options

KNOWS, KNOWS_NOT = "5.3.5.0", "5.3.4.9"


@pytest.mark.row("BS9", "SM2")
@pytest.mark.parametrize(
    ("options", "bookmark", "version", "expected"),
    [
        ("", "7|1|", KNOWS, "bookmark_not_found=epoch"),
        ("", "7|1|", KNOWS_NOT, ""),
        ("", "7|1|", "", ""),
        ("", "", KNOWS, ""),
        ("bookmark_not_found=now", "7|1|", KNOWS, "bookmark_not_found=now"),
        ("replace", "", KNOWS, ""),
    ],
)
def test_an_unknown_bookmark_is_no_silent_gap(
    options: str, bookmark: str, version: str, expected: str
) -> None:
    assert resuming_options(options, bookmark=bookmark, version=version, again=True) == expected


def test_the_first_entry_keeps_its_replace() -> None:
    assert resuming_options("replace", bookmark="", version="", again=False) == "replace"


@pytest.mark.row("SM8")
def test_the_second_refusal_of_one_server_is_told_from_the_first() -> None:
    refusals = Refusals()
    said = [refusals.add(*each) for each in [("s", "a"), ("s", "b"), ("t", "a"), ("s", "a")]]
    assert said == [False, False, False, True]
    refusals.clear()
    assert not refusals.add("s", "a")
