"""Two journals are equal where replicas must be, and each difference is named."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from haclient.errors import UsageError
from haclient.pyspark.jobs.journals import Journal
from haclient.pyspark.jobs.reconcile import reconcile
from haclient.pyspark.jobs.verdict import Audit, FindingKind
from haclient.pyspark.rows import COLUMNS, schema_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.row("AU3")

Message = tuple[int, int, str]  # publisher, sequence, payload
AT = datetime(2026, 1, 31, tzinfo=UTC)


def messages(count: int = 150) -> list[Message]:
    return [(n % 3 - 1, n // 3 + 1, f"data {n}") for n in range(count)]


def interleaved(log: Sequence[Message], seed: int) -> list[Message]:
    """The same messages in another order, in which each publisher keeps its own."""
    rng = random.Random(seed)
    waiting = {publisher: [e for e in log if e[0] == publisher] for publisher, _, _ in log}
    mixed: list[Message] = []
    while waiting:
        publisher = rng.choice(sorted(waiting))
        mixed.append(waiting[publisher].pop(0))
        if not waiting[publisher]:
            del waiting[publisher]
    return mixed


def journal_of(
    spark: SparkSession,
    log: Sequence[Message],
    *,
    first_position: int = 1,
    seconds: Mapping[Message, int] | None = None,
) -> DataFrame:
    """The rows of a journal; `seconds` says when each message was logged."""
    rows = [
        (
            "t", f"{each[0] % 2**64}|{each[1]}|", each[0], each[1], position,
            AT + timedelta(seconds=(seconds or {}).get(each, 0)), "publish", "k", None,
            each[2].encode(),
        )
        for position, each in enumerate(log, first_position)
    ]  # fmt: skip
    return spark.createDataFrame(rows, schema_ddl(COLUMNS))


def found(result: Audit) -> list[tuple[FindingKind, str, str]]:
    return sorted((each.kind, each.bookmark, each.detail) for each in result.violations)


def test_replicas_may_interleave_publishers_differently(spark: SparkSession) -> None:
    log = messages()
    result = reconcile(journal_of(spark, log), journal_of(spark, interleaved(log, 1)))
    assert result.is_good
    assert (result.facts["left_messages"], result.facts["right_messages"]) == (150, 150)


def test_a_message_that_only_one_replica_has_is_named(spark: SparkSession) -> None:
    log = messages()
    mine, others = log[:75] + log[76:], interleaved(log[:60] + log[61:], 2)
    result = reconcile(journal_of(spark, mine), journal_of(spark, others), names=("A", "B"))
    assert found(result) == [
        (FindingKind.MISSING_IN_REPLICA, "18446744073709551615|21|", "missing in B"),
        (FindingKind.MISSING_IN_REPLICA, "18446744073709551615|26|", "missing in A"),
    ]


def test_the_first_message_in_another_order_is_named(spark: SparkSession) -> None:
    log = messages()
    broken = interleaved(log, 3)
    places = [i for i, entry in enumerate(broken) if entry[0] == 1]
    for i, j in ((places[20], places[21]), (places[30], places[33])):
        broken[i], broken[j] = broken[j], broken[i]
    result = reconcile(journal_of(spark, log), journal_of(spark, broken), names=("A", "B"))
    assert found(result) == [
        (FindingKind.REPLICA_ORDER, "1|21|", "in this place B has sequence 22, A has 21")
    ]


def test_other_content_under_the_same_bookmark_is_named(spark: SparkSession) -> None:
    log = messages()
    changed = interleaved([(p, s, "other" if (p, s) == (0, 9) else d) for p, s, d in log], 4)
    frames = journal_of(spark, log), journal_of(spark, changed)
    result = reconcile(*frames, names=("A", "B"))
    assert found(result) == [
        (FindingKind.CONTENT, "0|9|", "A and B hold different messages under this bookmark")
    ]
    assert reconcile(*frames, content=False).is_good


def test_a_delete_on_two_topics_is_compared_with_all_its_records(spark: SparkSession) -> None:
    log = messages(9)
    kept = journal_of(spark, log)
    second = kept.where("sequence = 2 AND publisher_id = 0").withColumns(
        {"topic": sf.lit("u"), "position": sf.lit(10).cast("BIGINT")}
    )
    left = kept.unionByName(second)
    changed = [(p, s, "other" if (p, s) == (1, 2) else d) for p, s, d in log]
    result = reconcile(left, journal_of(spark, changed).unionByName(second))
    assert found(result) == [
        (FindingKind.CONTENT, "1|2|", "left and right hold different messages under this bookmark")
    ]


def test_a_missing_message_does_not_hide_other_content_beside_it(spark: SparkSession) -> None:
    log = messages()
    changed = [(p, s, "other" if (p, s) == (0, 9) else d) for p, s, d in log if (p, s) != (0, 10)]
    result = reconcile(journal_of(spark, log), journal_of(spark, changed))
    assert [(kind, bookmark) for kind, bookmark, _ in found(result)] == [
        (FindingKind.MISSING_IN_REPLICA, "0|10|"),
        (FindingKind.CONTENT, "0|9|"),
    ]


def test_what_one_instance_has_removed_is_not_compared(spark: SparkSession) -> None:
    log = messages()
    kept = journal_of(spark, log[60:], first_position=61)
    assert reconcile(journal_of(spark, log), kept).is_good
    holed = journal_of(spark, log[60:90] + log[91:], first_position=61)
    result = reconcile(journal_of(spark, log), holed)
    assert found(result) == [
        (FindingKind.MISSING_IN_REPLICA, "18446744073709551615|31|", "missing in right")
    ]


def test_the_newest_messages_of_instances_at_work_are_behind(spark: SparkSession) -> None:
    log = messages()
    frames = journal_of(spark, log), journal_of(spark, log[:-4])
    assert reconcile(*frames).counts[FindingKind.MISSING_IN_REPLICA] == 4
    result = reconcile(*frames, is_live=True)
    assert result.is_good
    assert (result.facts["right_behind"], result.facts["left_behind"]) == (4, 0)


def each_second(log: Sequence[Message]) -> dict[Message, int]:
    return {each: second for second, each in enumerate(log)}


@pytest.mark.parametrize(("lag", "missing"), [(10.0, 27), (0.0, 30)])
def test_a_publisher_that_a_shortened_journal_lacks_is_missing_in_its_span(
    spark: SparkSession, lag: float, missing: int
) -> None:
    log = messages()
    seconds = each_second(log)
    others = [each for each in log[60:] if each[0] != 1]
    result = reconcile(
        journal_of(spark, log, seconds=seconds),
        journal_of(spark, others, first_position=61, seconds=seconds),
        allowed_lag_s=lag,
    )
    assert result.counts[FindingKind.MISSING_IN_REPLICA] == missing
    # What is as old as the oldest message that is left may have been removed with what was before.
    assert found(result)[-1] == (FindingKind.MISSING_IN_REPLICA, "1|50|", "missing in right")
    assert result.facts["right_not_compared"] == 90 - missing
    assert result.not_verified == []


def test_first_messages_in_the_span_of_a_shortened_journal_are_missing(spark: SparkSession) -> None:
    log = messages()
    seconds = each_second(log)
    others = [each for each in log[60:] if each[0] != 1 or each[1] > 40]
    kept = journal_of(spark, others, first_position=61, seconds=seconds)
    result = reconcile(kept, journal_of(spark, log, seconds=seconds), names=("A", "B"))
    # 1|21| to 1|23| are from the first ten seconds of the span.
    bookmarks = sorted(f"1|{sequence}|" for sequence in range(24, 41))
    wanted = [(FindingKind.MISSING_IN_REPLICA, each, "missing in A") for each in bookmarks]
    assert found(result) == wanted


def test_a_journal_that_begins_with_a_mark_lacks_what_it_has_not_if_it_is_whole(
    spark: SparkSession,
) -> None:
    log = messages(30)
    whole, later = journal_of(spark, log), journal_of(spark, log[3:], first_position=4)
    assert not reconcile(whole, later).counts[FindingKind.MISSING_IN_REPLICA]
    known = reconcile(whole, Journal(later, is_whole=True))
    assert known.counts[FindingKind.MISSING_IN_REPLICA] == 3


def test_a_publisher_that_cannot_be_compared_is_not_verified(spark: SparkSession) -> None:
    log = [(9, n, "old") for n in range(1, 4)] + messages()
    seconds = each_second(log)
    kept = journal_of(spark, log[60:], first_position=61, seconds=seconds)
    result = reconcile(journal_of(spark, log, seconds=seconds), kept, names=("A", "B"))
    assert not any(result.counts.values())
    assert (result.is_good, result.judgement) == (False, "not verified")
    (reason,) = result.not_verified
    assert reason == (
        "B begins at 2026-01-31T00:01:00Z: what A has of these publishers is older, or at most "
        "10 seconds younger, and could not be compared: 9"
    )


def test_instances_at_work_must_have_what_is_not_at_the_end(spark: SparkSession) -> None:
    log = messages()
    seconds = each_second(log)
    others = [each for each in log[:140] if each[0] != 1]
    frames = journal_of(spark, log, seconds=seconds), journal_of(spark, others, seconds=seconds)
    result = reconcile(*frames, is_live=True, allowed_lag_s=5)
    # The newest message is from second 139, so one of the publisher that is not there is behind.
    assert result.counts[FindingKind.MISSING_IN_REPLICA] == 45
    assert (result.facts["right_behind"], result.facts["left_behind"]) == (11, 0)
    assert found(result)[-1] == (FindingKind.MISSING_IN_REPLICA, "1|9|", "missing in right")


def test_an_instance_at_work_without_messages_is_not_verified(spark: SparkSession) -> None:
    frames = journal_of(spark, messages(9)), journal_of(spark, [])
    result = reconcile(*frames, is_live=True)
    assert result.judgement == "not verified"
    assert result.not_verified == ["none of the 9 messages of left could be compared with right"]
    assert reconcile(*frames).counts[FindingKind.MISSING_IN_REPLICA] == 9


def test_content_needs_its_columns(spark: SparkSession) -> None:
    journal = journal_of(spark, messages(3))
    with pytest.raises(UsageError, match=r"^B has no column data; it has"):
        reconcile(journal, journal.drop("data"), names=("A", "B"))
