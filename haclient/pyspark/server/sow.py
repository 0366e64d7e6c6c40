"""The batch source of `format("amps")` with `command=sow`: a query of the State of the World.

Each partition is one query: one consistent result, and with the option `splits` several of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSourceReader, InputPartition
from typing_extensions import override

from haclient.errors import CommandError, HAClientError
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.pyspark.server.log_server import connected
from haclient.pyspark.server.message_rows import RowBatcher
from haclient.pyspark.server.range_reader import batches_of
from haclient.pyspark.server.settings import ServerOptions, task_name
from haclient.streams import Batches


class SowReader(DataSourceReader):
    """Reads the result of a query."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options

    @override
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(each) for each in self._options.filters]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        query = partial(self._query, str(partition.value), task_name(self._options.name))
        return self._options.rows(batches_of(query))

    async def _query(self, filter_: str, name: str, emit: Callable[[pa.RecordBatch], None]) -> None:
        options = self._options
        rows = RowBatcher(options.columns, options.batch_rows, emit)
        try:
            async with (
                connected(options.uris, name) as client,
                client.sow(
                    options.topic,
                    filter=filter_,
                    order_by=options.order_by,
                    top_n=options.top_n,
                    batch_size=options.batch_size,
                    options=Options(timestamp=True),
                    timeout=options.timeout_s,
                ) as stream,
            ):
                batches = stream.batches()
                while messages := await _next(batches, options.timeout_s):
                    rows.add([message for message in messages if message.kind == "sow"])
        except CommandError as error:
            text = f"amps: the server has refused the query of {options.topic!r}: {error}"
            raise HAClientError(text) from error
        rows.finish()


async def _next(batches: Batches, timeout_s: float) -> list[Message]:
    """The next messages of a result; none at its end."""
    with trio.move_on_after(timeout_s):
        return await anext(batches, list[Message]())
    raise HAClientError(f"amps: the server has sent nothing of the result for {timeout_s:g} s")
