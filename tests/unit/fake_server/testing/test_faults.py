from __future__ import annotations

from typing import Any

import pytest

from haclient.errors import UsageError
from haclient_fake_server.testing.faults import (
    Acks,
    Cut,
    Fault,
    Heal,
    Kill,
    Partition,
    Refuse,
    Restart,
    Slow,
    check_fault,
    from_json,
    to_json,
)

FAULTS: list[tuple[Fault, str]] = [
    (Cut(), '{"fault":"cut"}'),
    (Cut(how="silence", at_byte=0), '{"fault":"cut","how":"silence","at_byte":0}'),
    (
        Cut(how="end", direction="up", in_frame=3, source="east", target="west"),
        '{"fault":"cut","how":"end","direction":"up","in_frame":3,"source":"east","target":"west"}',
    ),
    (Cut(before_ack="*"), '{"fault":"cut","before_ack":"*"}'),
    (Slow(latency_s=0.5, piece_bytes=1), '{"fault":"slow","latency_s":0.5,"piece_bytes":1}'),
    (Slow(unread="up"), '{"fault":"slow","unread":"up"}'),
    (Acks(), '{"fault":"acks"}'),
    (
        Acks(how="reorder", ack="persisted", count=2),
        '{"fault":"acks","how":"reorder","ack":"persisted","count":2}',
    ),
    (Refuse(source=""), '{"fault":"refuse","source":""}'),
    (Partition("a", "b"), '{"fault":"partition","a":"a","b":"b"}'),
    (
        Partition("a", "b", one_way=True, dropped=True),
        '{"fault":"partition","a":"a","b":"b","one_way":true,"dropped":true}',
    ),
    (Heal(), '{"fault":"heal"}'),
    (Kill("east"), '{"fault":"kill","name":"east"}'),
    (
        Kill("east", at="after_write", passes=2),
        '{"fault":"kill","name":"east","at":"after_write","passes":2}',
    ),
    (Restart("east"), '{"fault":"restart","name":"east"}'),
]


@pytest.mark.row("FI1", "FI4")
@pytest.mark.parametrize(("fault", "text"), FAULTS)
def test_a_fault_is_data_with_a_text_form(fault: Fault, text: str) -> None:
    assert to_json(fault) == text
    assert from_json(text) == fault


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a fault"),
        ("[]", "not a fault"),
        (
            '{"fault":"flood"}',
            "wanted one of cut, acks, slow, refuse, partition, heal, kill, restart",
        ),
        ('{"fault":"kill"}', "name"),
        ('{"fault":"kill","name":1}', "Expected `str`"),
        ('{"fault":"cut","how":"softly"}', "softly"),
        ('{"fault":"cut","where":1}', "cut: unknown where"),
        ('{"fault":"cut","at_byte":1,"in_frame":1}', "a cut has one place"),
    ],
)
def test_text_that_is_no_fault_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        from_json(text)


def test_a_cut_without_a_place_is_now() -> None:
    assert Cut().is_now
    assert not Cut(at_byte=0).is_now
    assert not Cut(after_ack="persisted").is_now


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="wanted 0 or more"):
        Cut(at_byte=-1)
    with pytest.raises(UsageError, match="the first frame is 1"):
        Cut(in_frame=0)
    with pytest.raises(UsageError, match="acks come down"):
        Cut(before_ack="persisted", direction="up")
    with pytest.raises(UsageError, match="wanted seconds"):
        Slow(latency_s=-1)
    with pytest.raises(UsageError, match="wanted 1 or more"):
        Slow(piece_bytes=0)
    with pytest.raises(UsageError, match="count=0: wanted 1 or more, or None"):
        Acks(count=0)


@pytest.mark.parametrize(
    ("kind", "wrong", "why"),
    [
        (Cut, {"how": "explode"}, "how='explode': wanted one of 'reset', 'end', 'silence'"),
        (Cut, {"direction": "left"}, "direction='left': wanted one of 'up', 'down'"),
        (Cut, {"before_ack": "durable"}, "before_ack='durable': wanted one of .*'persisted'"),
        (Cut, {"after_ack": None}, "after_ack=None: wanted one of '', '[*]', 'received'"),
        (Cut, {"at_byte": "1"}, "at_byte='1': wanted a whole number, or None"),
        (Cut, {"in_frame": 1.5}, "in_frame=1.5: wanted a whole number, or None"),
        (Slow, {"latency_s": "x"}, "latency_s='x': wanted seconds, 0 or more"),
        (Slow, {"latency_s": float("nan")}, "latency_s=nan: wanted seconds, 0 or more"),
        (Slow, {"piece_bytes": "x"}, "piece_bytes='x': wanted a whole number, or None"),
        (Kill, {"name": "a", "at": "lunch"}, "at='lunch': wanted one of '', 'before_write'"),
        (
            Kill,
            {"name": "a", "at": "in_write", "passes": None},
            "passes=None: wanted a whole number",
        ),
        (Kill, {"name": "a", "at": "in_write", "passes": -1}, "passes=-1: wanted a whole number"),
        (Kill, {"name": "a", "passes": 1}, "passes=1 of no point"),
    ],
)
def test_a_wrong_word_or_type_is_refused_where_it_is_written(
    kind: type[Fault], wrong: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=f"^{why}"):
        kind(**wrong)


@pytest.mark.parametrize("kind", ["received", "parsed", "processed", "completed", "stats"])
def test_every_ack_is_a_place(kind: str) -> None:
    assert not Cut(before_ack=kind).is_now


@pytest.mark.parametrize("found", ["kill", None, {"fault": "kill"}, Kill])
def test_what_is_not_a_fault_is_refused_by_what_was_wanted(found: object) -> None:
    with pytest.raises(
        UsageError, match=r"wanted a fault, one of Cut, Acks, Slow, .*, Kill, Restart$"
    ):
        check_fault(found)
