from __future__ import annotations

from pathlib import Path

import pytest

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.logged_subscription import LoggedSubscription
from haclient_stores.bookmark_stores.records import server_records
from haclient_stores.tracker.server_order import Standing


class Restarting:
    """A store that is closed and opened again whenever its subscription is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = LoggedBookmarkStore(path)

    def again(self) -> LoggedSubscription:
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
    log.heard(5_000_000)
    log.discard(log.log("7|1|"))
    expected = [Standing("a.example.com:9007", {}, heard_us=5_000_000)]
    log.entered("b:1")
    log.discard(log.log("8|1|"))
    expected.append(Standing("b:1", {7: 1}, heard_us=5_000_000))
    for prune in (False, True):
        if prune:
            restarting.store.prune()
        log = restarting.again()
        assert log.standing == expected[1]
        assert log.in_order
        assert log.resume_from_start() == "0"
    log.entered("a.example.com:9007")
    log.heard(7_000_000)
    restarting.store.prune()
    log = restarting.again()
    standing = Standing("a.example.com:9007", {7: 1, 8: 1}, heard_us=7_000_000)
    assert log.standing == standing
    log.begin(acked=False, start="0")
    assert restarting.again().standing == Standing()
    restarting.store.close()


def test_an_address_that_was_cut_off_by_a_crash_does_not_get_into_the_next(
    restarting: Restarting,
) -> None:
    log = restarting.again()
    log.begin(acked=False, start="0")
    log._log.file.put(*next(server_records(log.index, "a.example.com:9007")))
    log = restarting.again()
    log.begin(acked=False, start=None)
    log.entered("b:1")
    assert restarting.again().standing.server == "b:1"
    restarting.store.close()
