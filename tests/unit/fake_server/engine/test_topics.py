from __future__ import annotations

import pytest

from haclient.errors import HAClientError
from haclient_fake_server.engine import topics
from haclient_fake_server.engine.topics import (
    REGEX_CHARACTERS,
    TopicMatcher,
    TopicPatternError,
    is_regex_topic,
)


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


def test_answers_are_remembered_up_to_a_limit_and_stay_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "MAX_REMEMBERED_TOPICS", 3)
    matcher = TopicMatcher("^a.*")
    for _ in range(2):
        for name in ("a1", "b1", "a2", "b2", "a3", "b3", "b3"):
            assert matcher.matches(name) is name.startswith("a")
            assert len(matcher._answers) <= 3


def test_a_matcher_shows_what_it_is() -> None:
    assert repr(TopicMatcher("orders")) == "TopicMatcher('orders', literal)"
    assert repr(TopicMatcher("o.*")) == "TopicMatcher('o.*', regex)"
    assert TopicMatcher("o.*").is_regex
