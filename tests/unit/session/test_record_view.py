"""A view of records gives its consumer the difference to what it had."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import cast

import pytest

from haclient.codecs import Topic
from haclient.errors import DecodeError, UsageError
from haclient.protocol.messages import Message
from haclient.session.record_view import JsonRecord, RecordView


def by_id(record: JsonRecord) -> object:
    return record["id"]


def unhashable(record: JsonRecord) -> Hashable:
    return cast("Hashable", [record])


def message(kind: str, sow_key: str = "", body: bytes = b"") -> Message:
    return Message(kind=kind, topic="prices", sow_key=sow_key, data=body)


def view_of(*messages: Message, deltas: bool = False) -> RecordView[JsonRecord]:
    view = RecordView(Topic("prices", JsonRecord), key=None, deltas=deltas)
    for each in messages:
        view.apply(each)
    return view


def changes(view: RecordView[JsonRecord]) -> list[tuple[str, object, object, object]]:
    found: list[tuple[str, object, object, object]] = []
    while (change := view.pop_change()) is not None:
        found.append((change.kind, change.key, change.old, change.new))
    return found


QUERY = [message("group_begin"), message("sow", "a", b'{"v":1}'), message("group_end")]


def test_the_consumer_begins_with_the_records_of_the_first_query() -> None:
    view = view_of(*QUERY[:2])
    assert not view.is_complete
    view.apply(QUERY[2])
    assert view.is_complete
    assert view.records == {"a": {"v": 1}}
    assert changes(view) == []


def test_messages_set_and_remove_records() -> None:
    view = view_of(*QUERY)
    view.apply(message("p", "b", b'{"v":2}'))
    view.apply(message("publish", "a", b'{"v":3}'))
    assert changes(view) == [
        ("added", "b", None, {"v": 2}),
        ("changed", "a", {"v": 1}, {"v": 3}),
    ]
    view.apply(message("oof", "a"))
    view.apply(message("oof", "unknown"))
    view.apply(message("ack"))
    assert changes(view) == [("removed", "a", {"v": 3}, None)]


def test_of_many_changes_of_a_key_the_consumer_gets_the_difference() -> None:
    view = view_of(*QUERY)
    for value in (2, 3):
        view.apply(message("publish", "a", b'{"v":%d}' % value))
    view.apply(message("publish", "b", b'{"v":1}'))
    view.apply(message("oof", "b"))
    assert changes(view) == [("changed", "a", {"v": 1}, {"v": 3})]
    view.apply(message("publish", "a", b'{"v":3}'))
    assert changes(view) == []


def test_a_further_query_gives_the_difference_and_no_empty_view() -> None:
    view = view_of(*QUERY, message("publish", "b", b'{"v":2}'))
    changes(view)
    view.apply(message("group_begin"))
    assert set(view.records) == {"a", "b"}
    view.apply(message("sow", "c", b'{"v":9}'))
    view.apply(message("group_begin"))  # the connection was lost again: this one counts
    view.apply(message("sow", "b", b'{"v":2}'))
    view.apply(message("group_end"))
    assert view.records == {"b": {"v": 2}}
    assert changes(view) == [("removed", "a", {"v": 1}, None)]
    view.apply(message("group_begin"))
    view.apply(message("group_end"))  # no record is left
    assert changes(view) == [("removed", "b", {"v": 2}, None)]


def test_deltas_are_merged_and_records_of_a_query_are_whole() -> None:
    view = view_of(*QUERY, deltas=True)
    view.apply(message("publish", "a", b'{"w":{"x":1,"y":2}}'))
    view.apply(message("publish", "a", b'{"v":null,"w":{"y":3}}'))
    assert changes(view) == [("changed", "a", {"v": 1}, {"w": {"x": 1, "y": 3}})]
    view.apply(message("oof", "a"))
    view.apply(message("publish", "a", b'{"v":5}'))
    assert changes(view) == [("changed", "a", {"w": {"x": 1, "y": 3}}, {"v": 5})]
    view.apply(message("sow", "a", b'{"z":1}'))
    assert view.records == {"a": {"z": 1}}


def test_a_key_of_the_record_moves_with_it_and_the_newest_record_has_it() -> None:
    view = RecordView(Topic("prices", JsonRecord), key=by_id, deltas=False)
    for each in QUERY[0], message("sow", "1", b'{"id":"a"}'), QUERY[2]:
        view.apply(each)
    view.apply(message("publish", "1", b'{"id":"b"}'))
    assert changes(view) == [("removed", "a", {"id": "a"}, None), ("added", "b", None, {"id": "b"})]
    view.apply(message("publish", "2", b'{"id":"b","v":1}'))
    view.apply(message("oof", "1"))  # its key belongs to the other record
    assert changes(view) == [("changed", "b", {"id": "b"}, {"id": "b", "v": 1})]
    view.apply(message("oof", "2"))
    assert view.records == {}


def test_of_records_with_one_key_another_takes_the_place_of_the_one_that_is_removed() -> None:
    view = RecordView(Topic("prices", JsonRecord), key=by_id, deltas=False)
    view.apply(QUERY[0])
    view.apply(QUERY[2])
    view.apply(message("p", "a", b'{"id":1,"of":"a"}'))
    view.apply(message("p", "b", b'{"id":1,"of":"b"}'))
    view.apply(message("oof", "b"))
    assert view.records == {1: {"id": 1, "of": "a"}}
    assert changes(view) == [("added", 1, None, {"id": 1, "of": "a"})]
    view.apply(message("oof", "a"))
    assert changes(view) == [("removed", 1, {"id": 1, "of": "a"}, None)]


def test_a_record_that_is_hidden_behind_another_one_of_its_key_may_leave_first() -> None:
    view = RecordView(Topic("prices", JsonRecord), key=by_id, deltas=False)
    for key in "abc":
        view.apply(message("p", key, b'{"id":1}'))
    view.apply(message("p", "b", b'{"id":2}'))
    view.apply(message("oof", "a"))
    view.apply(message("oof", "c"))
    assert view.records == {2: {"id": 2}}


def test_a_delta_that_moves_a_record_to_another_key_leaves_its_other_fields() -> None:
    view = RecordView(Topic("prices", JsonRecord), key=by_id, deltas=True)
    for each in QUERY[0], message("sow", "1", b'{"id":"a","v":1}'), QUERY[2]:
        view.apply(each)
    view.apply(message("publish", "1", b'{"id":"b"}'))
    view.apply(message("publish", "1", b'{"w":2}'))
    assert view.records == {"b": {"id": "b", "v": 1, "w": 2}}


def test_records_that_come_and_go_while_nobody_looks_are_not_kept() -> None:
    view = view_of(*QUERY)
    view.apply(message("publish", "new", b"{}"))
    view.apply(message("oof", "new"))
    assert not view.has_pending


def test_a_query_of_many_records_that_are_as_they_were_holds_nobody_up() -> None:
    sows = [message("sow", str(number), b'{"v":1}') for number in range(50_000)]
    view = view_of(QUERY[0], *sows, QUERY[2], QUERY[0], *sows, QUERY[2])
    start = time.process_time()
    assert view.pop_change() is None
    assert time.process_time() - start < 1.0  # 4 s where each looks for the first one left


def test_what_is_no_record_is_an_error_that_says_so() -> None:
    with pytest.raises(UsageError, match="has no SOW key"):
        view_of(message("publish", "", b"{}"))
    with pytest.raises(DecodeError):
        view_of(message("publish", "a", b"no json"))
    view = RecordView(Topic("prices", JsonRecord), key=by_id, deltas=False)
    with pytest.raises(UsageError, match="key function of records raised KeyError"):
        view.apply(message("publish", "a", b"{}"))
    view = RecordView(Topic("prices", JsonRecord), key=unhashable, deltas=False)
    with pytest.raises(UsageError, match="key function of records raised TypeError"):
        view.apply(message("publish", "a", b"{}"))
