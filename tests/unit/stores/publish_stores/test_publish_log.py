"""What both publish stores do alike: each test runs over memory and over files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typing_extensions import override

from haclient.protocol.codec import MessageDecoder, publish_head
from haclient.protocol.framing import FrameReader
from haclient_stores.disk.durable_file import DurabilityOptions
from haclient_stores.errors import PublishGap, StoreError, StoreFull, StoreLocked, UsageError
from haclient_stores.interfaces import FrameLog
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.hybrid import HybridPublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.ring import RingPublishStore
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES, Limits, Segment
from haclient_stores.publish_stores.store_directory import StoreDirectory
from support.frames import BASE, HEAD, TAIL, fill, frame_of, kept, put, take_all
from support.recording import Event, RecordingDisk, Removed

PATH = Path("/stores/p")
SMALL = MIN_SEGMENT_BYTES
CLOCK = 1_700_000_000_000_000


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PublishLog]:
    made: PublishLog
    if request.param == "memory":
        made = MemoryPublishStore(segment_bytes=MIN_SEGMENT_BYTES)
    else:
        made = FilePublishStore(tmp_path / "store", segment_bytes=MIN_SEGMENT_BYTES)
    yield made
    made.close()


def logged_on(store: PublishLog) -> None:
    store.reconcile(seen=0, persisted=0, clock_us=BASE)


@pytest.mark.row("PS1")
def test_a_new_store_is_empty(store: PublishLog) -> None:
    assert isinstance(store, FrameLog)
    assert (store.client_name, store.gap) == ("", None)
    assert (store.last_sequence, store.last_persisted, store.lowest_unpersisted) == (0, 0, 0)
    assert (store.unpersisted_count, store.unpersisted_bytes, store.unsent_bytes) == (0, 0, 0)
    assert kept(store) == []
    assert store.replay_single(1) is None
    assert bytes(store.peek()) == b""
    store.sync()


@pytest.mark.row("PS1", "PS2", "PS3")
def test_what_is_stored_is_counted_and_replayed(store: PublishLog) -> None:
    logged_on(store)
    assert fill(store, 4) == [1001, 1002, 1003, 1004]
    assert (store.last_sequence, store.lowest_unpersisted) == (1004, 1001)
    assert (store.unpersisted_count, store.last_persisted) == (4, 0)
    assert store.unpersisted_bytes == 4 * len(frame_of(1001, b"body"))
    assert list(store.replay(1002)) == [(n, frame_of(n, b"body")) for n in (1003, 1004)]
    assert take_all(store) == b"".join(frame_of(n, b"body") for n in range(1001, 1005))
    assert kept(store) == [1001, 1002, 1003, 1004]  # sent is not persisted


@pytest.mark.row("PS2")
def test_numbers_start_at_one_before_a_server_was_asked(store: PublishLog) -> None:
    assert fill(store, 2) == [1, 2]
    store.reconcile(seen=0, persisted=0, clock_us=CLOCK)
    assert put(store) == 3


@pytest.mark.row("PS1", "PS3")
def test_append_and_store_do_the_same(store: PublishLog) -> None:
    logged_on(store)
    assert store.append(HEAD, TAIL, b"one") == 1001
    assert store.store(HEAD, TAIL, b"two") == 1002
    frames = [(1001, frame_of(1001, b"one")), (1002, frame_of(1002, b"two"))]
    assert list(store.replay()) == frames


@pytest.mark.row("PS3", "PS4")
@pytest.mark.parametrize(
    ("command", "kind"), [("p", "publish"), ("delta_publish", "delta_publish")]
)
def test_each_stored_publish_asks_for_a_persisted_ack(
    store: PublishLog, command: str, kind: str
) -> None:
    logged_on(store)
    store.store(publish_head("orders", command=command), b"}", b'{"id":1}')
    ((_, frame),) = store.replay()
    (message,) = MessageDecoder(expand_sow=False).decode(*FrameReader().feed(frame))
    assert (message.command, message.topic, message.data) == (kind, "orders", b'{"id":1}')
    assert (message.ack_type, message.sequence) == ("persisted", 1001)


@pytest.mark.row("PS5", "PS14")
def test_one_ack_covers_all_before_it(store: PublishLog) -> None:
    logged_on(store)
    fill(store, 10)
    store.discard_up_to(1004)
    assert (store.unpersisted_count, store.lowest_unpersisted, store.last_persisted) == (
        6,
        1005,
        1004,
    )
    assert kept(store) == list(range(1005, 1011))
    store.discard_up_to(1002)
    assert store.unpersisted_count == 6
    store.discard_up_to(1010)
    assert (store.unpersisted_count, store.unpersisted_bytes, store.lowest_unpersisted) == (0, 0, 0)


@pytest.mark.row("PS1", "PS6")
def test_a_single_message_is_found_while_it_waits(store: PublishLog) -> None:
    logged_on(store)
    for number in range(100):
        put(store, b"x" * 10 * number)
    store.discard_up_to(1003)
    assert store.replay_single(1004) == frame_of(1004, b"x" * 30)
    assert store.replay_single(1100) == frame_of(1100, b"x" * 990)
    for unknown in (0, 1, 1000, 1003, 1101):
        assert store.replay_single(unknown) is None


@pytest.mark.row("PS8")
def test_a_number_that_was_skipped_has_no_message(store: PublishLog) -> None:
    logged_on(store)
    put(store)
    store.reconcile(seen=1005, persisted=0, clock_us=0)
    put(store)
    assert store.replay_single(1003) is None
    assert kept(store) == [1001, 1006]


@pytest.mark.row("PS8")
@pytest.mark.parametrize("seen", [0, CLOCK - 1, CLOCK + 99])
def test_an_empty_store_numbers_above_the_clock_and_the_server(
    store: PublishLog, seen: int
) -> None:
    store.reconcile(seen=seen, persisted=seen, clock_us=CLOCK)
    assert put(store) == max(seen, CLOCK) + 1


@pytest.mark.row("PS7")
def test_a_logon_trims_what_the_server_has_and_leaves_the_rest(store: PublishLog) -> None:
    logged_on(store)
    fill(store, 10)
    take_all(store)
    store.reconcile(seen=1008, persisted=1006, clock_us=CLOCK)
    store.rewind(store.last_persisted)
    assert take_all(store) == b"".join(frame_of(n, b"body") for n in range(1007, 1011))
    assert put(store) == 1011


@pytest.mark.row("PS8")
def test_messages_of_a_new_store_that_a_server_would_drop_are_an_error(store: PublishLog) -> None:
    fill(store, 3)
    with pytest.raises(StoreError, match="log on before the first publish"):
        store.reconcile(seen=2, persisted=2, clock_us=CLOCK)
    assert kept(store) == [1, 2, 3]


@pytest.mark.row("PS9")
def test_a_server_that_lacks_what_was_acknowledged_is_recorded(store: PublishLog) -> None:
    logged_on(store)
    fill(store, 5)
    store.discard_up_to(1003)
    store.reconcile(seen=1005, persisted=1002, clock_us=0)
    assert isinstance(store.gap, PublishGap)
    assert (store.gap.acknowledged, store.gap.server) == (1003, 1002)
    assert kept(store) == [1004, 1005]
    store.reconcile(seen=1005, persisted=1003, clock_us=0)
    assert store.gap is None


@pytest.mark.row("PS9")
def test_a_gap_is_an_error_where_the_store_was_told_so(store: PublishLog) -> None:
    store.error_on_publish_gap = True
    logged_on(store)
    fill(store, 5)
    store.discard_up_to(1003)
    with pytest.raises(PublishGap):
        store.reconcile(seen=9000, persisted=1002, clock_us=0)
    assert (store.last_sequence, store.last_persisted) == (1005, 1003)
    store.reconcile(seen=1005, persisted=1003, clock_us=0)
    assert put(store) == 1006


@pytest.mark.row("PS12")
def test_a_store_belongs_to_the_first_client_that_uses_it(store: PublishLog) -> None:
    store.open_for("orders-1")
    store.open_for("orders-1")
    with pytest.raises(StoreLocked, match="belongs to the client 'orders-1', not to 'orders-2'"):
        store.open_for("orders-2")
    assert store.client_name == "orders-1"


@pytest.mark.row("PS6")
def test_one_message_is_found_until_it_is_persisted() -> None:
    store = MemoryPublishStore()
    for body in (b"a", b"b", b"c"):
        store.store(b"H", b"T", body)
    assert store.replay_single(2) == b"\0\0\0\x04H2Tb"
    store.discard_up_to(2)
    assert store.replay_single(2) is None
    assert store.replay_single(4) is None
    assert (store.lowest_unpersisted, store.last_persisted) == (3, 2)


@pytest.mark.row("PS14", "PS15")
def test_the_count_falls_to_zero_with_the_acks() -> None:
    store = MemoryPublishStore()
    for body in (b"a", b"b", b"c"):
        store.store(b"H", b"T", body)
    counts = [store.unpersisted_count]
    for sequence in (1, 1, 3):
        store.discard_up_to(sequence)
        counts.append(store.unpersisted_count)
    assert counts == [3, 2, 2, 0]
    assert store.unpersisted_bytes == 0


# -- giving space back ------------------------------------------------------------------------


def truncating(kind: str, disk: RecordingDisk, *, truncates: bool = True) -> PublishLog:
    if kind == "ring":
        return RingPublishStore(PATH, 4 * SMALL, truncate_on_close=truncates, disk=disk)
    if kind == "hybrid":
        return HybridPublishStore(
            PATH,
            memory_bytes=2 * SMALL,
            segment_bytes=SMALL,
            truncate_on_close=truncates,
            disk=disk,
        )
    return FilePublishStore(PATH, segment_bytes=SMALL, truncate_on_close=truncates, disk=disk)


@pytest.mark.row("PS24")
@pytest.mark.parametrize("kind", ["file", "ring", "hybrid"])
def test_a_store_gives_its_space_back_when_nothing_waits_and_it_was_told_to(kind: str) -> None:
    disk = RecordingDisk()
    store = truncating(kind, disk)
    logged_on(store)
    store.open_for("orders-7")
    last = fill(store, 80, b"k" * 1000)[-1]
    store.close()
    assert len(disk.image()) > 2  # something waits

    store = truncating(kind, disk)
    assert kept(store) == list(range(1001, last + 1))
    store.discard_up_to(last)
    store.close()
    assert list(disk.image()) == [PATH / "control"]

    store = truncating(kind, disk, truncates=False)
    assert (store.client_name, store.last_persisted, kept(store)) == ("orders-7", last, [])
    number = put(store)
    assert number > last
    store.discard_up_to(number)
    store.close()
    assert len(disk.image()) > 1  # nobody has asked for it


@pytest.mark.row("PS12", "PS24")
def test_files_that_cannot_be_removed_are_told_and_keep_no_lock() -> None:
    disk = RecordingDisk([])
    store = truncating("file", disk)
    logged_on(store)
    store.discard_up_to(put(store))

    def refuse(event: Event) -> None:
        if isinstance(event, Removed):
            raise StoreError("read only")

    disk.before = refuse
    with pytest.raises(StoreError, match="read only"):
        store.close()
    disk.before = None
    again = truncating("file", disk)
    assert put(again) == 1002
    again.close()


# -- numbers that nobody reaches ------------------------------------------------------------------


def numbers(store: PublishLog) -> tuple[object, ...]:
    return (store.last_sequence, store.last_persisted, store.gap, kept(store))


@pytest.mark.row("PS8")
@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, 2**80])
def test_a_number_that_no_publisher_reaches_is_refused_and_changes_nothing(
    store: PublishLog, number: int
) -> None:
    logged_on(store)
    fill(store, 3)
    store.discard_up_to(1001)
    before = numbers(store)
    calls: tuple[Callable[[], object], ...] = (
        lambda: store.discard_up_to(number),
        lambda: store.reconcile(seen=number, persisted=1001, clock_us=CLOCK),
        lambda: store.reconcile(seen=1003, persisted=number, clock_us=CLOCK),
    )
    for call in calls:
        with pytest.raises(StoreError, match=f"sequence {number} is above {2**63 - 1}"):
            call()
        assert numbers(store) == before
    assert put(store) == 1004


@pytest.mark.row("PS8")
def test_a_clock_that_is_out_of_reach_is_refused(store: PublishLog) -> None:
    with pytest.raises(StoreError, match="no publisher gets there"):
        store.number_above(2**63)
    assert store.last_sequence == 0


@pytest.mark.row("PS8")
@pytest.mark.parametrize("store_class", [FilePublishStore, HybridPublishStore])
def test_the_highest_number_that_is_taken_leaves_room_for_numbers(
    store_class: type[FilePublishStore | HybridPublishStore],
) -> None:
    disk = RecordingDisk()
    store = store_class(PATH, segment_bytes=SMALL, disk=disk)
    store.reconcile(seen=2**63 - 1, persisted=2**63 - 1, clock_us=CLOCK)
    assert put(store) == 2**63
    store.discard_up_to(2**63)  # our own number, whatever it is
    assert put(store) == 2**63 + 1
    store.close()
    again = store_class(PATH, segment_bytes=SMALL, disk=disk)
    last = put(again)
    assert last >= 2**63 + 2
    assert kept(again) == [2**63 + 1, last]
    again.close()


# -- threads -----------------------------------------------------------------------------------


def elsewhere(call: Callable[[], object]) -> object:
    """What a call returns in another thread; what it raises is raised here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_a_store_belongs_to_the_thread_that_first_uses_it(store: PublishLog) -> None:
    logged_on(store)
    fill(store, 3)
    before = numbers(store)
    for call in (
        lambda: put(store),
        lambda: store.discard_up_to(1002),
        lambda: store.discard_up_to(1),
        lambda: store.number_above(CLOCK),
        lambda: store.reconcile(seen=2000, persisted=2000, clock_us=CLOCK),
        lambda: store.open_for("orders-1"),
        store.replay,
        lambda: store.replay_single(1001),
        lambda: store.rewind(0),
        store.peek,
        lambda: store.advance(0),
        store.frame_remainder,
    ):
        with pytest.raises(UsageError, match="used by the thread 'MainThread', and called by"):
            elsewhere(call)
    assert numbers(store) == before
    assert store.client_name == ""
    assert elsewhere(lambda: store.unpersisted_count) == 3
    elsewhere(store.sync)
    elsewhere(store.close)


def test_the_thread_that_makes_a_store_may_leave_it_to_another_one(store: PublishLog) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(logged_on, store).result()
        assert pool.submit(fill, store, 2).result() == [1001, 1002]
        with pytest.raises(UsageError, match="a store belongs to the thread that first uses it"):
            put(store)
        assert pool.submit(kept, store).result() == [1001, 1002]
        pool.submit(store.close).result()


def test_a_store_in_memory_that_was_closed_may_be_used_by_another_thread() -> None:
    store = MemoryPublishStore(segment_bytes=SMALL)
    assert elsewhere(lambda: put(store)) == 1
    store.close()
    assert put(store) == 2


@pytest.mark.row("PS12")
def test_a_store_that_cannot_take_over_what_it_finds_is_not_locked() -> None:
    class Unmappable(PublishLog):
        @override
        def restore(self, segments: Iterable[Segment]) -> None:
            raise StoreFull(f"no memory for {segments}")

    disk = RecordingDisk()
    directory = StoreDirectory(PATH, disk, DurabilityOptions(), segment_bytes=SMALL)
    with pytest.raises(StoreFull):
        Unmappable(directory, directory, limits=Limits(SMALL, SMALL), error_on_publish_gap=False)
    truncating("file", disk).close()
