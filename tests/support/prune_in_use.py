"""A bookmark log that is used and synced while it is pruned, and what any crash has to leave of it.

Just before the n-th operation of the disk that belongs to the prune, messages are discarded, and
the log is synced where another thread could do so at that moment.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from support.recording import FIRST_BOOT, Crash, Event, Note, RecordingDisk

__all__ = ["check", "crashes"]

PATH = Path("/disk/s.bm")
MESSAGES = 60
DISCARDED = 20
AT_ONCE = 8  # discards at one moment


@dataclass(frozen=True, slots=True)
class Known:
    """Messages up to this number are discarded, and a sync has covered that."""

    number: int
    synced: bool


class Pruned:
    """A prune, in front of one of whose operations the store is used.

    Attributes:
        events: What happened on the disk.
        begins: How many of them before the prune.
        used: Whether there was such an operation, and the store could be used then.
    """

    def __init__(self, moment: int) -> None:
        self.events: list[Event] = []
        self.used = False
        self.disk = RecordingDisk(self.events)
        self.store = LoggedBookmarkStore(PATH, disk=self.disk)
        self._log = self.store.subscription("s")
        self._log.log_batch([f"7|{number}|" for number in range(1, MESSAGES + 1)])
        self._done = 0
        self._discard(DISCARDED)
        self._sync()
        self._moment = moment
        self.begins = len(self.events)
        self.disk.before = self._before
        self.store.prune()
        self.disk.before = None
        self.store.close()
        self._note(synced=True)

    def _discard(self, count: int) -> None:
        for number in range(self._done + 1, self._done + count + 1):
            self._log.discard(number)
        self._done += count
        self._note(synced=False)

    def _sync(self) -> None:
        self.store.sync()
        self._note(synced=True)

    def _note(self, *, synced: bool) -> None:
        self.disk.note(Known(self._done, synced))

    def _before(self, event: Event) -> None:
        if isinstance(event, Note):
            return
        self._moment -= 1
        if self._moment >= 0 or self.store._log.gate.closed:
            return
        self.disk.before = None
        self.used = True
        self._discard(AT_ONCE)
        if not self.store._syncing.locked():
            self._sync()


def check(crash: Crash) -> None:
    """Everything is known that has to be; of the rest, what came first."""
    notes = [note for note in crash.notes if isinstance(note, Known)]
    promised = [note.number for note in notes if note.synced or crash.boot == FIRST_BOOT]
    store = LoggedBookmarkStore(PATH, disk=crash.disk())
    found = [n for n in range(1, MESSAGES + 1) if store.is_discarded("s", f"7|{n}|")]
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= max(promised, default=0)
    if found:
        assert str(store.most_recent("s")) == f"7|{len(found)}|"
    store.close()


def crashes(kind: Callable[[list[Event]], Iterator[Crash]], *, every: int) -> Iterator[Crash]:
    """Crashes from the begin of the prune on.

    Args:
        kind: `kills` or `power_cuts`.
        every: Only every so manieth moment of the prune, and so manieth crash of that.
    """
    moment = 0
    while (pruned := Pruned(moment)).used:
        for crash in itertools.islice(kind(pruned.events), moment % every, None, every):
            if crash.at >= pruned.begins:
                yield crash
        moment += every
