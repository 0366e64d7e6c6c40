r"""Patterns of topics and filters: RE2 over bytes, unanchored, with limits.

A client chooses the patterns, and they are tried against each message on the broker's only thread.
RE2 takes time linear in the text, whereas `(a+)+$` can block a backtracking engine indefinitely.
The price is that back-references and look-around do not exist; fake_server/README.md lists the
differences to PCRE.

Patterns see bytes, not characters: `.` is one byte of a UTF-8 sequence. RE2 is configured for
Latin-1 on both sides, in which each byte is a character. Text becomes bytes with `to_bytes`,
everywhere alike, so that pattern and subject always agree.

A topic with any of the characters `. * + ? [ ] ( ) { } ^ $ | \` is a pattern that may match
anywhere in a name; all others are literal and match one name only. A dot is one of those
characters, so `trade.info` is a pattern and also matches `trade_info`. `non_regex_topic` makes any
topic literal. A matcher remembers nothing: who asks for each message keeps the answer of each topic
(see `routes`), once for all subscriptions with the same pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from typing import Final, TypeAlias

import re2
from typing_extensions import override

from haclient.errors import HAClientError

MAX_PATTERN_BYTES: Final = 4096
"""Longer patterns are a mistake or an attack."""

MAX_TOPIC_CHARACTERS: Final = 65_535
"""A subscription keeps its topic: a client must not fill the memory with one command."""

MAX_MEMORY_BYTES: Final = 2 * 2**20
"""What one compiled pattern may use, its cache of states included."""

Search: TypeAlias = Callable[[str], bool]
Find: TypeAlias = Callable[[bytes], Iterator[tuple[int, int]]]
"""Where a pattern is found: the begin and end of each match."""

_SPECIAL: Final = frozenset(b".*+?[](){}^$|\\")
_NOT_IN_RE2: Final = ("(?=", "(?!", "(?<", "(?P", *(rf"\{digit}" for digit in range(1, 10)))


class PatternError(ValueError):
    """The text is not a regular expression; translated by the filter and topic modules."""


def to_bytes(text: str) -> bytes:
    """The bytes of `text`; surrogate escapes become the original bytes."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate that was written as a JSON escape
        return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """The inverse of `to_bytes`."""
    return data.decode("utf-8", "surrogateescape")


def compile_search(pattern: str) -> Search:
    """A function that returns whether `pattern` is found anywhere in a text.

    Raises:
        PatternError: The pattern is too long, malformed, or uses a feature that RE2 does not have.
    """
    raw = _pattern_bytes(pattern)
    if _SPECIAL.isdisjoint(raw):
        # The commonest pattern by far; a call into RE2 takes several times as long.
        return lambda text: raw in to_bytes(text)
    search = _compile(raw).search
    return lambda text: search(to_bytes(text)) is not None


def compile_find(pattern: str) -> Find:
    """A function that returns each place where `pattern` is found.

    Raises:
        PatternError: As for `compile_search`.
    """
    finditer = _compile(_pattern_bytes(pattern)).finditer
    return lambda data: (match.span() for match in finditer(data))


def _pattern_bytes(pattern: str) -> bytes:
    raw = to_bytes(pattern)
    if len(raw) > MAX_PATTERN_BYTES:
        raise PatternError(f"{len(raw)} bytes are more than the {MAX_PATTERN_BYTES} allowed")
    return raw


def _compile(raw: bytes) -> re2.Regexp:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False  # else it writes to the process's standard error
    options.never_capture = True
    options.max_mem = MAX_MEMORY_BYTES
    try:
        return re2.compile(raw, options)
    except re2.error as error:
        (found,) = error.args
        problem = found.decode("latin-1")
        if any(each in problem for each in _NOT_IN_RE2):
            problem += " (back-references and look-around are not supported)"
        raise PatternError(problem) from error


REGEX_CHARACTERS: Final = frozenset(".*+?[](){}^$|\\")
"""A topic that holds one of these is a pattern."""


class TopicPatternError(HAClientError):
    """A topic is a malformed regular expression.

    Attributes:
        reason: The reason in the failure ack.
        detail: What is wrong, as the ack of a refusal has it.
        topic: The topic as it was given.
    """

    reason: Final = "bad regex topic"

    def __init__(self, topic: str, problem: str) -> None:
        self.detail = (
            f"topic {topic[:80]!r} is not a valid pattern: {problem};"
            " use option non_regex_topic for a literal topic"
        )
        super().__init__(self.detail)
        self.topic = topic


_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def topic_problem(topic: str) -> str:
    """What makes a text unfit as a topic or a pattern of topics; empty if nothing does.

    A line feed would break output that has one topic a line, and is always a mistake.
    """
    if len(topic) > MAX_TOPIC_CHARACTERS:
        return f"{len(topic)} characters, at most {MAX_TOPIC_CHARACTERS}"
    found = _CONTROL.search(topic)
    if found is None:
        return ""
    return f"character {found.start()} of the topic is a control character: {found[0]!r}"


def is_regex_topic(topic: str) -> bool:
    """Whether `topic` is read as a pattern."""
    return not REGEX_CHARACTERS.isdisjoint(topic)


class TopicMatcher:
    """One topic expression of a subscription, query or delete.

    Args:
        text: The expression.
        non_regex_topic: It is a name, whatever it contains.
        allowed: Returns whether a topic may match a pattern at all; `None` for every topic.

    Raises:
        TopicPatternError: The topic is a malformed pattern.
    """

    __slots__ = ("_allowed", "_search", "text")

    def __init__(
        self,
        text: str,
        *,
        non_regex_topic: bool = False,
        allowed: Callable[[str], bool] | None = None,
    ) -> None:
        self.text: Final = text
        self._allowed: Final = allowed
        self._search: Final = _pattern(text, non_regex_topic=non_regex_topic)

    @property
    def is_regex(self) -> bool:
        """Whether several topics may match; False means only `text` itself does."""
        return self._search is not None

    def matches(self, topic: str) -> bool:
        """Whether `topic` matches."""
        if self._search is None:
            return topic == self.text
        return (self._allowed is None or self._allowed(topic)) and self._search(topic)

    @property
    def key(self) -> Hashable:
        """Matchers with the same key match the same topics."""
        return self.text, self._allowed

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


class Compared:
    """What the patterns of subscriptions are to one topic.

    Attributes:
        topic: The topic.
        newest: The number of the last pattern that was tried.
        matching: The numbers of those that match; some may have no subscription any more.
        size: What it counts towards the limit of all of them.
    """

    __slots__ = ("__weakref__", "matching", "newest", "size", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.newest = 0
        self.size = 0
        self.matching: list[int] = []
