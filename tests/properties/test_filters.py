"""Filters against an independent oracle, and against any text at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from haclient_fake_server.engine.filters import (
    Document,
    FilterError,
    OrderByError,
    compile_filter,
    parse_order_by,
)
from haclient_fake_server.engine.filters.parser import Field, parse_filter
from haclient_fake_server.engine.patterns import TopicMatcher, TopicPatternError
from support.filter_oracle import Expression, Row, render, verdict
from support.lengths import length

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

TEXTS = st.sampled_from(["", "a", "b", "ab", "abc", "10", "9", "2.0", "2.000", "-1", "1e1"])
NUMBERS = st.integers(-3, 12) | st.sampled_from([0.0, 0.5, 2.0, -1.5, 10.0])
SCALARS = st.none() | NUMBERS | TEXTS
FIELDS = st.sampled_from(["a", "b", "c", "missing"])
ROWS: st.SearchStrategy[Row] = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), SCALARS | st.booleans() | st.lists(SCALARS, max_size=3)
)
CONSTANTS = st.tuples(st.just("literal"), st.none() | st.integers(0, 12) | TEXTS)
OPERANDS = CONSTANTS | st.tuples(st.just("field"), FIELDS)
OPERATORS = st.sampled_from(
    ["=", "!=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "MOD", "AND", "OR"]
)


def larger(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    sets = st.sampled_from(["IN", "BEGINS WITH", "ENDS WITH"])
    return st.one_of(
        st.tuples(st.just("infix"), OPERATORS, inner, inner),
        st.tuples(st.sampled_from(["not", "isnull", "isnan"]), inner),
        st.tuples(st.just("between"), inner, inner, inner),
        st.tuples(st.just("like"), inner, st.sampled_from(["a", "bc", "1", "."])),
        st.tuples(sets, inner, st.lists(CONSTANTS, min_size=1, max_size=3)),
        st.tuples(sets, inner, st.lists(OPERANDS, min_size=1, max_size=3)),
    )


EXPRESSIONS: st.SearchStrategy[Expression] = st.recursive(OPERANDS, larger, max_leaves=8)


@pytest.mark.row("SW7")
@settings(max_examples=length(400))
@given(expression=EXPRESSIONS, row=ROWS)
def test_every_filter_agrees_with_the_oracle(expression: Expression, row: Row) -> None:
    compiled = compile_filter(render(expression))
    assert compiled(document(row)) is verdict(expression, row)


TOKENS = r"""/a /b[0] [/a] 1 -1 2.5 'x' "y" r'z' '( \ ( ) , = != < + - * / % MOD and OR not IN like
    BEGINS ends WITH is NULL nan BETWEEN f # [ ] ' r"""
FRAGMENTS = st.sampled_from(TOKENS.split())
ANY_TEXT = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="/a[]01'\\x()= r", max_size=30),
    st.text(alphabet=st.characters(categories=["Cs", "L"]), max_size=10),
    st.lists(FRAGMENTS, max_size=12).map(" ".join),
    st.text(max_size=20).map(lambda text: f"/a LIKE '{text}'"),
)


def outcome(read: Callable[[str], T], text: str, refusal: type[E]) -> T | E:
    """What `read` makes of the text, or the one kind of error that it may raise."""
    try:
        return read(text)
    except refusal as error:
        return error


def document(row: Row) -> Document:
    return Document(json.dumps(row).encode())


@pytest.mark.row("SW7", "AK7")
@settings(max_examples=length(500))
@given(text=ANY_TEXT, row=ROWS)
@example(text="'\\\ud800'", row={})
@example(text="/a LIKE '[[a'", row={"a": "a"})
@example(text="9" * 5000 + " = 1", row={})
@example(text="/a[" + "9" * 5000 + "]", row={})
def test_any_text_is_a_filter_or_a_filter_error_with_its_place(text: str, row: Row) -> None:
    result = outcome(compile_filter, text, FilterError)
    if isinstance(result, FilterError):
        assert 0 <= result.position <= len(text)
        assert result.expected
        assert result.found
    else:
        assert result(document(row)) in (True, False)


@pytest.mark.row("SW2")
@settings(max_examples=length(200))
@given(text=ANY_TEXT, rows=st.lists(ROWS, max_size=4))
def test_any_text_is_an_order_or_an_order_error(text: str, rows: list[Row]) -> None:
    result = outcome(parse_order_by, text, OrderByError)
    if isinstance(result, OrderByError):
        assert 0 <= result.position <= len(text)
    else:
        numbers = result.sort(range(len(rows)), document=lambda number: document(rows[number]))
        assert sorted(numbers) == [*range(len(rows))]


LETTERS = st.sampled_from("ab")
LEAVES = st.sampled_from([None, True, 0, 1, 1.5, 2**66, -(2**65), "", "x", "1"])
TREES: st.SearchStrategy[object] = st.recursive(
    LEAVES,
    lambda inner: st.dictionaries(LETTERS, inner) | st.lists(inner, max_size=3),
    max_leaves=6,
)
LEVELS = st.builds("/{}{}".format, LETTERS, st.sampled_from(["", "", "[0]", "[1]"]))
PATHS = st.lists(LEVELS, min_size=1, max_size=2).map("".join)


@settings(max_examples=length(500))
@given(root=st.dictionaries(LETTERS, TREES, min_size=1), path=PATHS)
@example(root={"a": ""}, path="/a")
def test_a_path_finds_in_objects_what_it_finds_in_arrays_of_them(root: object, path: str) -> None:
    """Objects without arrays take a short way."""
    field = parse_filter(path)
    assert isinstance(field, Field)
    found, wrapped = (Document(json.dumps(each).encode()) for each in (root, [root]))
    assert repr(found.values(field.path)) == repr(wrapped.values(field.path))


@settings(max_examples=length(200))
@given(body=st.binary(max_size=60) | ROWS.map(lambda row: json.dumps(row).encode()[:-1]))
def test_any_body_can_be_asked(body: bytes) -> None:
    assert compile_filter("/a IS NULL OR /a IS NOT NULL")(Document(body))


@pytest.mark.row("SW8")
@settings(max_examples=length(300))
@given(topic=st.text(max_size=12) | st.text(alphabet="ab.*[]()^$|\\?{}1,", max_size=12))
def test_any_topic_is_a_matcher_or_a_topic_error(topic: str) -> None:
    result = outcome(TopicMatcher, topic, TopicPatternError)
    if isinstance(result, TopicPatternError):
        assert result.topic == topic
    else:
        assert result.is_regex or result.matches(topic)
        assert result.matches("orders") is result.matches("orders")
    assert TopicMatcher(topic, non_regex_topic=True).matches(topic)
