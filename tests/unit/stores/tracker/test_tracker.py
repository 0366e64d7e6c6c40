from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator

import pytest
from typing_extensions import override

from haclient_stores.tracker.tracker import SubscriptionTracker
from support.tracked_log import TrackedLog
from support.tracker_invariants import assert_consistent


def entered(*, acked: bool = False, start: str | None = None) -> TrackedLog:
    tracker = TrackedLog()
    tracker.begin(acked=acked, start=start)
    return tracker


def arrive(tracker: TrackedLog, *bookmarks: str) -> list[int]:
    return list(
        tracker.log_batch(
            [
                bookmark.replace("A", "1").replace("B", "2").replace("C", "3") + "|"
                for bookmark in bookmarks
            ]
        )
    )


def point(tracker: TrackedLog) -> str:
    return ",".join(
        f"{'ABC'[int(item[0]) - 1]}{item[1:]}" for item in str(tracker.recovery_point()).split(",")
    )


@pytest.mark.row("BS3", "BS4", "BS6")
def test_the_case_of_two_publishers_a1_b1_a2_b2() -> None:
    tracker = entered()
    a1, b1, a2, b2 = arrive(tracker, "A|1", "B|1", "A|2", "B|2")
    tracker.discard(a1)
    tracker.discard(a2)
    assert point(tracker) == "A|1|"
    assert tracker.is_discarded("1|2|")
    tracker.discard(b1)
    assert point(tracker) == "A|2|,B|1|"
    tracker.link_lost(b2)  # the last one was never handed out
    tracker.begin(acked=False, start=None)
    assert arrive(tracker, "A|2", "B|2") == [0, 5]
    tracker.discard(5)
    assert point(tracker) == "A|2|,B|2|"
    assert tracker.undiscarded_count == 0


@pytest.mark.row("BS11")
def test_a_sequence_at_or_below_the_last_seen_is_a_duplicate() -> None:
    tracker = entered()
    assert arrive(tracker, "A|1000", "A|1002", "A|999", "A|1002", "A|1003") == [1, 2, 0, 0, 3]


@pytest.mark.row("BS11")
@pytest.mark.parametrize(
    "again",
    [
        ("A|1", "A|2", "A|3"),
        ("A|2", "A|1"),
        ("B|1", "A|1", "B|2", "A|3"),
    ],
)
def test_a_batch_of_nothing_but_known_ones_is_dropped_and_changes_nothing(
    again: tuple[str, ...],
) -> None:
    tracker = entered()
    arrive(tracker, "A|1", "A|2", "B|1", "B|2", "A|3")
    assert arrive(tracker, *again) == [0] * len(again)
    assert tracker.fresh == []
    assert arrive(tracker, "A|4") == [6]


@pytest.mark.row("BS4", "BS11")
@pytest.mark.parametrize(
    ("again", "numbers"),
    [
        (("A|1", "A|2", "A|3"), [0, 0, 4]),
        (("A|1", "A|2", "A|0"), [0, 0, -1]),
        (("A|1", "A|2", "A|4"), [0, 0, 4]),
    ],
)
def test_one_that_is_not_known_is_found_among_known_ones(
    again: tuple[str, ...], numbers: list[int]
) -> None:
    tracker = entered()
    arrive(tracker, "A|1", "A|2", "A|3")
    tracker.link_lost(3)  # the third was never handed out
    assert [min(number, 4) for number in arrive(tracker, *again)] == numbers


@pytest.mark.row("BS2")
def test_numbers_rise_by_one_over_batches_of_any_kind() -> None:
    tracker = entered()
    assert list(tracker.log_batch(["1|1|", "1|2|"])) == [1, 2]
    assert tracker.log_batch(["1|3|", "1|5|"]) == range(3, 5)
    assert list(tracker.log_batch(["1|6|", "2|1|"])) == [5, 6]
    assert tracker.log("2|2|") == 7
    assert list(tracker.log_batch([])) == []
    assert tracker.log("1|7") == 8  # the last bar may be missing


def test_what_is_no_bookmark_is_delivered_and_not_tracked(caplog: pytest.LogCaptureFixture) -> None:
    tracker = entered()
    bad = ["", "1", "x|1|", "1|x|", "1|0|", "1|18446744073709551616|", "18446744073709551616|1|"]
    with caplog.at_level(logging.WARNING):
        assert tracker.log_batch(bad) == [-1] * len(bad)
    assert tracker.log("1|1|") == 1
    assert tracker.log_batch(["1|2|", "1|x|"]) == [2, -1]
    assert tracker.log_batch(["1|18446744073709551616|"]) == [-1]
    assert not tracker.is_discarded("x")
    assert entered().log("1|x|") == -1
    # One for each subscription: a server that sends such bookmarks would fill the log.
    for record in caplog.records:
        assert "further ones of this subscription are not logged" in record.getMessage()
    assert len(caplog.records) == 2


@pytest.mark.row("BS3")
def test_discards_in_any_order_move_the_point_only_over_the_oldest() -> None:
    tracker = entered()
    arrive(tracker, *[f"A|{n}" for n in range(1, 7)])
    for number, expected in ((3, "0"), (2, "0"), (6, "0"), (1, "A|3|"), (4, "A|4|"), (5, "A|6|")):
        tracker.discard(number)
        if expected == "0":
            assert str(tracker.recovery_point()) == "0"
            assert tracker.oldest_undiscarded == 1
        else:
            assert point(tracker) == expected
    assert tracker.oldest_undiscarded == 0


def test_a_second_or_unknown_discard_does_nothing() -> None:
    tracker = entered()
    arrive(tracker, "A|1", "A|2", "A|3")
    for number in (0, -1, 4, 99, 2, 2, 1, 1, 2):
        tracker.discard(number)
    assert tracker.undiscarded_count == 1
    assert not tracker.try_discard(4)
    assert tracker.try_discard(3)
    assert not tracker.try_discard(4)


@pytest.mark.row("BS19")
def test_discard_up_to_discards_what_is_below() -> None:
    tracker = entered()
    arrive(tracker, "A|1", "A|2", "A|3", "A|4")
    tracker.discard(2)
    tracker.discard_up_to(3)
    assert tracker.oldest_undiscarded == 4
    tracker.discard_up_to(99)
    assert tracker.undiscarded_count == 0


def test_discard_up_to_reaches_what_was_delivered_a_second_time() -> None:
    tracker = entered()
    arrive(tracker, "A|1", "A|2")
    tracker.ended()
    tracker.begin(acked=False, start=None)
    assert arrive(tracker, "A|1", "A|2") == [3, 4]
    tracker.discard_up_to(3)
    assert tracker.oldest_undiscarded == 2
    tracker.discard_up_to(4)
    assert tracker.undiscarded_count == 0


def test_what_is_in_hand_is_filtered_after_a_lost_link_and_what_was_queued_comes_again() -> None:
    tracker = entered()
    arrive(tracker, "A|1", "A|2", "A|3")
    tracker.link_lost(3)
    tracker.begin(acked=False, start=None)
    assert arrive(tracker, "A|1", "A|2", "A|3", "A|4") == [0, 0, 4, 5]
    tracker.link_lost(5)  # the one that came again was handed out this time
    tracker.begin(acked=False, start=None)
    assert arrive(tracker, "A|3", "A|4") == [0, 6]
    for number in (1, 2, 4, 6):
        tracker.discard(number)
    assert point(tracker) == "A|4|"


def test_a_message_that_was_queued_twice_comes_a_third_time() -> None:
    tracker = entered()
    arrive(tracker, "A|1", "A|2")
    tracker.link_lost(1)
    assert arrive(tracker, "A|1") == [3]
    tracker.link_lost(3)
    assert arrive(tracker, "A|1", "A|2") == [4, 5]
    tracker.discard(5)
    tracker.discard(4)
    assert (tracker.undiscarded_count, point(tracker)) == (0, "A|2|")


@pytest.mark.row("BS4")
def test_a_late_discard_counts_after_a_second_lost_link() -> None:
    tracker = entered()
    arrive(tracker, "A|1")
    tracker.ended()
    assert arrive(tracker, "A|1") == [2]
    tracker.ended()
    tracker.ended()  # nothing came in between
    tracker.discard(2)
    assert (tracker.undiscarded_count, point(tracker)) == (0, "A|1|")
    assert arrive(tracker, "A|1") == [0]


@pytest.mark.row("BS3", "BS4", "BS6")
def test_the_low_watermark_passes_numbers_that_stand_for_no_entry() -> None:
    """A condensed chunk spans the numbers of aliases, which nobody discards as such."""
    tracker = entered()
    arrive(tracker, *[f"A|{n}" for n in range(1, 201)])
    for number in range(2, 51):
        tracker.discard(number)
    tracker.link_lost(199)
    tracker.begin(acked=False, start=None)
    assert arrive(tracker, "A|199", "B|1", "A|200", "B|2") == [201, 202, 203, 204]
    for begin in range(3, 20_003, 100):
        arrive(tracker, *[f"B|{n}" for n in range(begin, begin + 100)])
    for number in (1, *range(51, 199), 201, 203, 202, *range(204, tracker.next_number)):
        tracker.discard(number)
    assert_consistent(tracker.tracker)
    assert (tracker.undiscarded_count, tracker.oldest_undiscarded) == (0, 0)
    assert point(tracker) == "A|200|,B|20002|"
    assert tracker.applied() == {0: 200, 1: 20_002}


def test_discard_up_to_takes_no_longer_the_more_waits() -> None:
    """One entry that was delivered twice stays open, and no ack covers the others."""
    visited = 0

    class Counted(SubscriptionTracker):
        @override
        def entries(self) -> Iterator[tuple[int, int, int, bool]]:
            raise AssertionError("all entries are visited")

        @override
        def _open_numbers(self, begin: int, end: int) -> Iterator[int]:
            nonlocal visited
            for number in super()._open_numbers(begin, end):
                visited += 1
                yield number

    tracker = TrackedLog(tracker=Counted())
    tracker.begin(acked=True, start=None)
    arrive(tracker, *[f"A|{n}" for n in range(1, 1001)])
    tracker.discard_up_to(1000)
    arrive(tracker, "A|1001", "A|1002")
    tracker.link_lost(1001)
    tracker.begin(acked=True, start=None)
    arrive(tracker, "A|1001")
    arrive(tracker, "B|1")
    assert arrive(tracker, "A|1002") == [1005]
    for sequence in range(2, 1002):
        arrive(tracker, f"B|{sequence}")
        tracker.discard_up_to(1004)
        tracker.discard(tracker.next_number - 2)
    assert visited <= 10
    tracker.discard_up_to(tracker.next_number)
    assert tracker.undiscarded_count == 0


@pytest.mark.row("BS5")
def test_a_message_that_is_never_discarded_pins_the_point() -> None:
    tracker = entered()
    arrive(tracker, "A|1", "A|2")
    tracker.discard(1)
    for sequence in range(3, 500):
        tracker.discard(arrive(tracker, f"A|{sequence}")[0])
    assert point(tracker) == "A|1|"
    tracker.discard(2)
    assert point(tracker) == "A|499|"


def test_after_the_end_the_holder_of_an_old_message_may_still_discard_it() -> None:
    tracker = entered()
    arrive(tracker, "A|1", "A|2")
    tracker.ended()
    tracker.discard(1)
    assert tracker.is_discarded("1|1|")
    assert not tracker.is_discarded("1|2|")
    assert arrive(tracker, "A|1", "A|2") == [0, 3]
    assert point(tracker) == "A|1|"


@pytest.mark.row("BS10")
def test_an_ack_is_a_recovery_point_when_nothing_that_came_before_is_open() -> None:
    tracker = entered()
    arrive(tracker, "A|1")
    tracker.persisted("1|7|")
    tracker.discard(1)
    assert point(tracker) == "A|1|"  # not completed
    tracker.completed("")
    tracker.persisted("1|8|")
    assert point(tracker) == "A|8|"
    arrive(tracker, "A|9", "A|10")
    tracker.persisted("2|5|")
    assert point(tracker) == "A|8|"  # 9 and 10 had come before it
    tracker.discard(2)
    tracker.discard(3)
    assert point(tracker) == "A|10|,B|5|"


@pytest.mark.row("BS10")
def test_an_ack_is_no_recovery_point_while_paused_or_conflated() -> None:
    tracker = entered()
    tracker.completed("")
    tracker.paused = True
    tracker.persisted("1|8|")
    assert str(tracker.recovery_point()) == "0"
    tracker.paused = False
    tracker.begin(acked=False, start=None, conflated=True)
    tracker.completed("1|9|")
    tracker.persisted("1|8|")
    assert str(tracker.recovery_point()) == "0"


@pytest.mark.row("BS10")
def test_with_acks_an_entry_is_finished_only_when_one_covers_it() -> None:
    tracker = entered(acked=True)
    arrive(tracker, "A|1", "B|1", "A|2", "B|2")
    tracker.discard_up_to(4)
    assert str(tracker.recovery_point()) == "0"
    tracker.persisted("2|1|")  # covers A1 too, which arrived before
    assert point(tracker) == "A|1|,B|1|"
    tracker.persisted("1|2|,0|1|,nonsense")
    assert point(tracker) == "A|2|,B|1|"


@pytest.mark.row("BS6", "BS10")
@pytest.mark.parametrize("acked", [True, False])
def test_a_recovery_point_never_goes_back_when_the_subscription_is_entered_again(
    *, acked: bool
) -> None:
    """An ack covers by place on its link only; what it has finished stays finished."""
    tracker = entered(acked=acked)
    arrive(tracker, "A|1", "A|2", "B|1", "C|1")
    for number in (1, 2, 3):
        tracker.discard(number)
    tracker.persisted("1|1|")
    tracker.persisted("2|1|")
    assert point(tracker) == "A|2|,B|1|"
    tracker.link_lost(5)
    tracker.begin(acked=True, start=None)
    assert point(tracker) == "A|2|,B|1|"
    tracker.persisted("1|1|")
    assert point(tracker) == "A|2|,B|1|"
    tracker.discard(4)
    assert point(tracker) == "A|2|,B|1|"


def test_an_ack_that_came_before_the_discard_counts_at_once() -> None:
    tracker = entered(acked=True)
    arrive(tracker, "A|1", "A|2", "A|3")
    tracker.persisted("1|2|")
    tracker.discard(1)
    assert point(tracker) == "A|1|"
    tracker.discard_up_to(3)
    assert point(tracker) == "A|2|"


@pytest.mark.row("BS8")
def test_an_unknown_subscription_resumes_at_the_start_of_the_log() -> None:
    assert entered().resume() == "0"


@pytest.mark.row("BS9")
def test_an_explicit_start_forgets_what_was_known() -> None:
    tracker = entered()
    arrive(tracker, "A|5")
    tracker.discard(1)
    tracker.begin(acked=False, start="1|2|")
    assert tracker.resume() == "1|2|"
    assert arrive(tracker, "A|5") == [2]
    tracker.discard(1)
    assert tracker.undiscarded_count == 1
    tracker.discard(2)
    assert tracker.resume() == "1|5|"


@pytest.mark.row("BS9")
def test_a_subscription_at_now_resumes_from_where_its_replay_ended() -> None:
    tracker = entered(start="0|1|", acked=True)
    assert tracker.resume() == "0|1|"
    tracker.completed("1|77|")
    assert tracker.resume() == "1|77|"
    arrive(tracker, "A|78")
    tracker.discard(1)
    assert tracker.resume() == "1|77|"  # not persisted everywhere yet
    tracker.persisted("1|78|")
    assert tracker.resume() == "1|78|"


def test_a_position_after_something_arrived_is_not_taken_for_the_entry() -> None:
    tracker = entered(start="0|1|")
    arrive(tracker, "A|3")
    tracker.completed("1|3|")
    assert tracker.resume() == "0"  # 3 is in hand and the moment of entry is unknown
    tracker.discard(1)
    assert tracker.resume() == "1|3|"


@pytest.mark.row("BS9")
@pytest.mark.parametrize("first_end", ["", "0", None])
@pytest.mark.parametrize("first_queued", [2, 100])
def test_what_arrived_on_an_earlier_link_is_no_part_of_a_start_at_now(
    first_end: str | None, first_queued: int
) -> None:
    """The first link did not say where the log ended; the second one repeats what is held."""
    tracker = entered(start="0|1|")
    if first_end is not None:
        tracker.completed(first_end)
    arrive(tracker, "A|1", "A|2", "A|3")
    tracker.link_lost(first_queued)
    tracker.begin(acked=False, start=None)
    arrive(tracker, "A|1", "A|2", "A|3")
    tracker.completed("1|3|")
    assert tracker.undiscarded_count == 3
    assert tracker.resume() == "0", "it passes nothing that is undiscarded"
    for number in range(1, tracker.next_number):
        tracker.discard(number)
    assert tracker.resume() == "1|3|"


@pytest.mark.row("BS7")
def test_numbers_go_on_after_a_purge() -> None:
    tracker = entered()
    arrive(tracker, "A|1", "A|2")
    tracker.purge(2)
    tracker.discard(1)
    assert arrive(tracker, "A|1") == [3]
    assert tracker.oldest_undiscarded == 3


def test_discards_written_as_one_run_are_taken_at_once_or_not_at_all() -> None:
    tracker = entered()
    tracker.append(tracker.publishers.index(1), [1, 2, 3, 4, 5])
    assert not tracker.discard_run(array("Q", [2, 3]))
    assert not tracker.discard_run(array("Q", [1, 3, 2]))
    assert not tracker.discard_run(array("Q", [1, 2, 3, 4, 5, 6]))
    assert tracker.discard_run(array("Q", [1, 2, 3]))
    assert tracker.oldest_undiscarded == 4
    assert tracker.discard_run(array("Q", [4, 5]))
    assert tracker.undiscarded_count == 0


@pytest.mark.row("BS9")
def test_elsewhere_an_unfinished_first_message_of_a_publisher_is_looked_for_from_the_start() -> (
    None
):
    """A1 B1 here may be B1 A1 there: behind A1 there is no B1 any more."""
    tracker = entered()
    a1, b1 = arrive(tracker, "A|1", "B|1")
    tracker.discard(a1)
    assert tracker.resume_elsewhere(0) == ("1|1|",)  # B1 is in hand: its repetition is dropped
    tracker.ended()
    assert tracker.resume_elsewhere(0) == ("0",)
    assert tracker.resume() == "1|1|"  # this server's order is known
    assert arrive(tracker, "B|1", "A|1") == [b1 + 1, 0]
    tracker.discard(b1 + 1)
    assert tracker.resume_elsewhere(0) == ("1|1|,2|1|",)


def test_elsewhere_the_start_is_where_the_subscription_was_entered() -> None:
    tracker = entered(start="3|7|")
    a1, _ = arrive(tracker, "A|1", "B|1")
    tracker.discard(a1)
    tracker.ended()
    assert tracker.resume_elsewhere(5) == ("3|7|",)
