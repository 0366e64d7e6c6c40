from __future__ import annotations

import tracemalloc

import pytest

from haclient.protocol.codec import publish_head
from haclient_stores.disk.files import anonymous_region
from haclient_stores.errors import StoreFull, UsageError
from haclient_stores.publish_stores.memory import (
    DEFAULT_MEMORY_BYTES,
    DEFAULT_MEMORY_SEGMENT_BYTES,
    MemoryPublishStore,
    MemoryStorage,
)
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES
from support.frames import BASE, fill, frame_of, kept, put, put_until_full, take_all

KIB = b"k" * 1000


def new_store(max_bytes: int = DEFAULT_MEMORY_BYTES) -> MemoryPublishStore:
    store = MemoryPublishStore(segment_bytes=MIN_SEGMENT_BYTES, max_bytes=max_bytes)
    store.reconcile(seen=0, persisted=0, clock_us=BASE)
    return store


@pytest.mark.row("PS10")
def test_messages_survive_the_connection() -> None:
    store = new_store()
    fill(store, 5)
    take_all(store)
    store.close()  # the client that used it is gone; another one takes over
    store.reconcile(seen=1003, persisted=1002, clock_us=0)
    store.rewind(store.last_persisted)
    assert take_all(store) == b"".join(frame_of(n, b"body") for n in (1003, 1004, 1005))


@pytest.mark.row("PS10")
def test_memory_is_reused_and_old_frames_never_come_back() -> None:
    store = new_store(max_bytes=3 * MIN_SEGMENT_BYTES)
    for turn in range(50):
        body = bytes([turn]) * (1500 - 20 * turn)
        numbers = fill(store, 20, body)
        assert list(store.replay()) == [(n, frame_of(n, body)) for n in numbers]
        assert take_all(store) == b"".join(frame_of(n, body) for n in numbers)
        store.discard_up_to(numbers[-1])
    assert store.unpersisted_bytes == 0


def test_spare_memory_is_kept_only_for_a_few_segments() -> None:
    store = new_store()
    numbers = fill(store, 600, KIB)
    take_all(store)
    store.discard_up_to(numbers[-1])
    assert kept(store) == []
    numbers = fill(store, 600, KIB)
    assert kept(store) == numbers


def test_a_frame_of_its_own_size_is_given_back() -> None:
    store = new_store(max_bytes=10 * MIN_SEGMENT_BYTES)
    for _ in range(20):
        number = put(store, bytes(4 * MIN_SEGMENT_BYTES))
        take_all(store)
        store.discard_up_to(number)
        assert put(store) == number + 1


@pytest.mark.row("PS1")
def test_more_than_max_bytes_is_never_taken() -> None:
    store = new_store(max_bytes=4 * MIN_SEGMENT_BYTES)
    assert isinstance(put_until_full(store, KIB), StoreFull)
    assert 4 * MIN_SEGMENT_BYTES * 0.9 < store.unpersisted_bytes < 4 * MIN_SEGMENT_BYTES
    count = store.unpersisted_count
    with pytest.raises(StoreFull):
        put(store, KIB)
    assert store.unpersisted_count == count


@pytest.mark.row("PS17")
def test_growth_may_be_refused() -> None:
    asked: list[int] = []

    def resize(size: int) -> bool:
        asked.append(size)
        return size <= 2 * MIN_SEGMENT_BYTES

    store = MemoryPublishStore(segment_bytes=MIN_SEGMENT_BYTES, resize_handler=resize)
    assert isinstance(put_until_full(store, KIB), StoreFull)
    assert asked == [MIN_SEGMENT_BYTES, 2 * MIN_SEGMENT_BYTES, 3 * MIN_SEGMENT_BYTES]


def test_the_default_takes_a_mebibyte_at_a_time() -> None:
    asked: list[int] = []

    def resize(size: int) -> bool:
        asked.append(size)
        return True

    store = MemoryPublishStore(resize_handler=resize)
    put(store)
    assert asked == [DEFAULT_MEMORY_SEGMENT_BYTES]


def test_a_tiny_segment_is_refused() -> None:
    with pytest.raises(UsageError, match="segment_bytes"):
        MemoryPublishStore(segment_bytes=100)


@pytest.mark.row("PS10")
def test_an_unpersisted_message_of_100_bytes_takes_at_most_200() -> None:
    count = 50_000
    head = publish_head("orders/of/a/region")
    tracemalloc.start()
    store = MemoryPublishStore()
    store.number_above(10**15)
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(count):
        store.store(head, b"}", bytes(100))
    objects = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    mapped = sum(segment.size for segment in store.detach())
    assert (objects + mapped) / count <= 200


def test_preallocated_memory_is_used_before_any_other() -> None:
    storage = MemoryStorage(MIN_SEGMENT_BYTES, spare_limit=3, preallocated=True)
    assert len(storage._spare) == 3
    segments = [storage.create(number, MIN_SEGMENT_BYTES) for number in (1, 2, 3)]
    assert storage._spare == []
    for segment in segments:
        segment.view[:4] = b"old!"
        storage.release(segment)
    again = storage.create(9, MIN_SEGMENT_BYTES)
    assert bytes(again.view[:4]) == bytes(4)  # the frames of another life never show
    assert (again.first, len(storage._spare)) == (9, 2)


def test_no_more_than_the_kept_pieces_stay() -> None:
    storage = MemoryStorage(MIN_SEGMENT_BYTES, spare_limit=1)
    segments = [
        storage.create(number, size)
        for number, size in (
            (1, MIN_SEGMENT_BYTES),
            (2, MIN_SEGMENT_BYTES),
            (3, 2 * MIN_SEGMENT_BYTES),
        )
    ]
    for segment in segments:
        storage.release(segment)
    assert len(storage._spare) == 1


@pytest.mark.row("PS18")
@pytest.mark.parametrize("size", [2**62, 2**70])
def test_more_memory_than_any_machine_has_is_refused_before_any_is_touched(size: int) -> None:
    with pytest.raises(StoreFull, match="this machine has no memory for"):
        MemoryStorage(size // 8, spare_limit=8, preallocated=True)
    with pytest.raises(StoreFull, match="this machine has no memory for"):
        anonymous_region(size)
