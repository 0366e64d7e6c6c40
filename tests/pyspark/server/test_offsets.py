"""Offsets of a stream, and which messages belong to a range."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import UsageError
from haclient.pyspark.server.offsets import (
    POSITION,
    VECTOR,
    LogInfo,
    Membership,
    Offset,
    OffsetPlace,
    bookmarks_of,
    ends_between,
    merged,
)

BIG = 2**64 - 1
LOG = LogInfo("east", (("aa", 1), ("bb", 101), ("cc", 201)), 51, 300)


@pytest.mark.parametrize(
    ("position", "start"),
    [(0, "aa"), (1, "aa"), (100, "aa"), (101, "bb"), (200, "bb"), (300, "cc")],
)
def test_a_place_has_the_start_under_which_it_was_written(position: int, start: str) -> None:
    place = LOG.place(position)
    assert place == OffsetPlace("east", start, position)
    assert LOG.has(place)


@pytest.mark.row("SS1")
@pytest.mark.parametrize(
    "place",
    [
        OffsetPlace("west", "aa", 50),  # another instance
        OffsetPlace("east", "dd", 50),  # another log
        OffsetPlace("east", "aa", 101),  # its end was lost: the next start begins at or below it
        OffsetPlace("east", "bb", 250),
    ],
)
def test_a_place_of_another_log_is_none_of_this_one(place: OffsetPlace) -> None:
    assert not LOG.has(place)


def test_a_log_is_read_from_an_answer_of_the_broker() -> None:
    answer = {
        "instance": "east",
        "starts": [["aa", 1]],
        "oldest_position": 1,
        "last_position": 9,
        "guards": 0,
    }
    assert LogInfo.of_answer(answer) == LogInfo("east", (("aa", 1),), 1, 9)


@pytest.mark.row("RP10", "SS1")
@pytest.mark.parametrize(
    ("offset", "mode"),
    [
        (Offset({"east": OffsetPlace("east", "aa", 7)}, None, 3), POSITION),
        (
            Offset(
                {"east": OffsetPlace("east", "aa", 7), "west": OffsetPlace("west", "bb", 9)},
                {BIG: BIG, 1: 2},
                3,
            ),
            VECTOR,
        ),
        (Offset({}, {}), VECTOR),
    ],
)
def test_an_offset_survives_a_checkpoint(offset: Offset, mode: str) -> None:
    assert Offset.from_json(json.loads(json.dumps(offset.to_json())), mode=mode) == offset


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({}, "no offset of this source"),
        ({"version": 1, "messages": 0, "places": []}, "no offset of this source"),
        ({"version": 2}, "offsets of version 2"),
        (Offset({}, {}).to_json(), "offsetMode=vector, found position"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(found: dict[str, object], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Offset.from_json(found, mode=POSITION)


def test_an_offset_goes_on_by_its_mode() -> None:
    east, west = OffsetPlace("east", "aa", 7), OffsetPlace("west", "bb", 9)
    position = Offset({"east": east}, None, 3).advanced(east._replace(position=8), {5: 1}, 1)
    assert position == Offset({"east": east._replace(position=8)}, None, 4)
    assert position.place == east._replace(position=8)
    vector = Offset({"east": east}, {5: 1}, 3).advanced(west, {5: 2, 6: 1}, 2)
    assert vector == Offset({"east": east, "west": west}, {5: 2, 6: 1}, 5)
    assert vector.place is None


def test_vectors() -> None:
    assert merged({1: 5, 2: 5}, {2: 4, 3: 1}) == {1: 5, 2: 5, 3: 1}
    assert bookmarks_of({1: 5, BIG: 6}) == f"1|5|,{BIG}|6|"
    assert bookmarks_of({}) == "0"
    assert ends_between({1: 5, 2: 5}, {1: 5, 2: 6, 3: 1}) == {2: 6, 3: 1}


@pytest.mark.row("SS4")
@given(st.lists(st.sampled_from([1, 2, 3]), max_size=40), st.data())
def test_a_range_has_the_same_messages_in_every_order_of_the_log(
    publishers: list[int], data: st.DataObject
) -> None:
    sequences = dict.fromkeys(publishers, 0)
    log: list[tuple[int, int]] = []
    for publisher in publishers:
        sequences[publisher] += 1
        log.append((publisher, sequences[publisher]))
    begin = data.draw(st.integers(0, len(log)))
    end = data.draw(st.integers(begin, len(log)))
    covered, ends = dict(log[:begin]), dict(log[begin:end])
    queues = {each: [m for m in log if m[0] == each] for each in sequences}
    replica: list[tuple[int, int]] = []
    while any(queues.values()):
        publisher = data.draw(st.sampled_from([p for p, queue in queues.items() if queue]))
        replica.append(queues[publisher].pop(0))
    members = Membership(covered, ends)
    taken: list[tuple[int, int]] = []
    for message in [*replica, *replica]:  # a part may come again from another server
        if members.is_complete:
            break
        if members.take(*message):
            taken.append(message)
    assert sorted(taken) == sorted(log[begin:end])
    assert members.is_complete
    assert members.taken == end - begin


def test_a_range_whose_end_was_passed_is_complete_without_it() -> None:
    members = Membership({}, {1: 5, 2: 1})
    assert not members.take(3, 1)
    assert members.take(1, 4)
    assert members.describe_missing() == "what follows 1|4| up to 1|5| and 1 more publishers"
    assert not members.take(1, 6)
    assert members.take(2, 1)
    assert members.is_complete
    assert members.taken == 2
