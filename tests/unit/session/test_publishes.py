from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from typing_extensions import override

from haclient.errors import DisconnectedError, PublishFailed, UsageError
from haclient.protocol.codec import publish_head
from haclient.protocol.messages import Message
from haclient.session.connection_state import MAX_SEEN_SEQUENCE, LoggedOn
from haclient.session.publishes import Publishes, check_many
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore

CLOCK_US = 1_000_000
LOST = DisconnectedError("the peer has closed the connection")


def logged_on(
    publishes: Publishes, seen: int | None = 0, persisted: int | None = 0, *, clock_us: int = 0
) -> Publishes:
    publishes.logged_on(LoggedOn(seen, persisted, "5.3", ""), clock_us or CLOCK_US)
    return publishes


def without_store(seen: int | None = 0, persisted: int | None = 0) -> Publishes:
    return logged_on(Publishes(None), seen, persisted)


def with_store() -> Publishes:
    return logged_on(Publishes(MemoryPublishStore()))


def publish(publishes: Publishes, count: int = 1) -> int:
    sequence = 0
    for _ in range(count):
        sequence = publishes.log.append(publish_head("orders"), b"}", b"{}")
    return sequence


def publish_numbered(publishes: Publishes, first: int, last: int | None = None) -> None:
    count = (first if last is None else last) - first + 1
    skipped = publishes.number_from(first, first + count - 1)
    if count > skipped:
        assert publish(publishes, count - skipped) == first + count - 1


def refusal(sequence: int | None) -> Message:
    return Message(
        kind="ack", ack_type="persisted", status="failure", reason="bad", sequence=sequence
    )


# -- a log that is not kept ----------------------------------------------------------------------


@pytest.mark.row("PS2", "PS8")
def test_without_a_store_numbers_begin_above_the_clock_and_what_the_server_has_seen() -> None:
    assert publish(without_store()) == CLOCK_US + 1
    assert publish(without_store(seen=CLOCK_US + 5)) == CLOCK_US + 6
    publishes = without_store()
    publish(publishes, 3)
    publishes.lost(LOST)
    logged_on(publishes, clock_us=1)  # of a clock that was set back
    assert publish(publishes) == CLOCK_US + 4


def test_without_a_store_what_is_not_persisted_is_lost_with_the_connection() -> None:
    publishes = without_store()
    last = publish(publishes, 5)
    publishes.acknowledged(last - 3)
    publishes.lost(LOST)
    log = publishes.log
    assert (log.unpersisted_count, log.unpersisted_bytes, log.unsent_bytes) == (0, 0, 0)
    assert publishes.is_done(last - 3, "wait")
    for sequence in (last - 2, last):
        with pytest.raises(DisconnectedError, match=f"wait: publish {sequence} was lost with its"):
            publishes.is_done(sequence, "wait")
    with pytest.raises(DisconnectedError, match="flush: 3 publishes were not persisted") as caught:
        publishes.check_none_lost("flush")
    assert caught.value.__cause__ is LOST
    publishes.check_none_lost("flush")  # each loss is reported once
    logged_on(publishes)
    assert publish(publishes) == last + 1
    assert len(log.peek()) == log.unsent_bytes == log.unpersisted_bytes > 0


def test_a_connection_on_which_everything_was_persisted_loses_nothing() -> None:
    publishes = without_store()
    publishes.acknowledged(publish(publishes))
    publishes.lost(LOST)
    publishes.check_none_lost("flush")


def test_what_was_refused_is_not_lost() -> None:
    publishes = without_store()
    last = publish(publishes, 2)
    publishes.refused(refusal(last))
    publishes.lost(LOST)
    logged_on(publishes)
    with pytest.raises(DisconnectedError, match="flush: 1 publishes were not persisted"):
        publishes.check_none_lost("flush")
    assert publishes.is_done(last, "wait")
    with pytest.raises(PublishFailed):
        publishes.check_not_refused(last, "wait")


def test_a_store_loses_nothing_with_a_connection() -> None:
    publishes = with_store()
    last = publish(publishes, 2)
    publishes.lost(LOST)
    publishes.check_none_lost("flush")
    assert not publishes.is_done(last, "wait")
    assert publishes.log.unpersisted_count == 2


def test_another_server_need_not_have_what_a_log_that_is_not_kept_has_seen_acknowledged() -> None:
    kept, publishes = with_store(), without_store()
    empty = LoggedOn(0, 0, "5.3", "")
    for each in (kept, publishes):
        each.acknowledged(publish(each))
    assert publishes.gap_at(empty) is None
    assert kept.gap_at(empty) is not None
    last = publish(publishes)  # during a planned move, so that the log stays
    logged_on(publishes)
    assert publishes.log.gap is None
    assert publishes.log.replay_single(last) is not None


def test_the_highest_number_is_of_what_was_published() -> None:
    publishes = without_store(seen=7)
    assert publishes.highest == 0
    with pytest.raises(UsageError, match="up to 0, found 7"):
        publishes.is_done(7, "wait")
    last = publish(publishes)
    publishes.lost(LOST)
    logged_on(publishes, seen=last + 10)
    assert publishes.highest == last
    with pytest.raises(UsageError, match=f"up to {last}, found {last + 1}"):
        publishes.is_done(last + 1, "wait")


# -- acks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [without_store, with_store])
def test_an_ack_above_what_was_published_persists_no_more_than_that(make: Any) -> None:  # noqa: ANN401  # a factory
    publishes = make()
    last = publish(publishes, 2)
    publishes.acknowledged(last + 100)
    assert publishes.persisted == last
    assert publish(publishes) == last + 101  # the server would drop what is below


def test_acks_raise_what_is_persisted_and_never_lower_it() -> None:
    publishes = without_store(persisted=None)
    last = publish(publishes, 4)
    publishes.acknowledged(last)
    publishes.acknowledged(last - 2)
    assert publishes.persisted == last


@pytest.mark.row("PS6")
@pytest.mark.parametrize("make", [without_store, with_store])
def test_a_refused_publish_leaves_the_log_after_those_before_it(make: Any) -> None:  # noqa: ANN401  # a factory
    publishes = make()
    last = publish(publishes, 2)
    message = publishes.refused(refusal(last))
    assert message is not None
    assert (message.data, message.reason, message.sequence) == (b"{}", "bad", last)
    assert publishes.refused(refusal(last)) is None  # it was reported
    assert not publishes.is_done(last, "wait")
    publishes.acknowledged(last - 1)
    assert publishes.is_done(last, "wait")
    with pytest.raises(PublishFailed, match=f"publish {last}: bad"):
        publishes.check_not_refused(last, "wait")
    publishes.check_not_refused(last - 1, "wait")
    assert publishes.log.unpersisted_count == 0


def test_one_of_many_refused_publishes_is_never_taken_for_persisted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publishes, count = with_store(), 3_000
    first = publish(publishes, count) - count + 1
    for sequence in range(first, first + count):
        publishes.refused(refusal(sequence))
    with pytest.raises(PublishFailed):
        publishes.check_not_refused(first, "wait")
    monkeypatch.setattr("haclient.session.publishes._REMEMBERED_REFUSALS", count)
    last = publish(publishes)
    publishes.refused(refusal(last))
    with pytest.raises(DisconnectedError, match="not known any more"):
        publishes.check_not_refused(first, "wait")
    with pytest.raises(PublishFailed):
        publishes.check_not_refused(first + 1, "wait")


@pytest.mark.row("PS6")
def test_a_refused_publish_leaves_the_store_when_a_logon_covers_those_before_it() -> None:
    publishes = with_store()
    last = publish(publishes, 2)
    publishes.refused(refusal(last))
    publishes.lost(LOST)
    logged_on(publishes, seen=last, persisted=last - 1)
    assert publishes.log.unpersisted_count == 0
    assert publishes.log.unsent_bytes == 0
    assert publishes.refused(refusal(last)) is None
    assert publishes.is_done(last, "wait")


class Counted(int):
    """A sequence that counts how often it is compared."""

    compared = 0

    @override
    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    __eq__ = int.__eq__
    __hash__ = int.__hash__


def test_a_refusal_costs_the_same_however_many_wait_for_an_ack_before_them() -> None:
    publishes, count = with_store(), 500
    first = publish(publishes, 1 + count) - count
    for sequence in range(first + 1, first + 1 + count):
        publishes.refused(refusal(Counted(sequence)))
    assert Counted.compared < 40 * count
    publishes.acknowledged(first)
    assert publishes.log.unpersisted_count == 0


def test_a_refusal_that_names_no_publish_is_told_as_it_is() -> None:
    message = with_store().refused(refusal(None))
    assert message is not None
    assert (message.kind, message.reason, message.sequence) == ("p", "bad", None)


# -- numbers of the caller -----------------------------------------------------------------------


def test_before_a_logon_nothing_is_known() -> None:
    publishes = Publishes(None)
    assert (publishes.seen, publishes.persisted, publishes.highest) == (None, None, 0)


@pytest.mark.row("SK4")
def test_what_is_seen_and_not_persisted_may_be_published_again() -> None:
    publishes = without_store(seen=9, persisted=5)
    with pytest.raises(UsageError, match="persisted this publisher up to 5 and would drop 5"):
        publishes.number_from(5, 5)
    publish_numbered(publishes, 6)
    publishes.acknowledged(9)  # of the earlier connection
    assert publishes.persisted == 9
    publish_numbered(publishes, 8, 11)
    assert [sequence for sequence, _ in publishes.log.replay()] == [10, 11]


@pytest.mark.row("SK4")
def test_the_numbers_of_one_connection_rise() -> None:
    publishes = without_store()
    publish_numbered(publishes, 3, 7)
    with pytest.raises(UsageError, match="the server would drop 7 after 7 as a duplicate"):
        publishes.number_from(7, 7)
    publish_numbered(publishes, 20)  # gaps are legal
    assert [sequence for sequence, _ in publishes.log.replay()] == [3, 4, 5, 6, 7, 20]


@pytest.mark.row("SK4")
def test_another_connection_may_begin_below_the_last_number() -> None:
    publishes = without_store()
    publish_numbered(publishes, 1, 7)
    publishes.acknowledged(4)
    publishes.lost(LOST)
    with pytest.raises(DisconnectedError, match="publish 5 was lost"):
        publishes.is_done(5, "wait")
    logged_on(publishes, seen=7, persisted=4)
    publishes.check_none_lost("flush")  # the caller knows by the logon
    publish_numbered(publishes, 5, 6)
    assert not publishes.is_done(6, "wait")
    publishes.acknowledged(6)
    assert publishes.is_done(6, "wait")
    with pytest.raises(UsageError, match="up to 6, found 7"):
        publishes.is_done(7, "wait")


@pytest.mark.row("SK4")
def test_what_the_caller_does_not_publish_again_stays_lost() -> None:
    publishes = without_store()
    publish_numbered(publishes, 1, 10)
    publishes.lost(LOST)
    logged_on(publishes, seen=3, persisted=2)
    publish_numbered(publishes, 8, 11)
    publishes.acknowledged(11)
    for sequence in (2, 3, 8, 10, 11):
        assert publishes.is_done(sequence, "wait")
    for sequence in (4, 7):
        with pytest.raises(DisconnectedError, match=f"publish {sequence} was lost"):
            publishes.is_done(sequence, "wait")


@pytest.mark.row("SK4")
def test_what_was_lost_without_numbers_of_the_caller_is_told_after_a_publish_with_one() -> None:
    publishes = without_store()
    publish(publishes)
    publishes.lost(LOST)
    logged_on(publishes)
    publish_numbered(publishes, 7)
    with pytest.raises(DisconnectedError, match=f"1 publishes .* lost .*: {LOST}"):
        publishes.check_none_lost("flush")


@pytest.mark.row("SK4")
def test_one_connection_has_numbers_of_the_caller_or_of_the_client() -> None:
    publishes = without_store()
    publishes.check_client_may_number()
    publish_numbered(publishes, 1)
    with pytest.raises(UsageError, match="give each publish a sequence"):
        publishes.check_client_may_number()
    publishes = without_store()
    publish(publishes)
    with pytest.raises(UsageError, match="give each publish a sequence, or none"):
        publishes.number_from(5, 5)


@pytest.mark.parametrize("number", [0, -1, MAX_SEEN_SEQUENCE + 1])
def test_a_number_that_no_logon_ack_could_name_is_refused(number: int) -> None:
    with pytest.raises(
        UsageError,
        match=f"a sequence is a whole number from 1 to {MAX_SEEN_SEQUENCE}, not {number}",
    ):
        without_store().number_from(number, number)


def test_the_last_number_of_a_batch_is_checked_too() -> None:
    with pytest.raises(UsageError, match="a sequence is a whole number from 1 to"):
        without_store().number_from(MAX_SEEN_SEQUENCE, MAX_SEEN_SEQUENCE + 1)


@pytest.mark.parametrize("number", ["7", 7.0, True])
def test_a_sequence_is_a_whole_number(number: Any) -> None:  # noqa: ANN401  # what is tested
    with pytest.raises(UsageError, match="a sequence is a whole number"):
        without_store().number_from(number, number)


def test_a_gap_is_seen_also_below_a_publish_that_was_parked_before_the_acks_came(
    tmp_path: Path,
) -> None:
    with closing(FilePublishStore(tmp_path / "p")) as store:
        publishes = logged_on(Publishes(store))
        numbers = [store.store(b'{"c":"p","t":"t","s":', b"}", b"x") for _ in range(3)]
        for number in numbers[1:]:
            store.park_publish(number)
            publishes.parked.add(number)
            publishes.refused(Message(kind="ack", sequence=number, reason="no"))
        publishes.acknowledged(numbers[0])
        assert store.last_persisted == numbers[2]
        assert publishes.gap_at(LoggedOn(0, 0, "5.3", "")) is not None
        assert store.last_acknowledged == numbers[0]


def test_what_was_lost_long_ago_is_not_taken_for_persisted() -> None:
    publishes = without_store()
    first = publish(publishes)
    publishes.lost(LOST)
    for _ in range(2000):
        logged_on(publishes)
        publish(publishes)
        publishes.lost(LOST)
    with pytest.raises(DisconnectedError, match="not known any more"):
        publishes.is_done(first, "wait")


def test_lists_of_publish_many_have_one_item_for_each_message() -> None:
    check_many("orders", [b"1", "2"], None, ())
    check_many(["a", "b"], [b"1", b"2"], [None, 3], ["x", "y"])
    for topics, bodies, expiration, why in (
        ("orders", b"12", None, "bodies is a list"),
        (["a"], [b"1", b"2"], None, "one topic for each message: 2 messages, 1 found"),
        ("orders", [b"1"], [1, 2], "one expiration for each message"),
        ("orders", [1], None, "int"),
    ):
        with pytest.raises(UsageError, match=why):
            check_many(topics, cast("list[bytes]", bodies), expiration, ())
