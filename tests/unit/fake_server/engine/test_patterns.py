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


@pytest.mark.parametrize(
    "pattern", [r"(a|b)\1", r"a(?=b)", r"a(?!b)", r"(?<=a)b", r"(?<!a)b", r"(?P<x>a)(?P=x)"]
)
def test_back_references_and_look_around_are_refused_by_name(pattern: str) -> None:
    with pytest.raises(PatternError, match="back-references and look-around are not supported"):
        compile_search(pattern)


def test_a_pattern_that_stops_a_backtracking_engine_takes_linear_time() -> None:
    # Each further letter would double the time: 2000 of them outlast any test run.
    assert not compile_search("(a+)+$")("a" * 2000 + "b")


def test_a_pattern_without_special_characters_is_found_anywhere() -> None:
    search = compile_search("b é")
    assert search("ab éc")
    assert not search("b e")


def test_posix_classes_are_known() -> None:
    assert compile_search("^[[:alpha:]]+$")("abc")
    assert not compile_search("^[[:alpha:]]+$")("a1")


def test_a_dollar_is_the_very_end() -> None:
    assert not compile_search("a$")("a\n")


def test_a_bracket_within_brackets_is_an_ordinary_character() -> None:
    assert compile_search("[[]")("[")


@pytest.mark.parametrize(
    "pattern",
    ["(", "*a", "[a", "a{2,1}", r"\Z", "a++", "((a{100}){100}){100}", "(" * 999, "(?P<é>a)"],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_search(pattern)


def test_deeply_nested_groups_do_no_harm() -> None:
    assert compile_search("(" * 2000 + ")" * 2000)("")


def test_a_pattern_over_the_length_limit_is_refused_with_both_numbers() -> None:
    assert compile_search("a" * MAX_PATTERN_BYTES)("a") is False
    with pytest.raises(PatternError, match="4097 bytes are more than the 4096"):
        compile_search("a" * (MAX_PATTERN_BYTES + 1))


def test_undecodable_bytes_come_back_and_other_surrogates_still_become_bytes() -> None:
    assert to_bytes("a\udcff") == b"a\xff"
    assert to_bytes("\ud800") == b"\xed\xa0\x80"
