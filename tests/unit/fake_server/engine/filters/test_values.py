from __future__ import annotations

import math

import pytest

from haclient_fake_server.engine.filters.values import (
    COMPARISONS,
    Value,
    calculate,
    compare,
    integer_from,
    normal,
    number_from,
    truth,
)

NAN = math.nan


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", None),
        (None, None),
        ("a", "a"),
        (True, 1),
        (False, 0),
        (2**64 - 1, 2**64 - 1),
        (-(2**63), -(2**63)),
        (2**64, float(2**64)),
        (-(2**63) - 1, -float(2**63)),
        (10**400, math.inf),
        (-(10**400), -math.inf),
        (1.5, 1.5),
    ],
)
def test_values_enter_in_one_form(given: float | str | None, expected: Value) -> None:
    value = normal(given)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", 12),
        ("+12", 12),
        ("-12", -12),
        ("007", 7),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-1.5E-1", -0.15),
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", float(2**64)),
        ("9" * 5000, math.inf),
        ("1e999", math.inf),
    ],
)
def test_text_that_spells_a_number_is_one(text: str, expected: float) -> None:
    number = number_from(text)
    assert number == expected
    assert type(number) is type(expected)


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "a", "1a", ".", "e1", "0x10", "nan", "inf", "1_0", "٣"]
)
def test_other_text_spells_none(text: str) -> None:
    assert number_from(text) is None


def test_integers_of_any_length_can_be_read() -> None:
    assert integer_from("-5") == -5
    assert integer_from("1" + "0" * 5000) == math.inf


SYMBOLS_TRUE_FOR_LESS = {"<", "<=", "!=", "<>"}
SYMBOLS_TRUE_FOR_EQUAL = {"=", "==", "<=", ">="}
SYMBOLS_TRUE_FOR_GREATER = {">", ">=", "!=", "<>"}


@pytest.mark.row("SW7")
@pytest.mark.parametrize(
    ("left", "right", "true"),
    [
        pytest.param(1, 2, SYMBOLS_TRUE_FOR_LESS, id="numbers by size"),
        pytest.param(2, 2.0, SYMBOLS_TRUE_FOR_EQUAL, id="an integer equals the same float"),
        pytest.param(3, 2.5, SYMBOLS_TRUE_FOR_GREATER, id="integers and floats by size"),
        pytest.param("2.000", "2.0", SYMBOLS_TRUE_FOR_GREATER, id="two strings as strings"),
        pytest.param("10", "9", SYMBOLS_TRUE_FOR_LESS, id="two strings even when both are numbers"),
        pytest.param("a", "a", SYMBOLS_TRUE_FOR_EQUAL, id="equal strings"),
        pytest.param("b", "a", SYMBOLS_TRUE_FOR_GREATER, id="strings by their characters"),
        pytest.param("2.0", 2, SYMBOLS_TRUE_FOR_EQUAL, id="a string is converted for a number"),
        pytest.param(2, "2.0", SYMBOLS_TRUE_FOR_EQUAL, id="on either side"),
        pytest.param("10", 9, SYMBOLS_TRUE_FOR_GREATER, id="a converted string by size"),
        pytest.param(9, "10", SYMBOLS_TRUE_FOR_LESS, id="a number against a converted string"),
        pytest.param(10, "abc", SYMBOLS_TRUE_FOR_LESS, id="any number is less than a word"),
        pytest.param("abc", 10, SYMBOLS_TRUE_FOR_GREATER, id="a word is greater than any number"),
        pytest.param("abc", math.inf, SYMBOLS_TRUE_FOR_GREATER, id="even than infinity"),
        pytest.param(None, None, set[str](), id="NULL is never true with NULL"),
        pytest.param(None, 1, set[str](), id="nor with a number"),
        pytest.param("a", None, set[str](), id="nor with a string"),
        pytest.param(NAN, 1, {"!=", "<>"}, id="NaN is unequal to numbers"),
        pytest.param(NAN, NAN, {"!=", "<>"}, id="NaN is unequal to itself"),
        pytest.param(NAN, "1", {"!=", "<>"}, id="NaN is unequal to a string of a number"),
        pytest.param("abc", NAN, {"!=", "<>"}, id="NaN is unequal to a word"),
    ],
)
def test_comparison_follows_the_published_rules(left: Value, right: Value, true: set[str]) -> None:
    assert {symbol for symbol, test in COMPARISONS.items() if compare(test, left, right)} == true


@pytest.mark.row("SW7")
@pytest.mark.parametrize(
    ("left", "symbol", "right", "expected"),
    [
        pytest.param(1, "+", 2, 3, id="integers add to an integer"),
        pytest.param(1, "-", 2, -1, id="and subtract"),
        pytest.param(3, "*", 2, 6, id="and multiply"),
        pytest.param(1, "/", 5, 0, id="integers divide to an integer"),
        pytest.param(-7, "/", 2, -3, id="towards zero"),
        pytest.param(-7, "/", -2, 3, id="also when both are negative"),
        pytest.param(7, "/", -2, -3, id="or the divisor"),
        pytest.param(1, "/", 5.0, 0.2, id="any float makes a float"),
        pytest.param(1.5, "+", 1, 2.5, id="on either side"),
        pytest.param(1, "-", 0.5, 0.5, id="also in differences"),
        pytest.param(2, "*", 0.5, 1.0, id="and products"),
        pytest.param(-5, "%", 3, -2, id="the rest has the sign of the first"),
        pytest.param(5, "%", -3, 2, id="and not of the second"),
        pytest.param(-5.5, "%", 3, -2.5, id="also of floats"),
        pytest.param(1, "/", 0, NAN, id="division by zero is not a number"),
        pytest.param(1.0, "/", 0, NAN, id="nor is that of a float"),
        pytest.param(1, "%", 0, NAN, id="nor a rest by zero"),
        pytest.param(1.5, "%", 0, NAN, id="nor that of a float"),
        pytest.param(math.inf, "%", 2, NAN, id="nor the rest of infinity"),
        pytest.param("10", "+", 1, 11, id="a string of a number counts as the number"),
        pytest.param("abc", "+", 1, NAN, id="a word is not a number"),
        pytest.param(1, "*", "abc", NAN, id="on either side of the operator"),
        pytest.param(None, "+", 1, None, id="NULL makes NULL"),
        pytest.param(1, "+", None, None, id="on either side also"),
        pytest.param(2**64 - 1, "+", 1, float(2**64), id="an integer over 64 bits becomes a float"),
        pytest.param(-(2**63), "-", 1, -float(2**63), id="also below zero"),
        pytest.param(2**63, "*", 2**63, float(2**126), id="also in products"),
        pytest.param(1e308, "*", 10, math.inf, id="a float that is too large becomes infinite"),
    ],
)
def test_arithmetic_follows_the_published_rules(
    left: Value, symbol: str, right: Value, expected: Value
) -> None:
    result = calculate(symbol, left, right)
    assert result == expected or (result != result and expected != expected)  # noqa: PLR0124 - NaN
    assert type(result) is type(expected)


@pytest.mark.row("SW7")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, None, id="NULL stays NULL"),
        pytest.param(0, False, id="zero is false"),
        pytest.param(1, True, id="one is true"),
        pytest.param(-0.5, True, id="so is any other number"),
        pytest.param(0.0, False, id="a zero float is false"),
        pytest.param(NAN, False, id="what is not a number is not true"),
        pytest.param("1", True, id="a string counts as its number"),
        pytest.param("0.0", False, id="also when that is zero"),
        pytest.param("abc", False, id="a word is not true"),
    ],
)
def test_truth_of_a_bare_value(value: Value, *, expected: bool | None) -> None:
    assert truth(value) is expected
