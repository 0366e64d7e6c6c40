from __future__ import annotations

import pytest

from haclient.errors import HAClientError
from haclient_fake_server.engine.patterns import (
    MAX_PATTERN_BYTES,
    REGEX_CHARACTERS,
    PatternError,
    TopicMatcher,
    TopicPatternError,
    compile_search,
    is_regex_topic,
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


@pytest.mark.row("SW8")
@pytest.mark.parametrize(
    ("topic", "name", "expected"),
    [
        pytest.param("order", "order", True, id="a literal topic matches itself"),
        pytest.param("order", "orders", False, id="a literal topic does not match a longer name"),
        pytest.param("order", "Order", False, id="case counts"),
        pytest.param("order.*", "orders", True, id="a pattern"),
        pytest.param("order.*", "big-orders", True, id="a pattern matches anywhere in the name"),
        pytest.param("^order", "big-orders", False, id="unless it is anchored at the beginning"),
        pytest.param("^order", "orders", True, id="an anchored pattern may be followed"),
        pytest.param("order$", "orders", False, id="or anchored at the end"),
        pytest.param("trade.info", "trade_info", True, id="a dot makes a pattern"),
        pytest.param("trade.info", "my.trade.information", True, id="and it is unanchored too"),
        pytest.param("a|b", "b", True, id="alternatives"),
        pytest.param(r"a\.b", "a.b", True, id="an escaped dot is a dot"),
        pytest.param(r"a\.b", "a_b", False, id="and nothing else"),
        pytest.param("(?i)ORDER", "orders", True, id="flags"),
        pytest.param("/AMPS/SOWStats", "/AMPS/SOWStats", True, id="a slash is literal"),
        pytest.param("orders-1_x:y", "orders-1_x:y", True, id="other punctuation is literal"),
    ],
)
def test_topics_match_as_published(topic: str, name: str, *, expected: bool) -> None:
    assert TopicMatcher(topic).matches(name) is expected


@pytest.mark.row("SW8")
@pytest.mark.parametrize("character", sorted(".*+?[](){}^$|\\"))
def test_each_special_character_makes_a_pattern(character: str) -> None:
    assert is_regex_topic(f"a{character}b")
    assert character in REGEX_CHARACTERS


def test_there_are_no_other_special_characters() -> None:
    assert len(REGEX_CHARACTERS) == 14
    assert not is_regex_topic("orders-2024/eu:#&~,<>=!%@")


@pytest.mark.row("SW8")
def test_non_regex_topic_makes_any_topic_literal() -> None:
    matcher = TopicMatcher("trade.info(", non_regex_topic=True)
    assert not matcher.is_regex
    assert matcher.matches("trade.info(")
    assert not matcher.matches("trade_info(")


@pytest.mark.row("SW8", "AK7")
def test_a_malformed_pattern_is_an_error_that_names_topic_and_reason() -> None:
    with pytest.raises(TopicPatternError, match=r"topic 'orders\(' is not") as caught:
        TopicMatcher("orders(")
    assert caught.value.reason == "bad regex topic"
    assert caught.value.topic == "orders("
    assert isinstance(caught.value, HAClientError)


def test_matchers_of_one_pattern_and_the_same_rights_have_the_same_key() -> None:
    def rights(topic: str) -> bool:
        return topic != "secret"

    assert TopicMatcher("a.*").key == TopicMatcher("a.*").key
    assert TopicMatcher("a.*").key != TopicMatcher("b.*").key
    assert TopicMatcher("a.*").key != TopicMatcher("a.*", allowed=rights).key
    assert TopicMatcher("a.*", allowed=rights).key == TopicMatcher("a.*", allowed=rights).key


def test_a_matcher_shows_what_it_is() -> None:
    assert repr(TopicMatcher("orders")) == "TopicMatcher('orders', literal)"
    assert repr(TopicMatcher("o.*")) == "TopicMatcher('o.*', regex)"
    assert TopicMatcher("o.*").is_regex
