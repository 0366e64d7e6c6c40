"""The records of file-backed topics as the database keeps them, and their changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from haclient_fake_server.engine.journal import Cursor
from haclient_fake_server.engine.patterns import TopicMatcher
from haclient_fake_server.engine.settings import QueueTopic, SowTopic
from haclient_fake_server.engine.sow.table import SowRecord


class ConfiguredTopic(NamedTuple):
    """A topic that is configured by its name or by a pattern, as it matters to a database.

    Attributes:
        message_type: Its message type.
        name: Its name, or the pattern.
        is_pattern: Whether it is a pattern.
        keys: Its key fields; `None` if its records are not in the database.
    """

    message_type: str
    name: str
    is_pattern: bool
    keys: Sequence[str] | None


class SowLayout:
    """Which topics are file-backed under a configuration, and with which keys.

    Of a topic of a pattern that depends on all that takes precedence: topics that are configured by
    their names, file-backed or not, queues, and earlier patterns.

    Args:
        topics: All that there are, in order.
    """

    def __init__(self, topics: Iterable[ConfiguredTopic]) -> None:
        self._topics = tuple(topics)
        self._named = {each[:2]: each for each in self._topics if not each.is_pattern}
        self._patterns = [
            (TopicMatcher(each.name), each) for each in self._topics if each.is_pattern
        ]

    @classmethod
    def of(cls, topics: Iterable[SowTopic], queues: Iterable[QueueTopic] = ()) -> SowLayout:
        """That of a configuration."""
        found = [ConfiguredTopic(each.message_type, each.name, False, None) for each in queues]
        for each in topics:
            keys = each.keys if each.file_backed else None
            found.append(ConfiguredTopic(each.message_type, each.name, each.is_pattern, keys))
        return cls(found)

    @classmethod
    def parse(cls, text: str) -> SowLayout:
        """The inverse of `text`."""
        return cls([ConfiguredTopic(*each) for each in json.loads(text)])

    @property
    def text(self) -> str:
        """As text, the same for the same layout."""
        return json.dumps(self._topics)

    @property
    def is_empty(self) -> bool:
        """Whether no topic is file-backed."""
        return all(each.keys is None for each in self._topics)

    def keys_of(self, message_type: str, topic: str) -> tuple[str, ...] | None:
        """The keys of a topic; `None` if its records are not in the database."""
        found = self._named.get((message_type, topic))
        for matcher, each in () if found else self._patterns:
            if each.message_type == message_type and matcher.matches(topic):
                found = each
                break
        return None if found is None or found.keys is None else tuple(found.keys)


class SavedRecords(NamedTuple):
    """The records of topics at one place of the log.

    Attributes:
        end: The place: all that comes before it is in the records.
        next_position: The position of the first message after it.
        has: Whether the records of a message type and topic are in it; others have to be rebuilt.
        records: The records with their message types and topics, in the order of first insertion.
            When they expire is left to the topic.
    """

    end: Cursor
    next_position: int
    has: Callable[[str, str], bool]
    records: Sequence[tuple[str, str, SowRecord]]


class SowChanges(NamedTuple):
    """A part of what has changed in one topic since the last time.

    Attributes:
        message_type: Its message type.
        topic: The topic.
        records: By key the present record, or `None` where there is none any more.
    """

    message_type: str
    topic: str
    records: Sequence[tuple[str, SowRecord | None]]
