from __future__ import annotations

import struct
import sys
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from haclient.errors import ProtocolError, UsageError
from haclient.protocol.framing import CAPACITY_BYTES, MAX_FRAME_BYTES, FrameReader

if TYPE_CHECKING:
    from _typeshed import TraceFunction


def frame(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def test_a_frame_is_split_after_its_first_brace() -> None:
    heads, bodies = FrameReader().feed(frame(b'{"c":"p","t":"test"}Data={0}\x01'))
    assert heads == [b'{"c":"p","t":"test"}']
    assert bodies == [b"Data={0}\x01"]


def test_several_frames_of_one_chunk_come_in_order() -> None:
    reader = FrameReader()
    heads, bodies = reader.feed(b"".join(frame(b"{%d}%d" % (n, n)) for n in range(5)))
    assert heads == [b"{%d}" % n for n in range(5)]
    assert bodies == [b"%d" % n for n in range(5)]
    assert reader.pending == 0


def test_a_frame_may_arrive_byte_by_byte() -> None:
    reader = FrameReader()
    data = frame(b"{}body")
    for position in range(len(data) - 1):
        assert reader.feed(data[position : position + 1]) == ([], [])
        assert reader.pending == position + 1
    assert reader.feed(data[-1:]) == ([b"{}"], [b"body"])
    assert reader.pending == 0


def test_an_unfinished_frame_waits_behind_whole_ones() -> None:
    reader = FrameReader()
    assert reader.feed(frame(b"{}") + frame(b"{}rest")[:7]) == ([b"{}"], [b""])
    assert reader.pending == 7
    assert reader.feed(b"est") == ([b"{}"], [b"rest"])


def test_zero_length_frames_are_skipped() -> None:
    assert FrameReader().feed(frame(b"") + frame(b"{}") + frame(b"")) == ([b"{}"], [b""])


def test_many_zero_length_frames_take_one_step() -> None:
    reader, lines = FrameReader(), 0

    def count_lines(frame: FrameType, event: str, argument: object) -> TraceFunction:
        del frame, event, argument
        nonlocal lines
        lines += 1
        return count_lines

    before = sys.gettrace()
    sys.settrace(count_lines)
    try:
        found = reader.feed(bytes(200_000) + frame(b"{}") + bytes(7))
    finally:
        sys.settrace(before)
    assert found == ([b"{}"], [b""])
    assert reader.pending == 3
    assert lines < 1000


@pytest.mark.row("AT14")
def test_a_frame_without_a_header_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="no header"):
        FrameReader().feed(frame(b'{"c":"p"'))


@pytest.mark.row("AT14")
def test_a_frame_above_256_mib_is_refused_before_it_is_read() -> None:
    reader = FrameReader()
    with pytest.raises(ProtocolError, match=str(MAX_FRAME_BYTES)):
        reader.feed(struct.pack(">I", MAX_FRAME_BYTES + 1))
    assert len(reader.writable()) <= CAPACITY_BYTES


@pytest.mark.row("AT14")
def test_a_frame_above_the_limit_is_refused_behind_a_whole_one_too() -> None:
    with pytest.raises(ProtocolError, match="limit is 8"):
        FrameReader(max_frame_bytes=8).feed(frame(b"{}") + struct.pack(">I", 9))


@pytest.mark.row("AT14")
def test_a_frame_of_exactly_the_limit_is_accepted_and_one_byte_more_is_not() -> None:
    assert FrameReader(max_frame_bytes=8).feed(frame(b"{}123456")) == ([b"{}"], [b"123456"])
    with pytest.raises(ProtocolError):
        FrameReader(max_frame_bytes=8).feed(frame(b"{}1234567"))


def test_an_announced_length_takes_no_memory() -> None:
    reader = FrameReader(capacity=16)
    reader.feed(struct.pack(">I", MAX_FRAME_BYTES) + b"x" * 20)
    assert reader.pending == 24
    assert len(reader._view) == 32


def test_the_buffer_grows_for_a_large_frame_and_shrinks_after_it() -> None:
    reader = FrameReader(capacity=16)
    body = bytes(range(256)) * 8
    assert reader.feed(frame(b"{}" + body) + b"\0\0") == ([b"{}"], [body])
    assert len(reader._view) == 16
    assert reader.pending == 2


def test_a_small_buffer_doubles_while_reads_fill_it() -> None:
    reader = FrameReader(capacity=64, initial=16)
    assert reader.feed(frame(b"{}x")) == ([b"{}"], [b"x"])
    assert len(reader._view) == 16
    sizes: list[int] = []
    data = frame(b"{}" + b"x" * 200)
    while data:
        view = reader.writable()
        view[:], data = data[: len(view)].ljust(len(view)), data[len(view) :]
        sizes.append(len(reader._view))
        reader.received(len(view))
        reader.split()
        if len(reader._view) == 64:
            break
    assert sizes == [16, 32]


def test_the_buffer_stays_large_while_what_is_left_needs_it() -> None:
    reader = FrameReader(capacity=16)
    data = frame(b"{}" + b"a" * 60) + frame(b"{}" + b"b" * 60)
    whole = reader.feed(data[:100])
    assert whole == ([b"{}"], [b"a" * 60])
    assert reader.feed(data[100:]) == ([b"{}"], [b"b" * 60])


def test_what_may_be_written_at_a_time_is_never_empty_and_never_more_than_an_idle_buffer() -> None:
    reader = FrameReader(capacity=16)
    reader.feed(struct.pack(">I", 1000))
    for _ in range(990):
        assert 1 <= len(reader.writable()) <= 16
        reader.feed(b"x")


def test_writing_on_without_splitting_is_refused() -> None:
    reader = FrameReader(max_frame_bytes=4, capacity=100)
    reader.received(len(reader.writable()))
    with pytest.raises(UsageError, match="split"):
        reader.writable()


def test_what_was_split_does_not_change_when_the_buffer_is_used_again() -> None:
    reader = FrameReader(capacity=16)
    first, _ = reader.feed(frame(b"{aaa}"))
    reader.feed(frame(b"{bbb}"))
    assert first == [b"{aaa}"]


def test_a_capacity_too_small_for_a_length_is_raised_to_it() -> None:
    assert FrameReader(capacity=0).feed(frame(b"{}x")) == ([b"{}"], [b"x"])


@pytest.mark.row("AT14")
def test_a_peer_that_answers_with_http_is_named_as_such() -> None:
    with pytest.raises(ProtocolError, match="HTTP instead of AMPS: is the port right"):
        FrameReader().feed(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.row("AT2")
@pytest.mark.parametrize("version", [b"\x03\x01", b"\x03\x03"])
def test_a_peer_that_answers_with_a_tls_alert_is_named_as_such(version: bytes) -> None:
    with pytest.raises(ProtocolError, match="TLS instead of AMPS: is tcps:// meant"):
        FrameReader().feed(b"\x15" + version + b"\x00\x02\x02\x46")


@pytest.mark.parametrize("fault", [struct.pack(">I", 51), frame(b"none")])
def test_whole_frames_before_a_fault_in_the_same_chunk_come_first(fault: bytes) -> None:
    reader, data = FrameReader(max_frame_bytes=50), frame(b"{}a") + frame(b"{}b") + fault
    reader.writable()[: len(data)] = data
    reader.received(len(data))
    assert reader.split() == ([b"{}", b"{}"], [b"a", b"b"])
    for _ in range(2):
        with pytest.raises(ProtocolError):
            reader.writable()
