"""The verdict of an audit: the kinds of violations, those that were found, and how many."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf

from haclient.errors import StoreCorrupt
from haclient.pyspark.jobs.damage import Damage, DamagedJournal
from haclient.pyspark.rows import unsigned


class FindingKind(enum.StrEnum):
    """The kinds of violations."""

    DAMAGED = "damaged file"
    DUPLICATE = "duplicate"
    ORDER_BREAK = "order break"
    HOLE = "hole"
    LOST = "lost"
    NOT_LOGGED = "not logged"
    UNDELIVERED = "undelivered"
    RECEIVED_TWICE = "received twice"
    RECEIVED_OUT_OF_ORDER = "received out of order"
    MISSING_IN_REPLICA = "missing in replica"
    REPLICA_ORDER = "other order in replica"
    CONTENT = "other content in replica"
    REMOVED_TWICE = "removed twice"
    NEVER_QUEUED = "removed but never queued"
    LOST_FROM_QUEUE = "lost from queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One message that breaks a promise.

    Attributes:
        kind: Which promise.
        bookmark: The message.
        topic: Its topic, where it is known.
        position: Its position in the journal, where it has one.
        timestamp: When it was logged or, if it was not, published or received.
        client: The subscriber, for violations of a delivery.
        sub_id: The subscription, for violations of a delivery.
        detail: What was wanted and what was found.
    """

    kind: FindingKind
    bookmark: str
    topic: str | None = None
    position: int | None = None
    timestamp: datetime | None = None
    client: str | None = None
    sub_id: str | None = None
    detail: str = ""


VIOLATIONS_DDL: Final = (
    "kind STRING, bookmark STRING, topic STRING, position BIGINT, timestamp TIMESTAMP, "
    "client STRING, sub_id STRING, detail STRING"
)


@dataclass(slots=True, kw_only=True)
class Audit:
    """The result of an audit.

    Attributes:
        counts: How many violations there are of each kind that was looked for.
        violations: The first ones of each kind, by position.
        facts: Figures about the journal and the logs, by name.
        tables: `publishers`, and with audit logs `latency`, `latency_by_publisher`,
            `latency_by_subscription`, `lag`; of an audit of queues, `queues`, `queue_times` and
            `queue_dead_letters`.
        not_verified: What was asked for and could not be compared, a line for each.
    """

    counts: dict[FindingKind, int] = field(default_factory=dict[FindingKind, int])
    violations: list[Violation] = field(default_factory=list[Violation])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    tables: dict[str, DataFrame] = field(default_factory=dict[str, DataFrame])
    not_verified: list[str] = field(default_factory=list[str])

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong, and everything that was asked for could be compared."""
        return not any(self.counts.values()) and not self.not_verified

    @property
    def judgement(self) -> str:
        """The verdict in a word: `good`, `bad`, or `not verified`."""
        if any(self.counts.values()):
            return "bad"
        return "not verified" if self.not_verified else "good"

    def verdict(self) -> dict[str, Any]:
        """What a machine needs to know, as plain JSON values."""
        return {
            "verdict": self.judgement,
            "violations": {str(kind): count for kind, count in self.counts.items()},
            "not_verified": self.not_verified,
            "facts": {name: _plain(value) for name, value in self.facts.items()},
        }

    @contextmanager
    def naming_damage(self) -> Generator[None]:
        """Name what is damaged in the files that the block reads; then nothing else was judged."""
        try:
            yield
        except DamagedJournal as error:  # as tasks have said
            damages = error.damages
        except StoreCorrupt as error:  # as the driver has met it
            damages = [Damage.of(error)]
        else:
            return
        named = [Violation(kind=FindingKind.DAMAGED, **damage._asdict()) for damage in damages]
        self.counts = {FindingKind.DAMAGED: len(named)}
        self.violations = named
        self.not_verified.append(
            "files are damaged, and nothing else was compared: restore them; a Parquet file alone "
            "is written again by `haclient pyspark seal --verify`"
        )

    def add(self, kind: FindingKind, rows: DataFrame, detail: Column, *, limit: int) -> None:
        """Count the violations in `rows`, and keep the first ones.

        Args:
            kind: What they are.
            rows: publisher_id and sequence, and any of topic, position, timestamp, client, sub_id.
            detail: What was wanted and what was found, for each row.
            limit: How many are kept.
        """
        self.counts.setdefault(kind, 0)
        self.add_each(rows.select("*", sf.lit(kind).alias("kind"), detail.alias("detail")), limit)

    def add_each(self, rows: DataFrame, limit: int) -> dict[str, int]:
        """Count the violations in `rows`, which have a kind each, and keep the first ones.

        Args:
            rows: As for `add`, with `detail` and `kind`, which is null for what is no violation.
            limit: How many of each kind are kept.

        Returns:
            How many rows of each kind there are; those without one are under the empty text.
        """
        names = ("topic", "position", "timestamp", "client", "sub_id")
        known = [name for name in names if name in rows.columns]
        order = [name for name in ("position", "timestamp", "sequence") if name in rows.columns]
        detail = sf.coalesce("detail", sf.lit("")).alias("detail")
        kind = sf.coalesce("kind", sf.lit("")).alias("kind")
        shown = rows.select("publisher_id", "sequence", *known, detail, kind)
        # Few faults are the rule, and take one job: it has all of them.
        found = shown.orderBy(*order).limit(limit + 1).collect()
        if len(found) <= limit:
            counts = dict(Counter(row.kind for row in found))
        else:
            counts = {row.kind: row["count"] for row in shown.groupBy("kind").count().collect()}
            firsts = [
                shown.where(sf.col("kind") == each).orderBy(*order)
                for each in FindingKind
                if each in counts
            ]
            found = [row for each in firsts for row in each.limit(limit).collect()]
        for each in FindingKind:
            if each in counts:
                self.counts[each] = self.counts.get(each, 0) + counts[each]
                self.violations += [_violation(each, row) for row in found if row.kind == each]
        return counts


def bookmark_text(publisher: int, sequence: int) -> str:
    """The bookmark of a signed publisher id, as rows have it."""
    return f"{unsigned(publisher)}|{unsigned(sequence)}|"


def _violation(kind: FindingKind, row: Row) -> Violation:
    values = row.asDict()
    del values["kind"]
    bookmark = bookmark_text(values.pop("publisher_id"), values.pop("sequence"))
    return Violation(kind=kind, bookmark=bookmark, **values)


def _plain(value: Any) -> Any:  # noqa: ANN401  # any fact
    # PySpark hands out times of the local zone, without saying so.
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
