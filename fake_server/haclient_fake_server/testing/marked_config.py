"""Convert `@pytest.mark.amps(...)` into the configuration of a test's brokers.

Values have the form of the command line, or are the objects of `haclient_fake_server.config`::

    @pytest.mark.amps(sow=["orders:/id"], queues=["jobs,max_backlog=10"], users={"ann": "secret"})
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

from haclient.errors import UsageError
from haclient_fake_server.config import (
    BrokerConfig,
    LogTopic,
    QueueTopic,
    SowTopic,
    parse_log_topic,
    parse_queue,
    parse_sow_topic,
)

T = TypeVar("T")


def config_of(
    arguments: tuple[object, ...], keywords: Mapping[str, object], *, segment_bytes: int
) -> BrokerConfig:
    """The configuration that a mark asks for.

    Args:
        arguments: The positional arguments of the mark; any is refused.
        keywords: The keyword arguments of the mark.
        segment_bytes: The size of the journal's files.

    Raises:
        UsageError: A keyword is unknown, or a value is refused.
    """
    if arguments:
        raise UsageError(f"wanted keywords alone ({', '.join(KEYWORDS)}), found {arguments[0]!r}")
    values: dict[str, Any] = {}
    for keyword, value in keywords.items():
        if keyword not in KEYWORDS:
            near = difflib.get_close_matches(keyword, KEYWORDS, n=1)
            hint = f", did you mean {near[0]}?" if near else "."
            raise UsageError(f"unknown keyword {keyword!r}{hint} There are {', '.join(KEYWORDS)}")
        attribute, read = KEYWORDS[keyword]
        try:
            values[attribute] = read(keyword, value)
        except UsageError as error:  # the parsers name command-line options
            raise UsageError(str(error).removeprefix("--")) from error
    return BrokerConfig(segment_bytes=segment_bytes, **values)


def _list_of(kind: type[T], parse: Callable[[str], T]) -> Callable[[str, object], tuple[T, ...]]:
    def read(keyword: str, value: object) -> tuple[T, ...]:
        if not isinstance(value, list | tuple):
            raise UsageError(f"{keyword}: wanted a list, found {value!r}")
        found: list[T] = []
        for item in cast("list[object]", value):
            if isinstance(item, str):
                found.append(parse(item))
            elif isinstance(item, kind):
                found.append(item)
            else:
                raise UsageError(f"{keyword}: wanted texts or {kind.__name__}s, found {item!r}")
        return tuple(found)

    return read


def _users(keyword: str, value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping):  # not printed: it may hold passwords
        raise UsageError(f"{keyword}: wanted a dict of passwords by user")
    return cast("Mapping[str, str]", value)


def _sow_topic(text: str) -> SowTopic:
    return parse_sow_topic(text, allow_user_keys=True)


KEYWORDS: Final[Mapping[str, tuple[str, Callable[[str, object], object]]]] = {
    "sow": ("sow_topics", _list_of(SowTopic, _sow_topic)),
    "queues": ("queues", _list_of(QueueTopic, parse_queue)),
    "users": ("users", _users),
    "log_topics": ("log_topics", _list_of(LogTopic, parse_log_topic)),
    "message_types": ("message_types", _list_of(str, str)),
}
"""By keyword of the mark, the attribute of `BrokerConfig` and what reads its value."""
