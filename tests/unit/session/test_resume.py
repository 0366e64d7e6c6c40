from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.session.connection_state import LoggedOn, LogStart
from haclient.session.custom_stores import StoreSubscription
from haclient.session.resume import (
    CaughtUpClock,
    ResumeContext,
    ResumePosition,
    ServerLogs,
    StepProofClock,
    catching_up,
    resume_bookmarks,
    resume_options,
)
from haclient.session.subscriptions import SubscribeRequest, Subscription
from haclient.transport.message_queue import MessageQueue
from haclient_stores.adapters.transactional import TransactionalRecoveryPoint
from haclient_stores.bookmark import BookmarkList, Timestamp
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.bookmark_stores.tracked_store import TrackedBookmarkStore
from haclient_stores.interfaces import SubscriptionLog
from support.custom import DictBookmarkStore
from support.tracked_log import TrackedLog

KNOWS, KNOWS_NOT = "5.3.5.0", "5.3.4.9"


@pytest.mark.row("BS9", "SM2")
@pytest.mark.parametrize(
    ("options", "bookmark", "version", "expected"),
    [
        ("", "7|1|", KNOWS, "bookmark_not_found=epoch"),
        ("", "7|1|", KNOWS_NOT, ""),
        ("", "7|1|", "", ""),
        ("", "", KNOWS, ""),
        ("", "0|1|", KNOWS, ""),
        ("bookmark_not_found=now", "7|1|", KNOWS, "bookmark_not_found=now"),
        ("replace", "", KNOWS, ""),
    ],
)
def test_an_unknown_bookmark_is_no_silent_gap(
    options: str, bookmark: str, version: str, expected: str
) -> None:
    assert resume_options(options, bookmark=bookmark, version=version, again=True) == expected


def test_the_first_entry_keeps_its_replace() -> None:
    assert resume_options("replace", bookmark="", version="", again=False) == "replace"


OVERLAP_US = 2_000_000


HEARD_US = 12_000_000


ANCHOR = "19700101T000010Z"


def entered(*steps: str, start: str = "0", entered_us: int = 0) -> tuple[TrackedLog, str]:
    """A subscription after some steps, and the last bookmark that came from its server.

    `@A` is an entry at a server, `+1|2|` a message that is finished, `1|2|` one that is in hand,
    `?1|2|` one that is forgotten unread, `=1|2|` one that came before, and `.` the `completed`.
    """
    log, last = TrackedLog(), ""
    log.begin(acked=False, start=start, entered_us=entered_us)
    for step in steps:
        kind, bookmark = step[0], step.lstrip("+?=")
        if kind == "@":
            if log.server_order.server != step[1:]:
                last = ""
            log.begin(acked=False, start=None)
            log.entered(step[1:])
        elif kind == ".":
            log.completed("")
            log.caught_up(HEARD_US)
            log.update_discarded_until()  # as the stores do
        else:
            last = bookmark
            number = log.log(bookmark)
            assert (number == 0) == (kind == "=")
            if kind == "+":
                log.discard(number)
            elif kind == "?":
                log.link_lost(number)
    return log, last


@pytest.mark.row("BS9", "HA17")
@pytest.mark.parametrize(
    ("steps", "server", "expected"),
    [
        # On the server of the first entry the order of its log covers everything.
        (("@A",), "A", "0"),
        (("@A", "+1|1|", "2|1|"), "A", "1|1|"),
        (("@A", "+1|1|", "?2|1|"), "A", "1|1|"),
        (("@A", "+1|1|", ".", "2|1|"), "A", "1|1|"),
        # Elsewhere nothing is known of others than those named, but up to when A was heard.
        (("@A", "+1|1|", "."), "B", f"1|1|,{ANCHOR}"),
        (("@A", "+1|1|"), "B", "0"),
        (("@A",), "B", "0"),
        (("@A", "+1|1|", ".", "?2|1|"), "B", "0"),
        # A loss before B was complete: B again from behind what it has sent, A and C as before.
        (("@A", "+1|1|", ".", "@B"), "B", f"1|1|,{ANCHOR}"),
        (("@A", "+1|1|", ".", "@B"), "A", f"1|1|,{ANCHOR}"),
        (("@A", "+1|1|", "+1|2|", ".", "@B", "=1|1|"), "B", "1|1|"),
        (("@A", "+1|1|", "+2|7|", ".", "@B", "=2|5|"), "B", "1|1|,2|5|"),
        (("@A", "+1|1|", ".", "3|1|", "@B", "=3|1|"), "B", "1|1|,3|1|"),
        (("@A", "+1|1|", ".", "@B", "=1|1|"), "C", f"1|1|,{ANCHOR}"),
        (("@A", "+1|1|", ".", "@B", "=1|1|", "@C"), "C", f"1|1|,{ANCHOR}"),
        (("@A", "+1|1|", "@B", "=1|1|"), "C", "0"),
        (("@A", "+1|1|", "@B", "=1|1|"), "B", "1|1|"),
        (("@A", "+1|1|", "@B"), "B", "0"),
        # Something new of B is finished: from here on its order covers everything.
        (("@A", "+1|1|", ".", "@B", "+1|2|"), "B", "1|2|"),
        (("@A", "+1|1|", ".", "@B", "+1|2|", "?2|1|"), "B", "1|2|"),
        (("@A", "+1|1|", ".", "@B", "+1|2|"), "A", f"1|2|,{ANCHOR}"),
        # What was forgotten unread is somewhere in B's log.
        (("@A", "+1|1|", ".", "@B", "?2|1|"), "B", "0"),
        (("@A", "+1|1|", ".", "@B", "?2|1|", "."), "B", "0"),
        (("@A", "+1|1|", "+2|1|", ".", "@B", "?2|2|", "."), "B", "1|1|,2|1|"),
        # Complete: all that B had is known. What comes later may stand before what is named, if B
        # did not have that yet.
        (("@A", "+1|1|", ".", "@B", "=1|1|", "."), "B", "1|1|"),
        (("@A", "+1|2|", ".", "@B", "=1|1|", "."), "B", "1|1|"),
        (("@A", "+1|1|", ".", "@B", "."), "B", f"1|1|,{ANCHOR}"),
        (("@A", "+1|1|", "@B", "=1|1|", "."), "A", f"1|1|,{ANCHOR}"),
    ],
)
def test_where_to_begin(steps: tuple[str, ...], server: str, expected: str) -> None:
    log, last = entered(*steps)
    assert resume_bookmarks(log, server, last=last, overlap_us=OVERLAP_US)[0] == expected


@pytest.mark.row("BS9", "HA17")
@pytest.mark.parametrize(
    ("steps", "expected"),
    [(("@A",), "19700101T000005Z"), (("@A", "+1|1|"), "19700101T000005Z")],
)
def test_the_start_of_an_entry_at_now_is_its_time(steps: tuple[str, ...], expected: str) -> None:
    log, last = entered(*steps, start="0|1|", entered_us=5_000_000)
    assert resume_bookmarks(log, "B", last=last, overlap_us=OVERLAP_US) == (expected,)


@pytest.mark.row("BS9", "HA17")
def test_where_a_log_ended_is_no_place_in_the_order_of_the_next_server() -> None:
    """Entered at NOW, nothing came; the entry at B was accepted and lost before anything came."""
    log, _ = entered("@A", start="0|1|", entered_us=5_000_000)
    log.completed("7|9|")
    log.caught_up(HEARD_US)
    assert resume_bookmarks(log, "A", last="", overlap_us=OVERLAP_US) == ("7|9|",)
    log.begin(acked=False, start=None)
    log.entered("B")
    wanted = ("7|9|,19700101T000005Z", "19700101T000005Z")
    assert resume_bookmarks(log, "B", last="", overlap_us=OVERLAP_US) == wanted


@pytest.mark.parametrize("last", ["", "nonsense", "0|1|", "20240131T120000Z", "1|2|,3|4|"])
def test_what_names_no_message_is_no_place_to_begin(last: str) -> None:
    log, _ = entered("@A", "+1|1|", ".", "@B")
    found = resume_bookmarks(log, "B", last=last, overlap_us=OVERLAP_US)
    assert found == (f"1|1|,{ANCHOR}", "1|1|")


@contextlib.contextmanager
def one_subscription(kind: str, path: Path) -> Generator[SubscriptionLog]:
    """One subscription of a store of a kind."""
    with contextlib.ExitStack() as stack:
        if kind == "custom":
            yield StoreSubscription(DictBookmarkStore(), "s")
            return
        database = stack.enter_context(contextlib.closing(sqlite3.connect(":memory:")))
        stores: dict[str, Callable[[], TrackedBookmarkStore]] = {
            "memory": MemoryBookmarkStore,
            "logged": lambda: LoggedBookmarkStore(path / "s.bm"),
            "ring": lambda: RingBookmarkStore(path / "s.ring"),
            "transactional": lambda: TransactionalRecoveryPoint(database),
        }
        store = stores[kind]()
        store.open_for("me")
        yield store.subscription("s")
        store.close()


KINDS = ["memory", "logged", "ring", "transactional", "custom"]


@pytest.mark.row("BS9", "HA17")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_undiscarded_comes_after_the_time_even_where_the_list_is_unknown(
    tmp_path: Path, kind: str
) -> None:
    """Logs may differ for good; then another server finds nothing of the list but the time."""
    with one_subscription(kind, tmp_path) as log:
        log.begin(acked=False, start="0")
        log.entered("A")
        log.discard(log.log("1|1|"))
        log.caught_up(12_000_000)
        number = log.log("1|2|")
        log.caught_up(40_000_000)
        assert resume_bookmarks(log, "B", last="", overlap_us=OVERLAP_US)[0] == f"1|1|,{ANCHOR}"
        log.discard(number)
        found = resume_bookmarks(log, "B", last="", overlap_us=OVERLAP_US)
        assert found[0] == "1|2|,19700101T000038Z"


@pytest.mark.row("BS9", "HA17")
def test_the_time_of_what_is_undiscarded_outlives_a_restart(tmp_path: Path) -> None:
    with one_subscription("logged", tmp_path) as log:
        log.begin(acked=False, start="0")
        log.entered("A")
        log.discard(log.log("1|1|"))
        log.caught_up(12_000_000)
        log.log("1|2|")
        log.caught_up(40_000_000)
    with one_subscription("logged", tmp_path) as log:
        log.begin(acked=False, start=None)
        assert resume_bookmarks(log, "B", last="", overlap_us=OVERLAP_US)[0] == f"1|1|,{ANCHOR}"


def test_before_anything_was_discarded_at_a_caught_up_time_that_is_the_time() -> None:
    log, last = entered("@A", "+1|1|", "1|2|", ".")
    found = resume_bookmarks(log, "B", last=last, overlap_us=OVERLAP_US)
    assert found[0].rpartition(",")[2] == ANCHOR


@given(
    kind=st.sampled_from(["memory", "custom"]),
    steps=st.lists(st.tuples(st.sampled_from(["message", "discard", "caught up"]), st.integers())),
)
def test_no_time_is_later_than_the_oldest_undiscarded_message(
    kind: str, steps: list[tuple[str, int]]
) -> None:
    with one_subscription(kind, Path()) as log:
        log.begin(acked=False, start="0")
        log.entered("A")
        arrivals: dict[int, int] = {}
        for second, (step, which) in enumerate(steps, start=1):
            if step == "message":
                arrivals[log.log(f"{1 + which % 3}|{second}|")] = second * 1_000_000
            elif step == "caught up":
                log.caught_up(second * 1_000_000)
            elif arrivals:
                number = [*arrivals][which % len(arrivals)]
                log.discard(number)
                del arrivals[number]
            point = BookmarkList.parse(resume_bookmarks(log, "B", last="", overlap_us=0)[0])
            if not log.server_order.discarded_until_us:
                continue
            times = [each.microseconds for each in point if isinstance(each, Timestamp)]
            assert all(time < arrived for time in times for arrived in arrivals.values())


def test_a_range_is_asked_for_again_elsewhere() -> None:
    log, last = entered("@A", "+1|1|", start="[1|1|:1|9|)")
    assert resume_bookmarks(log, "B", last=last, overlap_us=OVERLAP_US) == ("[1|1|:1|9|)",)
    assert resume_bookmarks(log, "A", last=last, overlap_us=OVERLAP_US) == ("(1|1|:1|9|)",)


def test_progress_that_was_taken_over_is_trusted() -> None:
    log = TrackedLog()
    log.discard(log.log("1|1|"))
    for server in "AB":
        assert resume_bookmarks(log, server, last="", overlap_us=OVERLAP_US) == ("1|1|",)
    log.entered("A")
    assert resume_bookmarks(log, "A", last="", overlap_us=OVERLAP_US) == ("1|1|",)
    assert resume_bookmarks(log, "B", last="", overlap_us=OVERLAP_US) == ("0",)


def test_nothing_is_caught_up_before_a_replay_is_complete() -> None:
    place = ResumePosition()
    place.sending(100.0)
    assert place.caught_up_until(109.0, 110.0) is None
    place.is_complete = True
    assert place.caught_up_until(110.0, 110.0) == 100.0  # what was published meanwhile comes now
    assert place.caught_up_until(160.0, 160.0) == pytest.approx(155.0)
    assert place.caught_up_until(300.0, 301.0) == 300.0
    place.sending(302.0)
    assert place.caught_up_until(303.0, 303.0) is None


def test_it_is_worth_a_note_when_something_has_come() -> None:
    place = ResumePosition()
    assert [place.take_moved(), place.take_moved()] == [True, False]
    place.last_bookmark = "1|1|"
    assert [place.take_moved(), place.take_moved()] == [True, False]
    place.sending(1.0)
    assert place.take_moved()


NOW_US = 1_700_000_000_000_000


def logged(*starts: tuple[int, int], seen: int | None = None, bm: int | None = None) -> LoggedOn:
    """What a server says that names these starts, or none."""
    named = tuple(LogStart(*each) for each in starts)
    return LoggedOn(seen=seen, persisted=bm, server_version="", reason="", log_starts=named)


@pytest.mark.row("BS9")
def test_what_another_server_has_sent_last_says_nothing() -> None:
    log = TrackedLog()
    log.begin(acked=False, start="0")
    place = ResumePosition(log)
    place.accepted("a")
    place.last_bookmark = "7|1|"
    place.accepted("a")
    assert (log.server_order.server, place.last_bookmark) == ("a", "7|1|")
    place.accepted("b")
    assert (log.server_order.server, place.last_bookmark) == ("b", "")


@pytest.mark.row("BS9")
def test_the_caught_up_time_is_that_of_the_wall_clock() -> None:
    now = 0.0
    context = ResumeContext(lambda: NOW_US + int(now * 1_000_000))
    assert context.now_us(now) == NOW_US
    log = TrackedLog()
    log.begin(acked=False, start="0")
    place = ResumePosition(log)
    place.sending(now)
    context.note_caught_up([place], 0.0, now, is_last=True)
    assert log.server_order.caught_up_us == 0, "the replay is not complete"
    place.is_complete = True
    now = 60.0
    context.note_caught_up([place], 60.0, now, is_last=False)
    first_us = log.server_order.caught_up_us
    assert first_us == pytest.approx(NOW_US, abs=2)
    now = 560.0
    context.note_caught_up([place], 550.0, now, is_last=False)
    assert log.server_order.caught_up_us == first_us, "nothing has come: not worth a note"
    context.note_caught_up([place], 550.0, now, is_last=True)
    assert log.server_order.caught_up_us == pytest.approx(NOW_US + 540_000_000, abs=2)
    context.note_caught_up([ResumePosition()], 550.0, now, is_last=True)  # nothing is remembered


@pytest.mark.row("BS9", "HA17")
@pytest.mark.parametrize(
    ("again", "same"),
    [
        # The log goes on, perhaps after some restarts.
        (logged((1, 1), (2, 100)), True),
        (logged((1, 1), (2, 100), (3, 151)), True),
        (logged((2, 100), (3, 151), (4, 200)), True),
        # A lost disk; an older backup; one that knows the start but lacks what came after it.
        (logged((9, 1)), False),
        (logged((1, 1), (3, 100)), False),
        (logged((1, 1), (2, 100), (3, 120)), False),
        (logged((1, 1), (2, 100), (3, 150)), False),
        # A server that names no starts any more: only the numbers of this publisher tell.
        (logged(seen=7, bm=5), True),
        (logged(seen=7, bm=4), False),
        (logged(seen=6, bm=5), False),
        (logged(), True),
    ],
)
def test_another_log_at_the_same_address_is_another_server(again: LoggedOn, same: bool) -> None:  # noqa: FBT001  # what is expected
    servers = ServerLogs()
    assert servers.logged_on("a:1", logged((1, 1), (2, 100), seen=7, bm=5))
    first = servers.name
    assert first == "a:1#2@99"
    servers.reached("2@150")
    servers.reached("1@900")  # of another start: says nothing of this one
    servers.logged_on("b:1", logged((2, 100)))
    assert servers.resolve(first) == "b:1#2@99", "another address is another server"
    assert servers.logged_on("a:1", again) is same
    assert (servers.resolve(first) == first) is same
    assert (servers.name == first) is same


def test_a_publishers_own_acks_show_a_shrunken_log() -> None:
    servers = ServerLogs()
    servers.logged_on("a:1", logged(seen=3, bm=3))
    servers.persisted(9)
    assert servers.resolve("a:1") == "a:1"
    assert not servers.logged_on("a:1", logged(seen=9, bm=8))
    lost = servers.name
    assert servers.resolve("a:1") == lost != "a:1"
    assert servers.logged_on("a:1", logged(seen=9, bm=8))
    assert (servers.name, servers.resolve(lost)) == (lost, lost)


def test_the_next_process_knows_the_log_by_the_name_in_its_store() -> None:
    servers = ServerLogs()
    servers.logged_on("a:1", logged((1, 1), (2, 100), (3, 300)))
    assert servers.resolve("a:1#2@99") == "a:1#2@99"
    for stored in ("a:1#9@99", "a:1#2@300", "b:1#2@99", "a:1", "a:1#nonsense@x", "?"):
        assert servers.resolve(stored) == "a:1#3@299", stored
    assert servers.resolve("") == "a:1#3@299", "in nobody's order yet"


@pytest.mark.row("BS9", "HA17")
def test_at_another_log_a_subscription_resumes_by_time() -> None:
    context = ResumeContext(lambda: NOW_US)
    context.overlap_us = OVERLAP_US
    context.servers.logged_on("a:1", logged((1, 1)))
    log, _ = entered("@a:1#1@0", "+1|1|", ".")
    assert context.bookmarks(log) == ("1|1|", "0")
    context.servers.logged_on("a:1", logged((2, 1)))
    assert context.bookmarks(log) == (f"1|1|,{ANCHOR}", "1|1|", "0")
    context.accepted(ResumePosition(log))
    assert log.server_order.server == "a:1#2@0"


@pytest.mark.row("BS9", "HA17")
@pytest.mark.parametrize(("end", "same"), [(121, False), (420, False), (421, True)])
def test_the_next_process_tells_a_backup_that_is_older_than_what_it_had_seen(
    end: int,
    same: bool,  # noqa: FBT001  # what is expected
) -> None:
    context = ResumeContext(lambda: NOW_US)
    context.overlap_us = OVERLAP_US
    context.servers.logged_on("a:1", logged((1, 1), (2, 100)))
    log, _ = entered("@a:1#2@99", "+1|1|", ".")
    place = ResumePosition(log)
    place.sending(0.0)
    context.accepted(place)
    assert log.server_order.server == "a:1#2@99"
    place.is_complete, place.last_bookmark = True, "1|1|"
    context.servers.reached("2@420")
    context.note_caught_up([place], 1.0, 1.0, is_last=False)
    assert log.server_order.server == "a:1#2@99 2@420"
    assert log.in_order, "the log is the same"
    again = ResumeContext(lambda: NOW_US)
    again.servers.logged_on("a:1", logged((1, 1), (2, 100), (3, end)))
    assert (again.bookmarks(log)[0] == "1|1|") is same
    again.accepted(ResumePosition(log))
    name = "a:1#2@99" if same else f"a:1#3@{end - 1}"
    assert log.server_order.server.partition(" ")[0] == name
    if same:
        assert log.server_order.server == f"a:1#2@99 3@{end - 1}"


@pytest.mark.row("BS9")
def test_a_position_that_becomes_known_after_the_messages_is_noted_without_others() -> None:
    """Only what has moved is looked at each second, however many subscriptions are idle."""
    context = ResumeContext(lambda: NOW_US)
    context.servers.logged_on("a:1", logged((1, 1)))
    log, _ = entered("@a:1#1@0", "+1|1|", ".")
    place = ResumePosition(log)
    place.sending(0.0)
    context.accepted(place)
    place.is_complete, place.last_bookmark = True, "1|1|"
    context.note_caught_up([place], 1.0, 1.0)
    assert log.server_order.server == "a:1#1@0", "no ack has reported a position"
    context.servers.reached("1@7")
    context.note_caught_up([], 2.0, 2.0)
    assert log.server_order.server == "a:1#1@0 1@7"
    context.servers.reached("1@9")
    context.note_caught_up([], 3.0, 3.0)
    assert log.server_order.server == "a:1#1@0 1@7", "nothing has arrived since"


@pytest.mark.row("BS9")
def test_a_subscription_that_its_store_has_forgotten_waits_for_no_position() -> None:
    """Else a client that opens and ends one after the other would remember each of them."""
    context = ResumeContext(lambda: NOW_US)
    context.servers.logged_on("a:1", logged((1, 1)))
    store = MemoryBookmarkStore()
    place = ResumePosition(store.subscription("generated"))
    place.sending(0.0)
    context.accepted(place)
    place.is_complete, place.last_bookmark = True, "1|1|"
    context.note_caught_up([place], 1.0, 1.0)
    assert place.is_ahead_of_note
    store.purge("generated")
    context.servers.reached("1@7")
    context.note_caught_up([], 2.0, 2.0)
    assert not place.is_ahead_of_note


@pytest.mark.parametrize("text", ["", "x", "@", "1@", "zz@1", "1@9,"])
def test_what_a_peer_sends_instead_of_a_position_is_left_alone(text: str) -> None:
    servers = ServerLogs()
    servers.reached(text)
    servers.logged_on("a:1", logged((1, 1)))
    servers.reached(text)
    assert servers.logged_on("a:1", logged((1, 1), (2, 1)))


def test_a_link_that_is_empty_has_told_everything() -> None:
    hearing = CaughtUpClock(10.0)
    hearing.drained(10.5)
    assert hearing.caught_up_until == 10.5
    hearing.arrived(60.0)
    hearing.drained(60.25)
    assert hearing.caught_up_until == 60.25


def test_a_silent_link_tells_nothing() -> None:
    hearing = CaughtUpClock(10.0)
    hearing.drained(11.0)
    assert hearing.caught_up_until == 11.0  # however late it is when the link is found to be dead


@pytest.mark.row("BS9")
def test_who_reads_slowly_may_read_what_is_old() -> None:
    """The server was held up for 20 s, and may have written what is 20 s old."""
    hearing = CaughtUpClock(10.0)
    hearing.drained(10.0)
    hearing.arrived(10.0)
    hearing.drained(30.0)
    assert hearing.caught_up_until == 10.0
    hearing.arrived(40.0)  # so long it had nothing to say: it has made up for some of it
    hearing.drained(40.0)
    assert hearing.caught_up_until == 40.0 - 19.0
    hearing.arrived(40.0 + 190.0)
    hearing.drained(40.0 + 190.0)
    assert hearing.caught_up_until == 230.0


def test_what_a_held_process_reads_first_does_not_say_that_it_has_read_all() -> None:
    hearing = CaughtUpClock(10.0)
    hearing.drained(11.0)
    hearing.arrived(71.0)  # the process was held for a minute, and has read one chunk since
    assert hearing.caught_up_until == 11.0
    hearing.drained(71.5)
    assert hearing.caught_up_until == 71.5


def test_a_link_lags_by_what_it_has_not_read_and_not_while_it_is_empty() -> None:
    hearing = CaughtUpClock(10.0)
    hearing.drained(10.0)
    assert hearing.lag_s(500.0, is_idle=True) == 0.0
    hearing.arrived(500.0)
    assert hearing.lag_s(503.0, is_idle=False) == 3.0
    hearing.drained(520.0)
    assert hearing.lag_s(520.0, is_idle=True) == 20.0  # what the server wrote may be as old
    assert hearing.lag_s(620.0, is_idle=True) == 10.0


def test_what_the_server_is_asked_to_hold_back_does_not_count_as_received() -> None:
    def caught_up_until(options: str) -> float | None:
        request = SubscribeRequest.complete(
            {"c": "subscribe", "t": "t", "bm": "0", "opts": options},
            b"",
            command_id="1",
            has_store=True,
        )
        subscription = Subscription(request, MessageQueue())
        subscription.sending(100.0)
        subscription.position.completed(100.0)
        subscription.position.caught_up_until(100.0, 100.0)
        return subscription.position.caught_up_until(200.0, 200.0)

    assert caught_up_until("") == 200.0
    assert caught_up_until("conflation=30s,conflation_key=[/k]") == 170.0
    assert caught_up_until("conflation=auto") == 190.0
    assert caught_up_until("fully_durable") is None


def test_a_replay_with_a_rate_that_was_held_has_no_known_end() -> None:
    position = ResumePosition()
    position.sending(100.0)
    position.is_paced = True
    position.completed(100.0)
    assert position.caught_up_until(100.0, 100.0) == 100.0
    position.hold(110.0)
    position.release(111.0)
    assert position.caught_up_until(500.0, 500.0) is None


def test_it_catches_up_slowly_and_not_beyond_the_present() -> None:
    assert catching_up(5.0, 10.0) == 4.0
    assert catching_up(5.0, 100.0) == 0.0


pytestmark = pytest.mark.row("BS9", "HA17")


START_US = 1_700_000_000_000_000


HOUR_US = 3_600_000_000


def test_a_clock_that_is_left_alone_is_right() -> None:
    clock = StepProofClock(START_US, 50.0)
    assert clock.earliest_us(START_US, 50.0) == START_US
    assert clock.earliest_us(START_US + 7_000_000, 57.0) == START_US + 7_000_000


def test_a_clock_that_is_set_forward_is_not_believed() -> None:
    clock = StepProofClock(START_US, 50.0)
    assert clock.earliest_us(START_US + HOUR_US, 51.0) == START_US + 1_000_000
    assert clock.earliest_us(START_US + 2_000_000, 52.0) == START_US + 2_000_000


def test_a_clock_that_is_set_back_is_believed() -> None:
    clock = StepProofClock(START_US, 50.0)
    assert clock.earliest_us(START_US - HOUR_US, 51.0) == START_US - HOUR_US


def test_a_clock_that_was_ahead_is_believed_once_it_is_set_right() -> None:
    clock = StepProofClock(START_US + HOUR_US, 50.0)
    assert clock.earliest_us(START_US + 1_000_000, 51.0) == START_US + 1_000_000


@given(steps=st.lists(st.tuples(st.integers(0, 86_400), st.integers(-HOUR_US, HOUR_US))))
def test_no_steps_lead_to_a_time_that_is_too_late(steps: list[tuple[int, int]]) -> None:
    clock = StepProofClock(START_US, 0.0)
    passed_s = wrong_us = 0
    for seconds, step_us in steps:
        passed_s += seconds
        wrong_us += step_us
        right_us = START_US + passed_s * 1_000_000
        assert clock.earliest_us(right_us + wrong_us, passed_s) == right_us + min(0, wrong_us)
