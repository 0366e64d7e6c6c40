"""The discards that wait for a message which came under a bookmark that was seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.protocol.messages import Message
from haclient.session.reseen_messages import ReseenDiscards, call_directly
from haclient_stores.tracker.tracker import UNTRACKED

pytestmark = pytest.mark.row("OP10")


class Log:
    """What a store is told, in order."""

    def __init__(self) -> None:
        self.discarded: list[int] = []

    def discard(self, number: int, /) -> None:
        self.discarded.append(number)


def run(*numbers: int) -> list[Message]:
    return [Message(number=number) for number in numbers]


def test_discards_wait_for_what_came_before_them() -> None:
    log = Log()
    owner = ReseenDiscards(log, call_directly)
    first = run(1, 0, 2)
    owner.take(first)
    second = run(0, 3, UNTRACKED)
    owner.take(second)
    assert [each.number for each in first + second] == [1, -2, 2, -3, 3, UNTRACKED]
    for message in (first[0], first[2], second[1], second[2]):
        message.discard()
    assert log.discarded == [1]
    second[0].discard()
    assert log.discarded == [1], "the first one is still open"
    first[1].discard()
    first[1].discard()
    assert log.discarded == [1, 2, 3]


def test_what_was_dropped_is_waited_for_no_longer() -> None:
    log = Log()
    owner = ReseenDiscards(log, call_directly)
    messages = run(0, 4)
    owner.take(messages)
    messages[1].discard()
    assert log.discarded == []
    owner.dropped([messages[0].number, 4])
    assert log.discarded == [4]


@given(runs=st.lists(st.lists(st.booleans(), max_size=4), max_size=6), data=st.data())
def test_in_any_order_nothing_is_discarded_before_what_came_again_before_it(
    runs: list[list[bool]], data: st.DataObject
) -> None:
    log = Log()
    owner = ReseenDiscards(log, call_directly)
    arrived: list[Message] = []
    tracked = 0
    for each in runs:
        batch: list[Message] = []
        for is_tracked in each:
            tracked += is_tracked
            batch.append(Message(number=tracked if is_tracked else 0))
        owner.take(batch)
        arrived += batch
    done: set[int] = set()
    for place in data.draw(st.permutations(range(len(arrived)))):
        arrived[place].discard()
        done.add(place)
        open_places = [at for at, one in enumerate(arrived) if one.number < 0 and at not in done]
        limit = min(open_places, default=len(arrived))
        wanted = {one.number for at, one in enumerate(arrived[:limit]) if at in done}
        assert set(log.discarded) == {number for number in wanted if number > 0}
    assert len(log.discarded) == tracked
