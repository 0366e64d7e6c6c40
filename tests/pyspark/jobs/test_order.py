"""The order of a journal: what is planted is named, also where an audit continues another one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from haclient.errors import UsageError
from haclient.pyspark.jobs.audit import audit
from haclient.pyspark.jobs.verdict import Audit, FindingKind
from support.audit_rows import (
    ALICE,
    BOB,
    Message,
    found,
    healthy,
    journal_of,
    publishes_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_healthy_journal_is_good(spark: SparkSession) -> None:
    result = audit(journal_of(spark, healthy()))
    assert result.is_good
    assert result.verdict()["verdict"] == "good"
    facts = {"messages": 200, "publishers": 2, "first_position": 1, "last_position": 200}
    assert facts.items() <= result.facts.items()


def test_an_empty_journal_is_good(spark: SparkSession) -> None:
    empty = audit(journal_of(spark, []))
    assert (empty.is_good, empty.facts["messages"]) == (True, 0)


@pytest.mark.row("AU1")
def test_a_duplicate_is_named_with_its_bookmark_and_where_it_was_before(
    spark: SparkSession,
) -> None:
    messages = healthy()
    result = audit(journal_of(spark, [*messages[:120], messages[60], *messages[120:]]))
    assert found(result) == [(FindingKind.DUPLICATE, f"{ALICE}|31|")]
    (violation,) = result.violations
    assert (violation.position, violation.topic) == (121, "orders")
    assert violation.detail == "logged before at position 61"
    assert result.verdict()["violations"] == {"duplicate": 1, "order break": 0}


@pytest.mark.row("AU1")
def test_a_row_that_is_read_twice_is_a_duplicate(spark: SparkSession) -> None:
    messages = healthy(20)
    messages[7], messages[9] = messages[9], messages[7]
    journal = journal_of(spark, messages)  # of which a part was exported twice
    result = audit(journal.unionByName(journal.where("position IN (3, 10)")))
    assert [(each.kind, each.bookmark, each.position) for each in result.violations] == [
        (FindingKind.DUPLICATE, f"{ALICE}|2|", 3),
        (FindingKind.DUPLICATE, f"{BOB}|4|", 10),
        (FindingKind.ORDER_BREAK, f"{BOB}|4|", 10),
    ]
    assert result.violations[0].detail == "this position is there more than once"


@pytest.mark.row("AU1")
def test_an_order_break_is_named_with_its_bookmark_and_what_came_before(
    spark: SparkSession,
) -> None:
    messages = healthy()
    messages[61], messages[63] = messages[63], messages[61]
    result = audit(journal_of(spark, messages))
    assert found(result) == [(FindingKind.ORDER_BREAK, f"{BOB}|31|")]
    assert result.violations[0].detail == "logged after sequence 32"
    assert result.violations[0].position == 64


@pytest.mark.row("AU1")
def test_a_missing_sequence_counts_only_for_publishers_without_gaps(spark: SparkSession) -> None:
    messages = healthy()
    del messages[100], messages[101]  # alice 51 and 52, with one of bob between
    journal = journal_of(spark, messages)
    assert audit(journal).is_good
    assert audit(journal, dense=["bob"]).is_good
    result = audit(journal, dense=["alice"])
    assert found(result) == [(FindingKind.HOLE, f"{ALICE}|51|")]
    assert result.violations[0].detail == "2 sequences are missing before this position"


def late_in(*results: Audit) -> list[tuple[FindingKind, str, int | None, str]]:
    """The duplicates and order breaks."""
    named = [each for result in results for each in result.violations]
    return sorted(
        (each.kind, each.bookmark, each.position, each.detail)
        for each in named
        if each.kind is not FindingKind.HOLE
    )


def missing_in(*results: Audit) -> set[tuple[str, int]]:
    """The publishers and sequences in holes."""
    missing: set[tuple[str, int]] = set()
    for each in (each for result in results for each in result.violations):
        if each.kind is FindingKind.HOLE:
            publisher, sequence, _ = each.bookmark.split("|")
            count = int(each.detail.split()[0])
            missing |= {(publisher, int(sequence) + more) for more in range(count)}
    return missing


def with_faults(seed: int) -> list[Message]:
    """A journal with a few messages that are doubled, moved or taken away."""
    chosen = random.Random(seed)
    messages = healthy(60)
    for _ in range(chosen.randint(1, 6)):
        at_, to = chosen.randrange(len(messages)), chosen.randrange(len(messages) + 1)
        match chosen.choice(["double", "move", "take"]):
            case "double":
                messages.insert(to, messages[at_])
            case "move":
                messages.insert(min(to, len(messages) - 1), messages.pop(at_))
            case _:
                del messages[at_]
    return messages


@pytest.mark.row("AU9")
@pytest.mark.parametrize("seed", range(4))
def test_audits_that_continue_each_other_find_what_one_audit_finds(
    spark: SparkSession, seed: int
) -> None:
    journal = journal_of(spark, with_faults(seed)).persist()
    dense = ["alice", "bob"]
    whole = audit(journal, dense=dense)
    first, second = sorted(random.Random(seed).sample(range(61), 2))
    parts = [audit(journal.where(f"position <= {first}"), dense=dense)]
    for upto in (second, 100):
        rows = journal.where(f"position <= {upto}")
        parts.append(audit(rows, dense=dense, after=parts[-1].tables["publishers"]))
    assert late_in(*parts) == late_in(whole)
    # What comes late was missing until then.
    late = {
        (bookmark.split("|")[0], int(bookmark.split("|")[1])) for _, bookmark, *_ in late_in(whole)
    }
    assert missing_in(whole) <= missing_in(*parts) <= missing_in(whole) | late
    names = [name for name in whole.tables["publishers"].columns if "suspect" not in name]
    tables = [each.tables["publishers"].drop("overlaps") for each in (whole, parts[-1])]
    names.remove("overlaps")
    by_id = [sorted(each.select(*names).collect()) for each in tables]
    assert by_id[0] == by_id[1]
    assert sum(part.facts["messages"] for part in parts) == whole.facts["messages"]


@pytest.mark.row("AU9")
def test_an_audit_reads_only_what_was_logged_since(spark: SparkSession) -> None:
    journal = journal_of(spark, healthy(60))
    earlier = audit(journal.where("position <= 40")).tables["publishers"]
    kept = journal.where("position >= 40")  # the rest may be gone
    result = audit(kept, after=earlier)
    assert result.is_good
    assert (result.facts["messages"], result.facts["audited_after"]) == (20, 40)
    nothing = audit(kept, after=result.tables["publishers"])
    assert (nothing.facts["messages"], nothing.facts["messages_before"]) == (0, 60)
    anew = audit(journal, after=audit(journal.limit(0)).tables["publishers"])
    assert (anew.facts["messages"], anew.facts["audited_after"]) == (60, 0)


@pytest.mark.row("AU9")
def test_an_audit_continues_only_the_same_journal(spark: SparkSession) -> None:
    journal = journal_of(spark, healthy(60))
    earlier = audit(journal.where("position <= 40")).tables["publishers"]
    with pytest.raises(UsageError, match=r"ended with .*\|20\| at position 40.*has nothing there"):
        audit(journal.where("position > 40"), after=earlier)
    with pytest.raises(UsageError, match=r"the journal has .*\|21\| there: it is another one"):
        audit(journal_of(spark, healthy(60)[1:]), after=earlier)
    with pytest.raises(UsageError, match="compared with no audit logs"):
        audit(journal, after=earlier, publishes=publishes_of(spark, healthy(60)))
    with pytest.raises(UsageError, match="after has no column end_sequence"):
        audit(journal, after=earlier.drop("end_sequence"))
