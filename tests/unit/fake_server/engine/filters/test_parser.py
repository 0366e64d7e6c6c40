from __future__ import annotations

import pytest

from haclient_fake_server.engine.filters import FilterError, parse_path
from haclient_fake_server.engine.filters import nodes as n
from haclient_fake_server.engine.filters.parser import (
    MAX_FILTER_CHARACTERS,
    MAX_NESTING,
    parse_filter,
)

A = n.Field(parse_path("/a"))
B = n.Field(parse_path("/b"))
C = n.Field(parse_path("/c"))
ONE, TWO, THREE = (n.Literal(number) for number in (1, 2, 3))


@pytest.mark.row("SW7")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a", A),
        ("1", ONE),
        ("'x'", n.Literal("x")),
        ("''", n.Literal(None)),
        ("NULL", n.Literal(None)),
        ("TRUE", ONE),
        ("false", n.Literal(0)),
        ("-1", n.Literal(-1)),
        ("--1", ONE),
        ("-9223372036854775808", n.Literal(-(2**63))),
        ("-/a", n.Negate(A)),
        ("-'1'", n.Negate(n.Literal("1"))),
        ("((1))", ONE),
        ("/a = 1", n.Compare("=", A, ONE)),
        ("/a IN (1, 2)", n.In(A, (ONE, TWO))),
        ("/a NOT IN (1)", n.Not(n.In(A, (ONE,)))),
        ("3 IN (/a)", n.In(THREE, (A,))),
        ("/a BETWEEN 1 AND 2", n.Between(A, ONE, TWO)),
        ("/a NOT BETWEEN 1 AND 2", n.Not(n.Between(A, ONE, TWO))),
        ("/a LIKE 'x'", n.Like(A, "x", raw=False, position=8)),
        ("/a NOT LIKE r'x'", n.Not(n.Like(A, "x", raw=True, position=12))),
        ("/a BEGINS WITH (1, 2)", n.Affix(A, (ONE, TWO), ends=False)),
        ("/a BEGINS WITH 'x'", n.Affix(A, (n.Literal("x"),), ends=False)),
        ("/a ENDS WITH ('x')", n.Affix(A, (n.Literal("x"),), ends=True)),
        ("/a NOT ENDS WITH r'x'", n.Not(n.Affix(A, (n.Literal("x"),), ends=True))),
        ("/a IS NULL", n.IsNull(A)),
        ("/a IS NOT NULL", n.Not(n.IsNull(A))),
        ("/a IS NAN", n.IsNan(A)),
        ("/a IS NOT NAN", n.Not(n.IsNan(A))),
        ("NOT /a", n.Not(A)),
        ("NOT NOT /a", n.Not(n.Not(A))),
        ("/a AND /b AND /c", n.AllOf((A, B, C))),
        ("/a OR /b OR /c", n.AnyOf((A, B, C))),
        ("1 + 2 - 3", n.Chain(ONE, (("+", TWO), ("-", THREE)))),
        ("/a mod 2", n.Chain(A, (("%", TWO),))),
        ("/a % 2", n.Chain(A, (("%", TWO),))),
        ("/a / 2", n.Chain(A, (("/", TWO),))),
    ],
)
def test_each_form_of_the_grammar(text: str, expected: n.Node) -> None:
    assert parse_filter(text) == expected


@pytest.mark.parametrize("symbol", ["=", "==", "!=", "<>", "<", "<=", ">", ">="])
def test_the_eight_comparison_operators(symbol: str) -> None:
    assert parse_filter(f"/a {symbol} 1") == n.Compare(symbol, A, ONE)


@pytest.mark.row("SW7")
@pytest.mark.parametrize(
    ("loose", "tight"),
    [
        pytest.param("/a OR /b AND /c", "/a OR (/b AND /c)", id="AND before OR"),
        pytest.param("NOT /a AND /b", "(NOT /a) AND /b", id="NOT before AND"),
        pytest.param("NOT /a = 1", "NOT (/a = 1)", id="comparison before NOT"),
        pytest.param("/a = 1 + 2", "/a = (1 + 2)", id="sums before comparison"),
        pytest.param("1 + 2 * 3", "1 + (2 * 3)", id="products before sums"),
        pytest.param("-1 * 2", "(-1) * 2", id="signs before products"),
        pytest.param("1 + 2 IN (3)", "(1 + 2) IN (3)", id="sums before IN"),
        pytest.param("/a BETWEEN 1 AND 2 AND /b", "(/a BETWEEN 1 AND 2) AND /b", id="its own AND"),
        pytest.param(
            "/a BETWEEN 1 + 1 AND 2 * 2", "/a BETWEEN (1 + 1) AND (2 * 2)", id="sums in BETWEEN"
        ),
    ],
)
def test_precedence(loose: str, tight: str) -> None:
    assert parse_filter(loose) == parse_filter(tight)


@pytest.mark.row("SW7")
def test_keywords_may_be_written_in_any_case() -> None:
    upper = "NOT /a IN (1) AND /b LIKE 'x' OR /c IS NOT NULL OR /a BETWEEN 1 AND 2 MOD 3"
    shift = len("NOT /a IN (1) AND /b LIKE ")
    assert n.Like(B, "x", raw=False, position=shift) in parse_filter(upper).parts[0].parts  # type: ignore[union-attr] # the shape is known
    assert parse_filter(upper) == parse_filter(upper.lower())


@pytest.mark.row("SW7", "AK7")
@pytest.mark.parametrize(
    ("text", "position", "expected", "found"),
    [
        ("", 0, "a path or a value", "the end"),
        ("/a =", 4, "a path or a value", "the end"),
        ("/a 1", 3, "an operator or the end", "'1'"),
        ("(/a", 3, "')'", "the end"),
        ("/a)", 2, "an operator or the end", "')'"),
        ("/a IN 1", 6, "'('", "'1'"),
        ("/a IN ()", 7, "a path or a value", "')'"),
        ("/a IN (1", 8, "')'", "the end"),
        ("/a LIKE /b", 8, "a pattern in quotes", "'/b'"),
        ("/a BETWEEN 1 OR 2", 13, "'AND'", "'OR'"),
        ("/a IS 1", 6, "NULL or NAN", "'1'"),
        ("/a NOT 1", 7, "BETWEEN, IN, LIKE, BEGINS WITH or ENDS WITH", "'1'"),
        ("/a BEGINS 'x'", 10, "'WITH'", "\"'x'\""),
        ("/a BEGINS WITH /b", 15, "texts in parentheses, or one in quotes", "'/b'"),
        ("/a AND AND", 7, "a path or a value", "'AND'"),
        ("1 < 2 < 3", 6, "an operator or the end", "'<'"),
        ("/a = upper(/b)", 5, "a path or a value", "the unknown function 'upper'"),
        ("/a = b", 5, "a path or a value", "the unknown word 'b'"),
        ("1x", 1, "an operator or the end", "'x'"),
        ("/a[1][2] = 1", 5, "a path in brackets such as [/name with space]", "'[2] = 1'"),
        ("/a[12345678901] = 1", 0, "an absolute path such as /a/b", "'/a[12345678901]'"),
    ],
)
def test_errors_say_where_and_what_was_expected(
    text: str, position: int, expected: str, found: str
) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(text)
    error = caught.value
    assert (error.position, error.expected, error.found) == (position, expected, found)
    assert str(error) == f"bad filter at character {position}: expected {expected}, found {found}"
    assert error.reason == "bad filter"


@pytest.mark.parametrize(("opening", "closing"), [("(", ")"), ("NOT ", ""), ("-", "")])
def test_nesting_has_a_limit(opening: str, closing: str) -> None:
    parse_filter(opening * MAX_NESTING + "1" + closing * MAX_NESTING)
    with pytest.raises(FilterError, match=f"at most {MAX_NESTING} levels of nesting"):
        parse_filter(opening * 5000 + "1" + closing * 5000)


def test_long_chains_are_not_deep() -> None:
    for operator in (" + ", " * ", " AND ", " OR "):
        parse_filter(operator.join(["1"] * 9000))


def test_the_length_has_a_limit() -> None:
    parse_filter("1".ljust(MAX_FILTER_CHARACTERS))
    with pytest.raises(FilterError, match="expected at most 65536 characters, found 65537"):
        parse_filter("1".ljust(MAX_FILTER_CHARACTERS + 1))
