r"""Which topics a subscription, query or delete means.

A topic with any of the characters `. * + ? [ ] ( ) { } ^ $ | \` is a pattern that may match
anywhere in a name; all others are literal and match one name only. A dot is one of those
characters, so `trade.info` is a pattern and also matches `trade_info`. `non_regex_topic` makes any
topic literal.

A matcher is asked for each published message, always about the same few names; it remembers its
answers, up to a limit, and starts afresh when that is reached.
"""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from haclient.errors import HAClientError
from haclient_fake_server.engine.patterns import PatternError, Search, compile_search

__all__ = ["REGEX_CHARACTERS", "TopicMatcher", "TopicPatternError", "is_regex_topic"]

REGEX_CHARACTERS: Final = frozenset(".*+?[](){}^$|\\")
"""A topic that holds one of these is a pattern."""

MAX_REMEMBERED_TOPICS: Final = 4096
"""Answers kept per matcher; a broker with more live topics only matches some of them again."""


class TopicPatternError(HAClientError):
    """A topic is a malformed regular expression.

    Attributes:
        reason: What a failure ack says.
        topic: The topic as it was given.
    """

    reason: Final = "bad regex topic"

    def __init__(self, topic: str, problem: str) -> None:
        super().__init__(
            f"topic {topic[:80]!r} is not a valid pattern: {problem};"
            " use option non_regex_topic for a literal topic"
        )
        self.topic = topic


def is_regex_topic(topic: str) -> bool:
    """Whether `topic` is read as a pattern."""
    return not REGEX_CHARACTERS.isdisjoint(topic)


class TopicMatcher:
    """One topic expression of a subscription, query or delete.

    Raises:
        TopicPatternError: The topic is a malformed pattern.
    """

    __slots__ = ("_answers", "_search", "text")

    def __init__(self, text: str, *, non_regex_topic: bool = False) -> None:
        self.text: Final = text
        self._search: Final = _pattern(text, non_regex_topic=non_regex_topic)
        self._answers: Final[dict[str, bool]] = {}

    @property
    def is_regex(self) -> bool:
        """Whether several topics may match; False means only `text` itself does."""
        return self._search is not None

    def matches(self, topic: str) -> bool:
        """Whether `topic` is meant."""
        if self._search is None:
            return topic == self.text
        answer = self._answers.get(topic)
        return self._ask(self._search, topic) if answer is None else answer

    def _ask(self, search: Search, topic: str) -> bool:
        if len(self._answers) >= MAX_REMEMBERED_TOPICS:
            self._answers.clear()
        answer = self._answers[topic] = search(topic)
        return answer

    @override
    def __repr__(self) -> str:
        kind = "regex" if self.is_regex else "literal"
        return f"TopicMatcher({self.text!r}, {kind})"


def _pattern(text: str, *, non_regex_topic: bool) -> Search | None:
    if non_regex_topic or not is_regex_topic(text):
        return None
    try:
        return compile_search(text)
    except PatternError as error:
        raise TopicPatternError(text, str(error)) from error
