"""Which acknowledgements leave together, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import UsageError
from haclient.session.leases import (
    MAX_BOOKMARKS,
    AckBatch,
    AckCommand,
    AckOption,
    ack_commands,
    batch_limit,
    lease_extension,
)


@pytest.mark.row("QC3", "QC4")
def test_bookmarks_of_one_queue_are_joined_by_commas() -> None:
    (command,) = ack_commands("work", ["1|1|", "1|2|"])
    assert command.fields("9", "processed") == {
        "c": "sow_delete",
        "cid": "9",
        "t": "work",
        "bm": "1|1|,1|2|",
        "a": "processed",
    }
    assert command.is_plain


@pytest.mark.row("QC7")
def test_an_option_is_part_of_the_command() -> None:
    command = AckCommand("work", ("1|1|",), AckOption.CANCEL)
    assert command.fields("9", "")["opts"] == "cancel"
    assert not command.is_plain


@pytest.mark.row("QC4")
def test_one_command_has_a_limited_number_of_bookmarks() -> None:
    commands = ack_commands("work", [f"1|{n}|" for n in range(MAX_BOOKMARKS + 1)], "expire")
    assert [len(command.bookmarks) for command in commands] == [MAX_BOOKMARKS, 1]
    assert {command.options for command in commands} == {"expire"}
    assert ack_commands("work", []) == []


@pytest.mark.row("QC6")
@pytest.mark.parametrize(
    ("wanted", "backlog", "limit"),
    [
        (None, 30, 10),
        (None, 2, 1),
        (None, 1, 1),
        (5, 30, 5),
        (50, 30, 30),
        (None, None, 1),
        (50, None, 1),
    ],
)
def test_a_batch_is_never_larger_than_the_granted_backlog(
    wanted: int | None, backlog: int | None, limit: int
) -> None:
    assert batch_limit(wanted, backlog, 0.1) == limit
    assert batch_limit(wanted, backlog, 0) == 1, "each is sent at once"


@pytest.mark.row("QC13")
def test_a_lease_is_extended_by_an_interval_above_0() -> None:
    assert lease_extension(60) == "lease_extension=60s"
    assert lease_extension(0.5) == "lease_extension=500ms"
    for nonsense in (0, -1, float("nan"), float("inf"), 1e20):
        with pytest.raises(UsageError):
            lease_extension(nonsense)


@pytest.mark.row("QC5")
def test_a_batch_is_sent_when_it_is_full() -> None:
    batch = AckBatch(timeout_s=10)
    batch.limit = 3
    assert [batch.add("work", f"1|{n}|") for n in (1, 2, 3)] == [False, False, True]
    assert batch.count == 3
    assert batch.take() == [AckCommand("work", ("1|1|", "1|2|", "1|3|"))]
    assert (batch.count, batch.due_at, batch.take()) == (0, None, [])


@pytest.mark.row("QC5")
def test_a_batch_is_sent_when_its_oldest_has_waited_long_enough() -> None:
    batch = AckBatch(timeout_s=10)
    batch.limit = 100
    assert batch.due_at is None
    assert batch.begin(5.0) == 15.0
    assert batch.due_at is None, "it is empty"
    for number in (1, 2):
        assert not batch.add("work", f"1|{number}|")
        assert batch.due_at == 15.0


@pytest.mark.row("QC6")
def test_the_backlog_counts_over_all_queues_of_a_subscription() -> None:
    batch = AckBatch(timeout_s=10)
    batch.limit = 2
    assert not batch.add("a", "1|1|")
    assert batch.add("b", "1|2|")
    assert batch.take() == [AckCommand("a", ("1|1|",)), AckCommand("b", ("1|2|",))]


@pytest.mark.row("QC7")
def test_what_was_collected_of_one_queue_can_be_taken_alone() -> None:
    batch = AckBatch(timeout_s=10)
    batch.limit = 100
    for topic, bookmark in (("a", "1|1|"), ("b", "1|2|"), ("a", "1|3|")):
        batch.add(topic, bookmark)
    assert batch.take_topic("a") == [AckCommand("a", ("1|1|", "1|3|"))]
    assert batch.take_topic("a") == []
    assert batch.count == 1
    assert batch.take() == [AckCommand("b", ("1|2|",))]


@pytest.mark.row("QC5", "QC6")
@given(
    limit=st.integers(1, 20),
    topics=st.lists(st.sampled_from("abc"), max_size=200),
    take_at=st.sets(st.integers(0, 200)),
)
def test_each_acknowledgement_is_sent_once_and_none_is_held_over_the_limit(
    limit: int, topics: list[str], take_at: set[int]
) -> None:
    batch = AckBatch(timeout_s=1e9)
    batch.limit = limit
    sent: list[tuple[str, str]] = []

    def send(commands: list[AckCommand]) -> None:
        sent.extend((each.topic, bookmark) for each in commands for bookmark in each.bookmarks)

    given_ = [(topic, f"1|{number}|") for number, topic in enumerate(topics)]
    for number, (topic, bookmark) in enumerate(given_):
        if batch.add(topic, bookmark):
            send(batch.take())
        if number in take_at:
            send(batch.take_topic(topic))
        assert batch.count < limit
    send(batch.take())
    assert sorted(sent) == sorted(given_)
