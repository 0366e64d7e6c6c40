from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typing_extensions import override

from haclient.testing import check_publish_store
from haclient_stores.errors import PublishGap, StoreFull
from haclient_stores.interfaces import PublishStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.hybrid import HybridPublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.ring import RingPublishStore
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES
from support.custom import DictPublishStore
from support.recording import RecordingDisk

pytestmark = pytest.mark.row("PS1", "PS2", "PS3", "PS5", "PS7", "PS8", "PS9", "PS12", "PS14")

PATH = Path("/stores/p")
MIB = 2**20


@dataclass
class Kind:
    """A class of stores with files, each on a disk of its own."""

    open_on: Callable[[RecordingDisk], PublishStore]

    def make(self) -> PublishStore:
        self.disk = RecordingDisk()
        return self.open_on(self.disk)

    def reopen(self, _store: PublishStore) -> PublishStore:
        return self.open_on(self.disk)


FILES = {
    "file": Kind(
        lambda disk: FilePublishStore(PATH, max_bytes=4 * MIB, segment_bytes=MIB // 4, disk=disk)
    ),
    "tiny segments": Kind(
        lambda disk: FilePublishStore(
            PATH, max_bytes=4 * MIB, segment_bytes=MIN_SEGMENT_BYTES, disk=disk
        )
    ),
    "ring": Kind(lambda disk: RingPublishStore(PATH, 4 * MIB, disk=disk)),
    "hybrid": Kind(
        lambda disk: HybridPublishStore(
            PATH,
            memory_bytes=2 * MIN_SEGMENT_BYTES,
            segment_bytes=MIN_SEGMENT_BYTES,
            max_bytes=4 * MIB,
            disk=disk,
        )
    ),
}
MEMORY: dict[str, Callable[[], PublishLog]] = {
    "memory": lambda: MemoryPublishStore(max_bytes=4 * MIB, segment_bytes=MIB // 4),
    "ring": lambda: RingPublishStore(None, 4 * MIB),
}


@pytest.mark.row("PS11", "PS13", "PS18")
@pytest.mark.parametrize("kind", FILES.values(), ids=FILES)
def test_our_stores_with_files_keep_every_promise(kind: Kind) -> None:
    check_publish_store(kind.make, reopen=kind.reopen, fills_at_bytes=4 * MIB)


@pytest.mark.row("PS10", "PS18")
@pytest.mark.parametrize("make", MEMORY.values(), ids=MEMORY)
def test_our_stores_in_memory_keep_every_promise(make: Callable[[], PublishStore]) -> None:
    check_publish_store(make, fills_at_bytes=4 * MIB)


def test_the_simplest_store_that_a_user_could_write_keeps_every_promise() -> None:
    check_publish_store(DictPublishStore)


class KeepsNothing(DictPublishStore):
    @override
    def replay(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        return iter(())


def test_a_store_that_keeps_nothing_does_not_pass() -> None:
    with pytest.raises(AssertionError, match="replay gives every frame"):
        check_publish_store(KeepsNothing)


# -- a store that breaks one promise fails, and is told which ------------------------------------


class _Full(DictPublishStore):
    def __init__(self) -> None:
        super().__init__(max_count=64)


class NotEmpty(DictPublishStore):
    last_persisted = 7


class StartsWithAGap(DictPublishStore):
    gap: PublishGap | None = PublishGap(2, 1)


class SkipsNumbers(DictPublishStore):
    @override
    def store(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        self.last_sequence += 1
        return super().store(head, tail, body)


class WrongLength(DictPublishStore):
    @override
    def store(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        sequence = super().store(head, tail, body)
        self.frames[sequence] = b"\0" + self.frames[sequence][1:-1]
        return sequence


class CountsNoBytes(DictPublishStore):
    unpersisted_bytes = 0


class CountsBytesForEver(DictPublishStore):
    unpersisted_bytes = 10**6

    def __init__(self) -> None:
        super().__init__()
        self.unpersisted_bytes = 0

    @override
    def store(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        sequence = super().store(head, tail, body)
        self.unpersisted_bytes += len(self.frames[sequence])
        return sequence


class AcksOne(DictPublishStore):
    @override
    def discard_up_to(self, sequence: int) -> None:
        self.frames.pop(sequence, None)
        self.last_persisted = max(self.last_persisted, sequence)


class AcksTooMuch(DictPublishStore):
    @override
    def discard_up_to(self, sequence: int) -> None:
        super().discard_up_to(sequence)
        self.frames.pop(sequence + 1, None)


class AcksFall(DictPublishStore):
    @override
    def discard_up_to(self, sequence: int) -> None:
        super().discard_up_to(sequence)
        self.last_persisted = sequence


class BeginsAnew(DictPublishStore):
    @override
    def discard_up_to(self, sequence: int) -> None:
        super().discard_up_to(sequence)
        if sequence and not self.frames:
            self.last_sequence = 0


class IgnoresHighAcks(DictPublishStore):
    @override
    def discard_up_to(self, sequence: int) -> None:
        super().discard_up_to(min(sequence, self.last_sequence))


class ReplaysFromTheStart(DictPublishStore):
    @override
    def replay(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        return super().replay()


class ReplaysBackwards(DictPublishStore):
    @override
    def replay(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        return iter(reversed(list(super().replay(after))))


class ReplaysACopy(DictPublishStore):
    @override
    def replay(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        return iter(list(super().replay(after)))


class FindsNothing(DictPublishStore):
    @override
    def replay_single(self, sequence: int) -> bytes | None:
        return None


class FindsAnything(DictPublishStore):
    @override
    def replay_single(self, sequence: int) -> bytes | None:
        return self.frames.get(sequence, b"")


class FollowsTheClock(DictPublishStore):
    @override
    def number_above(self, sequence: int) -> None:
        self.last_sequence = max(self.last_sequence, sequence)


class IgnoresTheClock(DictPublishStore):
    @override
    def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
        super().reconcile(
            seen=max(seen, 1000 * (clock_us == 1000)), persisted=persisted, clock_us=0
        )


class NumbersBelowTheServer(DictPublishStore):
    @override
    def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
        known = self.last_sequence
        super().reconcile(seen=seen, persisted=persisted, clock_us=clock_us)
        self.last_sequence = known or self.last_sequence


class NeverTrims(DictPublishStore):
    @override
    def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
        super().reconcile(seen=seen, persisted=0, clock_us=clock_us)


class NoticesNoGap(DictPublishStore):
    @override
    def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
        super().reconcile(seen=seen, persisted=persisted, clock_us=clock_us)
        self.gap = None


class ServesAnybody(DictPublishStore):
    @override
    def open_for(self, client_name: str) -> None:
        self.client_name = self.client_name or client_name


class NameIsLost(DictPublishStore):
    @override
    def open_for(self, client_name: str) -> None:
        """Nothing."""


class SyncForgets(DictPublishStore):
    @override
    def sync(self) -> None:
        self.frames.clear()


class LosesLargeMessages(DictPublishStore):
    """Only the long walk has messages of 8000 bytes."""

    @override
    def store(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        sequence = super().store(head, tail, body)
        if len(body) == 8000:
            del self.frames[sequence]
        return sequence


BUGS = {
    NotEmpty: "a new store has no numbers",
    StartsWithAGap: "a new store has no gap",
    SkipsNumbers: "numbers rise by one",
    WrongLength: "a frame is length, head, digits, tail and body",
    CountsNoBytes: "unpersisted_bytes: 0 for",
    CountsBytesForEver: "unpersisted_bytes of an empty store",
    AcksOne: "unpersisted_bytes of an empty store",
    AcksTooMuch: "an ack covers everything up to it",
    AcksFall: "last_persisted never falls",
    BeginsAnew: "numbers go on in an empty store",
    IgnoresHighAcks: "an ack above the last number",
    ReplaysFromTheStart: "a replay after",
    ReplaysBackwards: "ascending",
    ReplaysACopy: "a replay during acks",
    FindsNothing: "replay_single of a waiting message",
    FindsAnything: r"replay_single\(0\)",
    FollowsTheClock: "number_above counts only before",
    IgnoresTheClock: "the first number after a logon",
    NumbersBelowTheServer: "a later logon numbers above",
    NeverTrims: "a logon trims",
    NoticesNoGap: "no gap was noticed",
    ServesAnybody: "was not refused with StoreLocked",
    NameIsLost: "client_name",
    SyncForgets: "a sync changes nothing",
    LosesLargeMessages: "step .* of a long walk",
}


@pytest.mark.parametrize(("bug", "told"), BUGS.items(), ids=[bug.__name__ for bug in BUGS])
def test_a_store_that_breaks_one_promise_is_told_which(
    bug: Callable[[], PublishStore], told: str
) -> None:
    with pytest.raises(AssertionError, match=told):
        check_publish_store(bug)


class UsesANumber(_Full):
    @override
    def store(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        try:
            return super().store(head, tail, body)
        except StoreFull:
            self.last_sequence += 1
            raise


class StaysFull(_Full):
    @override
    def store(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        try:
            return super().store(head, tail, body)
        except StoreFull:
            self._max_count = 0
            raise


class DropsTheOldest(_Full):
    @override
    def store(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        try:
            return super().store(head, tail, body)
        except StoreFull:
            del self.frames[min(self.frames)]
            raise


@pytest.mark.parametrize(
    ("bug", "told"),
    [
        (UsesANumber, "a full store has used no number"),
        (DropsTheOldest, "a full store keeps what it has"),
        (StaysFull, "acks make room"),
        (DictPublishStore, "is full after 524288 bytes"),
    ],
)
def test_a_store_that_is_wrong_about_its_limit_is_told_so(
    bug: Callable[[], PublishStore], told: str
) -> None:
    with pytest.raises(AssertionError, match=told):
        check_publish_store(bug, fills_at_bytes=2**19)


def test_a_store_with_a_limit_passes() -> None:
    check_publish_store(_Full, fills_at_bytes=2**19)


@pytest.mark.parametrize("lost", ["everything", "the owner", "the numbers"])
def test_a_store_that_forgets_between_two_processes_is_told_what(lost: str) -> None:
    def reopen(store: PublishStore) -> PublishStore:
        assert isinstance(store, DictPublishStore)
        again = DictPublishStore()
        if lost != "everything":
            again.frames, again.last_persisted = store.frames, store.last_persisted
            again.last_sequence = 0 if lost == "the numbers" else store.last_sequence
            again.client_name = "" if lost == "the owner" else store.client_name
        return again

    told = {
        "everything": "outlives the store: replay gives every frame",
        "the owner": "owner and acks",
        "the numbers": "used twice",
    }[lost]
    with pytest.raises(AssertionError, match=told):
        check_publish_store(DictPublishStore, reopen=reopen)
