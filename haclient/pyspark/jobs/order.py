"""The order of a journal: duplicates, messages that come too late, and holes.

It needs nothing but the journal. An audit may continue an earlier one: then it reads only what was
logged since, and what the earlier one has seen of each publisher stands for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from haclient.errors import UsageError
from haclient.protocol.identity import publisher_id
from haclient.pyspark.jobs import kernels
from haclient.pyspark.jobs.journals import Journal
from haclient.pyspark.jobs.verdict import Audit, FindingKind, bookmark_text
from haclient.pyspark.rows import arrow_schema_of, check_columns, signed, unsigned


class Earlier(NamedTuple):
    """What an earlier audit has seen: its table, the last position (0 for none), and how much."""

    publishers: DataFrame
    position: int
    messages: int

    def with_ends(self, rows: DataFrame) -> DataFrame:
        """Some rows, after one row for each publisher: the highest sequence that was seen."""
        ends = self.publishers.select(
            "publisher_id",
            sf.col("last_sequence").alias("sequence"),
            sf.col("last_position").alias("position"),
        )
        return rows.unionByName(ends, allowMissingColumns=True)


def read_earlier(journal: Journal, after: DataFrame) -> Earlier:
    """Check that a journal continues the one of an earlier audit.

    Raises:
        UsageError: It does not, or the earlier table lacks a column.
    """
    others = {"intervals", "damage"}
    names = [name for name in arrow_schema_of(kernels.PUBLISHERS_DDL).names if name not in others]
    check_columns("after", after, names)
    table = after.select(*names).toArrow()  # it may be read from files that are replaced afterwards
    local = journal.spark.createDataFrame(table)
    last: int = pc.max(table["last_position"]).as_py() or 0
    if last:
        end = table.filter(pc.equal(table["last_position"], last)).to_pylist()[0]
        wanted = bookmark_text(end["publisher_id"], end["end_sequence"])
        row = journal.rows_from(last, last).select("publisher_id", "sequence").head()
        found = "nothing" if row is None else bookmark_text(row["publisher_id"], row["sequence"])
        if found != wanted:
            raise UsageError(
                f"after: the earlier audit ended with {wanted} at position {last}, "
                f"and the journal has {found} there: it is another one, or was cut since; audit "
                "it without `after`"
            )
    return Earlier(local, last, pc.sum(table["rows"]).as_py() or 0)


def audit_order(result: Audit, journal: Journal, earlier: Earlier | None, limit: int) -> None:
    """Find duplicates and order breaks, and note what the journal has of each publisher."""
    first = 0 if earlier is None else earlier.position + 1
    runs = journal.runs(first)
    if earlier is not None:
        runs = runs.unionByName(kernels.runs_before(earlier.publishers))
    publishers = kernels.publishers_of(runs)
    result.tables["publishers"] = journal.spark.createDataFrame(
        publishers.drop_columns(["intervals"])
    )
    result.facts |= journal_facts(publishers, is_whole=journal.is_whole)
    if earlier is not None:
        result.facts["messages"] -= earlier.messages
        result.facts |= {"messages_before": earlier.messages, "audited_after": earlier.position}
    result.counts |= {FindingKind.DUPLICATE: 0, FindingKind.ORDER_BREAK: 0}
    if result.facts["suspect_runs"]:
        rows = journal.rows if earlier is None else earlier.with_ends(journal.rows_from(first))
        late = kernels.late_rows(rows, publishers)
        result.add_each(_classify_late(journal.rows, late.persist()), limit)


def journal_facts(publishers: pa.Table, *, is_whole: bool | None = None) -> dict[str, Any]:
    """Figures about a journal, from the result of `kernels.publishers_of`.

    Without `is_whole`, the first row is taken for the beginning, which is wrong where a mark comes
    before: it has a position, and is no row.
    """
    first = pc.min(publishers["first_position"]).as_py()
    return {
        "is_whole": first in {None, 1} if is_whole is None else is_whole,
        "messages": pc.sum(publishers["rows"]).as_py() or 0,
        "publishers": publishers.num_rows,
        "first_position": first,
        "last_position": pc.max(publishers["last_position"]).as_py(),
        "suspect_runs": pc.sum(publishers["suspect_runs"]).as_py() or 0,
    }


def _classify_late(journal: DataFrame, late: DataFrame) -> DataFrame:
    """Tell the rows that the journal has before from those that come too late."""
    bookmark = ["publisher_id", "sequence"]
    is_delete = "command = 'sow_delete'" if "command" in journal.columns else "false"
    same_bookmark = Window.partitionBy(*bookmark)
    same_row = Window.partitionBy(*bookmark, "position")
    first = (
        journal.join(sf.broadcast(late.select(*bookmark).distinct()), bookmark, "left_semi")
        .select(
            *(*bookmark, "position"),
            sf.min("position").over(same_bookmark).alias("first_at"),
            sf.min("position").over(Window.partitionBy(*bookmark, "topic")).alias("first_of_topic"),
            sf.every(sf.expr(is_delete)).over(same_bookmark).alias("only_deletes"),
            sf.count("*").over(same_row).alias("copies"),
        )
        .distinct()
    )
    # Rows of one position are one record, read more than once: from an export that was written
    # twice. All but one are copies, and this one may be late itself.
    numbered = late.withColumns(
        {
            "place": sf.row_number().over(same_row.orderBy("sequence")),
            "of_late": sf.count("*").over(same_row),
        }
    )
    is_copy = sf.expr("place > of_late - copies + 1")
    is_again = is_copy | (sf.col("position") > sf.col("first_at"))
    # A delete on several topics is one record for each of them under one bookmark.
    is_other_part = sf.expr("only_deletes AND position = first_of_topic AND position > first_at")
    before = sf.concat(sf.lit("logged before at position "), "first_at")
    detail = (
        sf.when(is_copy, sf.lit("this position is there more than once"))
        .when(is_again, before)
        .otherwise(sf.concat(sf.lit("logged after sequence "), "highest_before"))
    )
    kinds = sf.lit(FindingKind.DUPLICATE), sf.lit(FindingKind.ORDER_BREAK)
    known = numbered.join(sf.broadcast(first), [*bookmark, "position"])
    return known.where(is_copy | ~is_other_part).select(
        *late.columns,
        sf.when(is_again, kinds[0]).otherwise(kinds[1]).alias("kind"),
        detail.alias("detail"),
    )


def audit_holes(
    result: Audit,
    journal: Journal,
    publishes: DataFrame | None,
    dense: Iterable[str | int],
    earlier: Earlier | None,
    limit: int,
) -> None:
    """Name the first sequence of each hole of publishers that number without gaps."""
    names = {_signed_id(each): each for each in dense}
    if not names:
        return
    result.counts[FindingKind.HOLE] = 0
    publishers = result.tables["publishers"].where(sf.col("publisher_id").isin(*names)).collect()
    logged = {row["publisher_id"] for row in publishers}
    result.not_verified += [
        f"the journal has no message of the publisher {name!r}, which is said to have no gaps"
        for publisher, name in names.items()
        if publisher not in logged
    ]
    gaps = [
        row["publisher_id"]
        for row in publishers
        if row["last_sequence"] - row["first_sequence"] + 1 > row["rows"] or row["suspect_runs"]
    ]
    if not gaps:
        return
    rows = journal.rows.select(*kernels.ORDER_COLUMNS)
    if earlier is not None:  # what was logged since and is above the highest sequence of then
        ends = earlier.publishers.select("publisher_id", sf.col("last_sequence").alias("seen"))
        later = journal.rows_from(earlier.position + 1).select(*kernels.ORDER_COLUMNS)
        joined = later.join(sf.broadcast(ends), "publisher_id", "left")
        rows = earlier.with_ends(joined.where("seen IS NULL OR sequence > seen").drop("seen"))
    if publishes is not None:
        # They have numbers: a delete that deleted nothing, and a publish that is not logged.
        others = publishes.where("is_delete OR is_unlogged").select("publisher_id", "sequence")
        rows = rows.unionByName(others, allowMissingColumns=True)
    rows = rows.where(sf.col("publisher_id").isin(gaps))
    by_sequence = Window.partitionBy("publisher_id").orderBy("sequence")
    holes = (
        rows.withColumn("before", sf.lag("sequence").over(by_sequence))
        .where("sequence > before + 1")
        .select(
            "publisher_id",
            (sf.col("before") + 1).alias("sequence"),
            "position",
            (sf.col("sequence") - sf.col("before") - 1).alias("missing"),
        )
    )
    detail = sf.concat("missing", sf.lit(" sequences are missing before this position"))
    result.add(FindingKind.HOLE, holes, detail, limit=limit)


def _signed_id(publisher: str | int) -> int:
    """The id of a publisher as rows have it; a name is hashed as servers do it."""
    number = publisher_id(publisher) if isinstance(publisher, str) else publisher
    return signed(unsigned(number))  # an id may be given as rows have it
