"""What a user may do with which topics.

An `Entitlement` allows reading, publishing, or both, of the topics that a pattern matches, of all
messages or of those that a filter matches. Several for one topic add up. Where a broker has none,
everybody may do everything; where it has some, a user may do what they allow and nothing else.

Reading is to query, to subscribe, and to consume and acknowledge the messages of a queue.
Publishing is to publish and to delete records. A command for a topic that the user may do nothing
with is refused; a pattern is accepted, and delivers of the topics that the user may read without a
filter. What a filter cannot be tested for is refused: to publish a delta, to delete by keys or by
data, and out-of-focus messages, which have bodies that the filter does not match.

Replicating is neither: what another broker sends names any publisher, and marks, which belong to no
topic, have the sequences of any publisher count as seen. So it needs an entitlement of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from haclient_fake_server.engine.acks import Reason, Refused, quoted
from haclient_fake_server.engine.filters import Document, Filter, compile_filter
from haclient_fake_server.engine.patterns import TopicMatcher
from haclient_fake_server.engine.settings import EVERY_USER, Entitlement

MAX_REMEMBERED: Final = 65_536
"""Topics whose verdicts are cached for one user, whose connections share them: some 10 MB."""

MAX_REMEMBERED_CHARACTERS: Final = 255
"""Longer ones are judged each time: a publish may name one of any length before it is refused."""

MAX_COMBINATIONS: Final = 1000
"""Combinations of grants with filters that are cached: twenty grants may have a million."""


class _Verdict(NamedTuple):
    """The part of a topic that is allowed: the messages that a filter matches, or all of them."""

    text: str = ""
    filter: Filter | None = None


class Access:
    """The topics that one user may read, publish to, or replicate.

    Args:
        what: For refusals: `read`, `publish to` or `replicate`.
        entitlements: Those that allow it.
    """

    def __init__(self, what: str, entitlements: Iterable[Entitlement]) -> None:
        self._what = what
        self._grants = [(TopicMatcher(each.topic), each.filter) for each in entitlements]
        self._filters = {text: compile_filter(text) for _, text in self._grants if text}
        self._verdicts: dict[str, _Verdict | None] = {}
        self._by_texts: dict[tuple[str, ...], _Verdict] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is no topic at all."""
        return not self._grants

    def check(self, topic: str) -> None:
        """Check that there is anything that the user may do with a topic.

        Raises:
            Refused: There is not.
        """
        if self._verdict(topic) is None:
            detail = f"the user may not {self._what} {quoted(topic)}"
            raise Refused(Reason.NOT_ENTITLED, detail)

    def is_granted(self, topic: str) -> bool:
        """Whether there is anything that the user may do with a topic."""
        return self._verdict(topic) is not None

    def is_free(self, topic: str) -> bool:
        """Whether every message of a topic is allowed."""
        return self._verdict(topic) == _Verdict()

    def with_filter(self, topic: str, text: str, own: Filter | None) -> tuple[str, Filter | None]:
        """A filter, or none, that also selects what is allowed of a topic, and its text.

        Raises:
            Refused: Nothing is allowed of it.
        """
        self.check(topic)
        allowed = self._verdict(topic) or _Verdict()
        if allowed.filter is None or own is None:
            return text or allowed.text, own or allowed.filter
        return f"({text}) AND ({allowed.text})", _both(own, allowed.filter)

    def check_body(self, topic: str, document: Callable[[], Document]) -> None:
        """Check that a body may be published.

        Raises:
            Refused: It may not.
        """
        self.check(topic)
        allowed = self._verdict(topic)
        if allowed and allowed.filter and not allowed.filter(document()):
            detail = f"the user may publish other messages to {quoted(topic)}, not this one"
            raise Refused(Reason.NOT_ENTITLED, detail)

    def check_free(self, topic: str, what: str) -> None:
        """Check something that no filter can be tested for.

        Raises:
            Refused: There is a filter for the topic.
        """
        self.check(topic)
        if not self.is_free(topic):
            detail = f"the user may {self._what} {quoted(topic)} with a filter alone: no {what}"
            raise Refused(Reason.NOT_ENTITLED, detail)

    def _verdict(self, topic: str) -> _Verdict | None:
        if len(topic) > MAX_REMEMBERED_CHARACTERS:
            return self._judge(topic)
        if topic not in self._verdicts:
            if len(self._verdicts) >= MAX_REMEMBERED:
                self._verdicts.clear()
            self._verdicts[topic] = self._judge(topic)
        return self._verdicts[topic]

    def _judge(self, topic: str) -> _Verdict | None:
        texts = tuple(text for matcher, text in self._grants if matcher.matches(topic))
        if not texts:
            return None
        found = self._by_texts.get(texts)
        if found is None:
            found = _Verdict()
            if all(texts):
                text = " OR ".join(f"({each})" for each in texts)
                # Not compiled as one: it may be too long, and NULL OR true is NULL.
                found = _Verdict(text, _any_of([self._filters[each] for each in texts]))
            if len(self._by_texts) >= MAX_COMBINATIONS:
                self._by_texts.clear()
            self._by_texts[texts] = found
        return found


def _any_of(filters: list[Filter]) -> Filter:
    return lambda document: any(each(document) for each in filters)


def _both(one: Filter, other: Filter) -> Filter:
    return lambda document: one(document) and other(document)


class Rights:
    """What one user may do.

    Args:
        user: The user.
        entitlements: Of all users.

    Attributes:
        reading: The topics that it may read.
        publishing: Those that it may publish to.
        replicating: Those that another broker may replicate as this user.
    """

    def __init__(self, user: str, entitlements: Iterable[Entitlement]) -> None:
        own = [each for each in entitlements if each.user in {user, EVERY_USER}]

        def granted(*words: str) -> list[Entitlement]:
            return [each for each in own if each.access in words]

        self.reading = Access("read", granted("read", "all"))
        self.publishing = Access("publish to", granted("publish", "all"))
        self.replicating = Access("replicate", granted("replicate"))
