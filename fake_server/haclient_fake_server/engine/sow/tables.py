"""The topics with a state of the world: those that the configuration names, or matches.

A topic of a pattern begins when it is first published to or queried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from haclient_fake_server.engine import settings
from haclient_fake_server.engine.patterns import TopicMatcher
from haclient_fake_server.engine.sow.table import SowTable


class SowTables:
    """Finds and makes the topics with a state of the world.

    Args:
        configured: What the configuration names.
        is_logged: Whether the journal records a topic of a message type.

    Attributes:
        is_configured: Whether there is or may be any.
    """

    def __init__(
        self,
        configured: tuple[settings.SowTopic, ...],
        is_logged: Callable[[str, str], bool],
    ) -> None:
        self.is_configured = bool(configured)
        self._is_logged = is_logged
        self._topics: dict[tuple[str, str], SowTable] = {}
        self._patterns = [(TopicMatcher(each.name), each) for each in configured if each.is_pattern]
        for each in configured:
            if not each.is_pattern:
                self._make(each, each.name)

    def __iter__(self) -> Iterator[SowTable]:
        return iter(self._topics.values())

    def get(self, name: str, message_type: str) -> SowTable | None:
        """A topic that is known."""
        return self._topics.get((message_type, name))

    def matching(self, matcher: TopicMatcher, message_type: str) -> list[SowTable]:
        """The topics that are known and match."""
        found = (topic for (kind, _), topic in self._topics.items() if kind == message_type)
        return [topic for topic in found if matcher.matches(topic.name)]

    def may_have(self, name: str, message_type: str) -> bool:
        """Whether a pattern matches a name."""
        return self._pattern(name, message_type) is not None

    def has_patterns(self, message_type: str) -> bool:
        """Whether topics may become known."""
        return any(each.message_type == message_type for _, each in self._patterns)

    def get_or_make(self, name: str, message_type: str) -> SowTable | None:
        """The topic of this name; `None` if it has no state of the world."""
        topic = self.get(name, message_type)
        if topic is None and (pattern := self._pattern(name, message_type)) is not None:
            topic = self._make(pattern, name)
        return topic

    def _pattern(self, name: str, message_type: str) -> settings.SowTopic | None:
        for matcher, each in self._patterns:
            if each.message_type == message_type and matcher.matches(name):
                return each
        return None

    def _make(self, configured: settings.SowTopic, name: str) -> SowTable:
        message_type = configured.message_type
        is_logged = self._is_logged(name, message_type)
        topic = self._topics[message_type, name] = SowTable(
            name,
            configured.keys,
            message_type=message_type,
            history=configured.history and is_logged,
            file_backed=configured.file_backed and is_logged,
            expiration_s=configured.expiration_s,
        )
        return topic
