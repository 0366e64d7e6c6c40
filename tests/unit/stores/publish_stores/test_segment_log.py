"""The segment log over memory: tail, cursor and head."""

from __future__ import annotations

import threading
from itertools import repeat

import pytest
from typing_extensions import override

from haclient_stores.disk.files import anonymous_region
from haclient_stores.errors import StoreFull, UsageError
from haclient_stores.publish_stores.segment_log import (
    MARK_BYTES,
    MAX_FRAME_BYTES,
    MIN_SEGMENT_BYTES,
    SLOT_BYTES,
    Limits,
    Segment,
    SegmentLog,
    SegmentStorage,
    frame_length,
)
from haclient_stores.publish_stores.window import PublishWindow
from support.frames import BASE, HEAD, TAIL, frame_of

SMALL = MIN_SEGMENT_BYTES
KIB = b"k" * 1000  # 31 frames of it fill a small segment


class MemorySegment(Segment):
    """A segment of memory that can tell whether it was parked."""

    def __init__(self, first: int, size: int, begin: int, seal_bytes: int) -> None:
        super().__init__(first=first, begin=begin, size=size)
        self.region = anonymous_region(size)
        self.seal_bytes = seal_bytes

    @property
    @override
    def frame_limit(self) -> int:
        return self.size - self.seal_bytes * len(self.mark_offsets)

    @property
    @override
    def view(self) -> memoryview:
        assert not self.released
        return self.region.view


class RecordingStorage(SegmentStorage):
    """Memory that remembers what the log told it."""

    begin = 64
    margin = 0

    def __init__(self) -> None:
        self.made: list[MemorySegment] = []
        self.parked: list[int] = []
        self.gone: list[int] = []
        self.seals: list[tuple[int, int, int]] = []
        self.saved: list[tuple[int, int, bool]] = []
        self.full: StoreFull | None = None
        self.seal_bytes = 0

    @override
    def create(self, first: int, size: int) -> Segment:
        if self.full is not None:
            raise self.full
        self.made.append(MemorySegment(first, size, self.begin, self.seal_bytes))
        return self.made[-1]

    @override
    def release(self, segment: Segment) -> None:
        self.gone.append(segment.first)

    @override
    def park(self, segment: Segment) -> None:
        assert not segment.released
        self.parked.append(segment.first)

    @override
    def seal(self, segment: Segment, end: int, next_sequence: int) -> None:
        assert end > segment.end
        self.seals.append((segment.first, end - segment.end, next_sequence))

    @override
    def save_numbers(self, window: PublishWindow, *, skipped: bool) -> None:
        self.saved.append((window.last_persisted, window.last_sequence, skipped))


class Log(SegmentLog):
    """A log that also keeps its storage and what was put into it."""

    def __init__(self, *, segment_bytes: int = SMALL, max_bytes: int = 2**30) -> None:
        self.storage = RecordingStorage()
        self.window = PublishWindow()
        self.asked: list[int] = []
        self.grants = 2**60
        super().__init__(
            self.storage, self.window, limits=Limits(segment_bytes, max_bytes, self.ask)
        )
        self.wanted = b""
        self.reconcile(seen=0, persisted=0, clock_us=BASE)

    def ask(self, size: int) -> bool:
        self.asked.append(size)
        return size <= self.grants

    def put(self, body: bytes = b"body") -> int:
        sequence = self.append(HEAD, TAIL, body)
        self.wanted += frame_of(sequence, body)
        return sequence

    def taken(self, limit: int = 2**60) -> bytes:
        parts: list[bytes] = []
        while limit and (shown := bytes(self.peek()[:limit])):
            parts.append(shown)
            self.advance(len(shown))
            limit -= len(shown)
        return b"".join(parts)

    @property
    def firsts(self) -> list[int]:
        return [segment.first for segment in self._segments]


# -- head -------------------------------------------------------------------------------------


@pytest.mark.row("PS2", "PS3")
def test_numbers_rise_by_one_from_the_clock_on() -> None:
    log = Log()
    assert [log.put() for _ in range(5)] == [1001, 1002, 1003, 1004, 1005]
    assert list(log.frames(0)) == [(n, frame_of(n, b"body")) for n in range(1001, 1006)]


@pytest.mark.row("PS3")
@pytest.mark.parametrize("body", [b"", b"x", bytearray(b"array"), memoryview(b"view"), b"%d{}\0"])
def test_any_buffer_is_a_body(body: bytes | bytearray | memoryview) -> None:
    log = Log()
    log.append(HEAD, TAIL, body)
    assert log.taken() == frame_of(1001, bytes(body))


@pytest.mark.row("PS2")
def test_a_number_may_take_one_more_digit() -> None:
    log = Log()
    log.reconcile(seen=9_998, persisted=0, clock_us=0)
    assert [log.put() for _ in range(3)] == [9_999, 10_000, 10_001]
    assert log.taken() == log.wanted


def test_a_body_that_is_no_buffer_leaves_no_trace() -> None:
    log = Log()
    log.put()
    with pytest.raises(TypeError):
        log.append(HEAD, TAIL, "text")  # type: ignore[arg-type]  # that is the mistake
    log.put()
    assert log.taken() == log.wanted


def test_a_segment_is_filled_to_the_last_byte() -> None:
    log = Log()
    room = SMALL - RecordingStorage.begin - 2 * SLOT_BYTES  # zeros behind the last frame
    size = room - len(frame_of(1001, b""))
    log.put(b"x" * size)
    assert [segment.size for segment in log.storage.made] == [SMALL]
    log.put(b"")
    assert len(log.storage.made) == 2
    assert log.taken() == log.wanted


@pytest.mark.parametrize("more", range(-2, 15))
def test_a_frame_that_is_larger_than_a_segment_gets_one_of_its_own(more: int) -> None:
    log = Log()
    log.put()
    log.put(b"x" * (SMALL - RecordingStorage.begin - len(frame_of(1002, b"")) + more))
    log.put()
    assert log.firsts[0] == 1001
    assert all(segment.size % 4096 == 0 for segment in log.storage.made)
    assert log.taken() == log.wanted


def test_a_frame_larger_than_any_server_takes_is_refused() -> None:
    log = Log()
    log.put()
    with pytest.raises(UsageError, match=f"larger than the {MAX_FRAME_BYTES}"):
        log.append(HEAD, TAIL, bytes(MAX_FRAME_BYTES))
    assert log.put() == 1002
    assert log.taken() == log.wanted


def test_frames_stored_together_are_laid_out_as_if_stored_one_by_one() -> None:
    sizes = [0, 1, 70_000, 1000, MARK_BYTES, *range(0, 3000, 7)]
    bodies = [b"b" * size for size in sizes]
    together, alone = Log(segment_bytes=2**17), Log(segment_bytes=2**17)
    together.append_many(repeat(HEAD), TAIL, bodies)
    for body in bodies:
        alone.put(body)
    assert together.taken() == alone.wanted
    assert together.window.last_sequence == alone.window.last_sequence
    assert together.storage.seals == alone.storage.seals
    assert list(together.frames(0)) == list(alone.frames(0))


@pytest.mark.parametrize("bodies", [[], [b"x"], [bytearray(b"x"), memoryview(b"y")]])
def test_few_frames_are_stored_together_as_well(bodies: list[bytes]) -> None:
    log = Log()
    log.put()
    log.append_many([b"a%d" % number for number in range(len(bodies))], TAIL, bodies)
    assert log.put() == 1002 + len(bodies)
    assert [sequence for sequence, _ in log.frames(0)] == [*range(1001, 1003 + len(bodies))]


def test_what_was_stored_before_the_room_ended_stays_stored() -> None:
    log = Log()
    log.put()
    log.storage.full = StoreFull("no room for another segment", wait=True)
    with pytest.raises(StoreFull):
        log.append_many(repeat(HEAD), TAIL, [KIB] * 40)
    stored = log.window.last_sequence - 1001
    assert 20 < stored < 40
    log.storage.full = None
    log.append_many(repeat(HEAD), TAIL, [KIB] * (40 - stored))
    assert [sequence for sequence, _ in log.frames(0)] == [*range(1001, 1042)]


def test_of_frames_stored_together_the_first_length_is_written_last() -> None:
    log = Log(segment_bytes=2**17)
    log.put()
    shown: list[int] = []

    class Watched:
        """The segment's memory, which shows after each write whether a reader finds the frames."""

        def __setitem__(self, place: slice, data: bytes) -> None:
            memory[place] = data
            shown.append(int(frame_length(memory, end)[0]))

    end = log._end
    memory = log._memory
    log._memory = Watched()  # type: ignore[assignment]  # all that a write needs
    log.append_many(repeat(HEAD), TAIL, [b"a", b"b", b"c"])
    assert shown[:-1] == [0] * (len(shown) - 1)
    assert shown[-1] > 0


@pytest.mark.row("PS21")
def test_everything_is_sealed_about_every_64_kib() -> None:
    log = Log(segment_bytes=2**20)
    for _ in range(500):
        log.put(KIB)
    sizes = [size for _, size, _ in log.storage.seals]
    assert len(sizes) == len(log.wanted) // MARK_BYTES
    assert all(MARK_BYTES - len(KIB) - 100 < size <= MARK_BYTES for size in sizes)
    log.checkpoint()
    assert sum(size for _, size, _ in log.storage.seals) == len(log.wanted)
    assert log.storage.seals[-1][2] == 1501


def test_seals_take_room_in_the_segment_that_they_are_for() -> None:
    log = Log()
    log.storage.seal_bytes = SMALL // 4
    for _ in range(10):
        log.put()
        log.checkpoint()
    assert log.firsts == [1001, 1004, 1007, 1010]
    assert log.taken() == log.wanted


# -- limits -----------------------------------------------------------------------------------


@pytest.mark.row("PS1")
def test_a_full_log_stores_nothing_and_uses_no_number() -> None:
    log = Log(max_bytes=2 * SMALL)
    for _ in range(62):
        log.put(KIB)
    for _ in range(2):
        with pytest.raises(StoreFull, match=f"62 messages wait .*max_bytes={2 * SMALL}.*sync dest"):
            log.put(KIB)
    assert log.window.last_sequence == 1062
    assert log.put(b"") == 1063  # a smaller one still fits
    log.discard_up_to(1031)
    assert log.taken(10**9) in log.wanted
    log.discard_up_to(1040)
    assert log.put(KIB) == 1064
    assert [n for n, _ in log.frames(0)] == list(range(1041, 1065))


@pytest.mark.parametrize("size", [SMALL, SMALL + 4096, 2 * SMALL - 1])
def test_the_smallest_log_goes_on_for_ever_when_all_is_persisted(size: int) -> None:
    log = Log(max_bytes=size)
    for _ in range(200):
        number = log.put(KIB)
        assert log.taken() == frame_of(number, KIB)
        log.discard_up_to(number)
    assert log.unpersisted_bytes == 0
    assert len(log.firsts) == 1


def test_a_large_frame_fits_when_all_before_it_is_persisted() -> None:
    log = Log(max_bytes=3 * SMALL)
    for _ in range(3):
        log.put(b"x" * (5 * SMALL // 2))
        log.taken()
        log.discard_up_to(log.window.last_sequence)
    log.put(b"x" * (5 * SMALL // 2))
    assert [n for n, _ in log.frames(0)] == [1004]


def test_a_frame_that_the_kernel_has_half_is_kept_even_in_the_smallest_log() -> None:
    log = Log(max_bytes=SMALL)
    numbers = [log.put(KIB) for _ in range(31)]
    taken = log.taken(len(log.wanted) - 7)
    log.discard_up_to(numbers[-1])
    with pytest.raises(StoreFull):
        log.put(KIB)
    taken += log.taken(7)
    assert taken == log.wanted
    log.put(KIB)
    assert taken + log.taken() == log.wanted


@pytest.mark.row("PS1")
def test_no_room_in_the_space_changes_nothing() -> None:
    log = Log()
    for _ in range(31):
        log.put(KIB)
    log.storage.full = StoreFull("disk full")
    for _ in range(3):
        with pytest.raises(StoreFull, match="disk full"):
            log.put(KIB)
    log.storage.full = None
    assert log.put(KIB) == 1032
    assert log.taken() == log.wanted


@pytest.mark.row("PS17")
def test_the_resize_handler_is_told_the_new_size_before_the_log_grows() -> None:
    log = Log()
    for _ in range(70):
        log.put(KIB)
    assert log.asked == [SMALL, 2 * SMALL, 3 * SMALL]
    assert [segment.size for segment in log.storage.made] == [SMALL] * 3


@pytest.mark.row("PS17")
def test_a_refused_growth_is_a_full_store_until_it_is_granted() -> None:
    log = Log()
    log.grants = SMALL
    for _ in range(31):
        log.put(KIB)
    with pytest.raises(StoreFull, match=f"resize handler refused .* {2 * SMALL} bytes"):
        log.put(KIB)
    log.grants = 2 * SMALL
    assert log.put(KIB) == 1032


@pytest.mark.row("PS17")
def test_space_that_was_granted_once_is_not_asked_for_again() -> None:
    log = Log()
    for _ in range(10):
        numbers = [log.put(KIB) for _ in range(62)]
        log.taken()
        log.discard_up_to(numbers[-1])
    assert log.asked == sorted(set(log.asked))
    assert log.asked[-1] <= 3 * SMALL


# -- tail -------------------------------------------------------------------------------------


@pytest.mark.row("PS5")
def test_an_ack_gives_back_every_segment_behind_it() -> None:
    log = Log()
    for _ in range(100):
        log.put(KIB)
    log.taken()
    assert log.firsts == [1001, 1032, 1063, 1094]
    log.discard_up_to(1061)
    assert log.firsts == [1032, 1063, 1094]
    log.discard_up_to(1100)
    assert log.firsts == [1094]
    assert log.storage.gone == [1001, 1032, 1063]
    assert (log.window.count, log.unpersisted_bytes) == (0, 0)


@pytest.mark.row("PS5")
def test_an_ack_that_is_known_is_not_noted_again() -> None:
    log = Log()
    log.put()
    log.put()
    log.discard_up_to(1001)
    notes = list(log.storage.saved)
    for old in (1001, 1000, 0, -5):
        log.discard_up_to(old)
    assert log.storage.saved == notes
    assert [n for n, _ in log.frames(0)] == [1002]


@pytest.mark.row("PS8")
def test_an_ack_above_the_last_number_moves_the_numbering() -> None:
    log = Log()
    log.put()
    log.taken()
    log.discard_up_to(5000)
    assert log.storage.saved[-1] == (5000, 5000, True)
    assert log.put() == 5001
    assert log.firsts == [5001]
    assert log.taken().endswith(frame_of(5001, b"body"))


def test_a_segment_is_kept_until_its_last_frame_is_wholly_taken() -> None:
    log = Log()
    for _ in range(40):
        log.put(KIB)
    first_segment = log.wanted.index(frame_of(1032, KIB))
    taken = log.taken(first_segment - 5)
    log.discard_up_to(1035)
    assert log.firsts == [1001, 1032]
    assert log.frame_remainder() == 5
    taken += bytes(log.peek())
    log.advance(5)
    assert log.firsts == [1032]
    assert taken == log.wanted[:first_segment]
    assert log.taken() == log.wanted[first_segment:]


def test_a_cursor_at_a_boundary_passes_by_what_is_persisted() -> None:
    log = Log()
    for _ in range(100):
        log.put(KIB)
    log.taken(len(log.wanted[: log.wanted.index(frame_of(1010, KIB))]))
    assert log.frame_remainder() == 0
    log.discard_up_to(1070)
    assert log.firsts == [1063, 1094]
    rest = log.wanted[log.wanted.index(frame_of(1063, KIB)) :]
    assert log.unsent_bytes == len(rest)
    assert log.taken() == rest


@pytest.mark.row("PS14")
def test_unpersisted_bytes_are_never_too_few_and_none_when_nothing_waits() -> None:
    log = Log(segment_bytes=4 * SMALL)
    assert log.unpersisted_bytes == 0
    for _ in range(300):
        log.put(KIB)
    frame = len(frame_of(1001, KIB))
    for ack in range(1001, 1301):
        log.discard_up_to(ack)
        really = (1300 - ack) * frame
        assert really <= log.unpersisted_bytes <= (really + MARK_BYTES + frame) * bool(really)
    log.put()
    assert log.unpersisted_bytes >= len(frame_of(1301, b"body"))


# -- cursor -----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 3, 7, 64, 1000, 5000])
def test_bytes_leave_in_order_in_pieces_of_any_size(step: int) -> None:
    log = Log()
    for count in range(60):
        log.put(b"z" * (17 * count))
    sent = b""
    while part := log.taken(step):
        sent += part
        assert log.unsent_bytes == len(log.wanted) - len(sent)
    assert sent == log.wanted


def test_the_remainder_leads_to_the_next_frame_boundary() -> None:
    log = Log()
    ends = [0]
    for count in range(20):
        log.put(b"z" * (7 * count))
        ends.append(len(log.wanted))
    for sent in range(len(log.wanted)):
        assert log.frame_remainder() == min(end for end in ends if end >= sent) - sent
        log.advance(1)
    assert log.frame_remainder() == 0


def test_nothing_to_send_is_an_empty_view() -> None:
    log = Log()
    assert bytes(log.peek()) == b""
    assert log.frame_remainder() == 0
    log.put()
    log.taken()
    assert bytes(log.peek()) == b""
    assert log.unsent_bytes == 0


@pytest.mark.row("PS7")
@pytest.mark.parametrize("after", [0, 1000, 1001, 1030, 1031, 1032, 1050, 1099, 1100, 5000])
def test_rewinding_starts_again_behind_a_number(after: int) -> None:
    log = Log()
    for _ in range(100):
        log.put(KIB)
    log.taken(12_345)
    log.rewind(after)
    wanted = b"".join(frame_of(n, KIB) for n in range(max(after, 1000) + 1, 1101))
    assert log.unsent_bytes == len(wanted)
    assert log.taken() == wanted
    number = log.put()
    assert log.taken() == frame_of(number, b"body")


@pytest.mark.row("PS7")
def test_rewinding_never_goes_back_to_what_is_persisted() -> None:
    log = Log()
    for _ in range(100):
        log.put(KIB)
    log.taken()
    log.discard_up_to(1040)
    log.rewind(0)
    assert log.taken() == b"".join(frame_of(n, KIB) for n in range(1041, 1101))


def test_segments_between_the_cursor_and_the_head_are_parked() -> None:
    log = Log()
    for _ in range(130):
        log.put(KIB)
    assert log.storage.parked == [1032, 1063, 1094]
    log.taken()
    assert log.storage.parked == [1032, 1063, 1094, 1001, 1032, 1063, 1094]


def test_segments_that_a_replay_has_read_are_parked_again() -> None:
    log = Log()
    for _ in range(130):
        log.put(KIB)
    log.storage.parked.clear()
    assert len(list(log.frames(0))) == 130
    assert log.storage.parked == [1032, 1063, 1094]  # the cursor is in the first, the head last


# -- numbering --------------------------------------------------------------------------------


@pytest.mark.row("PS7", "PS8")
def test_a_logon_trims_and_numbers_above_what_was_seen() -> None:
    log = Log()
    for _ in range(5):
        log.put()
    log.reconcile(seen=1009, persisted=1003, clock_us=7)
    assert [n for n, _ in log.frames(0)] == [1004, 1005]
    assert log.put() == 1010
    log.rewind(0)
    assert log.taken() == b"".join(frame_of(n, b"body") for n in (1004, 1005, 1010))


@pytest.mark.row("PS8")
def test_a_jump_before_anything_was_stored_leaves_no_empty_segment() -> None:
    log = Log()
    log.put()
    log.reconcile(seen=1500, persisted=1001, clock_us=7)
    log.reconcile(seen=1600, persisted=1001, clock_us=7)
    assert log.put() == 1601
    assert log.window.count == 1
    assert list(log.frames(0)) == [(1601, frame_of(1601, b"body"))]


@pytest.mark.row("PS7")
def test_a_logon_in_the_middle_of_a_frame_waits_for_its_end() -> None:
    log = Log()
    for _ in range(40):
        log.put(KIB)
    taken = log.taken(100)
    log.reconcile(seen=1040, persisted=1035, clock_us=0)
    assert log.firsts == [1001, 1032]
    taken += log.taken(log.frame_remainder())
    assert taken == frame_of(1001, KIB)
    log.rewind(log.window.last_persisted)
    assert log.taken() == b"".join(frame_of(n, KIB) for n in range(1036, 1041))


# -- replay -----------------------------------------------------------------------------------


@pytest.mark.row("PS7")
def test_a_replay_passes_over_what_is_persisted_while_it_runs() -> None:
    log = Log()
    for _ in range(100):
        log.put(KIB)
    log.taken()
    replay = log.frames(1010)
    assert next(replay) == (1011, frame_of(1011, KIB))
    log.discard_up_to(1012)
    assert next(replay) == (1013, frame_of(1013, KIB))
    log.discard_up_to(1050)  # the segment under the replay goes away
    assert next(replay) == (1051, frame_of(1051, KIB))
    assert [n for n, _ in replay] == list(range(1052, 1101))


def test_after_detaching_nothing_is_left_to_send() -> None:
    log = Log()
    for _ in range(40):
        log.put(KIB)
    assert [segment.first for segment in log.detach()] == [1001, 1032]
    assert bytes(log.peek()) == b""
    assert (log.unsent_bytes, log.unpersisted_bytes, log.frame_remainder()) == (0, 0, 0)
    assert list(log.frames(0)) == []
    log.mark_head()
    log.rewind(0)
    assert log.checkpoint() == 1040


# -- threads ----------------------------------------------------------------------------------


@pytest.mark.row("PS20")
def test_a_checkpoint_covers_every_append_that_was_done() -> None:
    log = Log(segment_bytes=2**20)
    covered: list[tuple[int, int]] = []
    done = threading.Event()

    def check() -> None:
        while not done.is_set():
            before = log.window.last_sequence
            covered.append((before, log.checkpoint()))

    thread = threading.Thread(target=check)
    thread.start()
    for _ in range(5000):
        log.put(KIB) if log.window.last_sequence % 50 == 0 else log.append(HEAD, TAIL, b"body")
    done.set()
    thread.join()
    log.checkpoint()
    assert all(before <= after for before, after in covered)
    sealed = {first: first for first in log.firsts}
    for first, _, following in log.storage.seals:
        assert following > sealed[first]
        sealed[first] = following
    assert list(sealed.values()) == [*log.firsts[1:], log.window.last_sequence + 1]
    assert [n for n, _ in log.frames(0)] == list(range(1001, 6001))
