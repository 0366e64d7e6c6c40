"""Typed columns from JSON bodies.

Sources yield bodies as bytes, since a log may hold anything. A body that does not fit a schema must
not fail a query, which would stop at the same message for ever: it goes into a column of its own.
"""

from __future__ import annotations

from pyspark.errors import ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, StringType, StructType

from haclient.errors import UsageError
from haclient.pyspark.rows import check_columns

_CORRUPT = "_haclient_corrupt"


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
