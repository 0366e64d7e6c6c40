from __future__ import annotations

import pytest

from haclient_stores.errors import StoreFull, UsageError
from haclient_stores.memory_publish import MemoryPublishStore
from haclient_stores.segment import MIN_SEGMENT_BYTES
from haclient_stores.segments import MAX_FRAME_BYTES


def fill(store: MemoryPublishStore, count: int, size: int = 1000) -> None:
    for _ in range(count):
        store.append(b'{"s":', b"}", bytes(size))


def small(max_bytes: int = 2**30) -> MemoryPublishStore:
    return MemoryPublishStore(segment_bytes=MIN_SEGMENT_BYTES, max_bytes=max_bytes)


def drain(store: MemoryPublishStore) -> bytes:
    """Send everything, as the writer does."""
    sent = b""
    while store.unsent_bytes:
        shown = bytes(store.peek())
        sent += shown
        store.advance(len(shown))
    return sent


@pytest.mark.row("PS2", "PS3")
def test_a_frame_is_length_head_digits_tail_and_body() -> None:
    store = small()
    assert store.append(b"H", b"T", bytearray(b"body")) == 1
    assert store.append(b"H", b"T", memoryview(b"")) == 2
    assert bytes(store.peek()) == b"\0\0\0\x07H1Tbody\0\0\0\x03H2T"


def test_nothing_to_send_is_an_empty_view() -> None:
    store = small()
    assert len(store.peek()) == 0
    assert store.frame_remainder() == 0
    store.rewind(0)
    fill(store, 1)
    drain(store)
    assert len(store.peek()) == 0


def test_the_rest_of_a_frame_is_known_anywhere_in_it() -> None:
    store = small()
    for _ in range(3):
        store.append(b"H", b"T", b"body")
    for expected in [0, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1] * 3:
        assert store.frame_remainder() == expected
        store.advance(1)
    assert store.frame_remainder() == 0


@pytest.mark.row("PS11")
def test_segments_are_used_again_so_that_the_log_never_grows_beyond_the_backlog() -> None:
    store = small(max_bytes=4 * MIN_SEGMENT_BYTES)
    for _ in range(100):
        fill(store, 20)
        drain(store)
        store.discard_up_to(store.last_sequence)
    assert store.last_sequence == 2000
    assert store.unpersisted_bytes == 0


def test_a_segment_that_is_being_sent_is_kept_until_its_frame_is_out() -> None:
    store = small()
    fill(store, 40)
    store.advance(10)
    store.discard_up_to(40)
    assert bytes(store.peek())[: store.frame_remainder()] == b"}" + bytes(1000)
    assert store.unpersisted_count == 0
    drain(store)
    store.append(b"H", b"T", b"next")
    assert drain(store).endswith(b"H41Tnext")


def test_a_frame_larger_than_a_segment_gets_one_of_its_own() -> None:
    store = small()
    fill(store, 2)
    body = bytes(range(256)) * 1000
    assert store.append(b"H", b"T", body) == 3
    fill(store, 2)
    assert [sequence for sequence, _ in store.replay()] == [1, 2, 3, 4, 5]
    assert store.replay_single(3) == (len(body) + 3).to_bytes(4, "big") + b"H3T" + body


def test_a_frame_that_no_server_takes_is_refused() -> None:
    store = small()
    with pytest.raises(UsageError, match="larger than"):
        store.append(b"H", b"T", bytes(MAX_FRAME_BYTES))
    assert store.last_sequence == 0


@pytest.mark.row("PS17")
def test_a_full_store_has_stored_nothing_and_goes_on_when_acks_come() -> None:
    store = small(max_bytes=2 * MIN_SEGMENT_BYTES)
    stored = 0
    with pytest.raises(StoreFull, match="wait for their persisted acks"):  # noqa: PT012  the loop is the point
        while True:
            fill(store, 1)
            stored += 1
    assert store.last_sequence == stored == store.unpersisted_count
    assert len(list(store.replay())) == stored
    drain(store)
    store.discard_up_to(stored)
    fill(store, 1)
    assert [sequence for sequence, _ in store.replay()] == [stored + 1]


@pytest.mark.row("PS17")
def test_the_resize_handler_is_asked_before_the_log_grows_and_may_refuse() -> None:
    asked: list[int] = []

    def handler(size: int) -> bool:
        asked.append(size)
        return size <= 2 * MIN_SEGMENT_BYTES

    store = MemoryPublishStore(segment_bytes=MIN_SEGMENT_BYTES, resize_handler=handler)
    with pytest.raises(StoreFull, match="resize handler refused"):
        fill(store, 1000)
    assert asked == [MIN_SEGMENT_BYTES * n for n in (1, 2, 3)]


def test_acks_during_a_replay_end_it_where_nothing_is_left() -> None:
    store = small()
    fill(store, 100)
    drain(store)
    replay = store.replay()
    assert next(replay)[0] == 1
    store.discard_up_to(50)
    assert next(replay)[0] == 51
    store.discard_up_to(100)
    assert list(replay) == []


def test_a_jump_in_the_numbers_begins_another_segment() -> None:
    store = small()
    fill(store, 2)
    store.reconcile(seen=0, persisted=0, clock_us=5)
    store.reconcile(seen=50, persisted=0, clock_us=5)
    store.reconcile(seen=60, persisted=0, clock_us=5)
    fill(store, 2)
    store.discard_up_to(70)
    store.discard_up_to(65)
    fill(store, 1)
    assert [sequence for sequence, _ in store.replay()] == [71]
    assert store.checkpoint() == 71
    store.rewind(0)
    assert store.unsent_bytes == 4 + 8 + 1000
