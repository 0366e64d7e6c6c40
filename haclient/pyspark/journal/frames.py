"""`read_journal`: sealed segments through the reader of the JVM, united with the rest of the log.

The log is looked at once, when `read_journal` is called: each segment with a whole Parquet file is
read from that, all other positions by `format("amps-journal")`, up to the end that the log had.
Positions are fixed, so each row comes once, whatever the broker seals or removes meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from haclient.errors import StoreCorrupt, UsageError
from haclient.pyspark.journal.log import JournalLog
from haclient.pyspark.journal.pieces import wanted_manifests
from haclient.pyspark.journal.records import MAX_TIME_US, RowRange
from haclient.pyspark.journal.sealed import Extent, SealedFile, sealed_file, warn
from haclient.pyspark.journal.source import JournalSettings
from haclient.pyspark.options import JOURNAL
from haclient.pyspark.rows import SEALED_COLUMNS, STRICT, schema_ddl, union_of
from haclient_fake_server.journal.format import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_GLOB: Final = re.compile(r"[\\{}\[\]*?]")
_ESCAPED: Final = r"\\\g<0>"


def read_journal(
    spark: SparkSession,
    path: str | Path,
    *,
    columns: Sequence[str] = (),
    verify: bool = False,
    **options: object,
) -> DataFrame:
    """The rows of a broker's journal, as fast as there are sealed segments.

    The DataFrame is a snapshot: it ends where the log ends now. PySpark leaves out of the sealed
    part what the query does not use; `columns` does it for the rest.

    Args:
        spark: A session to which our data sources are known.
        path: The directory of the broker, which this program and all workers can read.
        columns: Names of the columns, in order, in a list or with commas between them; all by
            default.
        verify: Check the sealed files that are read byte by byte before; a damaged one is named in
            a warning, and its segment is read instead. Otherwise the query fails when it meets
            damage.
        options: The options of a batch of `amps-journal`.

    Raises:
        UsageError: An option is wrong, or there is no journal.
        DataLoss: The log does not have what is wanted.
        StoreError: The log is damaged, or cannot be read.
    """
    given = {name: str(value) for name, value in options.items()}
    names = columns if isinstance(columns, str) else ",".join(columns)
    given |= {"journalPath": str(path), **({"columns": names} if names else {})}
    if any(name.lower() == "bodyschema" for name in given):
        raise UsageError("read_journal has no bodySchema: give what it returns to parse_json")
    settings = JournalSettings(given)
    given["journalPath"] = str(settings.path.absolute())  # workers have another directory
    log = settings.open_log()
    plan = JournalPlan(settings, log, settings.range_of(log))
    kept = {n: v for n, v in given.items() if not n.lower().startswith(("starting", "ending"))}
    frames = [
        plan.of_journal(spark, kept, part)
        if isinstance(part, range)
        else plan.of_files(spark, part)
        for part in plan.parts(verify=verify)
    ]
    if not frames:
        return spark.createDataFrame([], schema_ddl(settings.columns))
    return union_of(frames)


@dataclass(frozen=True, slots=True)
class JournalPlan:
    """Which positions are read from where.

    Attributes:
        settings: The options.
        log: The log.
        wanted: Positions and times of the rows.
    """

    settings: JournalSettings
    log: JournalLog
    wanted: RowRange

    def parts(self, *, verify: bool) -> Iterator[list[SealedFile] | range]:
        """Sealed files, and ranges of positions for what is left; in the order of positions.

        Args:
            verify: Whether files are checked byte by byte.
        """
        wanted = self.wanted
        chosen = wanted_manifests(self.log.manifests, wanted, self.settings.is_wanted)
        files = {each.number: self._whole_file(each, verify=verify) for each in chosen}
        for is_sealed, group in groupby(chosen, lambda each: files[each.number] is not None):
            manifests = [*group]
            if is_sealed:
                yield [file for each in manifests if (file := files[each.number]) is not None]
            else:
                first = max(wanted.first_position, manifests[0].first_position)
                yield range(first, min(wanted.end_position, manifests[-1].next_position))

    def _whole_file(self, manifest: Manifest, *, verify: bool) -> SealedFile | None:
        extent = Extent.of(manifest)
        file = extent and sealed_file(self.log.directory, manifest.number, extent)
        if file is not None and verify:
            try:
                file.checked.check()
            except (OSError, StoreCorrupt) as error:
                warn(error)
                return None
        return file

    def of_files(self, spark: SparkSession, files: Sequence[SealedFile]) -> DataFrame:
        """The wanted rows of some Parquet files."""
        wanted, topics = self.wanted, self.log.topics(self.settings.is_wanted)
        paths = [f"file://{_GLOB.sub(_ESCAPED, str(each.path.absolute()))}" for each in files]
        rows = spark.read.schema(schema_ddl(SEALED_COLUMNS)).options(**STRICT).parquet(*paths)
        if files[0].manifest.first_position < wanted.first_position:
            rows = rows.where(rows["position"] >= wanted.first_position)
        if files[-1].manifest.next_position > wanted.end_position:
            rows = rows.where(rows["position"] < wanted.end_position)
        if len(topics) < len(self.log.topics(lambda _, __: True)):
            rows = rows.where(rows["topic_id"].isin(*topics))
        return self._in_time(rows).select(*self.settings.columns)

    def of_journal(
        self, spark: SparkSession, options: Mapping[str, str], positions: range
    ) -> DataFrame:
        """The wanted rows of a range of positions, through the data source."""
        columns = self.settings.columns
        names = [*columns]
        if self.wanted.has_times and "timestamp" not in names:
            names.append("timestamp")
        rows = (
            spark.read.format(JOURNAL)
            .options(**options)
            .option("columns", ",".join(names))
            .option("startingPosition", positions.start)
            .option("endingPosition", positions.stop - 1)
        )
        return self._in_time(rows.load()).select(*columns)

    def _in_time(self, rows: DataFrame) -> DataFrame:
        wanted = self.wanted
        if wanted.from_us > -MAX_TIME_US:
            rows = rows.where(f"timestamp >= timestamp_micros({wanted.from_us}L)")
        if wanted.until_us < MAX_TIME_US:
            rows = rows.where(f"timestamp < timestamp_micros({wanted.until_us}L)")
        return rows
