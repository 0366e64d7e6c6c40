"""What a conflated subscription holds back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient_fake_server.engine import conflator as module
from haclient_fake_server.engine.conflator import (
    AUTO_INTERVAL_S,
    MAX_AUTO_INTERVAL_S,
    Conflator,
    Update,
)
from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.filters.parser import parse_path
from haclient_fake_server.engine.timers import NEVER

pytestmark = pytest.mark.row("OP9")


def update(number: int) -> Update:
    return Update(b'"t"', b"%d" % number, bookmark=b"1|%d|" % number, timestamp_us=number)


@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=40),
    interval=st.integers(1, 5),
)
def test_each_key_is_due_once_an_interval_with_its_last_message_and_its_first_bookmark(
    steps: list[tuple[int, str]], interval: int
) -> None:
    conflator, now = Conflator(float(interval)), 0.0
    model: dict[str, tuple[float, int, int]] = {}
    for number, (passed, key) in enumerate(steps, 1):
        now += passed
        expected = [(last, first) for at, first, last in model.values() if at + interval <= now]
        model = {each: held for each, held in model.items() if held[0] + interval > now}
        taken = [held.update for held in conflator.take_due(now)]
        assert [(int(each.body), each.timestamp_us) for each in taken] == expected
        assert all(each.bookmark == b"1|%d|" % each.timestamp_us for each in taken)
        conflator.hold(("t", key), update(number), now=now)
        at, first, _ = model.get(key, (now, number, 0))
        model[key] = (at, first, number)
        assert conflator.due == min(at for at, _, _ in model.values()) + interval
        assert conflator.held_bytes == sum(len(str(last)) for _, _, last in model.values())
    rest = [int(held.update.body) for held in conflator.take_all()]
    assert rest == [last for _, _, last in model.values()]
    assert (len(conflator), conflator.held_bytes, conflator.due) == (0, 0, NEVER)


def test_messages_without_a_key_replace_none() -> None:
    conflator = Conflator(1.0)
    for number in (1, 2):
        conflator.hold(None, update(number), now=0.0)
    assert [held.update.body for held in conflator.take_due(1.0)] == [b"1", b"2"]


def test_a_key_has_the_topic_and_the_fields_and_what_has_no_fields_has_none() -> None:
    by_record, by_fields = Conflator(1.0), Conflator(1.0, (parse_path("/a"), parse_path("/b")))
    document = Document(b'{"a":1,"c":2}')
    assert by_record.key_of(b"t", document, "7") == (b"t", "7")
    assert by_record.key_of(b"t", document, "") is None
    assert by_fields.key_of(b"t", document, "") == by_fields.key_of(b"t", document, "7")
    assert by_fields.key_of(b"t", document, "") != by_fields.key_of(b"u", document, "")
    assert by_fields.key_of(b"t", document, "") != by_fields.key_of(b"t", Document(b"{}"), "")
    assert by_fields.key_of(b"t", Document(b"text"), "") is None


@pytest.mark.parametrize("limit", ["MAX_HELD_MESSAGES", "MAX_HELD_BYTES"])
def test_the_oldest_messages_are_due_at_once_where_too_much_is_held(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, limit, 3)
    conflator = Conflator(10.0)
    for number in range(5):
        conflator.hold(number, update(number), now=0.0)
    assert conflator.due == 0.0
    assert [held.update.body for held in conflator.take_due(0.0)] == [b"0", b"1"]
    assert conflator.due == 10.0


def test_the_interval_of_auto_grows_while_the_subscriber_does_not_keep_up() -> None:
    conflator, now = Conflator(None), 0.0
    for high_waters in range(1, 20):
        conflator.hold("k", update(1), now=now)
        now += MAX_AUTO_INTERVAL_S
        assert len(list(conflator.take_due(now, high_waters=high_waters))) == 1
    assert conflator.interval_s == MAX_AUTO_INTERVAL_S
    for _ in range(20):
        list(conflator.take_due(now, high_waters=19))
    assert conflator.interval_s == AUTO_INTERVAL_S
