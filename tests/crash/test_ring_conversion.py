"""A bookmark ring of version 1 that is opened, and a crash at any moment of its conversion."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from support.old_ring import OLD_RING
from support.recording import Crash, Event, RecordingDisk, kills, power_cuts

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.row("BS15")]

PATH = Path("/disk/s.ring")


def check(store: RingBookmarkStore) -> None:
    assert store.client_name == "worker-1"
    assert len(list(store.most_recent("orders"))) == 100
    assert all(store.is_discarded("orders", f"{each}|{each + 5}|") for each in range(1, 161))
    assert not store.is_discarded("orders", "160|166|")
    assert store.subscription("orders").server_order.server == "a:1"
    assert str(store.most_recent("prices")) == "7|1|"


@pytest.mark.parametrize(("kind", "every"), [(kills, 1), (power_cuts, 20)])
def test_a_ring_of_the_old_version_is_converted_whatever_ends_its_process(
    kind: Callable[[list[Event]], Iterator[Crash]], every: int
) -> None:
    events: list[Event] = []
    disk = RecordingDisk(events)
    file = disk.open(PATH, create=True)
    file.pwrite(OLD_RING, 0)
    file.fsync()
    disk.fsync_dir(PATH.parent)
    begin = len(events)
    store = RingBookmarkStore(PATH, disk=disk)
    check(store)
    assert disk.listdir(PATH.parent) == [PATH.name]
    crashes = [each for each in kind(events) if each.at >= begin][::every]
    assert len(crashes) > 10
    for crash in crashes:
        again = RingBookmarkStore(PATH, disk=crash.disk())
        check(again)
        again.close()
    store.close()
