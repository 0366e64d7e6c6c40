from __future__ import annotations

import json
import math
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient_fake_server.engine.filters import (
    Document,
    FilterError,
    compile_expression,
    compile_filter,
)
from haclient_fake_server.engine.filters.functions import FUNCTIONS, MOST_TEXT_BYTES

BODY = Document(
    b"""{"word": "fandango", "Upper": "ABC", "number": 12, "neg": -2.5, "list": [3, null, 1, 2],
    "names": ["x", "y"], "empty": "", "hollow": [], "umlaut": "\xc3\xa4B", "mixed": [1, "a"]}"""
)


@pytest.mark.row("SW7")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("IF(/number > 10, 'many', 'few')", "many"),
        ("IF(/missing, 1, 2)", 2),
        ("COALESCE(/missing, /empty, 7, 8)", 7),
        ("COALESCE(/missing)", None),
        ("CONCAT(/word, '-', /number, /missing, /number = 12)", "fandango-121"),
        ("CONCAT(/missing, /empty)", None),
        ("upper(/word)", "FANDANGO"),
        ("UPPER(/umlaut)", "\u00e4B"),
        ("LOWER(/Upper)", "abc"),
        ("UPPER(/missing)", None),
        ("SUBSTR(/word, 5)", "ango"),
        ("SUBSTR(/word, 1, 3)", "fan"),
        ("SUBSTR(/word, 99)", None),
        ("SUBSTR(/word, 0)", None),
        ("SUBSTR(/word, 2, -1)", None),
        ("SUBSTR(/word, 'x')", None),
        ("REVERSE(/Upper)", "CBA"),
        ("INSTR(/word, 'an')", 2),
        ("INSTR(/word, 'AN')", 0),
        ("INSTR_I(/word, 'AN')", 2),
        ("INSTR(/umlaut, 'B')", 3),
        ("STREQUAL_I(/Upper, 'abc')", 1),
        ("STREQUAL_I(/Upper, 'abd')", 0),
        ("STREQUAL_I(/missing, 'abc')", None),
        ("REPLACE(/word, 'an', '')", "fdgo"),
        ("REPLACE(/word, 'an', 'ee')", "feedeego"),
        ("REPLACE(/word, /missing, 'x')", None),
        ("REGEXP_REPLACE(/word, '[aeiou]', '_')", "f_nd_ng_"),
        ("REGEXP_REPLACE(/word, '^', 'x')", "xfandango"),
        ("REGEXP_MATCH(/word, 'n.*g')", "ndang"),
        ("REGEXP_MATCH(/word, '(?i)NDA')", "nda"),
        ("REGEXP_MATCH(/word, 'q')", None),
        ("ABS(/neg)", 2.5),
        ("ABS(-3) + ABS('4')", 7),
        ("CRC32(/word)", zlib.crc32(b"fandango")),
        ("ARRAY_COUNT(/list)", 3),
        ("ARRAY_COUNT(/hollow)", 0),
        ("ARRAY_COUNT(/number)", 1),
        ("ARRAY_TO_STRING(/list)", "3,1,2"),
        ("ARRAY_TO_STRING(/names, ' - ')", "x - y"),
        ("ARRAY_TO_STRING(/hollow)", None),
        ("ARRAY_MIN(/list)", 1),
        ("ARRAY_MAX(/list)", 3),
        ("ARRAY_SUM(/list)", 6),
        ("ARRAY_AVG(/list)", 2.0),
        ("ARRAY_MAX(/hollow)", None),
        ("ARRAY_AVG(/missing)", None),
        ("TRUE_VALUE() + FALSE_VALUE()", 1),
        ("CHAR_VALUE(65)", "A"),
        ("CHAR_VALUE(256)", None),
        ("SUBSTR(UPPER(CONCAT(/word, 'x')), 5) = 'ANGOX'", 1),
        ("UPPER(/names)", "X"),
    ],
)
def test_a_function_has_its_documented_value(text: str, expected: object) -> None:
    assert compile_expression(text)(BODY) == expected


def test_what_is_no_number_is_not_a_number() -> None:
    for text in ("NAN_VALUE()", "ABS(/word)", "ARRAY_SUM(/mixed)", "ARRAY_MAX(/mixed)"):
        value = compile_expression(text)(BODY)
        assert isinstance(value, float), text
        assert math.isnan(value), text
    assert compile_filter("GEO_DISTANCE(/word, 0, 0, 0) IS NAN")(BODY)


def test_the_distance_of_two_places_is_that_on_a_sphere() -> None:
    assert compile_expression("GEO_DISTANCE(0, 0, 0, 0)")(BODY) == 0
    quarter = compile_expression("GEO_DISTANCE(0, 0, 0, 90)")(BODY)
    half = math.pi * 6_371_008.8
    assert quarter == pytest.approx(half / 2)
    assert compile_expression("GEO_DISTANCE(90, 0, -90, 17)")(BODY) == pytest.approx(half)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("UPPER()", "expected 1 values for UPPER, found 0"),
        ("SUBSTR(/a, 1, 2, 3)", "expected 2 to 3 values for SUBSTR, found 4"),
        ("COALESCE()", "expected 1 or more values for COALESCE, found 0"),
        ("UPPER(/a", "expected '\\)', found the end"),
        ("UPPER(/a,)", "expected a path or a value"),
        ("REGEXP_MATCH(/a, /b)", "expected a pattern in quotes"),
        ("REGEXP_MATCH(/a, '(')", "expected a regular expression"),
        ("UNIX_TIMESTAMP()", "the unknown function 'UNIX_TIMESTAMP'"),
        ("UPPER", "the unknown word 'UPPER'"),
        ("UPPER(" * 60 + "/a" + ")" * 60, "at most 40 levels of nesting"),
    ],
)
def test_a_call_that_cannot_be_is_refused(text: str, why: str) -> None:
    with pytest.raises(FilterError, match=why):
        compile_filter(text)


def test_no_call_makes_a_text_larger_than_the_limit() -> None:
    half = "x" * (MOST_TEXT_BYTES // 2)
    document = Document(json.dumps({"half": half}).encode())
    assert compile_expression("CONCAT(/half, /half)")(document) == 2 * half
    for text in (
        "CONCAT(/half, /half, 'x')",
        "REPLACE(/half, 'x', 'abc')",
        "REGEXP_REPLACE(/half, 'x', 'abc')",
    ):
        assert compile_expression(text)(document) is None, text


def test_calls_in_one_another_make_no_text_that_takes_long() -> None:
    text = "a" * 255
    grown = f"REPLACE('{text}', 'a', '{text}')"
    assert compile_expression(f"REGEXP_REPLACE({grown}, 'a', 'b')")(Document(b"{}")) is None


VALUES = st.none() | st.integers() | st.floats() | st.text() | st.lists(st.integers() | st.text())


@pytest.mark.row("SW7")
@given(name=st.sampled_from(sorted(FUNCTIONS)), values=st.lists(VALUES, min_size=4, max_size=4))
def test_every_function_has_a_value_for_every_message(name: str, values: list[object]) -> None:
    function = FUNCTIONS[name]
    body = json.dumps(dict(zip("abcd", values, strict=True))).encode()
    arguments = [f"/{each}" for each in "abcd"[: 4 if function.most is None else function.most]]
    if function.pattern_at >= 0:
        arguments[function.pattern_at] = "'[a-m]*'"
    value = compile_expression(f"{name}({', '.join(arguments)})")(Document(body))
    assert value is None or isinstance(value, int | float | str)
    assert value != ""
