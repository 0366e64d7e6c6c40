from __future__ import annotations

import pytest

from haclient_stores.entries import Publishers
from haclient_stores.errors import UsageError
from haclient_stores.ring_subscription import RingSubscription, Slot

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
