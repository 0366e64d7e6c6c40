"""What a publish store should hold, as a set of messages; and the stores that should hold it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from haclient_stores.disk.files import Disk
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.hybrid import HybridPublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.ring import RingPublishStore
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES
from support.frames import HEAD, TAIL, frame_of

__all__ = ["DIRECTORY", "KINDS", "PublishModel", "Store"]

DIRECTORY = Path("/stores/p")


@dataclass(frozen=True, slots=True)
class PublishModel:
    """The messages that wait, the highest number in use, and the highest that was acknowledged.

    Attributes:
        numbers_uncertain: After a loss of power more numbers may have been used than are known.
    """

    waiting: frozenset[tuple[int, bytes]] = frozenset()
    last: int = 0
    persisted: int = 0
    numbers_uncertain: bool = False

    def stored(self, sequence: int, body: bytes) -> PublishModel:
        assert sequence == self.last + 1
        return replace(self, waiting=self.waiting | {(sequence, body)}, last=sequence)

    def acked(self, sequence: int) -> PublishModel:
        persisted = max(sequence, self.persisted)
        left = frozenset(each for each in self.waiting if each[0] > persisted)
        return replace(self, waiting=left, last=max(self.last, sequence), persisted=persisted)

    def logged_on(self, seen: int, persisted: int, clock_us: int) -> PublishModel:
        last = clock_us if self.numbers_uncertain or not self.last else 0
        known = replace(self, last=max(self.last, last, seen), numbers_uncertain=False)
        return known.acked(persisted)

    def compare(self, store: PublishLog) -> None:
        """The store holds exactly this."""
        frames = [(sequence, frame_of(sequence, body)) for sequence, body in sorted(self.waiting)]
        assert list(store.replay()) == frames
        assert store.unpersisted_count == len(frames)
        assert store.lowest_unpersisted == min((sequence for sequence, _ in frames), default=0)
        assert (store.last_sequence, store.last_persisted) == (self.last, self.persisted)
        size = sum(len(frame) for _, frame in frames)
        assert size <= store.unpersisted_bytes if frames else store.unpersisted_bytes == 0


@dataclass(frozen=True, slots=True)
class Store:
    """One kind of store.

    Attributes:
        make: Opens it on a disk.
        lasting: Nothing of it is lost when its process is killed.
        fixed: It has a fixed size.
    """

    make: Callable[[Disk], PublishLog]
    lasting: bool
    fixed: bool = False


_SMALL = MIN_SEGMENT_BYTES

KINDS = {
    "memory": Store(lambda _: MemoryPublishStore(segment_bytes=_SMALL), lasting=False),
    "file": Store(
        lambda disk: FilePublishStore(DIRECTORY, segment_bytes=_SMALL, disk=disk), lasting=True
    ),
    "ring": Store(
        lambda disk: RingPublishStore(DIRECTORY, 4 * _SMALL, disk=disk), lasting=True, fixed=True
    ),
    "ring in memory": Store(
        lambda _: RingPublishStore(None, 4 * _SMALL), lasting=False, fixed=True
    ),
    "file that truncates": Store(
        lambda disk: FilePublishStore(
            DIRECTORY, segment_bytes=_SMALL, truncate_on_close=True, disk=disk
        ),
        lasting=True,
    ),
    "hybrid": Store(
        lambda disk: HybridPublishStore(
            DIRECTORY, memory_bytes=3 * _SMALL, segment_bytes=_SMALL, disk=disk
        ),
        lasting=False,
    ),
}
assert (HEAD, TAIL) == (b'{"c":"p","s":', b"}"), "what frame_of expects"
