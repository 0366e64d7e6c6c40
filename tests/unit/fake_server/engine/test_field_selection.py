"""Select lists."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from haclient_fake_server.engine import field_selection
from haclient_fake_server.engine.field_selection import (
    MAX_DEPTH,
    MAX_DIRECTIVES,
    FieldSelection,
    SelectError,
)
from haclient_fake_server.engine.filters.bodies import MAX_FIELDS

pytestmark = pytest.mark.row("OP16")


def select(body: str | bytes, *directives: str) -> str:
    data = body if isinstance(body, bytes) else body.encode()
    return FieldSelection(directives).apply(data, "json").decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    ("directives", "expected"),
    [
        (("-/", "+/id"), '{"id":1}'),
        (("-/", "+/a"), '{"a":{"b":2,"c":{"d":3}}}'),
        (("-/", "+/a/c/d"), '{"a":{"c":{"d":3}}}'),
        (("-/a/b",), '{"id":1,"a":{"c":{"d":3}}}'),
        (("-/a", "+/a/c", "-/a/c/d"), '{"id":1,"a":{"c":{}}}'),
        (("-/", "+/missing"), "{}"),
        (("-/", "+/"), "{}"),
        (("+/", "-/"), '{"id":1,"a":{"b":2,"c":{"d":3}}}'),
        (("+/id", "-/id", "-/a"), '{"id":1}'),
        (("-/id/deeper",), '{"id":1,"a":{"b":2,"c":{"d":3}}}'),
    ],
)
def test_the_most_specific_directive_decides_and_of_two_the_first(
    directives: tuple[str, ...], expected: str
) -> None:
    assert select('{"id":1,"a":{"b":2,"c":{"d":3}}}', *directives) == expected


def test_an_object_of_which_nothing_is_wanted_is_left_out_with_its_name() -> None:
    assert select('{"id":1,"a":{"c":2}}', "-/", "+/a/b", "+/id") == '{"id":1}'
    assert select('{"id":1,"a":7}', "-/", "+/a/b", "+/id") == '{"id":1}'


def test_arrays_have_no_level_of_their_own() -> None:
    body = '{"legs":[{"px":1,"q":2},5,[{"px":3},{"q":4}]],"id":9}'
    assert select(body, "-/", "+/legs/px") == '{"legs":[{"px":1},[{"px":3}]]}'
    assert select(body, "-/legs/px") == '{"legs":[{"q":2},5,[{},{"q":4}]],"id":9}'
    assert select('[{"a":1},{"b":2}]', "-/", "+/b") == '[{"b":2}]'
    assert select("[1,2]", "-/") == "[]"


def test_numbers_and_strings_are_what_the_publisher_wrote() -> None:
    long = "1" * 5000
    body = '{ "px" : 1.500e+02, "n":LONG,"s":"\\u00e9\\/\\ud800" ,"x":{ "y" : [ ] } }'
    expected = '{"px":1.500e+02,"n":LONG,"s":"\\u00e9\\/\\ud800","x":{ "y" : [ ] }}'
    assert select(body.replace("LONG", long), "-/gone") == expected.replace("LONG", long)
    assert (
        select(b'{"a":"\xff","b":1}', "-/b").encode("utf-8", "surrogateescape") == b'{"a":"\xff"}'
    )
    assert select('{"\\u0061":1,"b":2}', "-/", "+/a") == '{"\\u0061":1}'


def test_a_name_that_is_given_twice_counts_once_with_its_last_value() -> None:
    assert select('{"a":1,"a":2,"b":3}', "-/b") == '{"a":2}'


@pytest.mark.parametrize(
    "body", ["", "hello", "7", '"text"', '{"a":1', '{"a":NaN}', '{"a":1} x', "[" * 5_000]
)
def test_a_body_without_fields_is_sent_as_it_is(body: str) -> None:
    assert select(body, "-/", "+/b") == body


@pytest.mark.parametrize(
    "body",
    [
        '{"a":[1,]}', '{"a":1,}', '{"a" 1}', '{"a":1 "b":2}', "{,}", "[1 2]", "{1:2}", '{"a":}',
        '{"b":1}}', '{"b":[1}', '{"b":{]', "[,1]", '{"b":1', '{"b"', "{", "[1,",
    ],
)  # fmt: skip
@pytest.mark.parametrize("depth", [0, 3000])
def test_a_mistake_anywhere_makes_it_no_json(body: str, depth: int) -> None:
    for whole in (f'{{"x":{"[" * depth}{body}{"]" * depth}}}', f"{'[' * depth}{body}{']' * depth}"):
        assert select(whole, "-/b/c") == whole


DEPTH = 5_000  # more than the interpreter recurses


def test_what_is_left_out_is_left_out_of_a_body_of_any_depth() -> None:
    deep = "[" * DEPTH + '{"a":{},"b":[]}, [], "x"' + "]" * DEPTH
    objects = '{"a":' * DEPTH + "1" + "}" * DEPTH
    assert select(f'{{"secret":1,"x":{deep},"y":{objects}}}', "-/secret") == (
        f'{{"x":{deep},"y":{objects}}}'
    )
    assert select(f'{{"id":1,"secret":{deep}}}', "-/", "+/id") == '{"id":1}'
    kept = "[" * DEPTH + '{"a":{}},[],"x"' + "]" * DEPTH
    assert select(deep, "-/b") == kept
    assert select(deep, "-/", "+/b") == "[" * DEPTH + '{"b":[]}' + "]" * DEPTH


class CountingDecoder(json.JSONDecoder):
    """Counts the characters that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @override
    def raw_decode(self, s: str, idx: int = 0) -> tuple[object, int]:
        value, end = super().raw_decode(s, idx)
        self.count += end - idx
        return value, end


def test_each_part_of_a_body_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = CountingDecoder()
    monkeypatch.setattr(field_selection, "_SCANNER", decoder)
    body = '{"a":' + "[" * 100 + '{"b":1,"c":[1,2,{"d":"x"}]},' * 50 + "7" + "]" * 100 + "}"
    assert '"c"' not in select(body, "-/", "+/a/b")
    assert 0 < decoder.count <= len(body)


def test_only_json_has_fields() -> None:
    assert FieldSelection(("-/",)).apply(b'{"a":1}', "binary") == b'{"a":1}'


@pytest.mark.parametrize("directive", ["", "a", "/a", "+a", "+/a[0]", "-/a//b", "+/a b/"])
def test_a_directive_that_cannot_be_read_is_named(directive: str) -> None:
    with pytest.raises(SelectError, match=r"^select: .*found"):
        FieldSelection(("-/", directive))


def test_there_is_a_limit_to_directives() -> None:
    FieldSelection(("-/a",) * MAX_DIRECTIVES)
    with pytest.raises(SelectError, match=f"at most {MAX_DIRECTIVES}"):
        FieldSelection(("-/a",) * (MAX_DIRECTIVES + 1))


def test_the_same_directives_are_equal() -> None:
    assert FieldSelection(("-/a",)) == FieldSelection(("-/a",))
    assert len({FieldSelection(("-/a",)), FieldSelection(("-/a",)), FieldSelection(("-/b",))}) == 2


NAMES = st.sampled_from("abc")
BODIES = st.dictionaries(
    NAMES,
    st.recursive(
        st.integers(0, 9) | st.none() | st.sampled_from(["", "x", "10"]),
        lambda inner: st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=3,
)
DIRECTIVES = st.lists(
    st.builds(
        lambda sign, names: f"{sign}/{'/'.join(names)}",
        st.sampled_from("+-"),
        st.lists(NAMES, max_size=3),
    ),
    min_size=1,
    max_size=5,
)


def leaves(value: object, path: str = "") -> dict[str, object]:
    if isinstance(value, dict) and value:
        found: dict[str, object] = {}
        for name, inner in value.items():
            found |= leaves(inner, f"{path}/{name}")
        return found
    return {path: value}


def is_wanted(path: str, directives: list[str]) -> bool:
    """Look for the longest directive that covers the path."""
    best, wanted = -1, True
    for directive in directives:
        prefix = directive[1:].rstrip("/")
        covers = path == prefix or path.startswith(prefix + "/")
        if covers and len(prefix) > best:
            best, wanted = len(prefix), directive[0] == "+"
    return wanted


@given(body=BODIES, directives=DIRECTIVES)
def test_each_leaf_is_there_exactly_if_the_longest_directive_wants_it(
    body: dict[str, object], directives: list[str]
) -> None:
    found = leaves(json.loads(select(json.dumps(body), *directives)))
    filled = {path: value for path, value in found.items() if value != {}}
    expected = {
        path: value
        for path, value in leaves(body).items()
        if path and value != {} and is_wanted(path, directives)
    }
    assert filled == expected


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("selected", [("-/", "+/a/b"), ("-/a/secret",), ("-/b",)])
def test_a_body_of_too_many_levels_is_sent_whole(
    opening: str, closing: str, selected: tuple[str, ...]
) -> None:
    deep = opening * (MAX_DEPTH + 2) + "1" + closing * (MAX_DEPTH + 2)
    assert select(f'{{"a":{deep},"b":1}}', *selected) == f'{{"a":{deep},"b":1}}'


def test_a_body_of_very_many_values_is_sent_whole() -> None:
    body = '{"id":1,"a":[%s1]}'
    assert select(body % ("1," * (MAX_FIELDS - 3)), "-/", "+/id") == '{"id":1}'
    whole = body % ("1," * MAX_FIELDS)
    assert select(whole, "-/", "+/id") == whole
