from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from typing_extensions import override

from haclient.errors import StoreError, StoreFull, TimedOut, UsageError
from haclient.events import Event, RecoveryPointMoved
from haclient.transport.reporter import Reporter
from haclient.transport.store_maintenance import StoreMaintenance, is_in_use
from haclient_stores.adapters.recovery_point import RecoveryPoint, TimedAdapter
from haclient_stores.bookmark_stores import tracked_store
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.prune_policy import PrunePolicy
from haclient_stores.bookmark_stores.prune_request import PruneRequest
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.bookmark_stores.undiscarded_watch import (
    UNDISCARDED_LIMIT,
    OldUndiscarded,
    UndiscardedWatch,
)
from haclient_stores.disk.files import RealDisk
from haclient_stores.publish_stores.memory import MemoryPublishStore
from haclient_stores.tracker.tracker import SubscriptionTracker
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore
from support.reporting import unheard

pytestmark = in_virtual_time


class Adapter(TimedAdapter):
    """Notes what it is told.

    Attributes:
        takes_s: How long closing takes.
        recovers_s: How long `recover` takes.
        points: What it gives.
        fails: Whether an update is refused.
    """

    def __init__(self) -> None:
        self.told: list[str] = []
        self.times: list[float] = []
        self.closed = 0
        self.takes_s = 0.0
        self.recovers_s = 0.0
        self.points = [RecoveryPoint("s", "7|10|")]
        self.fails = False

    @override
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        if client_name == "refused":
            raise UsageError("not that one")
        await trio.sleep(self.recovers_s)
        return self.points

    @override
    def update(self, point: RecoveryPoint) -> None:
        if self.fails:
            raise StoreError("not written")
        self.told.append(f"{point.sub_id} {point.bookmark}")

    @override
    def purge(self, sub_id: str | None = None) -> None:
        self.told.append(f"purge {sub_id}")

    @override
    async def prune(self) -> None:
        return

    @override
    async def close(self) -> None:
        await trio.sleep(self.takes_s)
        self.closed += 1

    @override
    def poll(self, now: float) -> None:
        self.times.append(now)


def test_nothing_is_done_for_other_stores_and_for_stores_that_need_nothing() -> None:
    assert StoreMaintenance(None, reporter=unheard()).tasks == []
    assert StoreMaintenance(DictBookmarkStore(), reporter=unheard()).tasks == []


@pytest.mark.row("RP1", "RP2", "RP6")
async def test_an_adapter_is_asked_first_and_told_what_moves_until_the_end() -> None:
    adapter = Adapter()
    store = MemoryBookmarkStore(adapter)
    upkeep = StoreMaintenance(store, reporter=unheard())
    await upkeep.recover("me")
    assert str(store.most_recent("s")) == "7|10|"
    async with trio.open_nursery() as nursery:
        for task in upkeep.tasks:
            nursery.start_soon(task)
        await trio.sleep(0.25)
        assert adapter.told == []
        for sequence in range(11, 21):
            store.discard("s", store.log("s", f"7|{sequence}|"))
        await trio.sleep(0.1)
        assert adapter.told == ["s 7|20|"]
        assert len(adapter.times) >= 3
        nursery.cancel_scope.cancel()
    store.discard("s", store.log("s", "7|21|"))
    await upkeep.close()
    assert adapter.told == ["s 7|20|", "s 7|21|"]
    assert adapter.closed == 1


@pytest.mark.row("RP1")
async def test_other_tasks_run_while_many_points_go_to_the_adapter() -> None:
    adapter, ahead = Adapter(), list[int]()
    store = MemoryBookmarkStore(adapter)
    upkeep = StoreMaintenance(store, reporter=unheard())
    for number in range(500):
        store.discard(str(number), store.log(str(number), "7|1|"))
    async with trio.open_nursery() as nursery:
        for task in upkeep.tasks:
            nursery.start_soon(task)
        while len(adapter.told) < 500:
            ahead.append(len(adapter.told))
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert len(ahead) >= 5
    await upkeep.close()
    assert len(adapter.told) == 500


@pytest.mark.row("RP5")
async def test_a_client_that_the_adapter_refuses_does_not_begin() -> None:
    with pytest.raises(UsageError, match="not that one"):
        await StoreMaintenance(MemoryBookmarkStore(Adapter()), reporter=unheard()).recover(
            "refused"
        )


@pytest.mark.row("RP1", "RP8")
async def test_an_adapter_that_does_not_answer_is_told_and_everything_closed(
    tmp_path: Path,
) -> None:
    adapter = Adapter()
    adapter.recovers_s = 1e6
    store = LoggedBookmarkStore(tmp_path / "s.bm", adapter=adapter)
    store.discard("s", store.log("s", "7|1|"))
    with pytest.raises(TimedOut, match=r"Adapter gave no recovery points in 30 s: .*server"):
        await StoreMaintenance(store, [store], reporter=unheard()).recover("me")
    assert adapter.closed == 1
    assert adapter.told == [], "older than what it has, perhaps"
    LoggedBookmarkStore(tmp_path / "s.bm").close()  # it was let go


@pytest.mark.row("RP6")
async def test_a_point_that_cannot_be_used_lets_go_of_the_stores(tmp_path: Path) -> None:
    adapter = Adapter()
    adapter.points = [RecoveryPoint("s", "five")]
    store = LoggedBookmarkStore(tmp_path / "s.bm", adapter=adapter)
    with pytest.raises(UsageError, match="'five' is no bookmark"):
        await StoreMaintenance(store, [store], reporter=unheard()).recover("me")
    assert adapter.closed == 1
    LoggedBookmarkStore(tmp_path / "s.bm").close()


async def test_an_adapter_that_does_not_come_to_an_end_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    adapter = Adapter()
    adapter.takes_s = 1e6
    with trio.CancelScope() as outer:
        outer.cancel()
        await StoreMaintenance(MemoryBookmarkStore(adapter), reporter=unheard()).close()
    assert "not written in 10 s" in caplog.text


@pytest.mark.row("RP2")
async def test_an_adapter_that_raises_at_the_last_point_is_closed_all_the_same() -> None:
    adapter = Adapter()
    store = MemoryBookmarkStore(adapter)
    upkeep = StoreMaintenance(store, reporter=unheard())
    await upkeep.recover("me")
    store.discard("s", store.log("s", "7|11|"))
    adapter.fails = True
    with pytest.raises(StoreError, match="not written"):
        await upkeep.close()
    assert adapter.closed == 1


@pytest.mark.row("BS5")
async def test_a_message_that_nobody_discards_is_told() -> None:
    told: list[OldUndiscarded] = []
    store = MemoryBookmarkStore(watch=UndiscardedWatch(60.0, told.append))
    store.log("s", "7|1|")
    store.log("s", "7|2|")
    with trio.move_on_after(100):
        task, *_ = StoreMaintenance(store, [store], reporter=unheard()).tasks
        await task()
    (old,) = told
    assert (old.number, old.undiscarded) == (1, 2)


@pytest.mark.row("BS17")
async def test_a_log_is_pruned_in_a_thread_when_its_policy_wants_it(tmp_path: Path) -> None:
    store = LoggedBookmarkStore(tmp_path / "s.bm", prune_policy=PrunePolicy(every_messages=1000))
    threads: list[threading.Thread] = []
    prune = store.prune

    def noted() -> None:
        threads.append(threading.current_thread())
        prune()

    store.prune = noted  # type: ignore[method-assign]  # only to see who calls it
    for sequence in range(1, 1001):
        store.discard("s", store.log("s", f"7|{sequence}|"))
    with trio.move_on_after(10):
        task, *_ = StoreMaintenance(store, [store], reporter=unheard()).tasks
        await task()
    (thread,) = threads
    assert thread is not threading.current_thread()
    store.close()


@pytest.mark.row("BS17")
@pytest.mark.parametrize("error", [StoreFull("no room"), StoreError("permission denied")])
async def test_a_prune_that_fails_is_no_reason_to_stop_but_to_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: StoreError
) -> None:
    store = LoggedBookmarkStore(tmp_path / "s.bm", prune_policy=PrunePolicy(idle_s=1.0))
    attempts: list[float] = []

    def fails() -> None:
        attempts.append(1)
        raise error

    store.prune = fails  # type: ignore[method-assign]  # a disk that is full
    with trio.move_on_after(100):
        task, *_ = StoreMaintenance(store, [store], reporter=unheard()).tasks
        for sequence in range(1, 1001):
            store.discard("s", store.log("s", f"7|{sequence}|"))
        await task()
    assert 1 <= len(attempts) <= 2
    assert caplog.records[0].levelno == logging.WARNING
    assert str(error) in caplog.text
    store.close()


async def test_a_client_looks_for_a_request_as_soon_as_it_begins(tmp_path: Path) -> None:
    store = LoggedBookmarkStore(tmp_path / "s.bm", prune_policy=None)
    asker = PruneRequest(RealDisk(), tmp_path / "s.bm")
    asker.make()
    with trio.move_on_after(0.5):  # less than the time between two looks
        task, *_ = StoreMaintenance(store, [store], reporter=unheard()).tasks
        await task()
    assert asker.take_answer() == ""
    store.close()


async def test_who_asks_for_a_prune_that_is_not_permitted_is_told_so(tmp_path: Path) -> None:
    store = LoggedBookmarkStore(tmp_path / "s.bm", prune_policy=None)
    asker = PruneRequest(RealDisk(), tmp_path / "s.bm")
    (tmp_path / "s.bm.prune").mkdir()  # where the new file would be
    asker.make()
    with trio.move_on_after(3):
        task, *_ = StoreMaintenance(store, [store], reporter=unheard()).tasks
        await task()
    assert "cannot remove" in (asker.take_answer() or "")
    store.close()


@pytest.mark.usefixtures("small_growth")
@pytest.mark.row("BS17")
async def test_on_exit_the_store_is_pruned_and_closed_in_a_thread(tmp_path: Path) -> None:
    path = tmp_path / "s.bm"
    store = LoggedBookmarkStore(path, prune_policy=PrunePolicy(on_exit=True))
    for sequence in range(1, 6_001):
        store.discard("s", store.log("s", f"7|{sequence}|"))
    before = path.stat().st_size  # a test may look at a file
    with trio.CancelScope() as outer:
        outer.cancel()
        await StoreMaintenance(store, reporter=unheard()).close()
    assert path.stat().st_size < before / 2  # as above
    store = LoggedBookmarkStore(path)
    assert str(store.most_recent("s")) == "7|6000|"
    store.close()


@pytest.mark.parametrize("kind", [LoggedBookmarkStore, RingBookmarkStore])
async def test_durability_group_syncs_what_was_written(
    tmp_path: Path, kind: type[LoggedBookmarkStore | RingBookmarkStore]
) -> None:
    store = kind(tmp_path / "s.bm", durability="group")
    store.discard("s", store.log("s", "7|1|"))
    assert store.needs_sync
    with trio.move_on_after(0.1):
        task, *_ = StoreMaintenance(store, [store], reporter=unheard()).tasks
        await task()
    assert not store.needs_sync
    store.close()


async def test_an_application_that_never_discards_is_warned_once_for_each_subscription(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryBookmarkStore()
    count, _ = StoreMaintenance(store, [store], reporter=unheard()).tasks
    for sub_id, messages in (("a", UNDISCARDED_LIMIT), ("b", UNDISCARDED_LIMIT - 1)):
        bookmarks = [f"7|{number}|" for number in range(1, messages + 1)]
        store.subscription(sub_id).log_batch(bookmarks)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await trio.sleep(59.0)
        assert not caplog.records
        await trio.sleep(10_000.0)
        nursery.cancel_scope.cancel()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("subscription 'a': 100000 messages are undiscarded")


async def test_only_recovery_points_that_may_have_moved_are_computed_for_a_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[str] = []
    compute = tracked_store.point_of

    def counted(sub_id: str, tracker: SubscriptionTracker) -> RecoveryPoint:
        computed.append(sub_id)
        return compute(sub_id, tracker)

    monkeypatch.setattr(tracked_store, "point_of", counted)
    store = MemoryBookmarkStore()
    for number in range(1000):
        store.discard(f"s{number}", store.log(f"s{number}", "7|1|"))
    events: list[RecoveryPointMoved] = []

    def note(event: Event) -> None:
        assert isinstance(event, RecoveryPointMoved)
        events.append(event)

    reporter = Reporter("c", lambda: 0, note)
    *_, report = StoreMaintenance(store, [store], reporter=reporter).tasks
    async with trio.open_nursery() as nursery:
        nursery.start_soon(report)
        nursery.start_soon(reporter.run)
        await trio.sleep(1.5)
        assert sorted(computed) == sorted(each.sub_id for each in events)
        assert len(computed) == 1000
        await trio.sleep(10)
        assert len(computed) == 1000
        store.discard("s7", store.log("s7", "7|2|"))
        await trio.sleep(1)
        assert computed[1000:] == ["s7"]
        assert [(each.sub_id, each.bookmark) for each in events[1000:]] == [("s7", "7|2|")]
        nursery.cancel_scope.cancel()


class Id(str):
    """An id that can be looked for in the memory."""


async def test_nothing_is_remembered_of_subscriptions_that_the_store_has_forgotten() -> None:
    store = MemoryBookmarkStore(watch=UndiscardedWatch(60.0, lambda _: None))
    reporter = Reporter("c", lambda: 0, lambda _: None)
    maintenance = StoreMaintenance(store, [store], reporter=reporter)
    kept: list[weakref.ref[Id]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reporter.run)
        for task in maintenance.tasks:
            nursery.start_soon(task)
        for number in range(100):
            sub_id = Id(f"s{number}")
            kept.append(weakref.ref(sub_id))
            store.subscription(sub_id).log_batch([f"7|{each}|" for each in range(1, 4)])
            store.discard(sub_id, 1)
            del sub_id
        await trio.sleep(130.0)  # each of them has seen the subscriptions
        for number in range(100):
            store.purge_ended(f"s{number}")
        await trio.sleep(130.0)
        assert sum(each() is not None for each in kept) < 5  # the variables of loops
        nursery.cancel_scope.cancel()


class ClosedInOrder(MemoryPublishStore):
    """Records when it is closed, and may fail."""

    def __init__(self, name: str, closed: list[str], *, fails: bool = False) -> None:
        super().__init__()
        self._called, self._order, self._fails = name, closed, fails

    @override
    def close(self) -> None:
        assert is_in_use(self)
        self._order.append(self._called)
        if self._fails:
            raise StoreError("disk")


async def test_the_last_store_is_closed_first_and_none_is_in_use_afterwards() -> None:
    closed: list[str] = []
    stores = [
        ClosedInOrder("audit log", closed),
        ClosedInOrder("publish store", closed, fails=True),
        ClosedInOrder("bookmark store", closed),
    ]
    maintenance = StoreMaintenance(None, stores, reporter=unheard())
    maintenance.claim()
    with pytest.raises(StoreError, match="disk"):
        await maintenance.close()
    assert closed == ["bookmark store", "publish store", "audit log"]
    assert not any(map(is_in_use, stores))


def test_of_threads_that_claim_a_store_at_once_one_has_it() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            store = MemoryPublishStore()
            claimed = claim_in_threads(
                [StoreMaintenance(None, [store], reporter=unheard()) for _ in range(8)]
            )
            assert claimed == 1
            store.close()
    finally:
        sys.setswitchinterval(before)


def claim_in_threads(upkeeps: list[StoreMaintenance]) -> int:
    """How many of them have claimed their store, each in a thread of its own."""
    start = threading.Barrier(len(upkeeps))
    claimed: list[StoreMaintenance] = []

    def claim(upkeep: StoreMaintenance) -> None:
        start.wait()
        with suppress(UsageError):
            upkeep.claim()
            claimed.append(upkeep)

    threads = [threading.Thread(target=claim, args=[each]) for each in upkeeps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(claimed)
