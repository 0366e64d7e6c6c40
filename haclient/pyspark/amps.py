"""`format("amps")`: AMPS servers as a source and as a sink of PySpark."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from haclient.errors import UsageError
from haclient.pyspark.options import OptionReader
from haclient.pyspark.rows import check_schema, schema_ddl, select_columns
from haclient.pyspark.server.source import FilteringLogReader, ServerLogReader, read_batch
from haclient.pyspark.server.sow import SowReader, read_sow
from haclient.pyspark.server.stream import LogStreamReader, read_stream
from haclient.pyspark.sink.settings import read_settings
from haclient.pyspark.sink.writers import BatchSink, StreamSink, check_checkpoint, check_job

SOW = "sow"
SUBSCRIBE = "subscribe"


class AmpsDataSource(DataSource):
    """The data source behind `format("amps")`."""

    @classmethod
    @override
    def name(cls) -> str:
        return "amps"

    @override
    def schema(self) -> str:
        return schema_ddl(self._columns())

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        read = self._options(schema)
        if read.choice("command", (SUBSCRIBE, SOW), SUBSCRIBE) == SOW:
            return SowReader(read_sow(read))
        settings = read_batch(read)
        # PySpark fails a query whose reader has `pushFilters` while its own setting is off.
        return (FilteringLogReader if settings.has_pushdown else ServerLogReader)(settings)

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        read = self._options(schema)
        read.choice("command", (SUBSCRIBE,), SUBSCRIBE)
        return LogStreamReader(read_stream(read))

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise UsageError('amps: nothing in a log can be overwritten: use mode("append")')
        settings = read_settings(self.options, schema)
        sink = BatchSink(settings)
        check_checkpoint(settings)  # of a job that has a place for its refusals
        check_job(settings)
        return sink

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        settings = read_settings(self.options, schema)
        sink = StreamSink(settings)
        check_checkpoint(settings)
        return sink

    def _columns(self) -> tuple[str, ...]:
        return select_columns(OptionReader(self.name(), self.options).names("columns"))

    def _options(self, schema: StructType) -> OptionReader:
        check_schema(schema.fieldNames(), self._columns())
        return OptionReader(self.name(), self.options)
