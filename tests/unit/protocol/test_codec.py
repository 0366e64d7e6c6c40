from __future__ import annotations

import pytest

from haclient.errors import ProtocolError
from haclient.protocol.codec import (
    MAX_BATCH_RECORDS,
    MessageDecoder,
    encode_frame,
    encode_header,
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
    for name in ("\x7fdata", "\x7fnumber", "\x7fowner", "data", "number", "owner"):
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
