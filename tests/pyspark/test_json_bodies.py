"""Typed columns from JSON bodies: what fits is typed, what does not is kept beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from haclient.errors import UsageError
from haclient.pyspark import parse_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id BIGINT, px DOUBLE, at STRUCT<venue: STRING>"

GOOD = [
    (b'{"id":0,"px":0.0,"at":{"venue":"X"}}', (0, 0.0, ("X",))),
    (b'{"px":1}', (None, 1.0, None)),
    (b'{"id":null}', (None, None, None)),
    (b"{}", (None, None, None)),
    (b' {"id":9,"more":[1]}', (9, None, None)),
    ('{"at":{"venue":"Zürich"}}'.encode(), (None, None, ("Zürich",))),
]
BAD = [
    b"",
    b"null",
    b"7",
    b"[]",
    b'[{"id":3}]',
    b'{"id":5',
    b'{"id":"x","px":2}',
    b'{"id":9223372036854775808}',
    b"\xff\xfe",
    b'{"at":{"venue":"caf\xe9"}}',
    b"<order/>",
    b"{'id':8}",
    b"{id:8}",
    b'{"id":08}',
    b'{"px":NaN}',
]


@pytest.mark.row("SB6")
def test_what_fits_is_typed_and_what_does_not_is_kept_beside_it(spark: SparkSession) -> None:
    bodies = [body for body, _ in GOOD] + BAD
    rows = spark.createDataFrame(
        [(number, body, "publish") for number, body in enumerate(bodies)]
        + [(len(bodies), b"k1,k2", "sow_delete"), (len(bodies) + 1, None, "publish")],
        "number INT, data BINARY, command STRING",
    )
    found = parse_json(rows, SCHEMA).orderBy("number").collect()
    assert [row.bad_data for row in found] == [None] * len(GOOD) + BAD + [None, None]
    assert [row.fields for row in found[: len(GOOD)]] == [value for _, value in GOOD]
    assert [row.data for row in found] == [*bodies, b"k1,k2", None]
    assert [row.fields for row in found[-2:]] == [None, None]


@pytest.mark.row("SB6")
def test_the_names_are_chosen_and_the_fields_become_columns(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(b'{"id":1}',), (b"no",)], "data BINARY")
    typed = parse_json(rows, "id INT", fields="order", bad="refused")
    assert typed.columns == ["data", "order", "refused"]
    assert typed.where("refused IS NULL").select("order.*").collect() == [(1,)]
    assert typed.where("refused IS NOT NULL").select("data").collect() == [(b"no",)]


@pytest.mark.row("SB6")
@pytest.mark.parametrize(
    ("schema", "names", "problem"),
    [
        ("id NUMBER", {}, "wants a schema such as"),
        ("", {}, "wants a schema such as"),
        ("id INT", {"bad": "data"}, "adds the column data, which is there"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    spark: SparkSession, schema: str, names: dict[str, str], problem: str
) -> None:
    rows = spark.createDataFrame([(b"{}",)], "data BINARY")
    with pytest.raises(UsageError, match=problem) as raised:
        parse_json(rows, schema, **names)
    assert "\n" not in str(raised.value)


@pytest.mark.row("SB6")
def test_rows_without_bodies_are_refused(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="parse_json has no column data"):
        parse_json(spark.range(1), "id INT")
