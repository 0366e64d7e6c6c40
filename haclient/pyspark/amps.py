"""`format("amps")`: AMPS servers as a sink of PySpark."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType
from typing_extensions import override

from haclient.errors import UsageError
from haclient.pyspark.sink.settings import read_settings
from haclient.pyspark.sink.writers import BatchSink, StreamSink, check_checkpoint


class AmpsDataSource(DataSource):
    """The data source behind `format("amps")`."""

    @classmethod
    @override
    def name(cls) -> str:
        return "amps"

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise UsageError('amps: nothing in a log can be overwritten: use mode("append")')
        return BatchSink(read_settings(self.options, schema))

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        settings = read_settings(self.options, schema)
        sink = StreamSink(settings)
        check_checkpoint(settings)
        return sink
