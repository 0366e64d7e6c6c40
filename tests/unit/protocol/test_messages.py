from __future__ import annotations

from datetime import UTC, datetime

import msgpack
import pytest
from typing_extensions import override

from haclient.errors import DecodeError, ProtocolError, UsageError
from haclient.protocol.messages import (
    BY_SPELLING,
    HEADERS,
    WIRE_NAMES,
    Message,
    MessageLease,
    MessageOwner,
)
from haclient_stores.bookmark import Bookmark


def test_no_two_fields_share_a_name() -> None:
    assert len(WIRE_NAMES) == len(set(WIRE_NAMES.values())) == len(HEADERS)
    assert len(BY_SPELLING) == sum(len(header.spellings) for header in HEADERS)


def test_what_we_write_is_among_what_we_read() -> None:
    for header in HEADERS:
        assert BY_SPELLING[header.wire] is header


def test_the_long_and_short_names_of_the_field_table_are_read() -> None:
    pairs = {
        "cmd": "c",
        "cmd_id": "cid",
        "topic": "t",
        "ack_type": "a",
        "o": "opts",
        "f": "filter",
        "bookmark": "bm",
        "batch_size": "bs",
        "expiration": "e",
        "correlation_id": "x",
        "sow_key": "k",
        "seq": "s",
        "msg_len": "l",
        "leaseperiod": "lp",
        "timestamp": "ts",
        "password": "pw",
        "v": "version",
        "message_type": "mt",
    }
    for long, short in pairs.items():
        assert BY_SPELLING[long] is BY_SPELLING[short]


def test_what_the_protocol_writes_without_quotes_is_a_number() -> None:
    numbers = {header.wire for header in HEADERS if header.kind is int}
    assert numbers == {
        *("s", "e", "bs", "top_n", "l", "gseq", "matches", "topic_matches"),
        *("records_returned", "records_inserted", "records_updated", "records_deleted"),
    }


class Log:
    """Remembers what was discarded."""

    def __init__(self) -> None:
        self.discarded: list[int] = []

    def discard(self, number: int, /) -> None:
        self.discarded.append(number)


@pytest.mark.row("CC26")
def test_a_message_has_a_field_for_each_header_with_its_wire_name() -> None:
    names = dict(zip(Message.__struct_fields__, Message.__struct_encode_fields__, strict=True))
    for name in ("data", "number", "owner", "lease"):
        del names[name]
    assert names == WIRE_NAMES


def test_absent_text_is_empty_and_an_absent_number_none() -> None:
    message = Message()
    for header in HEADERS:
        assert getattr(message, header.attribute) == (None if header.kind is int else "")
    assert (message.data, message.number, message.owner, message.lease) == (b"", 0, None, None)


@pytest.mark.parametrize(
    ("kind", "command"), [("p", "publish"), ("publish", "publish"), ("ack", "ack")]
)
def test_both_spellings_of_publish_are_one_command(kind: str, command: str) -> None:
    assert Message(kind=kind).command == command


def test_the_sub_ids_are_those_of_sids_and_else_the_sub_id() -> None:
    assert Message(sids="1, 2,,3", sub_id="9").sub_ids == ["1", "2", "3"]
    assert Message(sub_id="9").sub_ids == ["9"]
    assert Message().sub_ids == []


def test_the_position_is_the_bookmark_as_a_value() -> None:
    assert Message(bookmark="5|7|").position == Bookmark(5, 7)
    assert Message().position is None


def test_a_malformed_bookmark_is_the_servers_fault() -> None:
    with pytest.raises(ProtocolError, match="'soon'"):
        _ = Message(bookmark="soon").position


@pytest.mark.row("CC26")
def test_the_body_can_be_read_as_text_json_and_msgpack() -> None:
    assert Message(data=b"gr\xc3\xbcn").text == "grün"
    assert Message(data=b"\xff!").text == "\ufffd!"
    assert Message(data=b'{"id": [1, null]}').json() == {"id": [1, None]}
    assert Message(data=b"\x81\xa2id\x01").msgpack() == {"id": 1}
    assert Message(data=b"\x81\x01\xa2id").msgpack() == {1: "id"}
    assert Message(data=b"\xd6\xff\0\0\0\1").msgpack() == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert Message(data=b"\xc7\1\5a").msgpack() == msgpack.ExtType(5, b"a")


@pytest.mark.parametrize("data", [b"", b"{", b'"\xff"', b"[" * 100_000])
def test_a_body_that_is_no_json_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(DecodeError, match=r"the body on 'orders' cannot be read as json"):
        Message(topic="orders", data=data).json()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"\x81\xa2id", "truncated"),
        (b"\xc1", "not MessagePack"),
        (b"\xa1\xff", "not UTF-8"),
        (b"\x01\x02", "more follows"),
        (b"\x81\x80\x01", "a value that raised TypeError"),
        (b"\x91" * 100_000, "nested too deeply"),
    ],
)
def test_a_body_that_is_no_msgpack_is_said_to_be_none(data: bytes, reason: str) -> None:
    text = rf"the body on 'orders' cannot be read as msgpack.*{reason}"
    with pytest.raises(DecodeError, match=text):
        Message(topic="orders", data=data).msgpack()


def test_discard_tells_the_owner_and_is_nothing_without_one() -> None:
    log = Log()
    assert isinstance(log, MessageOwner)
    Message(number=4, owner=log).discard()
    Message(number=4).discard()
    assert log.discarded == [4]


@pytest.mark.row("CC27")
def test_a_copy_has_the_same_values_and_is_another_message() -> None:
    log = Log()
    message = Message(kind="p", topic="a", data=b"x", number=3, owner=log)
    other = message.copy()
    assert other == message
    assert other is not message
    other.topic = "b"
    assert message.topic == "a"
    other.discard()
    assert log.discarded == [3]


@pytest.mark.row("AT12")
def test_repr_shows_neither_password_nor_body() -> None:
    message = Message(kind="logon", user_id="joe", data=b"private", number=2)
    message.password = "secret"  # noqa: S105  made up
    shown = "Message(kind='logon', user_id='joe', password='***', number=2, length_of_data=7)"
    assert repr(message) == shown
    assert str(message) == shown
    assert "secret" not in repr(message.__rich_repr__())


def test_fields_that_are_not_set_are_not_shown() -> None:
    assert (
        repr(Message(kind="ack", sequence=0)) == "Message(kind='ack', sequence=0, length_of_data=0)"
    )


@pytest.mark.row("BS20")
def test_a_message_is_discarded_at_the_end_of_its_block() -> None:
    log = Log()
    with Message(number=7, owner=log) as message:
        assert message.number == 7
        assert log.discarded == []
    assert log.discarded == [7]


@pytest.mark.row("BS20")
def test_a_message_whose_block_raises_is_not_discarded() -> None:
    log = Log()
    with pytest.raises(ZeroDivisionError), Message(number=7, owner=log):
        raise ZeroDivisionError
    assert log.discarded == []


class Lease(MessageLease):
    """Notes what happens to its messages."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    @override
    def is_deliverable(self, message: Message, /) -> bool:
        return True

    @override
    def acknowledge(self, message: Message, option: str, /) -> None:
        self.calls.append(option)

    @override
    def extend(self, message: Message, seconds: float, /) -> None:
        self.calls.append(seconds)

    @override
    def deadline(self, message: Message, /) -> float | None:
        return 7.0


@pytest.mark.row("QC3", "QC7", "QC12", "QC13")
def test_a_message_of_a_queue_tells_its_lease() -> None:
    lease = Lease()
    message = Message(lease=lease)
    message.ack()
    message.ack(cancel=True)
    message.ack(expire=True)
    message.extend_lease(5)
    with message:
        pass
    assert lease.calls == ["", "cancel", "expire", 5, ""]
    assert message.lease_deadline == 7.0
    with pytest.raises(UsageError, match="not both"):
        message.ack(cancel=True, expire=True)
    assert "lease" not in repr(message)


def test_a_message_of_no_queue_has_no_lease() -> None:
    message = Message()
    message.ack(cancel=True)
    message.extend_lease(0)
    assert message.lease_deadline is None
