from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from typing_extensions import override

from haclient_stores.file_publish import FilePublishStore
from haclient_stores.memory_publish import MemoryPublishStore
from haclient_stores.publish_log import PublishLog
from haclient_stores.segment import MIN_SEGMENT_BYTES
from haclient_stores.window import PublishWindow

pytestmark = pytest.mark.row("PS1", "PS2", "PS3", "PS5", "PS7", "PS8", "PS14")

HEAD = b'{"c":"p","s":'
TAIL = b"}"


class PublishMachine(RuleBasedStateMachine):
    """Any order of appends, sends, acks, logons and rewinds against a dict of frames."""

    def open_store(self) -> PublishLog:
        return MemoryPublishStore(segment_bytes=MIN_SEGMENT_BYTES)

    @initialize(clock=st.sampled_from([1, 1000, 10**15]))
    def begin(self, clock: int) -> None:
        self.store = self.open_store()
        self.frames: dict[int, bytes] = {}
        self.unsent = b""
        self.store.reconcile(seen=0, persisted=0, clock_us=clock)
        assert self.store.last_sequence == clock

    def above(self, sequence: int) -> bytes:
        return b"".join(frame for number, frame in sorted(self.frames.items()) if number > sequence)

    def skipped(self) -> None:
        """The store may pass by what is persisted, and nothing else."""
        passed = len(self.unsent) - self.store.unsent_bytes
        assert passed >= 0
        self.unsent = self.unsent[passed:]
        assert not passed or self.unsent.endswith(self.above(self.store.last_persisted))

    @rule(size=st.sampled_from([0, 1, 100, 100, 3000, 40_000, 100_000]), count=st.integers(1, 30))
    def append(self, size: int, count: int) -> None:
        for _ in range(count if size < 5000 else 2):
            before = self.store.last_sequence
            sequence = self.store.append(HEAD, TAIL, bytes([count]) * size)
            assert sequence == before + 1
            rest = HEAD + str(sequence).encode() + TAIL + bytes([count]) * size
            self.frames[sequence] = len(rest).to_bytes(4, "big") + rest
            self.unsent += self.frames[sequence]

    @rule(portion=st.floats(0, 1))
    def send(self, portion: float) -> None:
        shown = self.store.peek()
        assert bool(shown) == bool(self.unsent)
        count = int(len(shown) * portion)
        assert self.unsent[:count] == shown[:count]
        self.unsent = self.unsent[count:]
        self.store.advance(count)
        self.skipped()

    @rule(choose=st.integers(0, 50))
    def ack(self, choose: int) -> None:
        if self.frames:
            self.forget(sorted(self.frames)[min(choose, len(self.frames) - 1)])
            self.skipped()

    def forget(self, sequence: int) -> None:
        self.store.discard_up_to(sequence)
        self.frames = {number: f for number, f in self.frames.items() if number > sequence}

    @rule(ahead=st.sampled_from([0, 0, 1, 1000]), choose=st.integers(0, 50))
    def log_on(self, ahead: int, choose: int) -> None:
        numbers = [self.store.last_persisted, *sorted(self.frames)]
        persisted = numbers[min(choose, len(numbers) - 1)]
        seen = self.store.last_sequence + ahead
        self.store.reconcile(seen=seen, persisted=persisted, clock_us=10**15)
        assert self.store.last_sequence == seen
        self.frames = {number: f for number, f in self.frames.items() if number > persisted}
        self.rewind(persisted)

    @rule(after=st.integers(0, 2000))
    def rewind(self, after: int) -> None:
        self.store.rewind(after)
        self.unsent = self.above(max(after, self.store.last_persisted))

    @rule()
    def replay(self) -> None:
        assert list(self.store.replay()) == sorted(self.frames.items())
        for sequence in list(self.frames)[::7]:
            assert self.store.replay_single(sequence) == self.frames[sequence]
            after = [number for number, _ in self.store.replay(sequence)]
            assert after == [number for number in sorted(self.frames) if number > sequence]
        assert self.store.replay_single(self.store.last_sequence + 1) is None

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.store.unsent_bytes == len(self.unsent)
        assert self.store.unpersisted_count == len(self.frames)
        assert self.store.lowest_unpersisted == min(self.frames, default=0)
        really = sum(map(len, self.frames.values()))
        assert really <= self.store.unpersisted_bytes
        assert self.frames or not self.store.unpersisted_bytes
        ends = {0}
        for _, frame in sorted(self.frames.items(), reverse=True):
            ends.add(max(ends) + len(frame))
        rest = len(self.unsent) - self.store.frame_remainder()
        assert rest in ends or rest > max(ends)


class FileMachine(PublishMachine):
    """The same in files, with crashes: a copy of the directory is what a killed process leaves."""

    @override
    def open_store(self) -> PublishLog:
        self.directory = Path(tempfile.mkdtemp())
        self.generation = 0
        self.file_store = FilePublishStore(self.directory / "0", segment_bytes=MIN_SEGMENT_BYTES)
        return self.file_store

    @rule()
    def crash(self) -> None:
        self.generation += 1
        path = self.directory / str(self.generation)
        shutil.copytree(self.file_store.path, path)
        before = self.file_store
        self.store = self.file_store = FilePublishStore(path, segment_bytes=MIN_SEGMENT_BYTES)
        assert self.store.last_sequence == before.last_sequence
        assert self.store.last_persisted == before.last_persisted
        before.close()
        self.unsent = self.above(0)

    @rule()
    def sync(self) -> None:
        self.file_store.sync()
        assert not self.file_store.needs_sync

    @override
    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.file_store.close()
            shutil.rmtree(self.directory)


class WindowMachine(RuleBasedStateMachine):
    """The window against the set of the numbers in use."""

    def __init__(self) -> None:
        super().__init__()
        self.window = PublishWindow()
        self.waiting: set[int] = set()

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.window.last_sequence += 1
            self.waiting.add(self.window.last_sequence)

    @rule(to=st.integers(0, 60))
    def skip(self, to: int) -> None:
        self.window.skip_to(to)

    @rule(sequence=st.integers(0, 60))
    def persist(self, sequence: int) -> None:
        last = self.window.last_persisted
        assert self.window.persist(sequence) == (sequence > last)
        self.waiting = {number for number in self.waiting if number > sequence}

    @invariant()
    def agrees(self) -> None:
        assert self.window.count == len(self.waiting)
        assert self.window.lowest == min(self.waiting, default=0)
        assert self.window.last_sequence >= max(self.waiting, default=0)
        assert self.window.last_sequence >= self.window.last_persisted


TestMemory = PublishMachine.TestCase
TestMemory.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestFile = FileMachine.TestCase
TestFile.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestWindow = WindowMachine.TestCase
TestWindow.settings = settings(max_examples=100, deadline=None)
