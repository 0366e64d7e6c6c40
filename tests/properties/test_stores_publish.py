"""One state machine for all publish stores, beside a model that is a set of messages."""

from __future__ import annotations

import errno
import logging
import random
from typing import ClassVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from haclient_stores.errors import StoreFull, UsageError
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES
from haclient_stores.publish_stores.window import PublishWindow
from simulation.disk import SimulatedDisk
from support.frames import frame_of, put
from support.lengths import length
from support.publish_model import DIRECTORY, KINDS, PublishModel, Store

pytestmark = pytest.mark.row(
    "PS1", "PS2", "PS3", "PS5", "PS7", "PS8", "PS10", "PS11", "PS13", "PS14", "PS18"
)

STEPS = 40
ALL = {
    **KINDS,
    "refusing": Store(
        lambda disk: FilePublishStore(
            DIRECTORY,
            segment_bytes=MIN_SEGMENT_BYTES,
            max_bytes=6 * MIN_SEGMENT_BYTES,
            resize_handler=lambda _: not cast("SimulatedDisk", disk).is_armed("resize"),
            disk=disk,
        ),
        lasting=True,
    ),
}
SHORT = length(120)  # examples of so many steps


class PublishMachine(RuleBasedStateMachine):
    """Any order of publishes, sends, acks, logons, rewinds, syncs, restarts and crashes."""

    steps: ClassVar[int] = 0

    @initialize(kind=st.sampled_from(sorted(ALL)), clock=st.sampled_from([1, 1000, 10**15]))
    def begin(self, kind: str, clock: int) -> None:
        self.kind = ALL[kind]
        self.disk = SimulatedDisk()
        self.store = self.kind.make(self.disk)
        self.clock = clock
        self.model = self.synced = PublishModel()
        self.ever: dict[bytes, tuple[int, bytes]] = {}
        self.unsent = b""
        self.first_logon()

    def first_logon(self) -> None:
        self.store.reconcile(seen=0, persisted=0, clock_us=self.clock)
        self.model = self.model.logged_on(0, 0, self.clock)

    def above(self, sequence: int) -> bytes:
        waiting = sorted(self.model.waiting)
        return b"".join(frame_of(number, body) for number, body in waiting if number > sequence)

    def skipped(self) -> None:
        """The store may pass by what is persisted, and nothing else."""
        passed = len(self.unsent) - self.store.unsent_bytes
        assert passed >= 0
        self.unsent = self.unsent[passed:]
        assert not passed or self.unsent.endswith(self.above(self.store.last_persisted))

    @rule(size=st.sampled_from([0, 1, 100, 100, 3000, 40_000, 100_000]), count=st.integers(1, 30))
    def publish(self, size: int, count: int) -> None:
        body = bytes([count]) * size
        for _ in range(count if size < 5000 else 2):
            try:
                sequence = put(self.store, body)
            except StoreFull:  # the invariant says that nothing was stored, and no number used
                assert self.kind.fixed or self.refuses or self.kind is ALL["refusing"]
                break
            except UsageError:  # too large for a segment of a ring
                assert self.kind.fixed
                assert size > 5000
                break
            self.model = self.model.stored(sequence, body)
            self.ever[frame_of(sequence, body)] = sequence, body
            self.unsent += frame_of(sequence, body)

    @property
    def refuses(self) -> bool:
        return self.disk.is_armed("allocate")

    @rule(full=st.booleans())
    def fill_or_free_the_disk(self, *, full: bool) -> None:
        self.disk.disarm()
        if full:
            self.disk.arm("allocate", errno.ENOSPC, times=100)
            self.disk.arm("resize", errno.ENOSPC)

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
        sequence = self.one_of_the_waiting(choose)
        self.store.discard_up_to(sequence)
        self.model = self.model.acked(sequence)
        self.skipped()

    def one_of_the_waiting(self, choose: int) -> int:
        numbers = [self.model.persisted, *sorted(number for number, _ in self.model.waiting)]
        return numbers[min(choose, len(numbers) - 1)]

    @rule(ahead=st.sampled_from([0, 0, 1, 1000]), choose=st.integers(0, 50))
    def log_on(self, ahead: int, choose: int) -> None:
        persisted = self.one_of_the_waiting(choose)
        seen = self.store.last_sequence + ahead
        self.store.reconcile(seen=seen, persisted=persisted, clock_us=10**15)
        self.model = self.model.logged_on(seen, persisted, 10**15)
        self.rewind(persisted)

    @rule(after=st.integers(0, 2000))
    def rewind(self, after: int) -> None:
        self.store.rewind(after)
        self.unsent = self.above(max(after, self.store.last_persisted))

    @rule()
    def look_up(self) -> None:
        for sequence, body in sorted(self.model.waiting)[::7]:
            assert self.store.replay_single(sequence) == frame_of(sequence, body)
            after = [number for number, _ in self.store.replay(sequence)]
            assert after == [n for n, _ in sorted(self.model.waiting) if n > sequence]
        assert self.store.replay_single(self.store.last_sequence + 1) is None

    @rule()
    def sync(self) -> None:
        try:
            self.store.sync()
        except StoreFull:  # a hybrid store needs a file for it
            assert self.refuses
            return
        assert not self.store.needs_sync
        self.synced = self.model

    @precondition(lambda self: self.store.path is not None)
    @rule()
    def restart(self) -> None:
        self.disk.disarm()
        self.store.close()
        self.synced = self.model
        self.opened_again()
        assert self.left() == sorted(self.model.waiting)
        self.go_on()

    @rule()
    def crash(self) -> None:
        before = self.store
        self.disk.disarm()  # for the old store, which nobody uses any more, to be closed
        self.disk = self.disk.after_kill()
        self.opened_again()
        if self.kind.lasting:
            assert self.store.last_sequence == self.model.last or self.model.numbers_uncertain
        waiting = sorted(self.model.waiting)
        left = self.left()
        assert left == (waiting if self.kind.lasting else waiting[: len(left)])
        self.go_on()
        before.close()

    @rule(seed=st.integers(0, 10**6))
    def lose_power(self, seed: int) -> None:
        before = self.store
        self.disk.disarm()
        self.disk = self.disk.after_power_loss(random.Random(seed))
        self.opened_again()
        frames = list(self.store.replay())
        found = frozenset(self.ever[frame] for _, frame in frames)
        assert [number for number, _ in frames] == sorted(number for number, _ in found)
        if self.store.path is not None:
            assert self.synced.waiting & self.model.waiting <= found
            assert self.store.last_sequence >= self.synced.last
            assert self.store.last_persisted <= self.model.persisted
        self.model = PublishModel(
            found, self.store.last_sequence, self.store.last_persisted, self.store.path is not None
        )
        self.synced = PublishModel()
        self.unsent = self.above(0)
        if not self.store.last_sequence:
            self.first_logon()
        before.close()

    def opened_again(self) -> None:
        self.store = self.kind.make(self.disk)

    def left(self) -> list[tuple[int, bytes]]:
        bodies = {frame_of(number, body): body for number, body in self.model.waiting}
        return [(number, bodies[frame]) for number, frame in self.store.replay()]

    def go_on(self) -> None:
        """What the next process has, which may number higher, but never lower."""
        store = self.store
        lasts = store.path is not None
        assert store.last_sequence >= self.model.last * lasts
        assert store.last_persisted == self.model.persisted * lasts
        left = frozenset(self.left())
        numbers_uncertain = self.model.numbers_uncertain and lasts
        self.model = PublishModel(
            left, store.last_sequence, store.last_persisted, numbers_uncertain
        )
        if not lasts:
            self.synced = PublishModel()
        self.unsent = self.above(0)
        if not lasts:
            self.first_logon()

    @invariant()
    def the_store_is_what_the_model_says(self) -> None:
        if not hasattr(self, "store"):
            return
        PublishMachine.steps += 1
        self.model.compare(self.store)
        assert self.store.unsent_bytes == len(self.unsent)
        ends = {0}
        for number, body in sorted(self.model.waiting, reverse=True):
            ends.add(max(ends) + len(frame_of(number, body)))
        rest = len(self.unsent) - self.store.frame_remainder()
        assert rest in ends or rest > max(ends)

    @override
    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.disk.disarm()
            self.store.close()


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


@pytest.mark.timeout(36_000)
def test_every_store_does_what_the_model_says(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)  # torn tails are usual after a loss of power
    wanted: int = request.config.getoption("--store-steps")
    PublishMachine.steps = 0
    run_state_machine_as_test(
        PublishMachine,
        settings=settings(
            max_examples=max(SHORT, wanted // (STEPS // 4 * 3)),
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert PublishMachine.steps >= max(wanted, SHORT * STEPS // 2)


TestWindow = WindowMachine.TestCase
TestWindow.settings = settings(max_examples=length(50))
