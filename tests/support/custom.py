"""The simplest stores that a user could write: nothing but the public methods."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from haclient_stores.bookmark import Bookmark, BookmarkList
from haclient_stores.errors import PublishGap, StoreFull, StoreLocked
from haclient_stores.interfaces import BookmarkStore, PublishStore

__all__ = ["DictBookmarkStore", "DictPublishStore"]


class DictPublishStore(PublishStore):
    """A dictionary of frames by sequence."""

    gap: PublishGap | None = None
    client_name = ""
    last_sequence = 0
    last_persisted = 0

    def __init__(self, *, max_count: int = 2**62, waits: bool = False) -> None:
        self.frames: dict[int, bytes] = {}
        self.synced = 0
        self.closed = False
        self._max_count = max_count
        self._waits = waits

    @property
    @override
    def unpersisted_count(self) -> int:
        return len(self.frames)

    @property
    @override
    def unpersisted_bytes(self) -> int:
        return sum(map(len, self.frames.values()))

    @property
    @override
    def lowest_unpersisted(self) -> int:
        return min(self.frames, default=0)

    @override
    def open_for(self, client_name: str) -> None:
        if self.client_name not in {"", client_name}:
            raise StoreLocked("dictionary", self.client_name, "belongs to another client")
        self.client_name = client_name

    @override
    def store(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        if len(self.frames) >= self._max_count:
            raise StoreFull("the dictionary is full", wait=self._waits)
        self.last_sequence += 1
        frame = b"".join((head, b"%d" % self.last_sequence, tail, body))
        self.frames[self.last_sequence] = len(frame).to_bytes(4, "big") + frame
        return self.last_sequence

    @override
    def discard_up_to(self, sequence: int) -> None:
        for each in [each for each in self.frames if each <= sequence]:
            del self.frames[each]
        self.last_persisted = max(self.last_persisted, sequence)
        self.last_sequence = max(self.last_sequence, sequence)

    @override
    def replay(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        for number in list(self.frames):
            if number > after and number in self.frames:
                yield number, self.frames[number]

    @override
    def replay_single(self, sequence: int) -> bytes | None:
        return self.frames.get(sequence)

    @override
    def number_above(self, sequence: int) -> None:
        self.last_sequence = self.last_sequence or sequence

    @override
    def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
        if persisted < self.last_persisted:
            self.gap = PublishGap(self.last_persisted, persisted)
        self.last_sequence = max(self.last_sequence or clock_us, seen)
        self.discard_up_to(persisted)

    @override
    def sync(self) -> None:
        self.synced += 1

    @override
    def close(self) -> None:
        self.closed = True


class DictBookmarkStore(BookmarkStore):
    """Every message of every subscription, and which of them are discarded."""

    client_name = ""

    def __init__(self) -> None:
        self.entries: dict[str, dict[int, str]] = {}
        self.discarded: dict[str, set[int]] = {}
        self.acks: list[tuple[str, str]] = []
        self.closed = False
        self._number = 0

    @override
    def open_for(self, client_name: str) -> None:
        self.client_name = client_name

    @override
    def log(self, sub_id: str, bookmark: str) -> int:
        self._number += 1
        self.entries.setdefault(sub_id, {})[self._number] = bookmark
        return self._number

    @override
    def discard(self, sub_id: str, number: int) -> None:
        self.discarded.setdefault(sub_id, set()).add(number)

    @override
    def discard_up_to(self, sub_id: str, number: int) -> None:
        for each in self.entries.get(sub_id, {}):
            if each <= number:
                self.discard(sub_id, each)

    @override
    def is_discarded(self, sub_id: str, bookmark: str) -> bool:
        return bookmark in self.entries.get(sub_id, {}).values()

    @override
    def most_recent(self, sub_id: str) -> BookmarkList:
        done: list[Bookmark] = []
        for number, bookmark in self.entries.get(sub_id, {}).items():
            if number not in self.discarded.get(sub_id, set()):
                break
            done = [Bookmark.parse(bookmark)]
        return BookmarkList(tuple(done))

    @override
    def persisted(self, sub_id: str, bookmark: str) -> None:
        self.acks.append((sub_id, bookmark))

    @override
    def oldest_undiscarded(self, sub_id: str) -> int:
        open_ones = self.entries.get(sub_id, {}).keys() - self.discarded.get(sub_id, set())
        return min(open_ones, default=0)

    @override
    def purge(self, sub_id: str | None = None) -> None:
        for each in list(self.entries) if sub_id is None else [sub_id]:
            self.entries.pop(each, None)
            self.discarded.pop(each, None)

    @override
    def prune(self) -> None:
        """A dictionary needs none."""

    @override
    def close(self) -> None:
        self.closed = True
