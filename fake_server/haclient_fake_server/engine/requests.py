"""What a subscribe or query asks for, read and checked before anything happens.

Whatever is wrong is a `CommandError` whose text begins with the reason of protocol 3.15 and then
says what was found. An option that this broker knows but does not carry out is refused by name,
never ignored: a client must not believe that it got what it asked for (OP17).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from haclient.errors import CommandError, InvalidOptions, InvalidTopic, UsageError
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient_fake_server.engine.filters import Document, FilterError, compile_filter
from haclient_fake_server.engine.routes import Style
from haclient_fake_server.engine.topics import TopicMatcher, TopicPatternError

__all__ = ["Request", "read_options", "read_request"]

_NOT_CARRIED_OUT: Final = (
    "conflation",
    "conflation_key",
    "rate",
    "rate_max_gap",
    "select",
    "projection",
    "grouping",
    "cancel",
    "expire",
    "lease_extension",
    "max_backlog",
)
_ONLY_WITH_BOOKMARK: Final = ("bookmark_not_found",)
"""`live`, `fully_durable` and `pause` have no effect without one (protocol 7.3)."""
_NOT_WITH_BOOKMARK: Final = ("oof", "skip_n")


@dataclass(frozen=True, slots=True)
class Request:
    """A subscribe or query that can be carried out.

    Attributes:
        message: The command.
        options: Its options.
        matcher: Its topics.
        filter: Its content filter, if it has one.
    """

    message: Message
    options: Options
    matcher: TopicMatcher
    filter: Callable[[Document], bool] | None

    @property
    def style(self) -> Style:
        """The optional headers that it wants (RB11, RB17)."""
        style = Style.PLAIN
        if self.message.bookmark or self.options.bookmark:
            style |= Style.BOOKMARK
        if self.options.timestamp:
            style |= Style.TIMESTAMP
        if self.options.no_sowkey:
            style |= Style.NO_SOW_KEY
        if self.options.live and self.message.bookmark:
            style |= Style.LIVE
        return style

    @property
    def top_n(self) -> int | None:
        """Most messages or records; the option wins over the header (protocol 8.3)."""
        return self.message.top_n if self.options.top_n is None else self.options.top_n


def read_options(message: Message) -> Options:
    """The options of a command.

    Raises:
        InvalidOptions: One is unknown, malformed or not carried out; the text names it (OP17).
    """
    try:
        options = Options.parse(message.options)
    except UsageError as error:
        raise InvalidOptions(f"invalid options: {error}") from error
    for name in _NOT_CARRIED_OUT:
        if getattr(options, name):
            raise InvalidOptions(f"invalid options: {name} is not supported by this broker")
    if options.live and options.fully_durable:
        raise InvalidOptions("invalid options: live and fully_durable contradict each other")
    refused = _NOT_WITH_BOOKMARK if message.bookmark else _ONLY_WITH_BOOKMARK
    for name in refused:
        if getattr(options, name):
            needs = "cannot have" if message.bookmark else "needs"
            raise InvalidOptions(f"invalid options: {name} {needs} a bookmark")
    return options


def read_request(message: Message, options: Options) -> Request:
    """A subscribe or query, checked.

    Raises:
        CommandError: No topic, a bad pattern or a bad filter.
    """
    if not message.topic:
        raise InvalidTopic("no topic")
    try:
        matcher = TopicMatcher(message.topic, non_regex_topic=options.non_regex_topic)
        filter_ = compile_filter(message.filter) if message.filter else None
    except (TopicPatternError, FilterError) as error:
        raise CommandError(f"{error.reason}: {error}") from error
    return Request(message, options, matcher, filter_)
