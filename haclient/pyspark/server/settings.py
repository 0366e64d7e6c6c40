"""The options of the readers of `format("amps")`, checked."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Final

from pyspark.sql.types import StructType

from haclient.errors import UsageError
from haclient.pyspark.options import SERVER, OptionReader
from haclient.pyspark.server.offsets import POSITION, VECTOR
from haclient.pyspark.sources import SourceOptions
from pyspark import TaskContext

SOW: Final = "sow"
SUBSCRIBE: Final = "subscribe"

SIZE: Final = "size"
TOPIC: Final = "topic"
TIME: Final = "time"

_SPECIAL: Final = re.compile(r"[.*+?\[\](){}^$|\\]")
_SPLITS: Final = """a JSON list of content filters, such as ["/id % 2 = 0", "/id % 2 = 1"]"""


class ServerOptions(SourceOptions):
    """What is read from servers, and how.

    Args:
        options: As the user gave them.
        schema: The one of the rows.
        is_stream: Whether a stream is read.

    Attributes:
        uris: The servers, in the order in which they are tried.
        topic: The topics as a subscription names them: a literal or a pattern.
        is_query: Whether the State of the World is read, not a range of the log.
        filter: The content filter of all partitions; empty for none.
        splits: The content filters of the partitions; empty for one partition or equal parts.
        timeout_s: A read fails when nothing has come for so many seconds.
        name: What the names of its clients begin with.

    Raises:
        UsageError: An option is wrong; the message says how.
    """

    def __init__(
        self, read: OptionReader, schema: StructType | None = None, *, is_stream: bool = False
    ) -> None:
        self.is_query = read.choice("command", (SUBSCRIBE, SOW), SUBSCRIBE) == SOW
        if self.is_query and is_stream:
            raise read.error("command", f"{SUBSCRIBE} in a stream (queries of the SOW are batches)")
        super().__init__(read, schema, is_stream=is_stream, has_range=not self.is_query)
        self.uris = read.uris("uri")
        self.topic = self._topic(read)
        self.filter = read.text("filter", "")
        self.splits = read.texts("splits", _SPLITS)
        self.timeout_s = read.integer("fetchTimeoutMs", 60_000) / 1000
        self.name = f"{read.text('clientName', 'pyspark')}-{uuid.uuid4().hex[:12]}"
        if self.is_query:
            self.order_by = read.text("orderBy", "")
            self.top_n = read.integer("topN", None)
            self.batch_size = read.integer("batchSize", 1000)
        else:
            self._read_log(read)
        self.guard = read.text("guard", "") if is_stream else ""
        read.check_unknown()

    def _read_log(self, read: OptionReader) -> None:
        modes, default = (POSITION, VECTOR), VECTOR if len(self.uris) > 1 else POSITION
        self.mode = read.choice("offsetMode", modes, default)
        self.fully_durable = read.flag("fullyDurable", default=False)
        self.partition_by = read.choice("partitionBy", (SIZE, TOPIC, TIME), SIZE)
        if self.mode == POSITION and len(self.uris) > 1:
            raise UsageError(
                f"{SERVER}: offsetMode=position is for one server, found {len(self.uris)} in uri: "
                "positions differ from server to server"
            )
        if self.splits and self.mode == VECTOR:
            raise UsageError(f"{SERVER}: splits needs offsetMode=position and one server")
        if self.splits and self.partition_by != SIZE:
            raise UsageError(f"{SERVER}: the options splits and partitionBy exclude each other")
        if self.partition_by == TOPIC and not self.topics:
            raise UsageError(f"{SERVER}: partitionBy=topic needs names of topics: set topic")

    @property
    def filters(self) -> tuple[str, ...]:
        """The content filter of each partition."""
        if not self.filter:
            return self.splits or ("",)
        return tuple(f"({self.filter}) AND ({each})" for each in self.splits) or (self.filter,)

    def _topic(self, read: OptionReader) -> str:
        if not self.pattern:
            read.required("topic", "orders")
            return topic_of(self.topics)
        # A server takes a text without special characters for the name of one topic.
        return self.pattern if _SPECIAL.search(self.pattern) else f"({self.pattern})"


def topic_of(names: Sequence[str]) -> str:
    """Some topics as a subscription names them: one literal, or a pattern."""
    if len(names) == 1 and not _SPECIAL.search(names[0]):
        return names[0]
    return pattern_of(names)


def pattern_of(names: Sequence[str]) -> str:
    """The pattern that some topics match, and no other one."""
    return f"^({'|'.join(map(re.escape, names))})$"


def task_name(prefix: str) -> str:
    """A name that no other attempt of any task has."""
    context = TaskContext.get()
    if context is None:
        return f"{prefix}-{uuid.uuid4().hex[:8]}"
    return f"{prefix}-{context.partitionId()}-{context.taskAttemptId()}"
