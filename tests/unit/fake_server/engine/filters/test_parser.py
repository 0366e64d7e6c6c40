from __future__ import annotations

import pytest

from haclient.errors import HAClientError
from haclient_fake_server.engine.filters import FilterError, Path, Step, compile_filter, parse_path
from haclient_fake_server.engine.filters import parser as n
from haclient_fake_server.engine.filters.parser import (
    MAX_CALLS,
    MAX_FILTER_CHARACTERS,
    MAX_NESTING,
    MAX_PATTERNS,
    MAX_TOKENS,
    TokenKind,
    parse_filter,
    tokenize,
)
from haclient_fake_server.engine.filters.values import Value

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
        ("/a = trim(/b)", 5, "a path or a value", "the unknown function 'trim'"),
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


def test_the_tokens_have_a_limit() -> None:
    chain = "/a+" * (MAX_TOKENS // 2)
    parse_filter(f"{chain[:-3]}/a")
    with pytest.raises(FilterError, match=f"at most {MAX_TOKENS} paths.* found more"):
        parse_filter(f"{chain}/a")


def test_the_length_has_a_limit() -> None:
    parse_filter("1".ljust(MAX_FILTER_CHARACTERS))
    with pytest.raises(FilterError, match="expected at most 65536 characters, found 65537"):
        parse_filter("1".ljust(MAX_FILTER_CHARACTERS + 1))


@pytest.mark.parametrize(
    ("text", "refused", "expected"),
    [
        ("ABS(/a) + ABS(/a) + UPPER(/b)", "UPPER", "at most 2 function calls"),
        ("UPPER(UPPER(UPPER(/a))) = 'X'", "UPPER", "at most 2 function calls"),
        ("/a LIKE 'x' OR /a LIKE 'y' OR /a LIKE r'z' OR /a LIKE 'w'", "'w'", "at most 2 patterns"),
        (
            "/a LIKE 'x' OR /a LIKE 'y' OR REGEXP_MATCH(/a, 'z')",
            "REGEXP_MATCH",
            "at most 2 patterns",
        ),
    ],
)
def test_calls_and_patterns_have_a_limit_in_number(text: str, refused: str, expected: str) -> None:
    parse_filter(text)
    parse_filter(text, max_calls=3, max_patterns=3)
    with pytest.raises(FilterError, match=expected) as caught:
        parse_filter(text, max_calls=2, max_patterns=2)
    assert caught.value.position == text.rindex(refused)


def test_a_filter_has_the_limits_of_the_broker() -> None:
    parse_filter(" OR ".join(["/a LIKE 'x'"] * MAX_PATTERNS))
    with pytest.raises(FilterError, match="at most 100 patterns, found one more"):
        compile_filter(" OR ".join(["/a LIKE 'x'"] * (MAX_PATTERNS + 1)))
    parse_filter(" + ".join(["ABS(/a)"] * MAX_CALLS))
    with pytest.raises(FilterError, match="at most 200 function calls, found one more"):
        compile_filter(" + ".join(["ABS(/a)"] * (MAX_CALLS + 1)))


# -- tokens --------------------------------------------------------------------------------------


def kinds(text: str) -> list[TokenKind]:
    return [token.kind for token in tokenize(text)]


def test_each_kind_of_token_is_told_apart() -> None:
    tokens = tokenize(" 1 'a' r'b' /c and <= \t")
    assert [token.kind for token in tokens] == [
        TokenKind.NUMBER,
        TokenKind.STRING,
        TokenKind.RAW_STRING,
        TokenKind.PATH,
        TokenKind.WORD,
        TokenKind.SYMBOL,
        TokenKind.END,
    ]
    assert [token.position for token in tokens] == [1, 3, 7, 12, 15, 19, 21]
    assert [token.word for token in tokens] == ["", "", "", "", "AND", "<=", ""]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", 12),
        ("1.5", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("2e3", 2000.0),
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", float(2**64)),
    ],
)
def test_numbers_are_integers_of_64_bits_or_floats(text: str, expected: Value) -> None:
    (number, _) = tokenize(text)
    assert number.value == expected
    assert type(number.value) is type(expected)


@pytest.mark.row("SW7")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("'abc'", "abc", id="single quotes"),
        pytest.param('"abc"', "abc", id="double quotes"),
        pytest.param("""'say "x"'""", 'say "x"', id="the other quote is ordinary"),
        pytest.param(r"'a\'b'", "a'b", id="an escaped quote"),
        pytest.param(r"'\a\b\t\n\f\r'", "\a\b\t\n\f\r", id="named escapes"),
        pytest.param(r"'\x41\x7a'", "Az", id="hexadecimal"),
        pytest.param(r"'\101\132'", "AZ", id="octal"),
        pytest.param(r"'\777'", "\udcff", id="octal over a byte keeps its low bits"),
        pytest.param(r"'\xc3\xa9'", "é", id="two bytes of one character"),
        pytest.param(r"'\xff'", "\udcff", id="a byte that is no text"),
        pytest.param(r"'\q\.\\'", "q.\\", id="any other escaped character is itself"),
        pytest.param(r"'\x4'", "x4", id="half a hexadecimal is no escape"),
        pytest.param(r"'\12'", "12", id="two octal digits are no escape"),
        pytest.param("'\\é'", "é", id="an escaped character of two bytes"),
        pytest.param("'a\nb'", "a\nb", id="a line break"),
        pytest.param(r"r'a\n\'", "a\\n\\", id="raw: the backslash is ordinary"),
        pytest.param(r'R"\d+"', "\\d+", id="raw with double quotes and capital letter"),
        pytest.param("''", "", id="empty"),
        pytest.param("'\\\ud800'", "\udced\udca0\udc80", id="an escaped lone surrogate"),
    ],
)
def test_strings_and_their_escapes(text: str, expected: str) -> None:
    (string, end) = tokenize(text)
    assert string.value == expected
    assert end.kind is TokenKind.END


@pytest.mark.row("SW7")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("/a", (Step("a"),), id="plain"),
        pytest.param("/a/b", (Step("a"), Step("b")), id="nested"),
        pytest.param("/a/@b", (Step("a"), Step("@b")), id="attribute"),
        pytest.param("/a[0]/b[12]", (Step("a", 0), Step("b", 12)), id="subscripts"),
        pytest.param("/trade-id.x", (Step("trade-id.x"),), id="dash and dot"),
        pytest.param("/55", (Step("55"),), id="a number as name"),
        pytest.param("/größe", (Step("größe"),), id="letters of all kinds"),
        pytest.param("[/Name with space]", (Step("Name with space"),), id="bracketed"),
        pytest.param("[/a b/c=d[1]]", (Step("a b"), Step("c=d", 1)), id="bracketed with the rest"),
    ],
)
def test_paths_are_steps(text: str, expected: tuple[Step, ...]) -> None:
    (token, _) = tokenize(text)
    assert token.kind is TokenKind.PATH
    assert parse_path(token.text).steps == expected


def test_both_forms_of_a_path_are_the_same_path() -> None:
    assert parse_path("[/a/b[2]]") == parse_path("/a/b[2]")
    assert parse_path("/a[02]") == Path("/a[2]", (Step("a", 2),))


@pytest.mark.parametrize(
    "text", ["", "a", "/", "//a", "/a/", "/a[x]", "/a[1][2]", "[/]", "[]", "/a[9999999999]", "/a[]"]
)
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(FilterError, match="an absolute path such as /a/b"):
        parse_path(text)


@pytest.mark.row("SW7")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a / 2", [TokenKind.PATH, TokenKind.SYMBOL, TokenKind.NUMBER]),
        ("/a/2", [TokenKind.PATH]),
        ("1 / /a", [TokenKind.NUMBER, TokenKind.SYMBOL, TokenKind.PATH]),
        ("/a - 1", [TokenKind.PATH, TokenKind.SYMBOL, TokenKind.NUMBER]),
        ("/a-1", [TokenKind.PATH]),
        ("/a%2", [TokenKind.PATH, TokenKind.SYMBOL, TokenKind.NUMBER]),
        ("/a!='x'", [TokenKind.PATH, TokenKind.SYMBOL, TokenKind.STRING]),
        (
            "/a IN(1,2)",
            [
                TokenKind.PATH,
                TokenKind.WORD,
                *[TokenKind.SYMBOL, TokenKind.NUMBER] * 2,
                TokenKind.SYMBOL,
            ],
        ),
        ("road", [TokenKind.WORD]),
    ],
)
def test_where_a_token_ends(text: str, expected: list[TokenKind]) -> None:
    assert kinds(text) == [*expected, TokenKind.END]


@pytest.mark.row("SW7", "AK7")
@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        pytest.param("/a = 'b", 5, "a closing ' for the string", id="no closing quote"),
        pytest.param("/a = \"b'", 5, 'a closing " for the string', id="another closing quote"),
        pytest.param("1 /= 2", 2, "a division with a space on both sides", id="a slash alone"),
        pytest.param("(1)/ 2", 3, "a division with a space on both sides", id="space on one side"),
        pytest.param("/a + [b]", 5, "a path in brackets", id="bracket without slash"),
        pytest.param("/a = #", 5, "a path, a value or an operator", id="no token at all"),
        pytest.param("/a !", 3, "a path, a value or an operator", id="half an operator"),
    ],
)
def test_unreadable_text_is_refused_with_its_place(text: str, position: int, expected: str) -> None:
    with pytest.raises(FilterError) as caught:
        tokenize(text)
    assert caught.value.position == position
    assert expected in caught.value.expected


def test_errors_show_only_the_beginning_of_long_text() -> None:
    with pytest.raises(FilterError) as caught:
        tokenize("'" + "x" * 100)
    assert len(caught.value.found) < 50
    assert caught.value.found.endswith("...'") or caught.value.found.endswith('..."')


@pytest.mark.row("AK7")
def test_an_error_says_where_what_was_wanted_and_what_was_found() -> None:
    error = FilterError(7, expected="a value", found="the end")
    assert str(error) == "bad filter at character 7: expected a value, found the end"
    assert (error.reason, error.position) == ("bad filter", 7)
    assert (error.expected, error.found) == ("a value", "the end")
    assert isinstance(error, HAClientError)


def test_the_position_is_that_of_the_text() -> None:
    with pytest.raises(FilterError) as caught:
        compile_filter("/a = 1 AND ?")
    assert caught.value.position == len("/a = 1 AND ")
