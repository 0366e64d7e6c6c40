from __future__ import annotations

import pytest

from haclient.session.resuming import Refusals, Whereabouts, forms, resuming_options
from haclient_stores.tracker.tracker import SubscriptionTracker

KNOWS, KNOWS_NOT = "5.3.5.0", "5.3.4.9"


@pytest.mark.row("BS9", "SM2")
@pytest.mark.parametrize(
    ("options", "bookmark", "version", "expected"),
    [
        ("", "7|1|", KNOWS, "bookmark_not_found=epoch"),
        ("", "7|1|", KNOWS_NOT, ""),
        ("", "7|1|", "", ""),
        ("", "", KNOWS, ""),
        ("bookmark_not_found=now", "7|1|", KNOWS, "bookmark_not_found=now"),
        ("replace", "", KNOWS, ""),
    ],
)
def test_an_unknown_bookmark_is_no_silent_gap(
    options: str, bookmark: str, version: str, expected: str
) -> None:
    assert resuming_options(options, bookmark=bookmark, version=version, again=True) == expected


def test_the_first_entry_keeps_its_replace() -> None:
    assert resuming_options("replace", bookmark="", version="", again=False) == "replace"


@pytest.mark.row("SM8")
def test_the_second_refusal_of_one_server_is_told_from_the_first() -> None:
    refusals = Refusals()
    said = [refusals.add(*each) for each in [("s", "a"), ("s", "b"), ("t", "a"), ("s", "a")]]
    assert said == [False, False, False, True]
    refusals.clear()
    assert not refusals.add("s", "a")


# -- where to begin: see the module for why ----------------------------------------------------

OVERLAP_US = 2_000_000
HEARD_US = 12_000_000
ANCHOR = "19700101T000010Z"


def entered(*steps: str, start: str = "0", entered_us: int = 0) -> tuple[SubscriptionTracker, str]:
    """A subscription after some steps, and the last bookmark that came from its server.

    `@A` is an entry at a server, `+1|2|` a message that is finished, `1|2|` one that is in hand,
    `?1|2|` one that is forgotten unread, `=1|2|` one that came before, and `.` the `completed`.
    """
    log, last = SubscriptionTracker(), ""
    log.begin(acked=False, start=start, entered_us=entered_us)
    for step in steps:
        kind, bookmark = step[0], step.lstrip("+?=")
        if kind == "@":
            if log.standing.server != step[1:]:
                last = ""
            log.begin(acked=False, start=None)
            log.entered(step[1:])
        elif kind == ".":
            log.completed("")
            log.heard(HEARD_US)
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
    assert forms(log, server, last=last, overlap_us=OVERLAP_US)[0] == expected


@pytest.mark.row("BS9", "HA17")
@pytest.mark.parametrize(
    ("steps", "expected"),
    [(("@A",), "19700101T000005Z"), (("@A", "+1|1|"), "19700101T000005Z")],
)
def test_the_start_of_an_entry_at_now_is_its_time(steps: tuple[str, ...], expected: str) -> None:
    log, last = entered(*steps, start="0|1|", entered_us=5_000_000)
    assert forms(log, "B", last=last, overlap_us=OVERLAP_US) == (expected,)


@pytest.mark.row("BS9", "HA17")
def test_where_a_log_ended_is_no_place_in_the_order_of_the_next_server() -> None:
    """Entered at NOW, nothing came; the entry at B was accepted and lost before anything came."""
    log, _ = entered("@A", start="0|1|", entered_us=5_000_000)
    log.completed("7|9|")
    log.heard(HEARD_US)
    assert forms(log, "A", last="", overlap_us=OVERLAP_US) == ("7|9|",)
    log.begin(acked=False, start=None)
    log.entered("B")
    wanted = ("7|9|,19700101T000005Z", "19700101T000005Z")
    assert forms(log, "B", last="", overlap_us=OVERLAP_US) == wanted


@pytest.mark.parametrize("last", ["", "nonsense", "0|1|", "20240131T120000Z", "1|2|,3|4|"])
def test_what_names_no_message_is_no_place_to_begin(last: str) -> None:
    log, _ = entered("@A", "+1|1|", ".", "@B")
    found = forms(log, "B", last=last, overlap_us=OVERLAP_US)
    assert found == (f"1|1|,{ANCHOR}", "1|1|")


def test_a_range_is_asked_for_again_elsewhere() -> None:
    log, last = entered("@A", "+1|1|", start="[1|1|:1|9|)")
    assert forms(log, "B", last=last, overlap_us=OVERLAP_US) == ("[1|1|:1|9|)",)
    assert forms(log, "A", last=last, overlap_us=OVERLAP_US) == ("(1|1|:1|9|)",)


def test_progress_that_was_taken_over_is_trusted() -> None:
    log = SubscriptionTracker()
    log.discard(log.log("1|1|"))
    for server in "AB":
        assert forms(log, server, last="", overlap_us=OVERLAP_US) == ("1|1|",)
    log.entered("A")
    assert forms(log, "A", last="", overlap_us=OVERLAP_US) == ("1|1|",)
    assert forms(log, "B", last="", overlap_us=OVERLAP_US) == ("0",)


def test_nothing_is_heard_before_a_replay_is_complete() -> None:
    place = Whereabouts()
    place.entering(100.0)
    assert place.heard_at(109.0, 110.0) is None
    place.complete = True
    assert place.heard_at(110.0, 110.0) == 100.0  # what was published meanwhile comes now
    assert place.heard_at(160.0, 160.0) == pytest.approx(155.0)
    assert place.heard_at(300.0, 301.0) == 300.0
    place.entering(302.0)
    assert place.heard_at(303.0, 303.0) is None


def test_it_is_worth_a_note_when_something_has_come() -> None:
    place = Whereabouts()
    assert [place.moved, place.moved] == [True, False]
    place.last = "1|1|"
    assert [place.moved, place.moved] == [True, False]
    place.entering(1.0)
    assert place.moved
