from __future__ import annotations

import errno
import os
import random
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from haclient.recovery_points.sqlite import SqliteRecoveryPointAdapter
from haclient.session.resume import resume_bookmarks
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.ring import (
    MOST_PUBLISHERS,
    RingBookmarkStore,
    RingNotes,
    WriteCount,
)
from haclient_stores.bookmark_stores.ring_slots import (
    Slot,
    Slots,
    merged,
    newest_slot,
    slots_in,
)
from haclient_stores.bookmark_stores.subscription import SubscriptionHandle
from haclient_stores.disk.threads import ThreadBinding
from haclient_stores.errors import StoreCorrupt, StoreError, StoreFull, UsageError
from haclient_stores.tracker.server_order import ServerOrder
from haclient_stores.tracker.tracker import SubscriptionTracker
from simulation.disk import SimulatedDisk

pytestmark = pytest.mark.row("BS15")

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.ring"


def killed(store: RingBookmarkStore) -> RingBookmarkStore:
    """The store as the next process finds it."""
    copy = Path(tempfile.mkdtemp(dir=store.path.parent)) / "s.ring"
    shutil.copyfile(store.path, copy)
    return RingBookmarkStore(copy)


def test_the_file_never_grows(path: Path) -> None:
    store = RingBookmarkStore(path, subscriptions=3)
    size = path.stat().st_size
    assert size == PAGE * 7
    for sequence in range(1, 5001):
        store.discard("s", store.log("s", f"7|{sequence}|"))
    store.prune()
    assert path.stat().st_size == size
    store.close()
    store.close()
    store = RingBookmarkStore(path, subscriptions=99)
    assert store.capacity == 3, "the file says how many"
    assert str(store.most_recent("s")) == "7|5000|"
    store.close()


@pytest.mark.row("BS4")
def test_what_was_discarded_in_order_is_known_to_the_next_process(path: Path) -> None:
    store = RingBookmarkStore(path)
    numbers = list(store.subscription("s").log_batch(["1|1|", "2|1|", "1|2|", "1|3|"]))
    for index in (0, 1, 3):
        store.discard("s", numbers[index])
    again = killed(store)
    assert {str(item) for item in again.most_recent("s")} == {"1|1|", "2|1|"}
    known = [again.is_discarded("s", bookmark) for bookmark in ("1|1|", "2|1|", "1|2|", "1|3|")]
    assert known == [True, True, False, False]


@pytest.mark.row("BS10")
def test_what_no_ack_covers_yet_comes_again_and_is_filtered(path: Path) -> None:
    store = RingBookmarkStore(path)
    handle = store.subscription("s")
    handle.begin(acked=True, start=None)
    handle.log_batch(["1|1|", "2|1|", "1|2|"])
    handle.persisted("1|1|")
    handle.discard_up_to(3)
    again = killed(store)
    assert str(again.most_recent("s")) == "1|1|"
    assert all(again.is_discarded("s", bookmark) for bookmark in ("2|1|", "1|2|"))
    handle = again.subscription("s")
    handle.begin(acked=True, start=None)
    assert list(handle.log_batch(["2|1|", "1|2|"])) == [0, 0]
    handle.persisted("2|1|,1|2|")
    assert {str(item) for item in killed(again).most_recent("s")} == {"1|2|", "2|1|"}


def test_where_it_began_is_known_to_the_next_process(path: Path) -> None:
    store = RingBookmarkStore(path)
    store.subscription("s").begin(acked=False, start="0|1|", entered_us=1_700_000_000_000_000)
    store.subscription("t").begin(acked=False, start="3|4|,5|6|")
    again = killed(store)
    assert again.subscription("s").resume() == "20231114T221320Z"
    assert again.subscription("t").resume() == "3|4|,5|6|"
    store.purge("t")
    assert killed(store).subscription("t").resume() == "0"
    store.purge()
    assert killed(store).subscription("s").resume() == "0"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_may_not_write_into_the_file_of_its_parent(path: Path) -> None:
    store = RingBookmarkStore(path)
    number = store.log("s", "1|1|")
    if (child := os.fork()) == 0:
        try:
            store.discard("s", number)
        except UsageError:
            os._exit(7)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert not killed(store).is_discarded("s", "1|1|")
    store.close()


def test_more_subscriptions_or_publishers_than_there_is_room_for_are_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="subscriptions is a whole number from 1 to 65536, not 0"):
        RingBookmarkStore(path, subscriptions=0)
    store = RingBookmarkStore(path, subscriptions=1)
    with pytest.raises(StoreFull, match="4096 bytes for a slot"):
        store.log("x" * 5000, "1|1|")
    store.log("s", "1|1|")
    with pytest.raises(StoreFull, match="'t' is one more"):
        store.log("t", "1|1|")
    numbers = store.subscription("s").log_batch([f"{n}|1|" for n in range(2, 16_386)])
    store.subscription("s").discard_up_to(numbers[-2])
    with pytest.raises(StoreFull, match="takes 16384 publishers of a subscription, and 's'"):
        store.discard("s", numbers[-1])
    log = LoggedBookmarkStore(path.with_suffix(".log"))
    log.seed(store.recovery_points())
    assert log.is_discarded("s", "16384|1|")
    assert len(list(log.most_recent("s"))) == MOST_PUBLISHERS + 1, "the way on"
    log.close()
    store.close()


def test_purged_subscriptions_make_room_for_others(path: Path) -> None:
    store = RingBookmarkStore(path, subscriptions=2)
    for index in range(20):
        log = store.subscription(f"s{index}")
        log.begin(acked=True, start="0")
        log.discard_up_to(log.log_batch([f"{each}|1|" for each in range(1, 201)])[-1])
        store.purge(f"s{index}")
    assert path.stat().st_size == PAGE * (1 + 2 * 2 + 2 * 2), "the pairs behind them, too"
    again = killed(store)
    assert not again.subscriptions
    for name in ("a", "b"):
        again.discard(name, again.log(name, "1|1|"))
    with pytest.raises(StoreFull, match="'c' is one more: purge one"):
        again.subscription("c")
    again.purge("a")
    again.discard("a", again.log("a", "1|2|"))
    assert {name: str(killed(again).most_recent(name)) for name in ("a", "b")} == {
        "a": "1|2|",
        "b": "1|1|",
    }
    again.close()
    store.close()


def test_a_purged_subscription_that_is_used_again_takes_other_slots(path: Path) -> None:
    store = RingBookmarkStore(path, subscriptions=2)
    log = store.subscription("a")
    store.discard("b", store.log("b", "1|1|"))
    log.discard(log.log("1|1|"))
    store.purge("a")
    store.subscription("c")
    number = log.log("1|1|")
    with pytest.raises(StoreFull, match="'a' is one more"):
        log.discard(number)
    store.purge("b")
    log.discard(log.log("1|2|"))
    again = killed(store)
    assert set(again.subscriptions) == {"a", "c"}
    assert str(again.most_recent("a")) == "1|2|"
    again.close()
    store.close()


@pytest.mark.row("BS12")
def test_a_purge_is_kept_while_an_adapter_has_copies(path: Path) -> None:
    store = RingBookmarkStore(
        path, subscriptions=1, adapter=SqliteRecoveryPointAdapter(path.with_suffix(".db"))
    )
    store.log("a", "1|1|")
    store.purge("a")
    with pytest.raises(StoreFull, match="'b' is one more"):
        store.subscription("b")
    store.close()


@pytest.mark.parametrize("acked", [False, True])
def test_a_subscription_of_more_publishers_than_a_slot_holds_goes_on(
    path: Path, *, acked: bool
) -> None:
    store = RingBookmarkStore(path, subscriptions=2)
    log = store.subscription("s")
    log.begin(acked=acked, start="0")
    publishers = range(1, 401)
    for round_ in (1, 2):
        for first in publishers[::100]:
            bookmarks = [f"{each}|{round_}|" for each in range(first, first + 100)]
            for number in log.log_batch(bookmarks):
                log.discard(number)
            if acked:
                log.persisted(bookmarks[-1])
    store.discard("t", store.log("t", "1|1|"))
    assert path.stat().st_size == PAGE * (1 + 2 * 2 + 3 * 2)
    again = killed(store)
    store.close()
    for _ in range(2):
        assert {str(item) for item in again.most_recent("s")} == {f"{n}|2|" for n in publishers}
        assert all(again.is_discarded("s", f"{each}|2|") for each in publishers)
        assert not again.is_discarded("s", "5|3|")
        assert str(again.most_recent("t")) == "1|1|"
        again.close()
        again = RingBookmarkStore(again.path)
    log = again.subscription("s")
    log.begin(acked=False, start=None)
    log.discard(log.log("401|9|"))
    log.discard(log.log("300|9|"))
    assert {"401|9|", "300|9|", "1|2|"} <= {str(each) for each in killed(again).most_recent("s")}
    log.begin(acked=False, start="7|7|")
    log.discard(log.log("8|1|"))
    assert str(killed(again).most_recent("s")) == "8|1|"
    again.close()


@pytest.mark.parametrize("seed", range(6))
def test_what_is_written_by_moves_is_what_a_whole_save_writes(path: Path, seed: int) -> None:
    rng, acked = random.Random(seed), bool(seed % 2)
    store = RingBookmarkStore(path, subscriptions=1)
    log = store.subscription("s")
    log.begin(acked=acked, start="0")
    sequences, held, sent = dict[int, int](), list[int](), list[str]()
    for round_ in range(60):
        bookmarks: list[str] = []
        for _ in range(rng.randint(1, 12)):
            publisher = rng.randint(1, 3 + 4 * round_)
            sequences[publisher] = sequences.get(publisher, 0) + rng.randint(1, 3)
            bookmarks.append(f"{publisher}|{sequences[publisher]}|")
        held += log.log_batch(bookmarks)
        sent += bookmarks
        for _ in range(rng.randint(0, len(held))):
            log.discard(
                held.pop(min(rng.randint(0, 9), len(held) - 1) if rng.random() < 0.3 else 0)
            )
        if rng.random() < 0.5:
            log.persisted(rng.choice(sent[-15:]))
        if round_ == 30:
            log.completed(sent[-1])
        if round_ % 6 == 0:
            moved = vectors_in(path)
            assert {each: applied for each, (_, applied) in moved.items() if applied} == {
                store._publishers.ids[each]: applied
                for each, applied in log.tracker.applied().items()
            }
            journal_of(log).save()
            assert vectors_in(path) == moved
    store.close()


def vectors_in(path: Path) -> dict[int, tuple[int, int]]:
    """Resume and applied of each publisher of the one subscription of a file."""
    data = memoryview(path.read_bytes())
    found = [slot for _, slot in slots_in(data, path) if slot is not None]
    return {each: (resume, applied) for each, resume, applied in merged(found).vectors}


def test_a_place_in_a_servers_order_counts_only_if_all_slots_say_so(path: Path) -> None:
    store = RingBookmarkStore(path, subscriptions=1)
    log = store.subscription("s")
    log.entered("a:1")
    log.discard_up_to(log.log_batch([f"{each}|1|" for each in range(1, 201)])[-1])
    before = path.read_bytes()
    log.entered("b:1")
    log.discard(log.log("1|2|"))
    assert killed(store).subscription("s").in_order
    data = bytearray(path.read_bytes())
    data[3 * PAGE :] = before[3 * PAGE :]  # what a loss of power may leave of the second pair
    store.close()
    path.write_bytes(data)
    again = RingBookmarkStore(path)
    assert not again.subscription("s").in_order
    assert {str(each) for each in again.most_recent("s")} >= {"1|2|", "200|1|"}
    again.close()


def test_pairs_that_a_loss_of_power_has_left_without_their_first_one_mean_nothing(
    path: Path,
) -> None:
    store = RingBookmarkStore(path, subscriptions=1)
    log = store.subscription("s")
    log.discard_up_to(log.log_batch([f"{each}|1|" for each in range(1, 201)])[-1])
    store.close()
    data = bytearray(path.read_bytes())
    data[PAGE : 3 * PAGE] = bytes(2 * PAGE)
    path.write_bytes(data)
    store = RingBookmarkStore(path)
    assert not store.subscriptions
    log = store.subscription("t")
    log.discard_up_to(log.log_batch([f"{each}|2|" for each in range(1, 201)])[-1])
    assert path.stat().st_size == len(data), "the pair behind the others is used again"
    assert len(list(killed(store).most_recent("t"))) == 200
    store.close()


def test_sync_is_asked_for_when_something_was_written(path: Path) -> None:
    store = RingBookmarkStore(path, durability="group")
    store.discard("s", store.log("s", "1|1|"))
    assert store.needs_sync
    store.sync()
    assert not store.needs_sync
    store.log("s", "1|2|")
    assert not store.needs_sync
    store.close()


def test_a_torn_slot_leaves_the_one_before(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old, new = Slot(4, "s", vectors=((1, 1, 1),)), Slot(5, "s", vectors=((1, 2, 2),))
    pages = [slot.pack().ljust(PAGE, b"\0") for slot in (old, new)]
    assert newest_slot(pages[0] + pages[1], path=path, offset=PAGE) == new
    torn = pages[1][:40] + bytes(PAGE - 40)
    assert newest_slot(pages[0] + torn, path=path, offset=PAGE) == old
    assert "byte 8192: a slot that was written in part" in caplog.text
    assert newest_slot(bytes(2 * PAGE), path=path, offset=PAGE) is None
    assert newest_slot(torn + bytes(PAGE), path=path, offset=PAGE) is None, "killed when it began"
    with pytest.raises(StoreCorrupt, match="neither slot") as caught:
        newest_slot(torn + torn, path=path, offset=PAGE)
    assert caught.value.offset == PAGE


def test_a_file_that_was_cut_off_is_corrupt(path: Path) -> None:
    RingBookmarkStore(path).close()
    os.truncate(path, 3 * PAGE)
    with pytest.raises(StoreCorrupt, match="cut off"):
        RingBookmarkStore(path)


def test_every_byte_of_a_small_file_flipped_is_noticed_or_harmless(tmp_path: Path) -> None:
    store = RingBookmarkStore(tmp_path / "work", subscriptions=1)
    store.open_for("me")
    for sequence in range(1, 8):
        store.discard("s", store.log("s", f"7|{sequence}|"))
    store.close()
    whole = (tmp_path / "work").read_bytes()
    path = tmp_path / "flipped"
    for offset in [*range(300), *range(PAGE, PAGE + 80), *range(2 * PAGE, 2 * PAGE + 80)]:
        damaged = bytearray(whole)
        damaged[offset] ^= 0x10
        path.write_bytes(damaged)
        try:
            store = RingBookmarkStore(path)
        except StoreCorrupt:
            continue
        # A damaged slot counts as torn: the one before it says 6, the newest one 7.
        assert str(store.most_recent("s")) in {"7|6|", "7|7|"}, offset
        store.close()


def test_subscriptions_may_be_entered_while_a_thread_looks_what_to_sync(path: Path) -> None:
    store = RingBookmarkStore(path, subscriptions=1000)
    entered: list[str] = []

    def look() -> None:
        while len(entered) < store.capacity:
            assert store.needs_sync  # counts what is written, as `sync` does

    store.subscription("first")
    every_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor() as threads:
            looking = threads.submit(look)
            for index in range(store.capacity - 1):
                store.subscription(f"s{index}")
                entered.append("one")
            entered.append("the first")
            looking.result()
    finally:
        sys.setswitchinterval(every_s)
    store.close()


def test_slots_whose_header_a_loss_of_power_has_taken_mean_nothing_later_either(path: Path) -> None:
    disk = SimulatedDisk()
    store = RingBookmarkStore(path, disk=disk)
    for sub_id in ("s", "t"):
        store.discard(sub_id, store.log(sub_id, "1|5|"))
    disk.open(path).pwrite(bytes(PAGE), 0)
    disk = disk.after_kill()
    store = RingBookmarkStore(path, disk=disk)
    store.log("t", "1|4|")
    again = RingBookmarkStore(path, disk=disk.after_kill())
    assert set(again.subscriptions) == {"t"}
    assert not again.is_discarded("t", "1|4|")


def test_a_new_subscription_takes_a_free_place_and_nobody_elses(path: Path) -> None:
    store = RingBookmarkStore(path, subscriptions=3)
    for name in ("a", "b", "c"):
        store.discard(name, store.log(name, "7|5|"))
    store.close()
    data = bytearray(path.read_bytes())
    data[PAGE * 3 : PAGE * 5] = bytes(2 * PAGE)  # a loss of power has taken what b had
    path.write_bytes(data)
    store = RingBookmarkStore(path)
    store.discard("d", store.log("d", "7|9|"))
    with pytest.raises(StoreFull):
        store.subscription("e")
    store.close()
    store = RingBookmarkStore(path)
    assert {name: str(store.most_recent(name)) for name in store.subscriptions} == {
        "a": "7|5|",
        "c": "7|5|",
        "d": "7|9|",
    }
    store.close()


def test_a_discard_that_found_the_disk_full_is_written_when_it_is_made_again() -> None:
    path, disk = Path("/disk/s.ring"), SimulatedDisk()
    store = RingBookmarkStore(path, disk=disk)
    log = store.subscription("s")
    first, *rest = log.log_batch([f"{n}|1|" for n in range(1, 132)])
    for number in rest:  # more publishers than a page has room for, behind the first message
        log.discard(number)
    disk.arm("allocate", errno.ENOSPC)
    with pytest.raises(StoreFull):
        log.discard(first)
    log.discard(first)
    again = RingBookmarkStore(path, disk=disk.after_kill())
    assert all(again.is_discarded("s", f"{n}|1|") for n in range(1, 132))
    again.close()


@pytest.mark.row("BS21")
def test_a_store_whose_last_sync_fails_lets_go_of_its_lock() -> None:
    disk = SimulatedDisk()
    store = RingBookmarkStore(Path("/disk/s.ring"), disk=disk)
    store.discard("s", store.log("s", "1|1|"))
    disk.arm("fsync", errno.EIO)
    with pytest.raises(StoreError, match="fsync"):
        store.close()
    again = RingBookmarkStore(Path("/disk/s.ring"), disk=disk)
    assert str(again.most_recent("s")) == "1|1|"
    again.close()


def journal_of(log: SubscriptionHandle) -> RingNotes:
    assert isinstance(log.notes, RingNotes)
    return log.notes


def made() -> tuple[SubscriptionHandle, tuple[bytearray, bytearray]]:
    pages = bytearray(4096), bytearray(4096)
    slots = memoryview(pages[0]), memoryview(pages[1])

    def take_slots(_: str, number: int) -> Slots:
        return (memoryview(bytearray(PAGE)), memoryview(bytearray(PAGE))) if number else slots

    tracker = SubscriptionTracker()
    return SubscriptionHandle(
        RingNotes(tracker, ThreadBinding("a ring"), "s", WriteCount(), take_slots)
    ), pages


def newest(pages: tuple[bytearray, bytearray]) -> Slot:
    slots = [slot for page in pages if (slot := Slot.unpack(bytes(page))) is not None]
    return max(slots, key=lambda slot: slot.writes)


def test_a_slot_reads_back_as_it_was_written() -> None:
    largest = 2**64 - 1
    slot = Slot(largest, "s\udcff", "0|1|", 5, ((largest, 0, largest), (1, 2, 3)))
    assert Slot.unpack(slot.pack().ljust(4096, b"\0")) == slot
    slot = replace(slot, server="a:1", caught_up_us=largest, in_order=True)
    assert Slot.unpack(slot.pack().ljust(4096, b"\0")) == slot
    assert Slot.unpack(bytes(4096)) is None


def test_slots_are_written_in_turn_whenever_a_vector_moves() -> None:
    log, pages = made()
    journal_of(log).save()
    numbers = list(log.log_batch(["1|1|", "1|2|", "1|3|"]))
    before = [bytes(page) for page in pages]
    log.discard(numbers[1])
    assert [bytes(page) for page in pages] == before, "nothing has moved"
    log.discard(numbers[0])
    log.discard(numbers[2])
    assert newest(pages).vectors == ((1, 3, 3),)
    assert newest(pages).writes == 3
    first, second = (Slot.unpack(bytes(page)) for page in pages)
    assert {first and first.writes, second and second.writes} == {2, 3}


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
    journal_of(log).release_slots("it is closed")
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
    log.caught_up(1_000)
    assert (newest(pages).server, newest(pages).caught_up_us) == ("a:1", 1_000)
    first, second = log.log_batch(["1|1|", "1|2|"])
    log.caught_up(2_000)
    (third,) = log.log_batch(["1|3|"])
    log.caught_up(3_000)
    assert log.server_order.caught_up_us == 3_000
    log.discard(second)
    log.discard(first)
    assert newest(pages).caught_up_us == 2_000
    log.caught_up(4_000)
    log.discard(third)
    assert newest(pages).caught_up_us == 4_000
    log.entered("b:1")
    assert newest(pages).server == "b:1"
    assert newest(pages).caught_up_us == 4_000
    assert not newest(pages).in_order


@pytest.mark.row("BS9")
def test_the_next_process_stands_where_this_one_did() -> None:
    log, pages = made()
    log.begin(acked=False, start="0")
    log.entered("a:1")
    log.discard(log.log("1|1|"))
    log.caught_up(1_000)
    again, _ = made()
    journal_of(again).restore(newest(pages))
    assert again.server_order == ServerOrder(
        "a:1", {}, caught_up_us=1_000, discarded_until_us=1_000
    )
    log.entered("b:1")
    log.discard(log.log("1|2|"))
    assert log.in_order
    journal_of(again).restore(newest(pages))
    assert again.server_order == ServerOrder(
        "b:1", {}, caught_up_us=1_000, discarded_until_us=1_000
    )
    assert again.in_order
    log.entered("c:1")
    journal_of(again).restore(newest(pages))
    assert again.server_order == ServerOrder(
        "c:1", {1: 2}, caught_up_us=1_000, discarded_until_us=1_000
    )
    assert not again.in_order
    log.begin(acked=False, start="0")
    assert newest(pages).server == ""


@pytest.mark.row("BS9")
def test_what_came_behind_a_replay_may_stand_before_what_is_finished() -> None:
    """Finished at a; b got it late, behind a message that was in hand when the process ended."""
    log, pages = made()
    journal_of(log).save()
    log.entered("a:1")
    log.completed("")
    log.discard(log.log("1|1|"))
    log.caught_up(20_000_000)
    log.entered("b:1")
    log.completed("")
    log.caught_up(30_000_000)
    log.log("2|1|")
    again, _ = made()
    journal_of(again).restore(newest(pages))
    wanted = ("1|1|,19700101T000025Z", "1|1|")
    assert resume_bookmarks(again, "b:1", last="", overlap_us=5_000_000) == wanted


def test_whether_a_sync_is_due_is_one_comparison_however_many_subscriptions_there_are(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RingBookmarkStore(path)
    for name in ("a", "b", "c"):
        store.log(name, "1|1|")
    store.sync()
    with monkeypatch.context() as patched:
        patched.setattr(store, "_subscriptions", {})
        assert not store.needs_sync
    store.discard("b", 1)
    with monkeypatch.context() as patched:
        patched.setattr(store, "_subscriptions", {})
        assert store.needs_sync


@pytest.mark.parametrize("publishers", [1, 2])
def test_what_an_ack_finishes_within_a_batch_is_in_the_file(
    tmp_path: Path, publishers: int
) -> None:
    """The recovery point of the next process is no lower than what adapters were told."""
    store = RingBookmarkStore(tmp_path / "ring")
    log = store.subscription("s")
    log.begin(acked=True, start=None)
    log.completed("")
    moves = [*log.log_batch([f"{1 + n % publishers}|{n}|" for n in range(1, 11)])]
    for number in (*moves[:5], "1|4|", moves[6], moves[5], "1|8|", moves[7], "1|10|", moves[9]):
        log.persisted(number) if isinstance(number, str) else log.discard(number)
        left = tmp_path / "left"
        left.write_bytes(store.path.read_bytes())
        reopened = RingBookmarkStore(left)
        points = [point.bookmark for point in reopened.recovery_points()]
        assert points == [point.bookmark for point in store.recovery_points()]
        reopened.close()
        left.unlink()
    assert str(log.recovery_point()) != "0"
    store.close()
