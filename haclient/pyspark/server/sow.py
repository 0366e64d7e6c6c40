"""The batch source of `format("amps")` with `command=sow`: a query of the State of the World.

Each partition is one query: one consistent result, and with the option `splits` several of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSourceReader, InputPartition
from typing_extensions import override

from haclient.errors import CommandError, HAClientError
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.pyspark.options import OptionReader
from haclient.pyspark.server.log_server import connected
from haclient.pyspark.server.message_rows import RowBatcher
from haclient.pyspark.server.range_reader import ReadSettings, batches_of
from haclient.pyspark.server.settings import filters_of, read_how, read_splits, task_name
from haclient.streams import Batches

_SOW_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class SowSettings:
    """The options of a query.

    Attributes:
        read: How it is read.
        filters: The content filter of each partition.
        order_by: The order of the records.
        top_n: The most records, `None` for all.
        batch_size: Records of a frame.
    """

    read: ReadSettings
    filters: tuple[str, ...]
    order_by: str
    top_n: int | None
    batch_size: int


def read_sow(read: OptionReader) -> SowSettings:
    """Read the options of a query.

    Args:
        read: The options.

    Raises:
        UsageError: An option is wrong; the message says how.
    """
    settings = SowSettings(
        read=read_how(read, fails_on_loss=True),
        filters=filters_of(read.text("filter", ""), read_splits(read)),
        order_by=read.text("orderBy", ""),
        top_n=read.integer("topN"),
        batch_size=read.integer("batchSize", _SOW_BATCH),
    )
    read.check_unknown()
    return settings


class SowReader(DataSourceReader):
    """Reads the result of a query.

    Args:
        settings: The options.
    """

    def __init__(self, settings: SowSettings) -> None:
        self._settings = settings

    @override
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(each) for each in self._settings.filters]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        name = task_name(self._settings.read.name)
        return batches_of(partial(self._query, str(partition.value), name))

    async def _query(self, filter_: str, name: str, emit: Callable[[pa.RecordBatch], None]) -> None:
        settings, read = self._settings, self._settings.read
        rows = RowBatcher(read.columns, read.batch_rows, emit)
        try:
            async with (
                connected(read.uris, name) as client,
                client.sow(
                    read.topic,
                    filter=filter_,
                    order_by=settings.order_by,
                    top_n=settings.top_n,
                    batch_size=settings.batch_size,
                    options=Options(timestamp=True),
                    timeout=read.timeout_s,
                ) as stream,
            ):
                batches = stream.batches()
                while messages := await _next(batches, read.timeout_s):
                    rows.add([message for message in messages if message.kind == "sow"])
        except CommandError as error:
            text = f"amps: the server has refused the query of {read.topic!r}: {error}"
            raise HAClientError(text) from error
        rows.finish()


async def _next(batches: Batches, timeout_s: float) -> list[Message]:
    """The next messages of a result; none at its end."""
    with trio.move_on_after(timeout_s):
        return await anext(batches, list[Message]())
    raise HAClientError(f"amps: the server has sent nothing of the result for {timeout_s:g} s")
