from __future__ import annotations

import pytest

from haclient_fake_server.engine.filters import (
    Document,
    OrderBy,
    OrderByError,
    parse_order_by,
)


def order(text: str, *bodies: str) -> list[str]:
    return parse_order_by(text).sort(bodies, document=lambda body: Document(body.encode()))


ONE, TWO, TEN = '{"n":1}', '{"n":2}', '{"n":10}'


@pytest.mark.row("SW2")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("/n", [ONE, TWO, TEN], id="ascending by default"),
        pytest.param("/n ASC", [ONE, TWO, TEN], id="ascending when said"),
        pytest.param("/n DESC", [TEN, TWO, ONE], id="descending"),
        pytest.param("/n desc", [TEN, TWO, ONE], id="in any case"),
        pytest.param("[/n]\tDESC", [TEN, TWO, ONE], id="bracketed and with a tab"),
        pytest.param("/m, /n", [ONE, TWO, TEN], id="a missing field decides nothing"),
    ],
)
def test_records_come_in_the_order_asked_for(text: str, expected: list[str]) -> None:
    assert order(text, TEN, ONE, TWO) == expected


@pytest.mark.row("SW2")
def test_the_first_path_decides_before_the_second() -> None:
    rows = ['{"a":1,"b":1}', '{"a":2,"b":1}', '{"a":1,"b":2}', '{"a":2,"b":2}']
    assert order("/a DESC, /b ASC", *rows) == [rows[1], rows[3], rows[0], rows[2]]
    assert order("/a,/b DESC", *rows) == [rows[2], rows[0], rows[3], rows[1]]


@pytest.mark.row("SW2")
def test_null_comes_before_numbers_and_numbers_before_strings() -> None:
    null, big, bigger, text, other = (
        "{}",
        '{"n":18446744073709551614}',
        '{"n":18446744073709551615}',
        '{"n":"1"}',
        '{"n":"a"}',
    )
    assert order("/n", other, text, bigger, big, null) == [null, big, bigger, text, other]
    assert order("/n DESC", null, text, big, bigger, other) == [other, text, bigger, big, null]


@pytest.mark.parametrize("direction", ["ASC", "DESC"])
def test_equal_records_stay_as_they_were(direction: str) -> None:
    rows = [f'{{"n":1,"i":{index}}}' for index in range(5)]
    assert order(f"/n {direction}", *rows) == rows


@pytest.mark.parametrize("text", ["", "  "])
def test_blank_text_asks_for_no_order(text: str) -> None:
    assert parse_order_by(text) == OrderBy()
    assert not parse_order_by(text)
    assert parse_order_by("/a")
    assert order(text, TWO, ONE) == [TWO, ONE]


@pytest.mark.row("SW2", "AK7")
@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("n", 0, "a path such as /a/b"),
        ("/n UP", 3, "ASC, DESC, a comma or the end"),
        ("/n ASC DESC", 7, "ASC, DESC, a comma or the end"),
        ("/n,", 3, "a path such as /a/b"),
        (", /n", 0, "a path such as /a/b"),
        ("/n /m", 3, "ASC, DESC, a comma or the end"),
        ("/n, #", 4, "a path, a value or an operator"),
        ("[/]", 0, "an absolute path such as /a/b"),
    ],
)
def test_what_is_no_order_is_refused_with_its_place(
    text: str, position: int, expected: str
) -> None:
    with pytest.raises(OrderByError) as caught:
        parse_order_by(text)
    assert (caught.value.position, caught.value.expected) == (position, expected)
    assert caught.value.reason == "invalid orderby"
    assert str(caught.value).startswith(f"invalid orderby at character {position}: expected")


def test_an_order_has_a_limit_of_fields_and_of_characters() -> None:
    assert len(parse_order_by(",".join(["/a"] * 100)).terms) == 100
    with pytest.raises(OrderByError, match="at most 100 fields"):
        parse_order_by(",".join(["/a"] * 101))
    with pytest.raises(OrderByError, match="at most 65536 characters, found 100000"):
        parse_order_by("/" + "a" * 99_999)
