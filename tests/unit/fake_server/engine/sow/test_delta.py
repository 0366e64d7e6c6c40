"""Deltas: merged into records, and made of updates."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from haclient.live_records import apply_delta
from haclient_fake_server.engine.connections import Style
from haclient_fake_server.engine.filters.document import Path
from haclient_fake_server.engine.filters.parser import parse_path
from haclient_fake_server.engine.sow.delta import Delta, merge_delta


@pytest.mark.parametrize(
    ("stored", "delta", "whole"),
    [
        (b'{"a":1}', b'{"b":2}', b'{"a":1,"b":2}'),
        (b'{"a":1}', b'{"a":2}', b'{"a":2}'),
        (b'{"a":1}', b'{"a":null}', b'{"a":1}'),
        (b'{"a":1}', b'{"b":null}', b'{"a":1,"b":null}'),
        (b'{"a":{"x":1,"y":2}}', b'{"a":{"y":3}}', b'{"a":{"x":1,"y":3}}'),
        (b'{"a":[1,2]}', b'{"a":[3]}', b'{"a":[3]}'),
        (b'{"a":{"x":1}}', b'{"a":5}', b'{"a":5}'),
        (b'{"a":"\xc3\xa9"}', b"{}", b'{"a":"\xc3\xa9"}'),
        (b'{"a":1e999,"b":1.10}', b'{"c":-1e999}', b'{"a":1e999,"b":1.10,"c":-1e999}'),
        (b'{"a":"\xff"}', b'{"b":1}', b'{"a":"\xff","b":1}'),
        (b'{"a":"\\ud800"}', b'{"b":1}', b'{"a":"\\ud800","b":1}'),
        (b'{"a":"\\uDE00","b":1}', b'{"b":"\\\\ud800"}', b'{"a":"\\uDE00","b":"\\\\ud800"}'),
        (
            b'{"\\ud83d\\ude00":1}',
            b'{"\xf0\x9f\x98\x80":"\\ud83d"}',
            b'{"\xf0\x9f\x98\x80":"\\ud83d"}',
        ),
        (
            b'{"a":1,"b":{"x":1.10}}',
            b' { "b" : {"y":"\\ud800"} } ',
            b'{"a":1,"b":{"x":1.10,"y":"\\ud800"}}',
        ),
        (b'{"a":{"b":1,"\xff":1}}', b'{"a":{"c":2}}', b'{"a":{"b":1,"\xff":1,"c":2}}'),
        (b'{"\\ud800":1,"b":{"\xff":1}}', b'{"b":{"c":2}}', b'{"\\ud800":1,"b":{"\xff":1,"c":2}}'),
    ],
)
def test_what_a_delta_makes_of_a_message(stored: bytes, delta: bytes, whole: bytes) -> None:
    assert merge_delta(stored, delta) == whole


@pytest.mark.parametrize(
    ("stored", "delta"),
    [
        (b"no json", b'{"a":1}'),
        (b'{"a":1}', b"no json"),
        (b"[1]", b'{"a":1}'),
        (b'{"a":1}', b"[1]"),
        (b'{"a":"\\ud800"}', b'{"b":1'),
        (b'{"a":"\\ud800"}x', b'{"b":1}'),
        (b'{"a":"\\ud8"}', b'{"b":1}'),
        (b'{"a":"\xf4\x8f\xbf\xbfx41"}', b'{"b":"\\ud800"}'),
        (b'{"a":1}', b"[" * 200_000),
        (b'{"a":1}', b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ],
)
def test_what_cannot_be_merged_replaces_the_message(stored: bytes, delta: bytes) -> None:
    assert merge_delta(stored, delta) == delta


@pytest.mark.parametrize(
    ("stored", "delta", "whole"),
    [
        ({"a": 1, 7: "x"}, {"a": 2}, {"a": 2, 7: "x"}),
        ({"a": 1}, {b"n": 1.5, None: 0}, {"a": 1, b"n": 1.5, None: 0}),
        ({"a": {7: 1}}, {"a": {8: 1, 7: 2}}, {"a": {7: 2, 8: 1}}),
    ],
)
def test_the_names_of_a_map_need_not_be_texts(
    stored: dict[object, object], delta: dict[object, object], whole: dict[object, object]
) -> None:
    pack = msgspec.msgpack.encode
    assert merge_delta(pack(stored), pack(delta), "msgpack") == pack(whole)


# -- what an update has changed --------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"1e999", b"-1e999", b'"\xff"', b"[1e999]"])
def test_values_that_cannot_be_parsed_are_compared_as_text(value: bytes) -> None:
    whole, plain = b'{"id":1,"v":%b}' % value, b'{"id":1,"v":2}'
    assert Delta(whole, plain, ID).body(PLAIN) == b'{"v":2,"id":1}'
    assert Delta(plain, whole, ID).body(PLAIN) == b'{"v":%b,"id":1}' % value
    assert Delta(whole, b'{"id":1}', ID).body(PLAIN) == b'{"v":null,"id":1}'
    assert Delta(whole, whole, ID).body(PLAIN) == b'{"id":1}'


def test_half_a_character_is_a_value_like_others() -> None:
    before, after = b'{"id":1,"v":"\\ud800","w":1}', b'{"id":1,"v":"\\udbff"}'
    assert Delta(before, after, ID).body(PLAIN) == b'{"v":"\\udbff","w":null,"id":1}'


PLAIN = Style.DELTA
EMPTY_NOT = Style.DELTA | Style.NO_EMPTIES
ID = (parse_path("/id"),)


def delta(before: str, after: str, style: int = PLAIN, keys: tuple[Path, ...] = ID) -> str | None:
    body = Delta(before.encode(), after.encode(), keys).body(style)
    return None if body is None else body.decode()


@pytest.mark.row("CC12")
@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ('{"id":1,"a":1,"b":2}', '{"id":1,"a":1,"b":3}', '{"b":3,"id":1}'),
        ('{"id":1,"a":1}', '{"id":1,"a":1}', '{"id":1}'),
        ('{"id":1,"a":1}', '{"a":1.0, "id":1 }', '{"id":1}'),
        ('{"id":1,"a":1}', '{"id":1,"a":true}', '{"a":true,"id":1}'),
        ('{"id":1,"a":0}', '{"id":1,"a":false}', '{"a":false,"id":1}'),
        ('{"id":1,"a":"x"}', '{"id":1,"a":"\\u0078"}', '{"id":1}'),
        ('{"id":1}', '{"id":1,"a":1.50}', '{"a":1.50,"id":1}'),
        ('{"id":1,"n":1}', '{"id":1,"n":12345678901234567890123}', None),
        ('{"id":1,"a":1}', '{"id":1}', '{"a":null,"id":1}'),
        ('{"id":1,"a":null}', '{"id":1}', '{"id":1}'),
        ('{"id":1}', '{"id":1,"a":null}', '{"id":1}'),
        ('{"id":1,"a":5}', '{"id":1,"a":null}', '{"a":null,"id":1}'),
        ('{"id":1,"a":null}', '{"id":1,"a":0}', '{"a":0,"id":1}'),
        ('{"id":1,"a":{"x":1,"y":2}}', '{"id":1,"a":{"x":1,"y":3}}', '{"a":{"y":3},"id":1}'),
        ('{"id":1,"a":{"x":1}}', '{"id":1,"a":{}}', '{"a":{"x":null},"id":1}'),
        ('{"id":1,"a":{"x":1}}', '{"id":1,"a":[1]}', '{"a":[1],"id":1}'),
        ('{"id":1,"a":[1,{"x":1}]}', '{"id":1,"a":[1,{"x":1.0}]}', '{"id":1}'),
        ('{"id":1,"a":[1,2]}', '{"id":1,"a":[1]}', '{"a":[1],"id":1}'),
        ('{"id":1,"a":1}', '{"id":1,"a":1,"a":2}', '{"a":2,"id":1}'),
        ("no json", '{"id":1}', '{"id":1}'),
        ('{"id":1}', "no json", "no json"),
        ("[1]", "[2]", "[2]"),
    ],
)
def test_the_changes_of_an_update(before: str, after: str, changed: str | None) -> None:
    if changed is None:
        assert json.loads(delta(before, after) or "") == json.loads(after)
    else:
        assert delta(before, after) == changed


@pytest.mark.row("CC12")
def test_empty_updates_and_keys_are_sent_as_it_is_asked_for() -> None:
    same, other = '{"id":1,"a":1}', '{"id":1,"a":2}'
    assert delta(same, same, EMPTY_NOT) is None
    assert delta(same, other, EMPTY_NOT) == '{"a":2}'
    assert delta(same, other, EMPTY_NOT | Style.SEND_KEYS) == '{"a":2,"id":1}'
    assert delta(same, same, EMPTY_NOT | Style.SEND_KEYS) is None
    assert delta(same, same, keys=()) == "{}"
    assert delta(same, other, Style.BOOKMARK) == other


@pytest.mark.row("CC12")
@pytest.mark.parametrize(
    ("keys", "changed"),
    [
        (("/a/x",), '{"b":2,"a":{"x":1}}'),
        (("/a/x", "/a/y", "/id"), '{"b":2,"a":{"x":1,"y":{"z":1}},"id":7}'),
        (("/a/y/z",), '{"b":2,"a":{"y":{"z":1}}}'),
        (("/list/x",), '{"b":2,"list":[{"x":1}]}'),
        (("/list[0]/x",), '{"b":2,"list":[{"x":1}]}'),
        (("/gone",), '{"b":2}'),
    ],
)
def test_key_fields_of_any_depth_are_in_each_delta(keys: tuple[str, ...], changed: str) -> None:
    before = '{"id":7,"a":{"x":1,"y":{"z":1}},"list":[{"x":1}],"b":1}'
    after = before.replace('"b":1', '"b":2')
    assert delta(before, after, keys=tuple(map(parse_path, keys))) == changed


@pytest.mark.parametrize("message_type", ["fix", "nvfix"])
def test_an_empty_message_has_no_fields_to_merge_or_change(message_type: str) -> None:
    assert merge_delta(b"", b"", message_type) == b""
    assert Delta(b"", b"", (), message_type).body(Style.DELTA) == b""
    assert Delta(b"", b"", (), message_type).body(Style.DELTA | Style.NO_EMPTIES) is None


def test_messages_that_are_too_deep_are_sent_whole() -> None:
    deep = '{"id":1,"a":' + "[" * 50_000 + "]" * 50_000 + "}"
    assert delta('{"id":1,"a":1}', deep) == deep


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", "1"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)


def without_nulls(value: object) -> object:
    """NULL and a field that is missing are the same."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return value


@pytest.mark.row("CC12")
@given(before=objects, after=objects)
@example(before={"a": {"b": 1}}, after={"a": {}})
@example(before={"a": 1}, after={"a": {"b": None}})
@example(before={"a": {"b": [None]}}, after={"a": {"b": [0]}})
def test_a_record_and_the_changes_make_the_update(
    before: dict[str, object], after: dict[str, object]
) -> None:
    changed = delta(json.dumps(before), json.dumps(after), keys=(parse_path("/a"),))
    made = apply_delta(before, json.loads(changed or ""))
    assert repr(sorted_(without_nulls(made))) == repr(sorted_(without_nulls(after)))


def sorted_(value: object) -> object:
    """Objects in one order, so that `repr` tells `true` from 1 and nothing else."""
    if isinstance(value, dict):
        return {key: sorted_(value[key]) for key in sorted(value)}
    return [sorted_(each) for each in value] if isinstance(value, list) else value
