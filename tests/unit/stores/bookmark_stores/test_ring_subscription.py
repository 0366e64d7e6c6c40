from __future__ import annotations

from dataclasses import replace

import pytest

from haclient.session.resuming import forms
from haclient_stores.bookmark_stores.ring_subscription import RingSubscription, Slot
from haclient_stores.errors import UsageError
from haclient_stores.tracker.entries import Publishers
from haclient_stores.tracker.server_order import Standing

pytestmark = pytest.mark.row("BS15")


def made() -> tuple[RingSubscription, tuple[bytearray, bytearray]]:
    pages = bytearray(4096), bytearray(4096)
    slots = memoryview(pages[0]), memoryview(pages[1])
    return RingSubscription(Publishers(), "s", slots), pages


def newest(pages: tuple[bytearray, bytearray]) -> Slot:
    slots = [slot for page in pages if (slot := Slot.unpack(bytes(page))) is not None]
    return max(slots, key=lambda slot: slot.generation)


def test_a_slot_reads_back_as_it_was_written() -> None:
    largest = 2**64 - 1
    slot = Slot(largest, "s\udcff", "0|1|", 5, ((largest, 0, largest), (1, 2, 3)))
    assert Slot.unpack(slot.pack().ljust(4096, b"\0")) == slot
    slot = replace(slot, server="a:1", heard_us=largest, in_order=True)
    assert Slot.unpack(slot.pack().ljust(4096, b"\0")) == slot
    assert Slot.unpack(bytes(4096)) is None


def test_slots_are_written_in_turn_whenever_a_vector_moves() -> None:
    log, pages = made()
    log.save()
    numbers = list(log.log_batch(["1|1|", "1|2|", "1|3|"]))
    before = [bytes(page) for page in pages]
    log.discard(numbers[1])
    assert [bytes(page) for page in pages] == before, "nothing has moved"
    log.discard(numbers[0])
    log.discard(numbers[2])
    assert newest(pages).vectors == ((1, 3, 3),)
    assert newest(pages).generation == 3
    first, second = (Slot.unpack(bytes(page)) for page in pages)
    assert {first and first.generation, second and second.generation} == {2, 3}


def test_publishers_that_take_turns_are_all_followed() -> None:
    log, pages = made()
    bookmarks = [f"{1 + n % 4}|{n}|" for n in range(1, 201)]
    newest_of: dict[int, int] = {}
    for begin in range(0, 200, 40):
        for number, bookmark in zip(
            log.log_batch(bookmarks[begin : begin + 40]), bookmarks[begin:], strict=False
        ):
            log.discard(number)
            publisher, sequence = bookmark.split("|")[:2]
            newest_of[int(publisher)] = int(sequence)
            found = {publisher: applied for publisher, _, applied in newest(pages).vectors}
            assert found == newest_of


def test_nothing_is_written_any_more_after_it_was_let_go() -> None:
    log, pages = made()
    (number,) = log.log_batch(["1|1|"])
    log.let_go("it is closed")
    with pytest.raises(UsageError, match="it is closed"):
        log.discard(number)
    assert not any(pages[0])
    assert not any(pages[1])


@pytest.mark.row("BS9")
def test_a_time_counts_for_the_next_process_when_all_before_it_is_discarded() -> None:
    """What is not discarded the next process does not know: it has to come again."""
    log, pages = made()
    log.begin(acked=False, start="0")
    log.entered("a:1")
    log.heard(1_000)
    assert (newest(pages).server, newest(pages).heard_us) == ("a:1", 1_000)
    first, second = log.log_batch(["1|1|", "1|2|"])
    log.heard(2_000)
    (third,) = log.log_batch(["1|3|"])
    log.heard(3_000)
    assert log.standing.heard_us == 3_000
    log.discard(second)
    log.discard(first)
    assert newest(pages).heard_us == 2_000
    log.heard(4_000)
    log.discard(third)
    assert newest(pages).heard_us == 4_000
    log.entered("b:1")
    assert newest(pages).server == "b:1"
    assert newest(pages).heard_us == 4_000
    assert not newest(pages).in_order


@pytest.mark.row("BS9")
def test_the_next_process_stands_where_this_one_did() -> None:
    log, pages = made()
    log.begin(acked=False, start="0")
    log.entered("a:1")
    log.discard(log.log("1|1|"))
    log.heard(1_000)
    again, _ = made()
    again.restore(newest(pages))
    assert again.standing == Standing("a:1", {}, heard_us=1_000, settled_us=1_000)
    log.entered("b:1")
    log.discard(log.log("1|2|"))
    assert log.in_order
    again.restore(newest(pages))
    assert again.standing == Standing("b:1", {}, heard_us=1_000, settled_us=1_000)
    assert again.in_order
    log.entered("c:1")
    again.restore(newest(pages))
    assert again.standing == Standing("c:1", {1: 2}, heard_us=1_000, settled_us=1_000)
    assert not again.in_order
    log.begin(acked=False, start="0")
    assert newest(pages).server == ""


@pytest.mark.row("BS9")
def test_what_came_behind_a_replay_may_stand_before_what_is_finished() -> None:
    """Finished at a; b got it late, behind a message that was in hand when the process ended."""
    log, pages = made()
    log.save()
    log.entered("a:1")
    log.completed("")
    log.discard(log.log("1|1|"))
    log.heard(20_000_000)
    log.entered("b:1")
    log.completed("")
    log.heard(30_000_000)
    log.log("2|1|")
    again, _ = made()
    again.restore(newest(pages))
    wanted = ("1|1|,19700101T000025Z", "1|1|")
    assert forms(again, "b:1", last="", overlap_us=5_000_000) == wanted
