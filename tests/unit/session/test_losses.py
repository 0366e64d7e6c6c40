"""What becomes of each kind of subscription when its link is lost."""

from __future__ import annotations

import pytest

from haclient.session.subscriptions import LOST, Kind, LossAction, Phase, Subscription, kind_of
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.requests import request_of
from support.sinks import NoQueue

RESUMED = {Kind.OPENING, Kind.TRACKED, Kind.QUEUE, Kind.REPEATED_QUERY, Kind.PLAIN}
REDELIVERED = {Kind.OPENING, Kind.TRACKED, Kind.REPEATED_QUERY}
OF_QUEUES = {Kind.QUEUE, Kind.UNKEPT_QUEUE}


@pytest.mark.row("HA12", "SM5")
@pytest.mark.parametrize("is_expected", [True, False])
@pytest.mark.parametrize("kind", list(Kind))
def test_what_is_done_with_each_kind(kind: Kind, *, is_expected: bool) -> None:
    actions = LOST[kind, is_expected]
    ends = {LossAction.FAIL, LossAction.END} & set(actions)
    assert bool(ends) == (not is_expected or kind not in RESUMED)
    assert (LossAction.SEND_AGAIN in actions) == (is_expected and kind is Kind.OPENING)
    if is_expected:  # what no resume brings again stays
        assert (LossAction.DROP_QUEUED in actions) == (kind in REDELIVERED)
        marks = {LossAction.MARK_GAP, LossAction.MARK_REPLAY} & set(actions)
        assert bool(marks) == (kind in RESUMED - {Kind.OPENING})
    else:
        assert LossAction.DROP_QUEUED not in actions
    if kind in OF_QUEUES:
        assert actions[0] is LossAction.DROP_ALL, "the queue delivers them again, to anybody"


def subscription(
    *, is_query: bool = False, query_id: str = "", is_tracked: bool = False
) -> Subscription:
    log = MemoryBookmarkStore().subscription("s") if is_tracked else None
    ends = frozenset({"group_end"}) if is_query else frozenset[str]()
    found = Subscription(request_of(query_id=query_id, ends=ends), NoQueue(), log=log)
    found.phase = Phase.OPEN
    return found


def test_the_kind_follows_from_what_was_asked_for() -> None:
    opening = subscription()
    opening.phase = Phase.OPENING
    kinds = [
        kind_of(opening, is_kept=False),
        kind_of(subscription(is_query=True, query_id="s"), is_kept=False),
        kind_of(subscription(is_tracked=True), is_kept=True),
        kind_of(subscription(is_tracked=True, query_id="s"), is_kept=True),
        kind_of(subscription(query_id="s"), is_kept=True),
        kind_of(subscription(), is_kept=True),
        kind_of(subscription(is_tracked=True), is_kept=False),
    ]
    assert kinds == [
        Kind.OPENING,
        Kind.QUERY,
        Kind.TRACKED,
        Kind.TRACKED,
        Kind.REPEATED_QUERY,
        Kind.PLAIN,
        Kind.UNKEPT,
    ]
