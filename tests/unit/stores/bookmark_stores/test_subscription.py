from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haclient_stores.adapters.recovery_point import RecoveryPoint
from haclient_stores.adapters.transactional import TransactionalRecoveryPoint
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore, LogNotes
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.records import server_records
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.bookmark_stores.subscription import SubscriptionHandle
from haclient_stores.bookmark_stores.tracked_store import TrackedBookmarkStore
from haclient_stores.errors import UsageError
from haclient_stores.tracker.server_order import ServerOrder


class Restarting:
    """A store that is closed and opened again whenever its subscription is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = LoggedBookmarkStore(path)

    def again(self) -> SubscriptionHandle:
        self.store.close()
        self.store = LoggedBookmarkStore(self.path)
        return self.store.subscription("s")


@pytest.fixture
def restarting(tmp_path: Path) -> Restarting:
    return Restarting(tmp_path / "s.bm")


def test_the_handle_is_the_same_for_the_same_id(restarting: Restarting) -> None:
    log = restarting.again()
    assert restarting.store.subscription("s") is log
    assert restarting.again() is not log
    restarting.store.close()


@pytest.mark.row("BS2", "BS3", "BS11")
def test_interleaved_publishers_read_back(restarting: Restarting) -> None:
    log = restarting.again()
    assert list(log.log_batch(["7|1|", "8|1|", "7|2|", "8|1|", "", "8|2|"])) == [1, 2, 3, 0, -1, 4]
    log.discard(1)
    log.discard(3)
    log.discard(3)
    log = restarting.again()
    assert str(log.recovery_point()) == "7|1|"
    assert list(log.log_batch(["8|1|", "7|2|", "8|2|", "7|3|"])) == [5, 0, 6, 7]
    log.discard(6)
    log = restarting.again()
    assert log.is_discarded("8|2|")
    assert (log.oldest_undiscarded, log.undiscarded_count) == (2, 2)
    restarting.store.close()


@pytest.mark.row("BS9")
def test_an_explicit_start_and_what_it_forgets_read_back(restarting: Restarting) -> None:
    log = restarting.again()
    log.begin(acked=True, start="7|5|,20240131T120000Z")
    assert restarting.again().resume() == "7|5|,20240131T120000Z"
    log = restarting.again()
    log.discard(log.log("7|6|"))
    log.begin(acked=False, start="0|1|", entered_us=1_000_000)
    assert restarting.again().resume() == "19700101T000001Z"
    log = restarting.again()
    log.completed("9|3|")
    assert restarting.again().resume() == "9|3|"
    restarting.store.close()


@pytest.mark.row("BS10")
def test_acks_and_what_they_cover_read_back(restarting: Restarting) -> None:
    log = restarting.again()
    log.begin(acked=True, start=None)
    log.log_batch(["7|1|", "7|2|", "7|3|"])
    log.discard_up_to(3)
    log.persisted("7|2|,nonsense")
    assert str(restarting.again().recovery_point()) == "7|2|"
    log = restarting.again()
    log.begin(acked=True, start=None)
    log.completed("")
    log.paused = True
    assert log.paused
    log.persisted("8|9|")
    assert str(restarting.again().recovery_point()) == "7|2|"
    log = restarting.again()
    log.persisted("8|9|")
    assert str(restarting.again().recovery_point()) == "7|3|,8|9|"  # 3 came on an earlier link
    restarting.store.close()


def test_a_lost_link_reads_back(restarting: Restarting) -> None:
    log = restarting.again()
    log.log_batch(["7|1|", "7|2|"])
    log.link_lost(2)
    assert list(log.log_batch(["7|1|", "7|2|"])) == [0, 3]
    log.discard(3)
    log.forget()
    log.log("7|1|")
    log.ended()
    log = restarting.again()
    assert (log.oldest_undiscarded, log.undiscarded_count) == (4, 1)
    restarting.store.close()


@pytest.mark.row("BS4", "BS11")
def test_what_a_handler_still_processes_comes_to_no_later_entry_but_to_the_next_process(
    restarting: Restarting,
) -> None:
    log = restarting.again()
    log.log_batch(["7|1|", "7|2|", "7|3|"])
    log.ended_except({2})
    log.begin(acked=False, start=None)
    assert list(log.log_batch(["7|1|", "7|2|", "7|3|"])) == [4, 0, 5]
    log.discard(5)
    log = restarting.again()
    assert list(log.log_batch(["7|1|", "7|2|", "7|3|"])) == [6, 7, 0]
    log.ended_except({7})
    log.discard(7)
    log = restarting.again()
    assert list(log.log_batch(["7|1|", "7|2|", "7|3|"])) == [8, 0, 0]
    restarting.store.close()


@pytest.mark.row("BS4", "BS11")
def test_a_discard_under_an_older_number_counts_in_this_process_only_if_it_does_in_the_next(
    restarting: Restarting,
) -> None:
    log = restarting.again()
    for number in (1, 2, 3):
        assert log.log("7|1|") == number
        log.ended_except({3})
    log.discard(2)
    undiscarded = log.undiscarded_count
    log = restarting.again()
    assert log.undiscarded_count == undiscarded
    restarting.store.close()


@pytest.mark.row("BS9")
def test_the_time_of_an_entry_at_now_outlives_restarts_and_pruning(restarting: Restarting) -> None:
    log = restarting.again()
    log.begin(acked=False, start="0|1|", entered_us=3_000_000)
    log.completed("9|3|")
    forms = ("9|3|,19700101T000003Z", "19700101T000003Z")
    assert restarting.again().resume_elsewhere(1) == forms
    restarting.store.prune()
    assert restarting.again().resume_elsewhere(1) == forms
    log = restarting.again()
    log.discard(log.log("9|4|"))
    assert restarting.again().resume_elsewhere(1) == ("9|4|,19700101T000003Z", "9|4|")
    restarting.store.close()


@pytest.mark.row("BS9")
def test_where_it_stands_outlives_restarts_and_pruning(restarting: Restarting) -> None:
    log = restarting.again()
    log.begin(acked=False, start="0")
    log.entered("a.example.com:9007")
    log.caught_up(5_000_000)
    log.discard(log.log("7|1|"))
    expected = [ServerOrder("a.example.com:9007", {}, 5_000_000, 5_000_000)]
    log.entered("b:1")
    log.discard(log.log("8|1|"))
    expected.append(ServerOrder("b:1", {7: 1}, 5_000_000, 5_000_000))
    for prune in (False, True):
        if prune:
            restarting.store.prune()
        log = restarting.again()
        assert log.server_order == expected[1]
        assert log.in_order
        assert log.resume_from_start() == "0"
    log.entered("a.example.com:9007")
    log.caught_up(7_000_000)
    restarting.store.prune()
    log = restarting.again()
    server_order = ServerOrder("a.example.com:9007", {7: 1, 8: 1}, 7_000_000, 7_000_000)
    assert log.server_order == server_order
    log.begin(acked=False, start="0")
    assert restarting.again().server_order == ServerOrder()
    restarting.store.close()


def test_an_address_that_was_cut_off_by_a_crash_does_not_get_into_the_next(
    restarting: Restarting,
) -> None:
    log = restarting.again()
    log.begin(acked=False, start="0")
    assert isinstance(log.notes, LogNotes)
    log.notes._log.file.put(*next(server_records(log.notes.index, "a.example.com:9007")))
    log = restarting.again()
    log.begin(acked=False, start=None)
    log.entered("b:1")
    assert restarting.again().server_order.server == "b:1"
    restarting.store.close()


@pytest.mark.row("RP6", "BS9")
def test_the_time_behind_which_nothing_is_open_outlives_restarts_and_pruning(
    restarting: Restarting,
) -> None:
    log = restarting.again()
    log.begin(acked=False, start="0")
    log.entered("a:1")
    log.discard(log.log("7|1|"))
    log.caught_up(5_000_000)
    log.log("7|2|")
    log.caught_up(9_000_000)
    for prune in (False, True, False):
        if prune:
            restarting.store.prune()
        assert restarting.again().server_order == ServerOrder("a:1", {}, 9_000_000, 5_000_000)
        assert [point.caught_up_us for point in restarting.store.recovery_points()] == [5_000_000]
    restarting.store.close()


def in_thread(call: Callable[[], object]) -> BaseException | None:
    """What a call in another thread raises."""
    found: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
        except UsageError as error:
            found.append(error)
        else:
            found.append(None)

    thread = threading.Thread(target=run, name="worker")
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(":memory:", check_same_thread=False)) as made:
        yield made


@pytest.mark.row("BS1")
@pytest.mark.parametrize("kind", ["memory", "logged", "ring", "transactional"])
def test_a_store_belongs_to_the_thread_that_first_uses_it(
    tmp_path: Path, database: sqlite3.Connection, kind: str
) -> None:
    stores: dict[str, Callable[[], TrackedBookmarkStore]] = {
        "memory": MemoryBookmarkStore,
        "logged": lambda: LoggedBookmarkStore(tmp_path / "s.bm"),
        "ring": lambda: RingBookmarkStore(tmp_path / "s.ring"),
        "transactional": lambda: TransactionalRecoveryPoint(database),
    }
    store = stores[kind]()
    store.open_for("me")
    log = store.subscription("s")
    number = log.log("1|1|")
    calls: list[Callable[[], object]] = [
        lambda: log.discard(number),
        lambda: log.log("1|2|"),
        lambda: log.log_batch(["1|2|"]),
        lambda: log.discard_up_to(number),
        lambda: log.begin(acked=False, start="0"),
        lambda: log.link_lost(1),
        log.ended,
        log.forget,
        lambda: log.persisted("1|1|"),
        lambda: log.completed("1|1|"),
        lambda: log.entered("a:1"),
        lambda: log.caught_up(1),
        lambda: log.is_discarded("1|1|"),
        log.recovery_point,
        log.resume,
        log.resume_from_start,
        lambda: log.resume_elsewhere(1),
        lambda: store.log("s", "1|2|"),
        lambda: store.discard("s", number),
        lambda: store.discard_up_to("s", number),
        lambda: store.persisted("s", "1|1|"),
        lambda: store.subscription("new"),
        lambda: store.most_recent("s"),
        lambda: store.is_discarded("s", "1|1|"),
        lambda: store.explain("s"),
        lambda: list(store.entries("s")),
        lambda: list(store.recovery_points()),
        lambda: store.seed([RecoveryPoint("s", "1|9|")]),
        lambda: store.open_for("me"),
        store.purge,
    ]
    for call in calls:
        assert "belongs to the thread that first uses it" in str(in_thread(call))
    assert [*store.subscriptions] == ["s"]
    assert log.tracker.next_number == number + 1
    assert (log.oldest_undiscarded, log.undiscarded_count) == (number, 1)
    for call in (store.sync, store.prune):
        assert in_thread(call) is None
    store.release_thread()
    assert in_thread(lambda: store.most_recent("s")) is None
    with pytest.raises(UsageError, match="belongs to the thread"):
        store.most_recent("s")
    assert in_thread(store.close) is None


def test_a_store_may_be_opened_in_one_thread_and_used_in_another(tmp_path: Path) -> None:
    store = LoggedBookmarkStore(tmp_path / "s.bm")
    store.subscription("s").log("1|1|")
    store.close()
    store = LoggedBookmarkStore(tmp_path / "s.bm")  # which writes that nobody holds the message
    assert in_thread(lambda: store.discard("s", store.log("s", "1|1|"))) is None
    assert in_thread(store.close) is None
