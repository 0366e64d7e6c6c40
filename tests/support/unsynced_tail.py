"""Logs with a tail that is not synced, of which a loss of power takes any pages.

A log is one of numbers, in one of the formats. It is synced now and then; `cut_while_syncing` are
the losses of power just before each sync returns, when the checksums of the tail are written too.
`check_beginning` and `check_appended` are what has to hold of each.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from typing_extensions import override

from haclient_fake_server.engine.journal import Block
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.format import Record, encode_record
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.publish_stores.publish_log import PublishLog
from support.frames import put
from support.publish_model import KINDS
from support.recording import (
    FIRST_BOOT,
    NEXT_BOOT,
    THIRD_BOOT,
    Crash,
    Event,
    RecordingDisk,
    Synced,
    power_cuts,
)

__all__ = ["LOGS", "check_appended", "check_beginning", "cut_while_syncing"]

ROUNDS = 4
EACH_ROUND = 3  # numbers, each about half a page or more
NEW = 3
FIRST_NEW = 1000
BOOTS = (b"", FIRST_BOOT, NEXT_BOOT, THIRD_BOOT)


class Log(ABC):
    """A log of numbers, in one of the formats."""

    @abstractmethod
    def __init__(self, disk: RecordingDisk) -> None:
        """A process opens it."""

    @abstractmethod
    def append(self, number: int) -> None:
        """Write at least half a page that stands for a number."""

    @abstractmethod
    def sync(self) -> None:
        """Vouch for all that was written."""

    @abstractmethod
    def numbers(self) -> list[int]:
        """What is in it, in order."""

    @staticmethod
    def _every() -> list[int]:
        return [*range(1, ROUNDS * EACH_ROUND + 1), *range(FIRST_NEW, FIRST_NEW + NEW)]


class BookmarkLog(Log):
    """A number is some messages that are discarded: by the last one it is known."""

    EACH = 60

    @override
    def __init__(self, disk: RecordingDisk) -> None:
        self._store = LoggedBookmarkStore(Path("/disk/s.bm"), disk=disk)
        self._log = self._store.subscription("s")

    @override
    def append(self, number: int) -> None:
        for each in self._names(number):
            self._log.discard(self._log.log(each))

    def _names(self, number: int) -> list[str]:
        publisher = 7 if number < FIRST_NEW else 8
        return [f"{publisher}|{number * self.EACH + n}|" for n in range(1, self.EACH + 1)]

    @override
    def sync(self) -> None:
        self._store.sync()

    @override
    def numbers(self) -> list[int]:
        return [n for n in self._every() if self._log.is_discarded(self._names(n)[-1])]


class PublishSegments(Log):
    """A number is a body."""

    @override
    def __init__(self, disk: RecordingDisk) -> None:
        self._store: PublishLog = KINDS["file"].make(disk)
        clock_us = 1_000_000 * BOOTS.index(disk.boot)  # no machine starts twice in a moment
        self._store.reconcile(seen=0, persisted=0, clock_us=clock_us)

    @override
    def append(self, number: int) -> None:
        put(self._store, b"%08d" % number + bytes(2100))

    @override
    def sync(self) -> None:
        self._store.sync()

    @override
    def numbers(self) -> list[int]:
        frames = [frame for _, frame in self._store.replay()]
        return [int(frame[frame.index(b"}") + 1 :][:8]) for frame in frames]


class Journal(Log):
    """A number is a block."""

    @override
    def __init__(self, disk: RecordingDisk) -> None:
        self._files = JournalFiles(Path("/broker"), disk, segment_bytes=16 * 4096, instance_id=1)

    @override
    def append(self, number: int) -> None:
        at = self._files.next_position
        payload = b"%08d" % number + bytes(2100)
        data = encode_record(Record(at, 7, number, 1000 * at, 1, payload=payload))
        self._files.append(Block(data, 1, at, at + 1, 1000 * at, 1000 * at, {7: (number, number)}))

    @override
    def sync(self) -> None:
        self._files.sync()

    @override
    def numbers(self) -> list[int]:
        data, _ = self._files.read(self._files.seek(1), 2**20)
        at = [data.find(b"%08d" % number + bytes(100)) for number in self._every()]
        order = [data[each : each + 8] for each in sorted(at) if each >= 0]
        return [int(each) for each in order]


Open: TypeAlias = Callable[[RecordingDisk], Log]
LOGS: Final[dict[str, Open]] = {
    "bookmark log": BookmarkLog,
    "publish segments": PublishSegments,
    "journal": Journal,
}


def written(log: Open) -> list[Event]:
    """Everything that happens to a log that is synced now and then; each sync is noted."""
    events: list[Event] = []
    disk = RecordingDisk(events)
    writer = log(disk)
    numbers = itertools.count(1)
    for _ in range(ROUNDS):
        for number in itertools.islice(numbers, EACH_ROUND):
            writer.append(number)
        writer.sync()
        disk.note(number)
    return events


def cut_while_syncing(kind: str) -> Iterator[tuple[int, Crash]]:
    """What any loss of power leaves just before a sync returns; and what had been synced before."""
    events = written(LOGS[kind])
    for at, event in enumerate(events):
        if isinstance(event, Synced):
            for crash in power_cuts(events[:at], after=at):
                yield max((note for note in crash.notes if isinstance(note, int)), default=0), crash


def appended(log: Open, crash: Crash) -> tuple[list[int], list[Event]]:
    """What the process after a crash has found, and all that it did: it appends and syncs."""
    events: list[Event] = []
    disk = crash.disk(events)
    third = log(disk)
    found = third.numbers()
    for number in range(FIRST_NEW, FIRST_NEW + NEW):
        third.append(number)
    third.sync()
    disk.note(NEW)
    return found, events


def check_beginning(kind: str, synced: int, crash: Crash) -> bool:
    """A beginning is found, with all that was synced; whether more than that."""
    numbers = LOGS[kind](crash.disk()).numbers()
    assert numbers == list(range(1, len(numbers) + 1)), "a beginning, in order"
    assert len(numbers) >= synced
    return len(numbers) > synced


def check_appended(kind: str, synced: int, crash: Crash) -> Iterator[None]:
    """The next process appends and syncs, and power fails again: nothing that was cut is back."""
    log = LOGS[kind]
    new = list(range(FIRST_NEW, FIRST_NEW + NEW))
    found, later = appended(log, crash)
    for at in range(1, len(later), max(1, len(later) // 8)):
        for second in power_cuts(later[:at], base=crash.image, boot=THIRD_BOOT, after=at):
            numbers = log(second.disk()).numbers()
            old = [number for number in numbers if number < FIRST_NEW]
            assert synced <= len(old) <= len(found)
            assert old == found[: len(old)]
            assert numbers[len(old) :] == new[: len(numbers) - len(old)]
            assert old in (found, numbers), "what is new stands behind what was found"
            assert numbers == found + new or not second.notes, "it was synced"
            yield
