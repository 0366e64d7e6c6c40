"""What an SDK and a broker must put up with."""

from __future__ import annotations

import gc

import pytest

from haclient.protocol.codec import MessageDecoder
from haclient.protocol.commands import AckType, parse_acks
from haclient.protocol.framing import LENGTH, FrameReader
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient_stores.bookmark import Bookmark


def received(*frames: bytes, expand_sow: bool = True) -> list[Message]:
    data = b"".join(LENGTH.pack(len(frame)) + frame for frame in frames)
    return MessageDecoder(expand_sow=expand_sow).decode(*FrameReader().feed(data))


def test_fields_come_in_any_order() -> None:
    one, other = received(
        b'{"c":"ack","cid":"0","a":"processed","status":"success"}',
        b'{"status":"success","a":"processed","cid":"0","c":"ack"}',
    )
    assert one == other


def test_long_and_short_names_may_be_mixed() -> None:
    (message,) = received(
        b'{"cmd":"publish","t":"orders","bookmark":"5|7|","k":"1","msg_len":2,"leaseperiod":"z"}{}'
    )
    assert (message.command, message.topic, message.position) == (
        "publish",
        "orders",
        Bookmark(5, 7),
    )
    assert (message.sow_key, message.length, message.lease_period) == ("1", 2, "z")
    assert message.data == b"{}"


def test_numbers_may_be_quoted_and_strings_bare() -> None:
    (message,) = received(b'{"c":ack,"cid":12,"s":"7","matches":"3","status":success}')
    assert (message.kind, message.command_id, message.status) == ("ack", "12", "success")
    assert (message.sequence, message.matches) == (7, 3)


def test_unknown_fields_and_commands_of_a_newer_server_do_no_harm() -> None:
    known, unknown = received(
        b'{"c":"p","t":"a","future":"x","flag":true,"count":12}body',
        b'{"c":"redirect","to":"elsewhere"}',
    )
    assert (known.topic, known.data) == ("a", b"body")
    assert unknown.command == "redirect"


def test_the_legacy_fields_are_skipped() -> None:
    (message,) = received(
        b'{"c":"subscribe","t":"a","data_only":true,"send_oof":false,"send_empty":"true",'
        b'"timeout_interval":3,"max_msgs":2,"use_ns":"x"}',
        expand_sow=False,
    )
    assert message == Message(kind="subscribe", topic="a")


@pytest.mark.parametrize("spelling", [b"p", b"publish"])
def test_both_spellings_of_publish_are_read(spelling: bytes) -> None:
    (message,) = received(b'{"c":"%b","t":"xml-topic"}<x/>' % spelling)
    assert (message.command, message.data) == ("publish", b"<x/>")


def test_a_published_sample_with_a_space_after_the_brace_is_read() -> None:
    (message,) = received(b'{ "c":"publish","t":"xml-topic"}<x/>')
    assert (message.topic, message.data) == ("xml-topic", b"<x/>")


def test_a_conflated_ack_has_no_command_id() -> None:
    (ack,) = received(
        b'{"c":"ack","a":"persisted","status":"success","s":2,"bm":"7094790850998930143|2|"}'
    )
    assert (ack.command_id, ack.sequence) == ("", 2)
    assert ack.position == Bookmark(7094790850998930143, 2)


def test_a_message_for_several_subscriptions_names_them_all() -> None:
    (message,) = received(b'{"c":"p","t":"a","sids":"1, 2,3"}x')
    assert message.sub_ids == ["1", "2", "3"]


def test_a_publish_may_come_without_a_length_or_with_a_wrong_one() -> None:
    without, wrong = received(b'{"c":"p","t":"a"}body', b'{"c":"p","t":"a","l":99}body')
    assert without.data == wrong.data == b"body"


def test_heartbeats_are_messages_like_others() -> None:
    (beat,) = received(b'{"c":"heartbeat"}')
    assert (beat.command, beat.data) == ("heartbeat", b"")


def test_a_queue_message_carries_its_lease() -> None:
    (message,) = received(
        b'{"c":"p","t":"WorkToDo","sids":"5","bm":"16619966516483552159|1711058949000000004|",'
        b'"lp":"20240321T221052.535075Z","l":8}{"id":1}'
    )
    assert message.lease_period == "20240321T221052.535075Z"
    assert message.position == Bookmark(16619966516483552159, 1711058949000000004)
    assert message.json() == {"id": 1}


def test_an_out_of_focus_message_has_reason_and_body() -> None:
    (message,) = received(
        b'{"c":"oof","t":"buyer","sids":"1","k":"6387219447538349146","reason":"match","l":23}'
        b'{"id":100,"loc":"LN"}  '
    )
    assert (message.command, message.reason) == ("oof", "match")
    assert message.sow_key == "6387219447538349146"


def test_a_broker_reads_a_logon_with_as_little_as_a_name() -> None:
    (logon,) = received(b'{"c":"logon","cid":"0","client_name":"pubber","a":"processed"}')
    assert (logon.client_name, logon.version, logon.message_type, logon.user_id) == (
        "pubber",
        "",
        "",
        "",
    )


def test_a_broker_reads_requests_as_clients_write_them() -> None:
    subscribe, delete = received(
        b'{"c":"subscribe","t":"orders","opts":"live,,oof, timestamp,","a":" processed,none"}',
        b'{"c":"sow_delete","cid":"2","t":"orders","k":"11,12"}',
        expand_sow=False,
    )
    assert Options.parse(subscribe.options) == Options(live=True, oof=True, timestamp=True)
    assert parse_acks(subscribe.ack_type) == {AckType.PROCESSED}
    assert (delete.sow_key, delete.sow_keys) == ("11,12", "")


def test_names_that_are_no_utf8_come_back_as_the_bytes_they_were() -> None:
    (message,) = received(b'{"c":"p","t":"gr\xfcn"}x')
    assert message.topic.encode("utf-8", "surrogateescape") == b"gr\xfcn"


def test_received_messages_give_the_garbage_collector_nothing_to_do() -> None:
    messages = received(*[b'{"c":"p","t":"a","sids":"1","bm":"5|7|"}body'] * 10)
    assert not any(map(gc.is_tracked, messages))
