"""Planted faults are found and named; what is no fault is not."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from haclient.errors import UsageError
from haclient.protocol.identity import publisher_id
from haclient.pyspark.jobs.audit import Subscription, audit
from haclient.pyspark.jobs.verdict import Audit, Kind
from haclient.pyspark.rows import COLUMNS, schema_ddl, signed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
ALICE, BOB, CAROL = map(publisher_id, ("alice", "bob", "carol"))
assert ALICE > 2**63 or BOB > 2**63  # an id that is negative as a BIGINT is among them

Message = tuple[int, int, str]  # publisher, sequence, topic


def healthy(count: int = 200) -> list[Message]:
    """Two publishers in turns, on two topics."""
    return [
        ((ALICE, BOB)[i % 2], i // 2 + 1, ("orders", "prices")[i % 4 // 2]) for i in range(count)
    ]


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def journal_of(
    spark: SparkSession,
    messages: Iterable[Message],
    *,
    first_position: int = 1,
    deletes: Collection[tuple[int, int]] = (),
) -> DataFrame:
    """The rows of a journal; `deletes` are the publishers and sequences that are deletes."""
    rows = [
        (
            topic,
            f"{publisher}|{sequence}|",
            signed(publisher),
            sequence,
            position,
            at(position),
            "sow_delete" if (publisher, sequence) in deletes else "publish",
            None,
            None,
            b'{"id": %d}' % sequence,
        )
        for position, (publisher, sequence, topic) in enumerate(messages, first_position)
    ]
    return spark.createDataFrame(rows, schema_ddl(COLUMNS))


def publishes_of(
    spark: SparkSession,
    messages: Iterable[Message],
    *,
    unacked: Iterable[Message] = (),
    deletes: Collection[tuple[int, int]] = (),
) -> DataFrame:
    """Each was published half a second before it was logged, and acknowledged just after."""
    pending = set(unacked)
    rows = [
        (
            signed(publisher),
            sequence,
            topic,
            at(n - 0.5),
            None if (publisher, sequence, topic) in pending else at(n + 0.25),
            (publisher, sequence) in deletes,
        )
        for n, (publisher, sequence, topic) in enumerate(messages, 1)
    ]
    ddl = (
        "publisher_id BIGINT, sequence BIGINT, topic STRING, published_at TIMESTAMP, "
        "acked_at TIMESTAMP, is_delete BOOLEAN"
    )
    return spark.createDataFrame(rows, ddl)


def deliveries_of(
    spark: SparkSession,
    messages: Iterable[Message],
    *,
    discarded: bool = True,
    client: str = "desk",
    sub_id: str = "s1",
) -> DataFrame:
    rows = [
        (
            client,
            sub_id,
            signed(publisher),
            sequence,
            at(2 * n),
            at(2 * n + 0.125) if discarded else None,
            n,
        )
        for n, (publisher, sequence, _) in enumerate(messages, 1)
    ]
    ddl = (
        "client STRING, sub_id STRING, publisher_id BIGINT, sequence BIGINT, "
        "received_at TIMESTAMP, discarded_at TIMESTAMP, ordinal BIGINT"
    )
    return spark.createDataFrame(rows, ddl)


def found(result: Audit) -> list[tuple[Kind, str]]:
    return sorted((each.kind, each.bookmark) for each in result.violations)


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
    assert found(result) == [(Kind.DUPLICATE, f"{ALICE}|31|")]
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
        (Kind.DUPLICATE, f"{ALICE}|2|", 3),
        (Kind.DUPLICATE, f"{BOB}|4|", 10),
        (Kind.ORDER_BREAK, f"{BOB}|4|", 10),
    ]
    assert result.violations[0].detail == "this position is there more than once"


@pytest.mark.row("AU1")
def test_an_order_break_is_named_with_its_bookmark_and_what_came_before(
    spark: SparkSession,
) -> None:
    messages = healthy()
    messages[61], messages[63] = messages[63], messages[61]
    result = audit(journal_of(spark, messages))
    assert found(result) == [(Kind.ORDER_BREAK, f"{BOB}|31|")]
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
    assert found(result) == [(Kind.HOLE, f"{ALICE}|51|")]
    assert result.violations[0].detail == "2 sequences are missing before this position"


@pytest.mark.row("AU2")
def test_a_message_that_was_acknowledged_and_is_not_in_the_journal_is_lost(
    spark: SparkSession,
) -> None:
    messages = healthy()
    lost, unacked = messages[80], messages[90]
    logged = [each for each in messages if each not in {lost, unacked}]
    publishes = publishes_of(spark, messages, unacked=[unacked])
    result = audit(journal_of(spark, logged), publishes=publishes)
    assert found(result) == [(Kind.LOST, f"{ALICE}|41|")]
    assert result.violations[0].topic == "orders"
    assert "acknowledged at 2026-01-31 09:31:21.25" in result.violations[0].detail
    assert (result.facts["published"], result.facts["in_flight"]) == (200, 1)


@pytest.mark.row("AU2")
def test_the_last_message_of_a_publisher_can_be_lost_too(spark: SparkSession) -> None:
    messages = healthy()
    publishes = publishes_of(spark, messages)
    result = audit(journal_of(spark, messages[:-1]), publishes=publishes)
    assert found(result) == [(Kind.LOST, f"{BOB}|100|")]


def test_publishes_to_topics_that_are_not_logged_are_not_lost_if_these_are_named(
    spark: SparkSession,
) -> None:
    unlogged = [(ALICE, 21, "chat"), (BOB, 21, "news/1"), (ALICE, 22, "news/2")]
    logged = [*healthy(40), (ALICE, 23, "orders")]
    journal = journal_of(spark, logged)
    publishes = publishes_of(spark, [*logged, *unlogged])
    result = audit(journal, publishes=publishes)
    assert found(result) == sorted((Kind.LOST, f"{each[0]}|{each[1]}|") for each in unlogged)
    assert result.violations[0].detail.endswith(
        "not in the journal, which has no message of this topic: if the server does not log it, "
        "say so (unlogged_topics, --unlogged)"
    )
    result = audit(
        journal,
        publishes=publishes,
        dense=["alice"],
        unlogged_topics=["chat"],
        unlogged_pattern="^news/",
    )
    assert result.is_good
    assert result.facts["unlogged"] == 3
    result = audit(journal, publishes=publishes, unlogged_pattern="^(chat|news/|orders)")
    assert not any(result.counts.values())
    (reason,) = result.not_verified
    assert reason == (
        "the topic 'orders' is said not to be logged, but the journal has messages of it: losses "
        "there were not looked for"
    )


@pytest.mark.row("AU2")
def test_a_frame_of_publishes_may_leave_out_what_it_does_not_know(spark: SparkSession) -> None:
    messages = healthy(20)
    journal = journal_of(spark, messages, deletes=[(ALICE, 3)])
    publishes = publishes_of(spark, messages).drop("is_delete")
    assert audit(journal, publishes=publishes).is_good
    nowhere = publishes_of(spark, [*messages, (ALICE, 11, "orders")], deletes=[(ALICE, 3)])
    nowhere = nowhere.withColumn("topic", sf.lit(None).cast("STRING"))
    result = audit(journal, publishes=nowhere, unlogged_topics=["chat"], unlogged_pattern="^news")
    assert found(result) == [(Kind.LOST, f"{ALICE}|11|")]


def test_what_was_removed_with_old_segments_is_not_lost(spark: SparkSession) -> None:
    messages = healthy()
    publishes = publishes_of(spark, messages)
    kept = journal_of(spark, messages[50:], first_position=51)
    assert audit(kept, publishes=publishes).is_good
    holed = journal_of(spark, messages[50:100] + messages[101:], first_position=51)
    assert found(audit(holed, publishes=publishes)) == [(Kind.LOST, f"{ALICE}|51|")]


def test_what_was_published_after_the_oldest_message_is_lost_whoever_published_it(
    spark: SparkSession,
) -> None:
    messages = healthy()
    late = [*messages]
    late[60] = (CAROL, 1, "orders")  # in place of alice 31, and nothing of carol is logged
    lost = {messages[50], messages[52], messages[54], late[60]}  # alice 26 to 28, and carol
    kept = [each for each in late[50:] if each not in lost]
    received = [each for each in late if each != late[90]]
    result = audit(
        journal_of(spark, kept, first_position=51),
        publishes=publishes_of(spark, late),
        deliveries=deliveries_of(spark, received),
        subscriptions=[Subscription(sub_id="s1", complete=True)],
    )
    # Alice 26 was published at most a second after the oldest message, or before it: nothing is
    # said of it. What the journal has is expected, though the first received ones were removed.
    assert found(result) == sorted(
        [
            (Kind.LOST, f"{ALICE}|27|"),
            (Kind.LOST, f"{ALICE}|28|"),
            (Kind.LOST, f"{CAROL}|1|"),
            (Kind.UNDELIVERED, f"{ALICE}|46|"),
        ]
    )
    assert result.facts["not_compared"] == 51


def test_a_delete_is_a_record_for_each_topic_or_none_and_is_not_delivered(
    spark: SparkSession,
) -> None:
    both, repeated, nothing = (ALICE, 11), (ALICE, 12), (ALICE, 13)
    messages = [(ALICE, n, "orders") for n in range(1, 21)]
    logged: list[Message] = []
    for each in messages:
        if each[:2] == both:  # one delete on two topics
            logged += [each, (*both, "prices")]
        elif each[:2] == repeated:
            logged += [each, each]
        elif each[:2] != nothing:  # it deleted nothing: it is acknowledged and not logged
            logged.append(each)
    logged += [(ALICE, 20, "prices")]  # a publish has one topic
    deletes = {both, repeated, nothing}
    result = audit(
        journal_of(spark, logged, deletes=deletes),
        publishes=publishes_of(spark, messages, deletes=deletes),
        deliveries=deliveries_of(spark, [each for each in messages if each[:2] not in deletes]),
        subscriptions=[Subscription(sub_id="s1", topic="orders")],
        dense=["alice"],
    )
    assert [(each.kind, each.bookmark, each.position) for each in result.violations] == [
        (Kind.DUPLICATE, f"{ALICE}|12|", 14),
        (Kind.DUPLICATE, f"{ALICE}|20|", 22),
    ]
    assert result.facts["deletes"] == 3


def test_what_could_not_be_compared_is_not_good(spark: SparkSession) -> None:
    result = audit(
        journal_of(spark, healthy()),
        publishes=publishes_of(spark, []),
        deliveries=deliveries_of(spark, healthy()),
        subscriptions=[
            Subscription(sub_id="s1"),
            Subscription(sub_id="misspelt", topic="orders", complete=True),
            Subscription(sub_id="s1", client="other desk"),
        ],
        dense=["alice", "misspelt"],
    )
    assert not any(result.counts.values())
    assert not result.is_good
    verdict = result.verdict()
    assert verdict["verdict"] == "not verified"
    nobody = "the audit logs of subscribers have no delivery to the subscription"
    assert verdict["not_verified"] == [
        "the journal has no message of the publisher 'misspelt', which is said to have no gaps",
        "the audit logs of publishers have no publish",
        f"{nobody} 'misspelt'; they have: 's1' of 'desk'",
        f"{nobody} 's1' of 'other desk'; they have: 's1' of 'desk'",
    ]


def test_an_undelivered_message_is_named_with_subscription_and_topic(spark: SparkSession) -> None:
    messages = healthy()
    orders = [each for each in messages if each[2] == "orders"]
    deliveries = deliveries_of(spark, orders[:30] + orders[31:])
    result = audit(
        journal_of(spark, messages),
        deliveries=deliveries,
        subscriptions=[Subscription(sub_id="s1", topic="orders")],
    )
    assert found(result) == [(Kind.UNDELIVERED, f"{orders[30][0]}|{orders[30][1]}|")]
    violation = result.violations[0]
    assert (violation.client, violation.sub_id, violation.topic) == ("desk", "s1", "orders")


def test_a_content_filter_says_what_was_expected(spark: SparkSession) -> None:
    messages = healthy()
    filtered = [each for each in messages if each[1] > 50]
    condition = "get_json_object(CAST(data AS STRING), '$.id') > 50"
    wanted = Subscription(sub_id="s1", condition=condition, complete=True)
    journal = journal_of(spark, messages)
    whole = deliveries_of(spark, filtered)
    assert audit(journal, deliveries=whole, subscriptions=[wanted]).is_good
    holed = deliveries_of(spark, filtered[:9] + filtered[10:])
    result = audit(journal, deliveries=holed, subscriptions=[wanted])
    assert found(result) == [(Kind.UNDELIVERED, f"{filtered[9][0]}|{filtered[9][1]}|")]


def test_the_newest_messages_are_backlog_unless_the_subscription_is_complete(
    spark: SparkSession,
) -> None:
    messages = healthy()
    deliveries = deliveries_of(spark, messages[:-3])
    journal = journal_of(spark, messages)
    result = audit(journal, deliveries=deliveries, subscriptions=[Subscription(sub_id="s1")])
    assert result.is_good
    complete = Subscription(sub_id="s1", complete=True)
    result = audit(journal, deliveries=deliveries, subscriptions=[complete])
    assert result.counts[Kind.UNDELIVERED] == 3


def test_a_conflated_subscription_may_skip_messages(spark: SparkSession) -> None:
    messages = healthy()
    deliveries = deliveries_of(spark, messages[::5])
    conflated = Subscription(sub_id="s1", conflated=True)
    journal = journal_of(spark, messages)
    assert audit(journal, deliveries=deliveries, subscriptions=[conflated]).is_good


def test_a_message_that_comes_after_its_discard_is_received_twice(spark: SparkSession) -> None:
    messages = healthy()
    repeated = [*messages[:50], messages[20], *messages[50:]]
    result = audit(journal_of(spark, messages), deliveries=deliveries_of(spark, repeated))
    assert found(result) == [(Kind.RECEIVED_TWICE, f"{ALICE}|11|")]
    assert "discarded at 2026-01-31 09:30:42.125" in result.violations[0].detail


def test_a_message_that_was_not_discarded_may_be_redelivered(spark: SparkSession) -> None:
    messages = healthy()
    again = [*messages[:50], *messages[40:]]
    deliveries = deliveries_of(spark, again, discarded=False)
    result = audit(journal_of(spark, messages), deliveries=deliveries)
    assert result.is_good
    assert (result.facts["received"], result.facts["redelivered"]) == (210, 10)


def test_a_message_that_is_received_late_is_named(spark: SparkSession) -> None:
    messages = healthy()
    messages[61], messages[63] = messages[63], messages[61]
    result = audit(journal_of(spark, healthy()), deliveries=deliveries_of(spark, messages))
    assert found(result) == [(Kind.RECEIVED_OUT_OF_ORDER, f"{BOB}|31|")]
    assert result.violations[0].detail == "received after sequence 32"


def test_each_client_is_judged_by_itself(spark: SparkSession) -> None:
    messages = healthy()
    one = deliveries_of(spark, messages)
    two = deliveries_of(spark, messages[:70] + messages[71:], client="other desk")
    result = audit(
        journal_of(spark, messages),
        deliveries=one.union(two),
        subscriptions=[Subscription(sub_id="s1")],
    )
    assert found(result) == [(Kind.UNDELIVERED, f"{messages[70][0]}|{messages[70][1]}|")]
    assert result.violations[0].client == "other desk"


def test_a_received_message_that_the_journal_does_not_have_is_named(spark: SparkSession) -> None:
    messages = healthy()
    result = audit(
        journal_of(spark, messages[:90] + messages[91:]),
        deliveries=deliveries_of(spark, messages),
        subscriptions=[Subscription(sub_id="s1")],
    )
    assert found(result) == [(Kind.NOT_LOGGED, f"{ALICE}|46|")]


def test_violations_are_counted_beyond_those_that_are_named(spark: SparkSession) -> None:
    messages = healthy()
    result = audit(journal_of(spark, [*messages, *messages[:30]]), limit=10)
    assert result.counts[Kind.DUPLICATE] == 30
    assert [each.position for each in result.violations] == list(range(201, 211))


def test_a_missing_column_is_one_clear_line(spark: SparkSession) -> None:
    journal = journal_of(spark, healthy()).drop("position", "data")
    with pytest.raises(
        UsageError, match=r"^journal has no column position; it has topic, bookmark"
    ):
        audit(journal)


def test_subscriptions_need_deliveries_and_are_described_once(spark: SparkSession) -> None:
    journal = journal_of(spark, [])
    with pytest.raises(UsageError, match="no audit log of a subscriber"):
        audit(journal, subscriptions=[Subscription(sub_id="s1")])
    with pytest.raises(UsageError, match="no audit log of a publisher"):
        audit(journal, unlogged_topics=["chat"])
    with pytest.raises(UsageError, match="the subscription 's1' is described twice"):
        audit(
            journal,
            deliveries=deliveries_of(spark, []),
            subscriptions=[Subscription(sub_id="s1")] * 2,
        )


def late_in(*results: Audit) -> list[tuple[Kind, str, int | None, str]]:
    """The duplicates and order breaks."""
    named = [each for result in results for each in result.violations]
    return sorted(
        (each.kind, each.bookmark, each.position, each.detail)
        for each in named
        if each.kind is not Kind.HOLE
    )


def missing_in(*results: Audit) -> set[tuple[str, int]]:
    """The publishers and sequences in holes."""
    missing: set[tuple[str, int]] = set()
    for each in (each for result in results for each in result.violations):
        if each.kind is Kind.HOLE:
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
