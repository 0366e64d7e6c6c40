from __future__ import annotations

import pytest

from haclient.errors import ProtocolError
from haclient.protocol.lenient import parse_header


def fields(header: bytes) -> dict[str, str | int | None]:
    return parse_header(header)[0]


@pytest.mark.parametrize(
    "header",
    [
        b'{"c":"p","t":"a","s":3}',
        b'{"cmd":"p","topic":"a","seq":3}',
        b' \r\n\t{ "c" : "p" ,\n"t":\t"a","s" :3 }',
        b'{"s":"3","t":"a","c":"p"}',
        b'{"c":p,"t":a,"s":3}',
        b"{c:p,t:a ,s: 3 }",
        b'"c":"p","t":"a","s":3}',
        b'{,"c":"p",,"t":"a","s":3,}',
        b'{"c":"x","t":"y","s":9,"s":3,"cmd":"p","topic":"a"}',
        b'{"zzz":"?","c":"p","t":"a","x1":12,"n":null,"s":3,"data":"no"}',
        b'{"\\u0063":"\\u0070","t":"\\u0061","s":"\\u0033"}',
    ],
)
def test_all_ways_to_write_a_header_mean_the_same(header: bytes) -> None:
    assert fields(header) == {"kind": "p", "topic": "a", "sequence": 3}


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (rb'"a\"b\\c\/d"', 'a"b\\c/d'),
        (rb'"\b\f\n\r\t"', "\b\f\n\r\t"),
        (rb'"\q\u12"', "qu12"),
        (rb'"\u00e9\ud83d\ude00"', "\u00e9\U0001f600"),
        (rb'"\ud83d-\ude00\udc80"', "\ufffd-\ufffd\ufffd"),
        (rb'"\ud83d\u0041"', "\ufffdA"),
        (b'"a\nb\x00"', "a\nb\x00"),
        (b'"\xff\xc3\xbc"', "\udcff\u00fc"),
        (b'"\xed\xa0\x80"', "\udced\udca0\udc80"),
        (b'"}{,:"', "}{,:"),
        (b'"\\\n"', "\n"),
        (b"bare word", "bare word"),
        (b"null", ""),
        (b'"null"', "null"),
        (b"true", "true"),
        (b"", ""),
        (b"12", "12"),
        (b":", ":"),
    ],
)
def test_strings_are_read_with_every_escape_and_every_byte(written: bytes, text: str) -> None:
    assert fields(b'{"t":%b}' % written) == {"topic": text}


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (b"0", 0),
        (b'"000"', 0),
        (b"007", 7),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", None),
        (b'"18446744073709551616"', None),
        (b"1" * 10_000, None),
        (b"0" * 10_000 + b"1", 1),
        (b"-1", None),
        (b"+1", None),
        (b" 1 2", None),
        (b"abc", None),
        (b"12.0", 12),
        (b"1e3", 1000),
        (b"-0", 0),
        (b"1.5", None),
        (b"1e400", None),
        (b"", None),
        (b"null", None),
        (b'"null"', None),
        (b"true", None),
        ("\u0661".encode(), None),
    ],
)
def test_numbers_are_read_or_absent(written: bytes, number: int | None) -> None:
    assert fields(b'{"s":%b}' % written) == {"sequence": number}


def test_the_end_of_the_header_is_told() -> None:
    assert parse_header(b'{"t":"a}"}rest') == ({"topic": "a}"}, 10)
    assert parse_header(b'xx{"t":"a"}{', 2) == ({"topic": "a"}, 11)
    assert parse_header(b"{}") == ({}, 2)
    assert parse_header(b"}") == ({}, 1)


@pytest.mark.row("AT14")
@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"x",
        b'{"c"',
        b'{"c":',
        b'{"c":"p"',
        b'{"c":"p}',
        b'{"c":p',
        b"{c}",
        b"{:p}",
        b'{"c":{"d":1}}',
        b'{"c":[1]}',
        b'{"c":[1,2]}',
        b'{"c":"a""b"}',
        b'{"c":"a" x}',
        b"{{}",
        b'{"c":"a\\',
    ],
)
def test_what_is_no_header_is_a_protocol_error(header: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"malformed at its byte \d+"):
        parse_header(header)


HOSTILE = [b"\\", b"\\u", b'"', b",", b" ", b"a:", b"{", b"a", b'":', b'"a":"b" ']


@pytest.mark.row("AT14")
@pytest.mark.parametrize("unit", HOSTILE)
def test_time_is_linear_in_the_length_of_hostile_input(unit: bytes) -> None:
    for start in (b'{"t":"', b"{", b"{t:", b'{"t":"x"'):
        with pytest.raises(ProtocolError):  # a quadratic reader runs into the test's time limit
            parse_header(start + unit * 500_000)
