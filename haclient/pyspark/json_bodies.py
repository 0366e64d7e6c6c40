"""Typed columns from JSON bodies, and JSON bodies from columns.

Sources yield bodies as bytes, since a log may hold anything. A body that does not fit a schema must
not fail a query, which would stop at the same message for ever: it goes into a column of its own.
`BodyParser` reads bodies in the task of a source (option `bodySchema`), `parse_json` in the JVM;
`encode_rows` makes them in the task of a sink (option `format`).

JSON has neither NaN nor infinity. A body that has one, as a word or as a text instead of a number,
does not fit, and such a value of a row is left out as null is.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.errors import ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, StringType, StructType

from haclient.errors import UsageError
from haclient.pyspark.rows import check_columns

CORRUPT: Final = "_corrupt"
"""The column with the bytes of a body that does not fit `bodySchema`."""

_CORRUPT: Final = "_haclient_corrupt"
_NO_NUMBER: Final = re.compile(rb"\b(?:NaN|Inf(?:inity)?)\b")


def parse_json(
    rows: DataFrame, schema: str | StructType, *, fields: str = "fields", bad: str = "bad_data"
) -> DataFrame:
    """Add typed columns from the bodies of messages, which are JSON objects.

    A body is *bad* if it is empty, no JSON object, not UTF-8, or has a value of another type than
    the schema. A field that a body lacks is null, and fields that the schema lacks are ignored, as
    is text after the object. A delete (`sow_delete`) has keys instead of a body: both columns are
    null. It works on streams as well.

    Args:
        rows: Rows of a source, with the column `data` and, if there are deletes, `command`.
        schema: The fields and their types, as DDL (`"id BIGINT, px DOUBLE"`) or as a type.
        fields: The name of the new column, a struct; `select("fields.*")` flattens it. Of a bad
            body it has the fields that could be read, or is null.
        bad: The name of another new column: the bytes of a body that is bad, null for all others.

    Returns:
        `rows` with the two columns.

    Raises:
        UsageError: The schema is none, there is no column `data`, or a new column has the name of
            one that is there.
    """
    check_columns("parse_json", rows, ("data",))
    for name in (fields, bad):
        if name in rows.columns:
            raise UsageError(f"parse_json adds the column {name}, which is there: name another one")
    wanted = _struct(schema)
    with_corrupt = StructType([*wanted.fields]).add(_CORRUPT, StringType())
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _CORRUPT,
        "allowSingleQuotes": "false",  # which JSON does not have, nor NaN
        "allowNonNumericNumbers": "false",
    }
    text = sf.col("data").cast("STRING")
    is_body = sf.col("data").isNotNull()
    if "command" in rows.columns:
        is_body &= ~sf.col("command").eqNullSafe("sow_delete")
    # A struct that was read, even one that is null throughout, is not null itself.
    parsed = rows.withColumn(fields, sf.when(is_body, sf.from_json(text, with_corrupt, options)))
    value = sf.col(fields)
    is_bad = value.isNull() | value[_CORRUPT].isNotNull() | ~sf.is_valid_utf8(text)
    marked = parsed.withColumn(bad, sf.when(is_body & is_bad, sf.col("data")))
    return marked.withColumn(fields, value.dropFields(_CORRUPT))


def _struct(schema: str | StructType) -> StructType:
    problem = "it has no fields"
    try:
        found: DataType = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except ParseException as error:
        found, problem = StructType(), str(error).strip().partition("\n")[0]
    if not isinstance(found, StructType) or not found.fields:
        raise UsageError(
            f"parse_json wants a schema such as 'id BIGINT, px DOUBLE', found {schema!r}: {problem}"
        )
    return found


class BodyParser:
    """Adds the fields of JSON bodies to rows, and `_corrupt`: the body of a row that does not fit.

    All fields of such a row are null, and so are those of a delete. A field that a body lacks is
    null; one that the schema lacks is ignored.

    Args:
        names: The columns of the log that the rows keep.
        fields: The fields and their types.

    Raises:
        UsageError: Two columns have one name, or a field has a type that is not read from JSON.
    """

    def __init__(self, names: Sequence[str], fields: pa.Schema) -> None:
        self._names = names
        self._fields = fields
        all_names = [*names, *fields.names, CORRUPT]
        if twice := sorted({name for name in all_names if all_names.count(name) > 1}):
            raise UsageError(
                f"bodySchema and columns both have {', '.join(twice)}: leave it out of one of them"
            )
        for field in fields:
            if not _is_readable(field.type):
                # No object or array fits a STRING.
                advice = (
                    "read the bodies, columns=data, and use parse_json"
                    if pa.types.is_nested(field.type)
                    else "make it a STRING, and cast it in the query"
                )
                raise UsageError(
                    f"bodySchema: the field {field.name} of type {field.type} is not read from "
                    f"JSON: {advice}"
                )
        self._nothing = pa.Table.from_pylist([{}], schema=fields)  # a row without any field

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns of the log that are read."""
        return tuple(dict.fromkeys([*self._names, "command", "data"]))

    def parse(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the columns `names`, the fields and `_corrupt`."""
        is_body = pc.not_equal(rows["command"], "sow_delete")
        bodies = pc.fill_null(pc.if_else(is_body, rows["data"], None), b"{}").to_pylist()
        tables, corrupt = [self._fields.empty_table()], list[bytes | None]()
        for part in self._parts(bodies):
            if isinstance(part, bytes):
                tables.append(self._nothing)
                corrupt.append(part)
            else:
                tables.append(part)
                corrupt += [None] * part.num_rows
        found = pa.concat_tables(tables).combine_chunks()
        schema = pa.schema([rows.schema.field(name) for name in self._names])
        for field in (*self._fields, pa.field(CORRUPT, pa.binary())):
            schema = schema.append(field)
        fields = [found[name].combine_chunks() for name in self._fields.names]
        arrays = [*(rows[name] for name in self._names), *fields, pa.array(corrupt, pa.binary())]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _parts(self, bodies: Sequence[bytes]) -> Iterator[pa.Table | bytes]:
        """The fields of bodies, in order; a body that does not fit stays as it is."""
        if not bodies:
            return
        table = self._read(bodies)
        if table is not None:
            yield table
        elif len(bodies) == 1:
            yield bodies[0]
        else:
            half = len(bodies) // 2
            yield from self._parts(bodies[:half])
            yield from self._parts(bodies[half:])

    def _read(self, bodies: Sequence[bytes]) -> pa.Table | None:
        """The fields of bodies; `None` if one of them does not fit, or has to be read alone."""
        stripped = [body.strip() for body in bodies]
        # As many objects as bodies, of which each has whole ones: so each has one.
        if not all(body[:1] == b"{" and body[-1:] == b"}" for body in stripped):
            return None
        text = b"\n".join(stripped)
        try:
            if _NO_NUMBER.search(text):  # perhaps in a text; Arrow takes it for a number
                if len(bodies) > 1:
                    return None
                json.loads(text, parse_constant=_refuse)
            found = pj.read_json(
                pa.BufferReader(text),
                pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
                pj.ParseOptions(
                    explicit_schema=self._fields,
                    newlines_in_values=True,
                    unexpected_field_behavior="ignore",
                ),
            )
            text.decode()
        except (pa.ArrowInvalid, ValueError, RecursionError):
            return None
        return found if found.num_rows == len(bodies) else None


def _refuse(word: str) -> object:
    raise ValueError(word)


def _is_readable(kind: pa.DataType) -> bool:
    """Whether Arrow reads a type from JSON as PySpark does."""
    if pa.types.is_list(kind):
        return _is_readable(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_is_readable(kind.field(number).type) for number in range(kind.num_fields))
    plain = ("integer", "floating", "boolean", "string", "decimal", "timestamp")
    return any(getattr(pa.types, f"is_{name}")(kind) for name in plain)


def encode_rows(rows: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """A JSON object of each row, as UTF-8; columns that are null are left out.

    Times are ISO 8601 in UTC, bytes are Base64, decimals are texts.

    Args:
        rows: The rows.
        names: The columns that are encoded.
    """
    bodies: list[bytes] = []
    for row in rows.select(list(names)).to_pylist():
        found = {name: value for name, value in row.items() if value is not None}
        try:
            text = _ENCODER.encode(found)
        except ValueError:
            finite = cast("dict[str, Any]", _finite(found))
            text = _ENCODER.encode({name: v for name, v in finite.items() if v is not None})
        bodies.append(text.encode())
    return pa.array(bodies, pa.binary())


def _finite(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            items = cast("dict[str, object]", value).items()
            return {name: _finite(each) for name, each in items}
        case list():
            return [_finite(each) for each in cast("list[object]", value)]
        case _:
            return value


def _encode_other(value: object) -> str:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() if (
            value.tzinfo is not None
        ):  # in UTC: what is published again must not depend on a session's zone
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case _:
            return str(value)


_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_encode_other
)
