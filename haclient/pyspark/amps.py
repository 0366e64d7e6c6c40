"""`format("amps")`: AMPS servers as a source and as a sink of PySpark."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from haclient.errors import UsageError
from haclient.pyspark.options import SERVER, OptionReader
from haclient.pyspark.server.settings import ServerOptions
from haclient.pyspark.server.source import ServerLogReader
from haclient.pyspark.server.sow import SowReader
from haclient.pyspark.server.stream import LogStreamReader
from haclient.pyspark.sink.settings import SinkSettings
from haclient.pyspark.sink.writers import BatchSink, StreamSink, check_checkpoint, check_job
from haclient.pyspark.sources import LogDataSource


class AmpsDataSource(LogDataSource):
    """The data source behind `format("amps")`."""

    @classmethod
    @override
    def name(cls) -> str:
        return SERVER

    @override
    def read_options(self, schema: StructType | None, *, is_stream: bool) -> ServerOptions:
        given = {**self.options}
        path = given.get("path", "")  # of `load`; a table may have one on a file system
        if path.startswith(("tcp://", "tcps://", "unix://")):
            given = {"uri": path, **given}
        return ServerOptions(OptionReader(self.name(), given), schema, is_stream=is_stream)

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self.read_options(schema, is_stream=False)
        return SowReader(options) if options.is_query else ServerLogReader(options)

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LogStreamReader(self.read_options(schema, is_stream=True))

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise UsageError('amps: nothing in a log can be overwritten: use mode("append")')
        settings = SinkSettings(self.options, schema)
        sink = BatchSink(settings)
        check_checkpoint(settings)  # of a job that has a place for its refusals
        check_job(settings)
        return sink

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        settings = SinkSettings(self.options, schema)
        sink = StreamSink(settings)
        check_checkpoint(settings)
        return sink
