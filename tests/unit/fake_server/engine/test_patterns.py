from __future__ import annotations

import pytest

from haclient_fake_server.engine.patterns import (
    MAX_PATTERN_BYTES,
    PatternError,
    compile_search,
    to_bytes,
)


def test_a_pattern_is_searched_anywhere_in_the_text() -> None:
    search = compile_search("b+")
    assert search("abbc")
    assert not search("ac")


def test_patterns_see_bytes_so_a_character_may_be_several() -> None:
    assert compile_search("^..$")("é")
    assert not compile_search("^.$")("é")
    assert compile_search("é")("café")


def test_case_is_ignored_only_when_the_pattern_says_so() -> None:
    assert not compile_search("abc")("ABC")
    assert compile_search("(?i)abc")("ABC")


def test_back_references_are_allowed() -> None:
    assert compile_search(r"(a|b)\1")("xbb")
    assert not compile_search(r"^(a|b)\1$")("ab")


def test_a_bracket_within_brackets_is_an_ordinary_character() -> None:
    assert compile_search("[[]")("[")


@pytest.mark.parametrize(
    "pattern",
    ["(", "*a", "[a", "a{2,1}", r"\Q", "[[:alpha:]]", "(" * 3000 + ")" * 1000, "(?P<é>a)"],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_search(pattern)


def test_deeply_nested_groups_are_refused_or_compiled_but_never_crash() -> None:
    pattern = "(" * 2000 + ")" * 2000
    with pytest.raises(PatternError, match=r"."):
        compile_search(pattern)


def test_a_pattern_over_the_length_limit_is_refused_with_both_numbers() -> None:
    assert compile_search("a" * MAX_PATTERN_BYTES)("a") is False
    with pytest.raises(PatternError, match="4097 bytes are more than the 4096"):
        compile_search("a" * (MAX_PATTERN_BYTES + 1))


def test_undecodable_bytes_come_back_and_other_surrogates_still_become_bytes() -> None:
    assert to_bytes("a\udcff") == b"a\xff"
    assert to_bytes("\ud800") == b"\xed\xa0\x80"
