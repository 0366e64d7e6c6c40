"""An error of the disk, and then a loss of power: a later sync vouches for all that it says (PS20).

The kernel reports an error of `fsync` once. Then it takes for written what it could not write, and
the next `fsync` leaves it out, whichever process asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.disk.files import Disk
from support.frames import put
from support.publish_model import KINDS
from support.recording import Event, RecordingDisk, failing_sync, power_cuts

PATH = Path("/stores/s.bm")
MESSAGES = [f"7|{number}|" for number in range(1, 5)]


@pytest.mark.row("PS20", "PS22")
@pytest.mark.parametrize("end", ["goes on", "is closed", "is killed"])
@pytest.mark.parametrize("number", [0, 1])  # the segment, the control page
@pytest.mark.parametrize("kind", ["file", "ring", "hybrid"])
def test_what_a_failed_sync_of_messages_has_lost_is_written_again_by_the_next(
    kind: str, number: int, end: str
) -> None:
    events: list[Event] = []
    disk = RecordingDisk(events)
    make = KINDS[kind].make
    store = make(disk)
    store.reconcile(seen=0, persisted=0, clock_us=1000)
    first = put(store, bytes(9000))
    with failing_sync(disk, number):
        (store.close if end == "is closed" else store.sync)()
    if end == "is killed":
        disk.restart()
    if end != "goes on":  # a store that was closed has let go of its lock
        store = make(disk)
    last = put(store, bytes(5000))
    store.sync()
    disk.note("synced")
    for crash in power_cuts(events):
        if crash.notes:
            again = make(crash.disk())
            assert [sequence for sequence, _ in again.replay()] == [first, last]
            assert again.last_sequence >= store.last_sequence
            again.close()


@pytest.mark.row("BS14", "BS15")
@pytest.mark.parametrize("end", ["goes on", "is closed", "is killed"])
@pytest.mark.parametrize(
    "opened",
    [
        lambda disk: LoggedBookmarkStore(PATH, disk=disk),
        lambda disk: RingBookmarkStore(PATH, subscriptions=2, disk=disk),
    ],
    ids=["logged", "ring"],
)
def test_what_a_failed_sync_of_discards_has_lost_is_written_again_by_the_next(
    opened: Callable[[Disk], LoggedBookmarkStore | RingBookmarkStore], end: str
) -> None:
    events: list[Event] = []
    disk = RecordingDisk(events)
    store = opened(disk)
    log = store.subscription("s")
    log.begin(acked=False, start=None)
    for number in log.log_batch(MESSAGES):
        log.discard(number)
    with failing_sync(disk):
        (store.close if end == "is closed" else store.sync)()
    if end == "is killed":
        disk.restart()
    if end != "goes on":  # a store that was closed has let go of its lock
        store = opened(disk)
    store.sync()
    disk.note("synced")
    for crash in power_cuts(events):
        if crash.notes:
            again = opened(crash.disk())
            assert again.subscription("s").log_batch(MESSAGES) == [0] * len(MESSAGES)
            again.close()
