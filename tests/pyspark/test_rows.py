"""Every source has one schema, in PySpark's words and in Arrow's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from haclient.errors import UsageError
from haclient.pyspark.rows import (
    COLUMNS,
    arrow_schema,
    check_schema,
    schema_ddl,
    select_columns,
    signed,
    unsigned,
)

ALL = tuple(COLUMNS)


@pytest.mark.row("SB5")
def test_the_schema_has_the_documented_columns_and_types() -> None:
    assert schema_ddl(ALL) == (
        "topic STRING, bookmark STRING, publisher_id BIGINT, sequence BIGINT, position BIGINT, "
        "timestamp TIMESTAMP, command STRING, sow_key STRING, correlation_id STRING, data BINARY"
    )


def test_the_arrow_schema_is_the_one_that_pyspark_demands(spark: SparkSession) -> None:
    for columns in (ALL, ("data", "timestamp"), ("position",)):
        frame = spark.createDataFrame([], schema=schema_ddl(columns))
        assert isinstance(frame.schema, StructType)
        wanted = to_arrow_schema(frame.schema, timezone="UTC")
        assert arrow_schema(columns).equals(wanted, check_metadata=True)


def test_columns_may_be_chosen_in_any_order() -> None:
    assert select_columns(["data", "topic"]) == ("data", "topic")
    assert select_columns([]) == ALL
    with pytest.raises(UsageError, match="columns names 'payload', which does not exist: known"):
        select_columns(["payload"])


def test_a_schema_of_the_user_is_refused() -> None:
    check_schema(["topic", "data"], ("topic", "data"))
    with pytest.raises(UsageError, match=r"found the columns \(data, topic\): give no schema"):
        check_schema(["data", "topic"], ("topic", "data"))


@given(st.integers(0, 2**64 - 1))
def test_an_unsigned_number_keeps_its_bits(number: int) -> None:
    assert -(2**63) <= signed(number) < 2**63
    assert unsigned(signed(number)) == number
