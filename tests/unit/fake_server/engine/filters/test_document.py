from __future__ import annotations

import math

import pytest

from haclient_fake_server.engine.filters import Document, parse_path
from haclient_fake_server.engine.filters.values import Value


def values(body: str | bytes, path: str) -> tuple[Value, ...]:
    raw = body.encode() if isinstance(body, str) else body
    return Document(raw).values(parse_path(path))


@pytest.mark.row("SW7")
@pytest.mark.parametrize(
    ("body", "path", "expected"),
    [
        pytest.param('{"a":1}', "/a", (1,), id="a field"),
        pytest.param('{"a":{"b":{"c":"x"}}}', "/a/b/c", ("x",), id="nested objects are paths"),
        pytest.param('{"a":{"b":1}}', "/a", (), id="an intermediate object has no value"),
        pytest.param('{"a":1}', "/b", (), id="a missing field has no value"),
        pytest.param('{"a":1}', "/a/b", (), id="a value has no fields"),
        pytest.param('{"a":null}', "/a", (None,), id="null is NULL"),
        pytest.param('{"a":""}', "/a", (None,), id="the empty string is NULL"),
        pytest.param('{"a":true,"b":false}', "/a", (1,), id="true is 1"),
        pytest.param('{"a":true,"b":false}', "/b", (0,), id="false is 0"),
        pytest.param('{"a":[1,2,3]}', "/a", (1, 2, 3), id="an array in its order"),
        pytest.param('{"a":[]}', "/a", (), id="an empty array is NULL"),
        pytest.param('{"a":[[1,[2]],3]}', "/a", (1, 2, 3), id="arrays on arrays have no level"),
        pytest.param('{"a":[1,2,3]}', "/a[1]", (2,), id="a subscript"),
        pytest.param('{"a":[1,2,3]}', "/a[3]", (), id="a subscript out of range is NULL"),
        pytest.param('{"a":5}', "/a[0]", (5,), id="the only value is the first"),
        pytest.param('{"C":[{"x":1},{"x":2}]}', "/C/x", (1, 2), id="equal paths are an array"),
        pytest.param('{"C":[{"x":1},{"x":2}]}', "/C/x[1]", (2,), id="subscript of equal paths"),
        pytest.param('{"C":[{"x":1},{"x":2}]}', "/C[1]/x", (2,), id="subscript in mid path"),
        pytest.param('{"C":[{"y":1},{"x":2}]}', "/C[0]/x", (), id="that object has no such field"),
        pytest.param('{"C":[{"x":1},7]}', "/C", (7,), id="objects in arrays have no value"),
        pytest.param('[{"x":1},{"x":2}]', "/x", (1, 2), id="an array at the top"),
        pytest.param('{"@id":3}', "/@id", (3,), id="a name with an at sign"),
        pytest.param('{"a b":{"c":1}}', "[/a b/c]", (1,), id="a name with a space"),
        pytest.param('{"a":1,"a":2}', "/a", (2,), id="the last of equal names counts"),
        pytest.param("5", "/a", (), id="a bare value has no fields"),
        pytest.param("not json", "/a", (), id="other text has no fields"),
        pytest.param("", "/a", (), id="nothing has no fields"),
        pytest.param('{"a":NaN}', "/a", (), id="NaN is not JSON"),
        pytest.param('{"a":1}{"a":2}', "/a", (), id="two values are not JSON"),
        pytest.param("[" * 100_000 + "]" * 100_000, "/a", (), id="nesting without end is not JSON"),
    ],
)
def test_paths_find_values(body: str, path: str, expected: tuple[Value, ...]) -> None:
    assert values(body, path) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a":18446744073709551615}', 2**64 - 1),
        (b'{"a":18446744073709551616}', float(2**64)),
        (b'{"a":1e999}', math.inf),
        (b'{"a":' + b"9" * 5000 + b"}", math.inf),
        (b'{"a":"\\ud800"}', "\ud800"),
        (b'{"a":"\xff"}', "\udcff"),
    ],
)
def test_numbers_and_text_beyond_strict_json_are_read_all_the_same(
    body: bytes, expected: Value
) -> None:
    (value,) = values(body, "/a")
    assert value == expected
    assert type(value) is type(expected)


def test_deep_arrays_are_flattened_without_recursion() -> None:
    depth = 500
    assert values('{"a":' + "[" * depth + "1" + "]" * depth + "}", "/a") == (1,)


def test_the_first_value_stands_for_an_array() -> None:
    document = Document(b'{"a":[3,4],"b":[]}')
    assert document.first(parse_path("/a")) == 3
    assert document.first(parse_path("/b")) is None


def test_the_body_is_parsed_once_and_each_path_looked_up_once() -> None:
    document = Document(b'{"a":[1,2]}')
    path = parse_path("/a")
    assert document.values(path) is document.values(parse_path("[/a]"))
    assert document._parsed() is document._parsed()


@pytest.mark.row("SW9")
def test_only_json_has_fields() -> None:
    document = Document(b'{"a":1}', "binary")
    assert not document.has_fields
    assert document.values(parse_path("/a")) == ()
    assert document.body == b'{"a":1}'


@pytest.mark.parametrize(
    ("body", "expected"), [(b"{}", True), (b"[]", True), (b"1", False), (b"", False)]
)
def test_objects_and_arrays_have_fields(body: bytes, *, expected: bool) -> None:
    assert Document(body).has_fields is expected
