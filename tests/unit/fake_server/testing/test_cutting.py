from __future__ import annotations

from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.protocol.codec import encode_frame
from haclient_fake_server.testing.cutting import Lane
from haclient_fake_server.testing.faults import Cut

FRAMES = [
    encode_frame({"c": "p", "t": "orders", "s": 1}, b"one"),
    encode_frame({"c": "ack", "a": "processed", "cid": "1"}),
    encode_frame({"c": "ack", "a": "persisted", "s": 1}),
    bytes(4),  # an empty frame
    encode_frame({"c": "p", "t": "orders", "s": 2}, b"x" * 300),
    encode_frame({"c": "ack", "a": "persisted", "s": 2}),
]
STREAM = b"".join(FRAMES)
STARTS = [sum(map(len, FRAMES[:index])) for index in range(len(FRAMES) + 1)]

chunkings = st.lists(st.integers(1, 60), min_size=1, max_size=8)


def chunks(sizes: list[int], data: bytes = STREAM) -> list[bytes]:
    """A stream in pieces of these sizes, over and over."""
    found: list[bytes] = []
    for size in cycle(sizes):
        if not data:
            return found
        found.append(data[:size])
        data = data[size:]
    return found


def run(lane: Lane, sizes: list[int], data: bytes = STREAM) -> tuple[bytes, Cut | None]:
    """Feed a stream in chunks; what arrives, and the cut that ends it."""
    arrived = b""
    for chunk in chunks(sizes, data):
        passed, cut = lane.feed(chunk)
        arrived += passed
        if cut is not None:
            return arrived, cut
    return arrived, None


@given(chunkings)
def test_without_a_cut_everything_arrives_at_once(sizes: list[int]) -> None:
    lane = Lane()
    for chunk in chunks(sizes):
        assert lane.feed(chunk) == (chunk, None)


PLACES = [
    *[(Cut(at_byte=count), count) for count in (1, 4, STARTS[1], STARTS[4] + 7, len(STREAM))],
    (Cut(in_frame=1), len(FRAMES[0]) // 2),
    (Cut(in_frame=5), STARTS[4] + len(FRAMES[4]) // 2),
    (Cut(before_ack="processed"), STARTS[1]),
    (Cut(after_ack="processed"), STARTS[2]),
    (Cut(before_ack="persisted"), STARTS[2]),
    (Cut(after_ack="persisted"), STARTS[3]),
    (Cut(before_ack="*"), STARTS[1]),
    (Cut(before_ack="completed"), None),
    (Cut(at_byte=len(STREAM) + 1), None),
]


@pytest.mark.row("FI1")
@pytest.mark.parametrize(("cut", "place"), PLACES)
@given(sizes=chunkings)
def test_a_cut_falls_at_its_place_however_the_stream_is_chunked(
    cut: Cut, place: int | None, sizes: list[int]
) -> None:
    lane = Lane()
    lane.arm(cut)
    expected = (STREAM, None) if place is None else (STREAM[:place], cut)
    assert run(lane, sizes) == expected


def test_no_byte_at_all_passes_before_a_cut_at_byte_0() -> None:
    lane = Lane()
    cut = Cut(at_byte=0)
    lane.arm(cut)
    assert lane.feed(b"x") == (b"", cut)


@given(armed_at=st.integers(0, STARTS[4]), sizes=chunkings)
def test_a_cut_may_be_armed_in_the_middle_of_a_frame(armed_at: int, sizes: list[int]) -> None:
    lane = Lane()
    lane.feed(STREAM[:armed_at])
    cut = Cut(in_frame=1)
    lane.arm(cut)
    frame = next(index for index, start in enumerate(STARTS) if start >= armed_at)
    place = STARTS[frame] + len(FRAMES[frame]) // 2
    assert run(lane, sizes, STREAM[armed_at:]) == (STREAM[armed_at:place], cut)


def test_of_several_cuts_the_first_place_counts() -> None:
    late, early = Cut(after_ack="persisted"), Cut(at_byte=STARTS[1] + 2)
    lane = Lane()
    lane.arm(late)
    lane.arm(early)
    assert lane.feed(STREAM) == (STREAM[: STARTS[1] + 2], early)


def test_a_cut_that_is_disarmed_lets_go_what_it_kept() -> None:
    cut = Cut(before_ack="persisted")
    lane = Lane()
    lane.arm(cut)
    half = FRAMES[0][:10]
    assert lane.feed(half) == (b"", None)
    lane.disarm(cut)
    lane.disarm(cut)
    assert lane.feed(STREAM[10:]) == (STREAM, None)


def test_a_length_that_no_receiver_takes_is_not_waited_for() -> None:
    lane = Lane()
    lane.arm(Cut(in_frame=2))
    nonsense = b"\xff\xff\xff\xff and more"
    assert lane.feed(nonsense) == (nonsense, None)


def test_a_frame_that_is_no_message_is_no_ack() -> None:
    lane = Lane()
    lane.arm(Cut(before_ack="*"))
    garbage = b"\0\0\0\5hello\0\0\0\6{oops}"
    assert lane.feed(garbage) == (garbage, None)
