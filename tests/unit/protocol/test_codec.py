from __future__ import annotations

import json
from array import array

import pytest

from haclient.errors import ProtocolError, UsageError
from haclient.protocol import codec
from haclient.protocol.codec import (
    MAX_BATCH_RECORDS,
    MAX_FIELDS,
    PUBLISH_TAIL,
    MessageDecoder,
    as_bytes,
    check_payload,
    encode_frame,
    encode_header,
    encode_string,
    parse_header,
    publish_head,
    sow_batch,
)
from haclient.protocol.framing import FrameReader
from haclient.protocol.messages import Message


def decode(data: bytes, *, expand_sow: bool = True) -> list[Message]:
    return MessageDecoder(expand_sow=expand_sow).decode(*FrameReader().feed(data))


def one(header: bytes, body: bytes = b"") -> Message:
    head, brace, rest = header.partition(b"}")
    (message,) = MessageDecoder().decode([head + brace], [rest + body])
    return message


def test_a_chunk_becomes_typed_messages_with_their_bodies() -> None:
    data = encode_frame({"c": "p", "t": "orders", "sids": "1", "bm": "5|7|"}, b'{"id":1}')
    data += encode_frame({"c": "ack", "a": "persisted", "status": "success", "s": 7})
    assert decode(data) == [
        Message(kind="p", topic="orders", sids="1", bookmark="5|7|", data=b'{"id":1}'),
        Message(kind="ack", ack_type="persisted", status="success", sequence=7),
    ]


def test_no_frames_give_no_messages() -> None:
    assert MessageDecoder().decode([], []) == []


def test_a_published_logon_ack_is_read() -> None:
    ack = one(
        b'{"c":"ack","cid":"0","s":0,"bm":"7094790850998930143|0|","client_name":"pubber",'
        b'"a":"processed","status":"success","reason":"authentication disabled",'
        b'"version":"5.2.1.17.717892.e742467"}'
    )
    assert (ack.command_id, ack.sequence, ack.client_name) == ("0", 0, "pubber")
    assert (ack.reason, ack.version) == ("authentication disabled", "5.2.1.17.717892.e742467")


def test_one_header_that_needs_patience_does_not_disturb_its_neighbours() -> None:
    heads = [b'{"c":"p","t":"a"}', b'{"cmd":"publish","topic":"b"}', b'{"c":"p","t":"c"}']
    messages = MessageDecoder().decode(heads, [b"1", b"2", b"3"])
    assert [(m.command, m.topic, m.data) for m in messages] == [
        ("publish", "a", b"1"),
        ("publish", "b", b"2"),
        ("publish", "c", b"3"),
    ]


def test_a_brace_inside_a_string_does_not_end_the_header() -> None:
    data = encode_frame({"c": "p", "t": "a}b}c", "s": 3}, b"{body}")
    data += encode_frame({"c": "p", "t": "plain"}, b"x")
    first, second = decode(data)
    assert (first.topic, first.sequence, first.data) == ("a}b}c", 3, b"{body}")
    assert (second.topic, second.data) == ("plain", b"x")


def test_two_half_headers_are_not_taken_for_a_whole_one() -> None:
    decoder = MessageDecoder()
    with pytest.raises(ProtocolError):
        decoder.decode([b'{"t":"a}', b'","c":"p"}'], [b"", b""])
    with pytest.raises(ProtocolError):
        decoder.decode([b'{"t":}', b'"a"}'], [b"", b""])


@pytest.mark.row("AT14")
@pytest.mark.parametrize(
    "header",
    [b'{"c"}', b'{"c":{}', b'{"c":[1,2]}', b'{"c":"p}', b'{"c":"p" "t":"x"}', b'{:"p"}', b"\x00}"],
)
def test_a_malformed_header_is_a_protocol_error(header: bytes) -> None:
    with pytest.raises(ProtocolError, match="malformed at its byte"):
        one(header)


@pytest.mark.row("AT12")
def test_the_error_of_a_malformed_header_does_not_tell_what_it_held() -> None:
    with pytest.raises(ProtocolError) as caught:
        one(b'{"c":"logon","pw":"secret"!}')
    assert "secret" not in str(caught.value)


def test_no_peer_can_set_what_is_not_of_the_wire() -> None:
    for name in ("\x7fdata", "\x7fnumber", "\x7fowner", "\x7flease", "data", "number", "owner"):
        for value in ("1", '"1"', "0", "null", '""', '"AAAA"'):
            message = one(f'{{"c":"p","{name}":{value}}}'.encode(), b"body")
            assert message == Message(kind="p", data=b"body")


@pytest.mark.parametrize("value", [b"12", b'"12"', b"012", b'"012"', b"12.0", b"1.2e1"])
def test_numbers_are_read_quoted_or_not(value: bytes) -> None:
    assert one(b'{"s":%b}' % value).sequence == 12


@pytest.mark.parametrize(
    "value",
    [
        *(b"-1", b'"-1"', b"12.5", b"x", b'""', b"true", b"null", b'"\xc2\xb2"'),
        *(b"18446744073709551616", b"9" * 5000),
    ],
)
def test_what_is_no_unsigned_number_is_absent(value: bytes) -> None:
    message = one(b'{"c":"p","s":%b}' % value)
    assert (message.kind, message.sequence) == ("p", None)


def test_the_largest_sequence_of_64_bits_is_read() -> None:
    assert one(b'{"s":18446744073709551615}').sequence == 2**64 - 1


SOW = {"c": "sow", "query_id": "2", "t": "orders"}


def test_a_sow_frame_becomes_one_message_for_each_record() -> None:
    frame = sow_batch(SOW, [({"k": "11"}, b'{"id":1}'), ({"k": "12"}, b'{"id":22}')])
    first, second = decode(frame)
    assert (first.kind, first.query_id, first.topic, first.batch_size) == ("sow", "2", "orders", 2)
    assert (first.sow_key, first.length, first.data) == ("11", 8, b'{"id":1}')
    assert (second.sow_key, second.length, second.data) == ("12", 9, b'{"id":22}')


@pytest.mark.parametrize("head", [b'{"k":"11","l":8}', b' {"k":"11", "l":"8", "new":1}'])
def test_a_sow_frame_without_a_batch_size_is_a_batch_of_records_too(head: bytes) -> None:
    first, second = decode(encode_frame(SOW, head + b'{"id":1}{"k":"12","l":9}{"id":22}'))
    assert (first.batch_size, first.sow_key, first.length) == (None, "11", 8)
    assert (first.data, second.sow_key, second.data) == (b'{"id":1}', "12", b'{"id":22}')


@pytest.mark.parametrize(
    "body", [b'{"id":1}', b'{"l":9}data', b'{"l":"x"}', b'{"k":"1"}data', b"{", b"plain", b"[1]"]
)
def test_a_sow_body_without_a_record_header_that_fits_is_data(body: bytes) -> None:
    assert [m.data for m in decode(encode_frame(SOW, body))] == [body]


@pytest.mark.row("AT14")
def test_a_batch_that_breaks_off_is_a_protocol_error_without_a_batch_size_too() -> None:
    with pytest.raises(ProtocolError, match="record 2"):
        decode(encode_frame(SOW, b'{"l":1}a{"l":9}b'))


def test_the_fields_of_one_record_do_not_leak_into_the_next() -> None:
    frame = sow_batch(SOW, [({"k": "1", "x": "YQ==", "ts": "t"}, b"a"), ({}, b"b")])
    first, second = decode(frame)
    assert (first.sow_key, first.correlation_id, first.timestamp) == ("1", "YQ==", "t")
    assert (second.sow_key, second.correlation_id, second.timestamp) == ("", "", "")


def test_a_record_header_may_use_long_names_and_hold_braces_and_other_fields() -> None:
    frame = sow_batch(SOW, [({"sow_key": "a}b", "c": "x", "bs": 9, "user_id": "joe"}, b"{}")])
    (message,) = decode(frame)
    assert (message.sow_key, message.user_id, message.data) == ("a}b", "joe", b"{}")
    assert (message.kind, message.batch_size) == ("sow", 1)


def test_records_are_expanded_among_other_messages_in_order() -> None:
    data = encode_frame({"c": "group_begin"}) + sow_batch(SOW, [({}, b"1"), ({}, b"2")])
    data += encode_frame({"c": "group_end"})
    assert [m.kind for m in decode(data)] == ["group_begin", "sow", "sow", "group_end"]
    odd = encode_frame({"cmd": "group_end"})
    assert [m.kind for m in decode(data + odd)] == [
        "group_begin",
        "sow",
        "sow",
        "group_end",
        "group_end",
    ]


def test_an_empty_batch_gives_no_message() -> None:
    assert decode(sow_batch(SOW, [])) == []
    assert decode(encode_frame(SOW)) == []


def test_a_sow_body_that_is_no_batch_is_delivered_as_it_is() -> None:
    assert [m.data for m in decode(encode_frame(SOW, b'{"id":1}'))] == [b'{"id":1}']
    assert [m.data for m in decode(encode_frame({**SOW, "bs": 1}, b"plain"))] == [b"plain"]


def test_a_brokers_decoder_leaves_sow_requests_alone() -> None:
    request = encode_frame({**SOW, "bs": 10})
    (message,) = decode(request, expand_sow=False)
    assert (message.kind, message.batch_size) == ("sow", 10)
    (message,) = decode(encode_frame({"cmd": "sow"}), expand_sow=False)
    assert message.kind == "sow"


@pytest.mark.row("AT14")
@pytest.mark.parametrize(
    "body",
    [
        *(b'{"k":"1"}data', b'{"l":5}data', b'{"l":"x"}data', b'{"l":4}data{', b'{"l":4}data}'),
        *(b"{", b'{"l":1}a\n'),
    ],
)
def test_a_malformed_batch_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(encode_frame({**SOW, "bs": 1}, body))


@pytest.mark.row("AT14")
def test_a_batch_has_a_largest_number_of_records() -> None:
    record = encode_header({"l": 0})
    whole = encode_frame({**SOW, "bs": 1}, record * MAX_BATCH_RECORDS)
    assert len(decode(whole)) == MAX_BATCH_RECORDS
    with pytest.raises(ProtocolError, match="more than 10000 records"):
        decode(encode_frame({**SOW, "bs": 1}, record * (MAX_BATCH_RECORDS + 1)))


def test_the_published_frames_are_written_byte_by_byte() -> None:
    assert encode_frame({"c": "p", "t": "test"}, b"Data=0\x01") == bytes.fromhex(
        "0000001b 7b2263223a2270222c2274223a2274657374227d 446174613d3001".replace(" ", "")
    )
    beat = encode_frame({"c": "heartbeat", "opts": "beat"})
    assert beat == b'\0\0\0\x1f{"c":"heartbeat","opts":"beat"}'
    logon = {"c": "logon", "cid": "0", "client_name": "pubber", "mt": "json", "a": "processed"}
    frame = encode_frame({**logon, "version": "1.0:py"})
    assert len(frame) == 97
    assert frame[:12] == bytes.fromhex("0000005d7b2263223a226c6f")
    batch = sow_batch(
        {"c": "sow", "query_id": "2", "t": "orders"},
        [({"k": "11"}, b'{"id":1}'), ({"k": "12"}, b'{"id":22}')],
    )
    assert batch == (
        b'\0\0\0\x5f{"c":"sow","query_id":"2","t":"orders","bs":2}'
        b'{"k":"11","l":8}{"id":1}{"k":"12","l":9}{"id":22}'
    )


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain", b'"plain"'),
        ("", b'""'),
        ('a"b\\c', rb'"a\"b\\c"'),
        ("\b\t\n\f\r", rb'"\b\t\n\f\r"'),
        ("\x00\x01\x1f\x7f", b'"\\u0000\\u0001\\u001f\x7f"'),
        ("gr\u00fcn/\U0001f600", b'"gr\xc3\xbcn/\xf0\x9f\x98\x80"'),
        ("\udcff", b'"\xff"'),
    ],
)
def test_only_what_must_be_is_escaped(text: str, written: bytes) -> None:
    assert encode_string(text) == written
    if text.isprintable() and "\udcff" not in text:
        assert json.loads(written) == text


@pytest.mark.row("AT12")
def test_text_that_cannot_be_written_is_not_shown_since_it_may_be_a_password() -> None:
    with pytest.raises(UsageError, match="its character 2") as caught:
        encode_string("se\ud800cret")
    assert "cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_half_a_surrogate_pair_cannot_be_written() -> None:
    with pytest.raises(UsageError, match="surrogate"):
        encode_string("\ud800")


def test_numbers_are_written_without_quotes() -> None:
    assert encode_header({"s": 2**64 - 1, "cid": "7"}) == b'{"s":18446744073709551615,"cid":"7"}'
    assert encode_frame({}) == b"\0\0\0\x02{}"


@pytest.mark.row("PS4")
def test_the_head_of_a_stored_publish_ends_where_the_sequence_begins() -> None:
    assert publish_head("orders") == b'{"c":"p","t":"orders","a":"persisted","s":'
    assert publish_head('a"}', command="delta_publish", expiration=0, correlation_id="Zm8=") == (
        rb'{"c":"delta_publish","t":"a\"}","x":"Zm8=","e":0,"a":"persisted","s":'
    )
    assert publish_head("o", sow_key="k") + b"7" + PUBLISH_TAIL == (
        b'{"c":"p","t":"o","k":"k","a":"persisted","s":7}'
    )


def test_a_publish_needs_a_topic_and_a_clean_correlation_id() -> None:
    with pytest.raises(UsageError, match="topic"):
        publish_head("")
    with pytest.raises(UsageError, match="'a b'"):
        publish_head("t", correlation_id="a b")


def test_a_frame_that_no_peer_accepts_is_refused() -> None:
    with pytest.raises(UsageError, match=f"is too large: no peer accepts more than {256 * 2**20}"):
        encode_frame({"c": "p"}, bytes(256 * 2**20))


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"topic": b"x"}, "topic has to be a str, found bytes b'x': decode it first"),
        ({"topic": 5}, "topic has to be a str, found int 5: give text"),
        ({"topic": "t", "sow_key": 5}, "sow_key has to be a str"),
        ({"topic": "t", "correlation_id": b"YQ=="}, "correlation_id has to be a str"),
        ({"topic": "t", "expiration": "5"}, "expiration is a whole number of at least 0, not '5'"),
        ({"topic": "t", "expiration": -1}, "expiration is a whole number of at least 0, not -1"),
    ],
)
def test_a_publish_with_a_value_of_the_wrong_type_is_refused_in_one_line(
    arguments: dict[str, object], wanted: str
) -> None:
    with pytest.raises(UsageError, match=wanted):
        publish_head(**arguments)  # type: ignore[arg-type]  # what is tested


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


@pytest.mark.parametrize("data", [b"ab", bytearray(b"ab"), memoryview(b"ab"), "ab"], ids=type)
def test_bytes_and_text_can_be_published(data: bytes | str) -> None:
    check_payload(data)
    assert as_bytes(data) == b"ab"


@pytest.mark.parametrize("data", [{"a": 1}, 5, None, ["a"], [1, 2]])
def test_anything_else_is_refused(data: object) -> None:
    wanted = f"data is bytes, bytearray, memoryview or str, not {type(data).__name__}"
    with pytest.raises(UsageError, match=wanted):
        check_payload(data)
    with pytest.raises(UsageError, match=wanted):
        as_bytes(data)  # type: ignore[arg-type]  # what is tested


def test_any_buffer_will_do() -> None:
    check_payload(array("B", b"ab"))


def test_text_that_is_no_unicode_is_refused_with_its_place() -> None:
    for refuse in (check_payload, as_bytes):
        with pytest.raises(UsageError, match="half of a surrogate pair at 1"):
            refuse("a\udc80")


@pytest.mark.parametrize("body", [b"", b"}"])
def test_a_header_with_a_flood_of_unknown_fields_is_refused(body: bytes) -> None:
    fields = [f"x{number}" for number in range(MAX_FIELDS)]
    accepted, refused = (json.dumps(dict.fromkeys(names, 1)) for names in (fields, [*fields, "y"]))
    assert one(accepted.encode()).kind == ""
    with pytest.raises(ProtocolError, match=f"more than {MAX_FIELDS} fields"):
        one(refused.encode(), body)


def test_the_end_of_a_header_is_not_searched_in_a_whole_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "MAX_SEARCHED_BYTES", 100)
    assert one(b'{"c":"p","x":"}' + b"}" * 90 + b'"}', b"body").data == b"body"
    with pytest.raises(ProtocolError):
        one(b'{"c":"p","x":"}' + b"}" * 101 + b'"}', b"body")
