"""Planted faults are found and named; what is no fault is not."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from haclient.errors import UsageError
from haclient.pyspark.jobs.audit import Subscription, audit
from haclient.pyspark.jobs.journals import Journal
from haclient.pyspark.jobs.verdict import FindingKind
from support.audit_rows import (
    ALICE,
    BOB,
    CAROL,
    START,
    Message,
    deliveries_of,
    found,
    healthy,
    journal_of,
    publishes_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.row("AU2")
def test_a_message_that_was_acknowledged_and_is_not_in_the_journal_is_lost(
    spark: SparkSession,
) -> None:
    messages = healthy()
    lost, unacked = messages[80], messages[90]
    logged = [each for each in messages if each not in {lost, unacked}]
    publishes = publishes_of(spark, messages, unacked=[unacked])
    result = audit(journal_of(spark, logged), publishes=publishes)
    assert found(result) == [(FindingKind.LOST, f"{ALICE}|41|")]
    assert result.violations[0].topic == "orders"
    assert "acknowledged at 2026-01-31 09:31:21.25" in result.violations[0].detail
    assert (result.facts["published"], result.facts["in_flight"]) == (200, 1)


@pytest.mark.row("AU2")
def test_the_last_message_of_a_publisher_can_be_lost_too(spark: SparkSession) -> None:
    messages = healthy()
    publishes = publishes_of(spark, messages)
    result = audit(journal_of(spark, messages[:-1]), publishes=publishes)
    assert found(result) == [(FindingKind.LOST, f"{BOB}|100|")]


def test_publishes_to_topics_that_are_not_logged_are_not_lost_if_these_are_named(
    spark: SparkSession,
) -> None:
    unlogged = [(ALICE, 21, "chat"), (BOB, 21, "news/1"), (ALICE, 22, "news/2")]
    logged = [*healthy(40), (ALICE, 23, "orders")]
    journal = journal_of(spark, logged)
    publishes = publishes_of(spark, [*logged, *unlogged])
    result = audit(journal, publishes=publishes)
    assert found(result) == sorted((FindingKind.LOST, f"{each[0]}|{each[1]}|") for each in unlogged)
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
    assert found(result) == [(FindingKind.LOST, f"{ALICE}|11|")]


def test_what_was_removed_with_old_segments_is_not_lost(spark: SparkSession) -> None:
    messages = healthy()
    publishes = publishes_of(spark, messages)
    kept = journal_of(spark, messages[50:], first_position=51)
    assert audit(kept, publishes=publishes).is_good
    holed = journal_of(spark, messages[50:100] + messages[101:], first_position=51)
    assert found(audit(holed, publishes=publishes)) == [(FindingKind.LOST, f"{ALICE}|51|")]


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
            (FindingKind.LOST, f"{ALICE}|27|"),
            (FindingKind.LOST, f"{ALICE}|28|"),
            (FindingKind.LOST, f"{CAROL}|1|"),
            (FindingKind.UNDELIVERED, f"{ALICE}|46|"),
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
        (FindingKind.DUPLICATE, f"{ALICE}|12|", 14),
        (FindingKind.DUPLICATE, f"{ALICE}|20|", 22),
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
    assert found(result) == [(FindingKind.UNDELIVERED, f"{orders[30][0]}|{orders[30][1]}|")]
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
    assert found(result) == [(FindingKind.UNDELIVERED, f"{filtered[9][0]}|{filtered[9][1]}|")]


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
    assert result.counts[FindingKind.UNDELIVERED] == 3


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
    assert found(result) == [(FindingKind.RECEIVED_TWICE, f"{ALICE}|11|")]
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
    assert found(result) == [(FindingKind.RECEIVED_OUT_OF_ORDER, f"{BOB}|31|")]
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
    assert found(result) == [(FindingKind.UNDELIVERED, f"{messages[70][0]}|{messages[70][1]}|")]
    assert result.violations[0].client == "other desk"


def test_a_received_message_that_the_journal_does_not_have_is_named(spark: SparkSession) -> None:
    messages = healthy()
    result = audit(
        journal_of(spark, messages[:90] + messages[91:]),
        deliveries=deliveries_of(spark, messages),
        subscriptions=[Subscription(sub_id="s1")],
    )
    assert found(result) == [(FindingKind.NOT_LOGGED, f"{ALICE}|46|")]


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


@pytest.mark.row("AU2")
def test_a_journal_that_begins_with_a_mark_is_whole_if_its_directory_knows(
    spark: SparkSession,
) -> None:
    messages = healthy(20)
    publishes = publishes_of(spark, [*messages, (CAROL, 1, "orders")]).withColumn(
        "published_at", sf.lit(START)
    )
    deliveries = deliveries_of(spark, [(CAROL, 1, "orders"), *messages])
    journal = journal_of(spark, messages, first_position=2)
    run = partial(
        audit,
        publishes=publishes,
        deliveries=deliveries,
        subscriptions=[Subscription(sub_id="s1", complete=True)],
    )
    unknown = run(journal)
    assert unknown.facts["not_compared"] == 1
    known = run(Journal(journal, is_whole=True))
    assert found(known) == [
        (FindingKind.LOST, f"{CAROL}|1|"),
        (FindingKind.NOT_LOGGED, f"{CAROL}|1|"),
    ]
    assert (unknown.facts["is_whole"], known.facts["is_whole"]) == (False, True)
