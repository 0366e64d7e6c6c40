from __future__ import annotations

import pytest

from haclient_fake_server.engine.filters import (
    Document,
    FilterError,
    compile_expression,
    compile_filter,
)
from haclient_fake_server.engine.filters.parser import MAX_NESTING, MAX_TOKENS
from haclient_fake_server.engine.patterns import MAX_PATTERN_BYTES

BODY = b"""{
    "one": 1, "two": 2, "half": 0.5, "neg": -5, "zero": 0,
    "word": "fandango", "digits": "10", "exact": "2.000", "empty": "", "nothing": null,
    "yes": true, "no": false, "big": 18446744073709551615,
    "list": [1, 2, 3], "names": ["x", "y"], "hollow": [], "gap": [null, 7],
    "C": [{"x": 1}, {"x": 2}], "deep": {"er": {"est": "end"}},
    "Name with space": "Ada", "path": "a.b", "dotted": "x\\ny"
}"""


def matches(text: str, body: bytes = BODY) -> bool:
    return compile_filter(text)(Document(body))


def case(name: str, text: str, *, expected: bool = True) -> object:
    return pytest.param(text, expected, id=name)


COMPARISONS = [
    case("equal numbers", "/one = 1"),
    case("double equals", "/one == 1"),
    case("unequal numbers", "/one != 2"),
    case("unequal written otherwise", "/one <> 2"),
    case("less", "/one < 2"),
    case("less or equal", "/one <= 1"),
    case("greater", "/two > 1"),
    case("greater or equal", "/two >= 2"),
    case("an integer equals a float", "2 = 2.0"),
    case("two strings are compared as strings", "'2.000' <> '2.0'"),
    case("also from a message", "/exact = '2'", expected=False),
    case("a string is converted for a number", "/exact = 2"),
    case("by size and not by characters", "/digits > 9"),
    case("but strings by characters", "/digits > '9'", expected=False),
    case("a word is greater than any number", "10 < 'abc'"),
    case("a word from a message also", "/word > 18446744073709551615"),
    case("strings are case-sensitive", "/word = 'Fandango'", expected=False),
    case("unsigned 64-bit integers are exact", "/big = 18446744073709551615"),
    case("and differ by one", "/big = 18446744073709551614", expected=False),
    case("fields against fields", "/one < /two"),
    case("true is 1", "/yes = 1"),
    case("false is 0", "/no = 0"),
    case("the constant TRUE is 1", "/yes = TRUE"),
    case("a comparison is 1 or 0", "(/one = 1) + 1 = 2"),
    case("a negative number", "/neg = -5"),
]

NULLS = [
    case("missing is NULL", "/missing IS NULL"),
    case("null is NULL", "/nothing IS NULL"),
    case("the empty string is NULL", "/empty IS NULL"),
    case("the empty constant is NULL", "'' IS NULL"),
    case("the empty array is NULL", "/hollow IS NULL"),
    case("an intermediate object is NULL", "/deep/er IS NULL"),
    case("a value is not NULL", "/one IS NOT NULL"),
    case("zero is not NULL", "/zero IS NULL", expected=False),
    case("NULL is not equal to NULL", "NULL = NULL", expected=False),
    case("nor unequal", "NULL != NULL", expected=False),
    case("a missing field is not unequal to a value", "/missing != 1", expected=False),
    case("nor less", "/missing < 1", expected=False),
    case("nor greater", "/missing > 1", expected=False),
    case("nor between", "/missing BETWEEN 0 AND 9", expected=False),
    case("nor in a set", "/missing IN (1, NULL)", expected=False),
    case("so it is not in the set", "/missing NOT IN (1)"),
    case("NULL in a set matches nothing", "/one IN (NULL)", expected=False),
    case("a missing field is like nothing", "/missing LIKE '.*'", expected=False),
    case("not even raw", "/missing LIKE r''", expected=False),
    case("so it is NOT LIKE", "/missing NOT LIKE '.*'"),
    case("it begins with nothing", "/missing BEGINS WITH ('a')", expected=False),
    case("nothing begins with NULL", "/word BEGINS WITH (NULL)", expected=False),
    case("NOT of a comparison with NULL is true", "NOT /missing = 1"),
    case("arithmetic with NULL is NULL", "/missing + 1 IS NULL"),
    case("on either side", "1 * /missing IS NULL"),
    case("a sign makes no value", "-/missing IS NULL"),
    case("the first element decides", "/gap IS NULL"),
]

LOGIC = [
    case("TRUE AND TRUE", "1 AND 1"),
    case("TRUE AND FALSE", "1 AND 0", expected=False),
    case("FALSE OR TRUE", "0 OR 1"),
    case("FALSE OR FALSE", "0 OR 0", expected=False),
    case("NULL does not match", "NULL", expected=False),
    case("TRUE AND NULL = NULL", "(1 AND NULL) IS NULL"),
    case("FALSE AND NULL = FALSE", "(0 AND NULL) = 0"),
    case("NULL AND TRUE = NULL", "(NULL AND 1) IS NULL"),
    case("NULL AND FALSE = NULL", "(NULL AND 0) IS NULL"),
    case("TRUE OR NULL = TRUE", "(1 OR NULL) = 1"),
    case("FALSE OR NULL = NULL", "(0 OR NULL) IS NULL"),
    case("NULL OR TRUE = NULL", "(NULL OR 1) IS NULL"),
    case("NULL OR FALSE = NULL", "(NULL OR 0) IS NULL"),
    case("so a NULL on the left hides a match", "/missing OR /one = 1", expected=False),
    case("NOT NULL = NULL", "(NOT NULL) IS NULL"),
    case("NOT TRUE", "NOT 1", expected=False),
    case("NOT FALSE", "NOT 0"),
    case("AND of three from the left", "(1 AND NULL AND 0) IS NULL"),
    case("OR of three from the left", "(0 OR NULL OR 1) IS NULL"),
    case("a bare field that is not zero", "/one"),
    case("a bare field that is zero", "/zero", expected=False),
    case("a bare word", "/word", expected=False),
    case("a bare array counts by its first element", "/list AND 1"),
    case("AND binds more tightly than OR", "1 OR 0 AND 0"),
    case("NOT binds more tightly than AND", "NOT 0 AND 0", expected=False),
    case("comparison binds more tightly than NOT", "NOT /one = 2"),
]

ARITHMETIC = [
    case("a sum", "/one + /two = 3"),
    case("a difference", "/one - /two = -1"),
    case("from the left", "10 - 4 - 3 = 3"),
    case("a product", "/two * 3 = 6"),
    case("a product before a sum", "1 + 2 * 3 = 7"),
    case("parentheses first", "(1 + 2) * 3 = 9"),
    case("integers divide to an integer", "1 / 5 = 0"),
    case("towards zero", "/neg / 2 = -2"),
    case("a float makes a float", "/one / 2.0 = 0.5"),
    case("MOD", "/neg MOD 3 = -2"),
    case("percent", "/neg % 3 = -2"),
    case("the sign of the first operand", "5 % -3 = 2"),
    case("splits by MOD", "/big MOD 4 = 3"),
    case("a string of a number counts as the number", "/digits + 1 = 11"),
    case("a word is not a number", "/word + 1 IS NAN"),
    case("division by zero is not a number", "1 / /zero IS NAN"),
    case("a rest by zero is not a number", "1 % 0 IS NAN"),
    case("a number is one", "/one IS NOT NAN"),
    case("a word by itself is a word", "/word IS NAN", expected=False),
    case("NULL is not NaN", "/missing IS NAN", expected=False),
    case("NaN does not match", "1 / 0", expected=False),
    case("NaN is unequal", "1 / 0 != 1"),
    case("a double sign", "--1 = 1"),
    case("arrays count by their first element", "/list + 1 = 2"),
    case("and by no other", "/list + 1 = 3", expected=False),
]

SETS_AND_PATTERNS = [
    case("BETWEEN includes both ends", "/one BETWEEN 1 AND 1"),
    case("BETWEEN below", "/one BETWEEN 2 AND 3", expected=False),
    case("BETWEEN above", "/two BETWEEN 0 AND 1", expected=False),
    case("NOT BETWEEN", "/two NOT BETWEEN 0 AND 1"),
    case("BETWEEN of strings", "/word BETWEEN 'a' AND 'g'"),
    case("BETWEEN any element", "/list BETWEEN 3 AND 9"),
    case("BETWEEN one and the same element", "/list BETWEEN 4 AND 9", expected=False),
    case("IN numbers", "/one IN (3, 2, 1)"),
    case("IN strings", "/word IN ('tango', 'fandango')"),
    case("IN is case-sensitive", "/word IN ('FANDANGO')", expected=False),
    case("IN is exact", "/word IN ('fan')", expected=False),
    case("IN compares a float with an integer", "/one IN (1.0)"),
    case("IN converts a string for a number", "/digits IN (10)"),
    case("IN converts a constant for a number", "/two IN ('2.0')"),
    case("IN compares strings as strings", "/exact IN ('2')", expected=False),
    case("IN with strings only takes no number", "/word IN (1)", expected=False),
    case("IN negative numbers", "/neg IN (-5, 7)"),
    case("IN any element", "/names IN ('z', 'y')"),
    case("membership", "3 IN (/list)"),
    case("no membership", "4 IN (/list)", expected=False),
    case("IN fields", "/two IN (/one, /two)"),
    case("IN fields and constants", "/half IN (/one, 0.5)"),
    case("NOT IN", "/one NOT IN (2, 3)"),
    case("LIKE is searched anywhere", "/word LIKE 'dan'"),
    case("LIKE is case-sensitive", "/word LIKE 'DAN'", expected=False),
    case("LIKE with a flag", "/word LIKE '(?i)DAN'"),
    case("LIKE anchored", "/word LIKE '^dan'", expected=False),
    case("LIKE with an escaped escape", "/digits LIKE '^\\\\d+$'"),
    case("LIKE with one escape means the character", "/digits LIKE '\\d'", expected=False),
    case("LIKE of a raw string is literal", "/path LIKE r'a.b'"),
    case("not a pattern", "/word LIKE r'f.n'", expected=False),
    case("LIKE any element", "/names LIKE 'y'"),
    case("LIKE of a number is of its text", "/digits LIKE '^1'"),
    case("also of an integer", "/two LIKE '^2$'"),
    case("and of truth", "/yes LIKE '^1$'"),
    case("and of a comparison", "(1 = 1) LIKE '^1$'"),
    case("and of a float", "/half LIKE '^0.5$'"),
    case("LIKE the empty pattern", "/word LIKE ''"),
    case("NOT LIKE", "/word NOT LIKE 'x'"),
    case("BEGINS WITH one of a set", "/word BEGINS WITH ('x', 'fan')"),
    case("BEGINS WITH without parentheses", "/word BEGINS WITH 'fan'"),
    case("BEGINS WITH is case-sensitive", "/word BEGINS WITH ('FAN')", expected=False),
    case("BEGINS WITH is literal", "/word BEGINS WITH ('f.n')", expected=False),
    case("BEGINS WITH a number", "/digits BEGINS WITH (1)"),
    case("BEGINS WITH any element", "/names BEGINS WITH 'y'"),
    case("BEGINS WITH a field", "/word BEGINS WITH (/word)"),
    case("ENDS WITH one of a set", "/word ENDS WITH ('x', 'dango')"),
    case("ENDS WITH nothing of a set", "/word ENDS WITH ('fan')", expected=False),
    case("NOT ENDS WITH", "/word NOT ENDS WITH 'fan'"),
]

STRUCTURES = [
    case("a nested path", "/deep/er/est = 'end'"),
    case("equal paths are an array", "/C/x = 2"),
    case("a subscript in the path", "/C[0]/x = 2", expected=False),
    case("a subscript at its end", "/C/x[1] = 2"),
    case("a subscript out of range is NULL", "/list[9] IS NULL"),
    case("any element equals", "/list = 3"),
    case("some element differs", "/names != 'x'"),
    case("any pair of elements", "/list = /C/x"),
    case("no pair of elements", "/names = /C/x", expected=False),
    case("any element is greater", "/list > 2"),
    case("none of an empty array", "/hollow != 1", expected=False),
    case("NULL elements satisfy nothing", "/gap = 7"),
    case("a bracketed name", "[/Name with space] = 'Ada'"),
    case("a line break in a string", "/dotted = 'x\\ny'"),
    case("keywords in lower case", "not /one in (2) and /word like 'dan' or null is not null"),
]


@pytest.mark.row("SW7")
@pytest.mark.parametrize(
    ("text", "expected"),
    [*COMPARISONS, *NULLS, *LOGIC, *ARITHMETIC, *SETS_AND_PATTERNS, *STRUCTURES],
)
def test_the_rules_of_the_filter_language(text: str, *, expected: bool) -> None:
    assert matches(text) is expected


@pytest.mark.row("SW7")
def test_logic_stops_as_soon_as_it_is_decided() -> None:
    document = Document(b"{}")
    assert not compile_filter("0 AND /a = 1")(document)
    assert compile_filter("1 OR /a = 1")(document)
    assert document._values == {}
    assert compile_filter("1 AND NOT /a = 1")(document)
    assert list(document._values) == ["/a"]


@pytest.mark.row("SW9")
@pytest.mark.parametrize("body", [b"", b"8=FIX.4.2\x01", b"\xff\x00", b"[1,2", b"7"])
def test_a_body_without_fields_matches_only_what_needs_none(body: bytes) -> None:
    assert matches("1 = 1", body)
    assert matches("/a IS NULL", body)
    assert not matches("/a = 1 OR /a != 1", body)


@pytest.mark.row("SW7", "AK7")
def test_a_bad_pattern_is_refused_at_its_place() -> None:
    with pytest.raises(FilterError, match="regular expression") as caught:
        compile_filter("/a LIKE '('")
    assert caught.value.position == 8
    assert caught.value.reason == "bad filter"


@pytest.mark.parametrize("pattern", ["(an).*\\\\1", "f(?=a)"])
def test_what_only_a_backtracking_engine_can_match_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(FilterError, match="back-references and look-around are not supported"):
        compile_filter(f"/word LIKE '{pattern}'")


def test_a_pattern_that_is_too_long_is_refused() -> None:
    compile_filter(f"/a LIKE '{'x' * MAX_PATTERN_BYTES}'")
    with pytest.raises(FilterError, match="4097 bytes are more than the 4096 allowed"):
        compile_filter(f"/a LIKE '{'x' * (MAX_PATTERN_BYTES + 1)}'")


@pytest.mark.row("SW7", "AK7")
def test_an_unknown_function_is_named() -> None:
    with pytest.raises(FilterError, match="the unknown function 'LENGTHS'"):
        compile_filter("LENGTHS(/a) > 3")


def test_the_deepest_and_the_longest_filters_that_are_allowed_also_run() -> None:
    for opening, closing in (("(", ")"), ("NOT ", ""), ("-", "")):
        assert matches(opening * MAX_NESTING + "1" + closing * MAX_NESTING)
    terms = MAX_TOKENS // 2
    assert matches("0" + " + 1" * (terms - 1))
    assert matches("1" + " * 9" * (terms - 1))


def test_a_filter_may_be_used_again_and_again() -> None:
    compiled = compile_filter("/id MOD 3 = 1")
    found = [number for number in range(9) if compiled(Document(b'{"id":%d}' % number))]
    assert found == [1, 4, 7]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("/two", 2),
        ("/deep/er/est", "end"),
        ("/list", 1),
        ("/missing", None),
        ("/nothing", None),
        ("/hollow", None),
        ("/one + 2 * /two", 5),
        ("-/half", -0.5),
        ("7", 7),
        ("'x'", "x"),
        ("/two > 1", True),
    ],
)
def test_an_expression_has_a_value(text: str, value: object) -> None:
    assert compile_expression(text)(Document(BODY)) == value


@pytest.mark.parametrize("text", ["", "/a +", "+ 1", "/a /b", "1 +* 2", "(/a", "NOSUCH(/a)"])
def test_a_text_that_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(FilterError):
        compile_expression(text)
