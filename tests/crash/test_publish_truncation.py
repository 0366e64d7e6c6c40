"""A crash at any point of a close that gives the store's space back (PS24)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.hybrid import HybridPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.ring import RingPublishStore
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES
from support.frames import put
from support.publish_model import DIRECTORY
from support.recording import Event, RecordingDisk, kills, power_cuts

TRUNCATING: dict[str, Callable[[RecordingDisk], PublishLog]] = {
    "file": lambda disk: FilePublishStore(
        DIRECTORY, segment_bytes=MIN_SEGMENT_BYTES, truncate_on_close=True, disk=disk
    ),
    "ring": lambda disk: RingPublishStore(
        DIRECTORY, 4 * MIN_SEGMENT_BYTES, truncate_on_close=True, disk=disk
    ),
    "hybrid": lambda disk: HybridPublishStore(
        DIRECTORY,
        memory_bytes=2 * MIN_SEGMENT_BYTES,
        segment_bytes=MIN_SEGMENT_BYTES,
        truncate_on_close=True,
        disk=disk,
    ),
}


@pytest.mark.row("PS24")
@pytest.mark.parametrize("kind", TRUNCATING)
def test_a_crash_while_a_store_gives_its_space_back_loses_no_number_and_finds_no_message(
    kind: str,
) -> None:
    events: list[Event] = []
    disk = RecordingDisk(events)
    store = TRUNCATING[kind](disk)
    store.reconcile(seen=0, persisted=0, clock_us=1000)
    ever = {put(store, b"k" * 9000) for _ in range(8)}
    store.sync()
    store.discard_up_to(max(ever))
    disk.note("closing")
    store.close()
    assert list(disk.image()) == [DIRECTORY / "control"]
    count = 0
    for crash in [*kills(events), *power_cuts(events)]:
        if not crash.notes:
            continue
        killed = crash.disk().boot_id() == disk.boot_id()
        again = TRUNCATING[kind](crash.disk())
        left = {sequence for sequence, _ in again.replay()}
        assert not left if killed else left <= ever
        assert put(again) > max(ever)
        again.close()
        count += 1
    assert count > 10
