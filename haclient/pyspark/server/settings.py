"""The options of the readers of `format("amps")`, checked."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from haclient.errors import UsageError
from haclient.pyspark.options import OptionReader
from haclient.pyspark.rows import select_columns
from haclient.pyspark.server.offsets import POSITION, VECTOR
from haclient.pyspark.server.range_reader import ReadSettings
from haclient_stores.bookmark import NOW, Timestamp, parse_bookmark
from pyspark import TaskContext

DEFAULT_BATCH_ROWS: Final = 10_000
DEFAULT_TIMEOUT_MS: Final = 60_000
EARLIEST: Final = "EPOCH"
LATEST: Final = "NOW"

WORDS: Final = {"EPOCH": "0", "EARLIEST": "0", "NOW": str(NOW), "LATEST": str(NOW)}
_SPECIAL: Final = re.compile(r"[.*+?\[\](){}^$|\\]")


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The options that batch and stream have in common, checked.

    Attributes:
        read: How ranges are read.
        topics: The topics that were given by name; empty for a pattern.
        filter: The content filter of all partitions; empty for none.
        splits: The content filters of the partitions; empty for one partition or equal parts.
        mode: `position` or `vector`.
        begin: Where to begin, as a bookmark.
        parts: Into how many partitions a range is cut without `splits`.
        fully_durable: Whether only what every synchronous destination has is planned.
    """

    read: ReadSettings
    topics: tuple[str, ...]
    filter: str
    splits: tuple[str, ...]
    mode: str
    begin: str
    parts: int
    fully_durable: bool

    @property
    def filters(self) -> tuple[str, ...]:
        """The content filter of each partition."""
        return filters_of(self.filter, self.splits)

    def is_wanted(self, topic: str) -> bool:
        """Whether a topic is one of those that are read; of a pattern that is not known, never.

        Args:
            topic: Its name.
        """
        if not _SPECIAL.search(self.read.topic):
            return topic == self.read.topic
        try:
            return re.search(self.read.topic, topic) is not None
        except re.error:  # a pattern that the server's syntax has and Python's has not
            return False


def read_common(read: OptionReader, *, default_begin: str) -> SourceSettings:
    """Read the options that batch and stream have in common.

    Args:
        read: The options.
        default_begin: Where to begin if no option says it.

    Raises:
        UsageError: An option is wrong; the message says how.
    """
    uris = read.uris("uri")
    mode = read.choice("offsetMode", (POSITION, VECTOR), VECTOR if len(uris) > 1 else POSITION)
    if mode == POSITION and len(uris) > 1:
        raise UsageError(
            f"amps: offsetMode=position is for one server, found {len(uris)} in uri: positions "
            "differ from server to server"
        )
    splits = read_splits(read)
    if splits and mode == VECTOR:
        raise UsageError("amps: splits needs offsetMode=position and one server")
    settings = read_how(read, fails_on_loss=read.flag("failOnDataLoss", default=True))
    return SourceSettings(
        read=settings,
        topics=read.names("topic"),
        filter=read.text("filter", ""),
        splits=splits,
        mode=mode,
        begin=_begin(read, default_begin),
        parts=read.integer("minPartitions", 1),
        fully_durable=read.flag("fullyDurable", default=False),
    )


def read_how(read: OptionReader, *, fails_on_loss: bool) -> ReadSettings:
    """Read the options that say how a task reads.

    Args:
        read: The options.
        fails_on_loss: Whether messages that are gone fail the query.

    Raises:
        UsageError: An option is wrong; the message says how.
    """
    return ReadSettings(
        uris=read.uris("uri"),
        topic=_topic(read),
        columns=select_columns(read.names("columns")),
        batch_rows=read.integer("batchRows", DEFAULT_BATCH_ROWS),
        timeout_s=read.integer("fetchTimeoutMs", DEFAULT_TIMEOUT_MS) / 1000,
        name=f"{read.text('clientName', 'pyspark')}-{uuid.uuid4().hex[:12]}",
        fails_on_loss=fails_on_loss,
    )


def _topic(read: OptionReader) -> str:
    """The topics as the subscription names them: a literal, or a pattern."""
    chosen = read.at_most_one("topic", "topicPattern")
    if chosen is None:
        read.required("topic", "orders")
    if chosen == "topicPattern":
        pattern = read.required("topicPattern")
        # A server takes a text without special characters for the name of one topic.
        return pattern if _SPECIAL.search(pattern) else f"({pattern})"
    return topic_of(read.names("topic"))


def filters_of(filter_: str, splits: Sequence[str]) -> tuple[str, ...]:
    """The content filter of each partition.

    Args:
        filter_: The filter of all of them; empty for none.
        splits: What each of them has in addition; empty for one partition.
    """
    both = (f"({filter_}) AND ({split})" if filter_ else split for split in splits)
    return tuple(both) or (filter_,)


def topic_of(names: Sequence[str]) -> str:
    """Some topics as a subscription names them: one literal, or a pattern.

    Args:
        names: The topics.
    """
    if len(names) == 1 and not _SPECIAL.search(names[0]):
        return names[0]
    return pattern_of(names)


def pattern_of(names: Sequence[str]) -> str:
    """The pattern that some topics match, and no other one.

    Args:
        names: The topics.
    """
    return f"^({'|'.join(map(re.escape, names))})$"


def read_splits(read: OptionReader) -> tuple[str, ...]:
    """Read the content filters of the partitions.

    Args:
        read: The options.

    Raises:
        UsageError: They are no JSON list of texts.
    """
    text = read.text("splits")
    if text is None:
        return ()
    wanted = """a JSON list of content filters, such as ["/id MOD 2 = 0", "/id MOD 2 = 1"]"""
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise read.error("splits", wanted) from error
    items = cast("list[object]", found) if isinstance(found, list) else []
    if not items or not all(isinstance(each, str) and each for each in items):
        raise read.error("splits", wanted)
    return tuple(map(str, items))


def _begin(read: OptionReader, default: str) -> str:
    name = read.at_most_one("startingBookmark", "startingOffsets", "startingTimestamp")
    if name == "startingTimestamp":
        return str(Timestamp(read.timestamp_us(name) or 0))
    return read_bookmark(read, name, default) if name else WORDS[default]


def read_bookmark(read: OptionReader, name: str, default: str) -> str:
    """Read a bookmark in the form of the wire.

    Args:
        read: The options.
        name: The option.
        default: A bookmark or one of the words.

    Raises:
        UsageError: It is none.
    """
    text = read.text(name, default)
    word = WORDS.get(text.upper())
    if word is not None:
        return word
    try:
        parse_bookmark(text)
    except UsageError as error:
        wanted = "EPOCH, NOW, a list of bookmarks or a time (YYYYmmddTHHMMSS)"
        raise read.error(name, wanted) from error
    return text


def task_name(prefix: str) -> str:
    """A name that no other attempt of any task has.

    Args:
        prefix: What it begins with.
    """
    context = TaskContext.get()
    if context is None:
        return f"{prefix}-{uuid.uuid4().hex[:8]}"
    return f"{prefix}-{context.partitionId()}-{context.taskAttemptId()}"
