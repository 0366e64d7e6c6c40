"""Typed columns from JSON bodies: what fits is typed, what does not is kept beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import UsageError
from haclient.pyspark import parse_json
from haclient.pyspark.json_bodies import BodyParser

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
    b'{"px":"NaN"}',
    b'{"px":-Infinity}',
    b'{"px":Inf}',
    b'{"id":1.5}',
    b'{"id":true}',
    b'{"at":"X"}',
    b'{"id":1,"no":' + b"[" * 5000 + b"NaN" + b"]" * 5000 + b"}",
]


FIELDS = pa.schema(
    [("id", pa.int64()), ("px", pa.float64()), ("at", pa.struct([("venue", pa.string())]))]
)
PLAIN = pa.schema(
    [("id", pa.int64()), ("px", pa.float64()), ("name", pa.string()), ("ok", pa.bool_())]
)


def log_rows(bodies: Sequence[bytes | None], command: str = "publish") -> pa.RecordBatch:
    data, commands = pa.array(bodies, pa.binary()), [command] * len(bodies)
    numbers = [*map(str, range(len(bodies)))]
    rows: pa.RecordBatch = pa.record_batch({"bookmark": numbers, "data": data, "command": commands})
    return rows


def flat(value: object) -> object:
    """The values of a struct; anything else as it is."""
    is_struct = isinstance(value, dict)
    return tuple(cast("dict[str, object]", value).values()) if is_struct else value


def parsed(fields: pa.Schema, *bodies: bytes | None, command: str = "publish") -> list[Any]:
    """The fields of bodies as tuples; of a body that does not fit, the body."""
    rows = BodyParser(("bookmark",), fields).parse(log_rows(bodies, command))
    assert rows.schema.names == ["bookmark", *fields.names, "_corrupt"]
    found: list[Any] = []
    for _, *values, corrupt in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        assert corrupt is None or values == [None] * len(values)
        plain = tuple(map(flat, values))
        found.append(plain if corrupt is None else corrupt)
    return found


@pytest.mark.row("SB6")
def test_a_source_types_what_fits_and_keeps_what_does_not() -> None:
    assert parsed(FIELDS, *(body for body, _ in GOOD)) == [wanted for _, wanted in GOOD]
    assert parsed(FIELDS, *BAD, b'{"id":1}x') == [*BAD, b'{"id":1}x']
    assert parsed(FIELDS, b"k1,k2", command="sow_delete") == [(None, None, None)]
    assert parsed(FIELDS, None) == [(None, None, None)]


def test_every_type_that_json_can_have_is_read() -> None:
    kinds = {
        "at": (pa.timestamp("us", tz="UTC"), "2026-01-31T10:30:00+01:00", 1769851800000000),
        "amount": (pa.decimal128(10, 2), 1.25, Decimal("1.25")),
        "text": (pa.decimal128(10, 2), "1.25", Decimal("1.25")),
        "small": (pa.int8(), -128, -128),
        "many": (pa.list_(pa.int32()), [1, None], [1, None]),
        "word": (pa.string(), "NaN: Infinity", "NaN: Infinity"),
    }
    fields = pa.schema([(name, kind) for name, (kind, _, _) in kinds.items()])
    body = json.dumps({name: value for name, (_, value, _) in kinds.items()}).encode()
    rows = BodyParser((), fields).parse(log_rows([body]))
    at = rows["at"].cast(pa.int64()).to_pylist()
    assert [at[0], *(rows[name][0].as_py() for name in [*kinds][1:])] == [
        wanted for _, _, wanted in kinds.values()
    ]
    for name, value in (("small", 128), ("at", "x"), ("amount", 1.255), ("many", 1), ("word", 5)):
        wrong = json.dumps({name: value}).encode()
        assert BodyParser((), fields).parse(log_rows([wrong]))["_corrupt"].to_pylist() == [wrong]


VALUES: st.SearchStrategy[object] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["NaN", "\ud800"])
    | st.just({"a": [{"b": 1}]})
)
OBJECTS = st.dictionaries(st.sampled_from([*PLAIN.names, "more"]), VALUES).map(json.dumps)
ODD = st.sampled_from(
    [
        "",
        "{",
        "{}{}",
        '{"id":1}{"id":2}',
        '{"name":"\n"}',
        "[{}]",
        '{"id":1}}',
        "null",
        '{"ok":t}',
    ]
)


@given(st.lists((OBJECTS | ODD).map(str.encode), max_size=6))
def test_bodies_that_are_read_together_have_the_fields_that_each_has_alone(
    bodies: list[bytes],
) -> None:
    alone = [found for body in bodies for found in parsed(PLAIN, body)]
    assert parsed(PLAIN, *bodies) == alone
    for body, found in zip(bodies, alone, strict=True):
        if not isinstance(found, bytes):
            values = json.loads(body)
            px = values.get("px")
            values["px"] = None if px is None else float(px)
            assert [*found] == [values.get(name) for name in PLAIN.names]


def test_columns_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="bodySchema and columns both have bookmark: leave it out"):
        BodyParser(("bookmark",), pa.schema([("bookmark", pa.int64())]))


def test_a_type_that_is_not_read_from_json_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the field a of type date32\[day\] is not read"):
        BodyParser((), pa.schema([("a", pa.date32())]))


def test_a_map_is_not_taken_as_a_string_which_no_object_fits() -> None:
    fields = pa.schema([("a", pa.map_(pa.string(), pa.int64()))])
    with pytest.raises(UsageError, match="columns=data, and use parse_json"):
        BodyParser((), fields)
    assert parsed(pa.schema([("a", pa.string())]), b'{"a":{}}') == [b'{"a":{}}']


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
