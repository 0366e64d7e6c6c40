from __future__ import annotations

import pytest

from haclient.errors import HAClientError
from haclient_fake_server.engine.filters import FilterError, Path, Step, compile_filter, parse_path
from haclient_fake_server.engine.filters.lexer import Kind, tokenize
from haclient_fake_server.engine.filters.values import Value


def kinds(text: str) -> list[Kind]:
    return [token.kind for token in tokenize(text)]


def test_each_kind_of_token_is_told_apart() -> None:
    tokens = tokenize(" 1 'a' r'b' /c and <= \t")
    assert [token.kind for token in tokens] == [
        Kind.NUMBER,
        Kind.STRING,
        Kind.RAW_STRING,
        Kind.PATH,
        Kind.WORD,
        Kind.SYMBOL,
        Kind.END,
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
    assert end.kind is Kind.END


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
    assert token.kind is Kind.PATH
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
        ("/a / 2", [Kind.PATH, Kind.SYMBOL, Kind.NUMBER]),
        ("/a/2", [Kind.PATH]),
        ("1 / /a", [Kind.NUMBER, Kind.SYMBOL, Kind.PATH]),
        ("/a - 1", [Kind.PATH, Kind.SYMBOL, Kind.NUMBER]),
        ("/a-1", [Kind.PATH]),
        ("/a%2", [Kind.PATH, Kind.SYMBOL, Kind.NUMBER]),
        ("/a!='x'", [Kind.PATH, Kind.SYMBOL, Kind.STRING]),
        ("/a IN(1,2)", [Kind.PATH, Kind.WORD, *[Kind.SYMBOL, Kind.NUMBER] * 2, Kind.SYMBOL]),
        ("road", [Kind.WORD]),
    ],
)
def test_where_a_token_ends(text: str, expected: list[Kind]) -> None:
    assert kinds(text) == [*expected, Kind.END]


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
