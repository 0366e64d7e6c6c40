"""The broker's journal, stopped or refused by the disk, and then a loss of power (TL1, TL7).

What a broker has read or synced it tells publishers to forget. So that has to be on the disk, also
when the process before was killed, or the kernel takes for written what a failed sync has not.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest

from haclient_fake_server.engine.journal import Block
from haclient_fake_server.engine.replication.durability import ReplicationProgress
from haclient_fake_server.journal.files import JournalFiles, ProgressFile
from haclient_fake_server.journal.format import Record, encode_record
from haclient_stores.disk.files import Disk
from haclient_stores.errors import StoreError
from simulation.disk import SimulatedDisk
from support.recording import Event, Killed, Note, RecordingDisk, Synced, failing_sync, power_cuts

DIRECTORY = Path("/broker")
SEGMENT_BYTES = 4 * 4096
BLOCKS = 5  # the last two need a second segment


def opened(disk: Disk) -> JournalFiles:
    return JournalFiles(DIRECTORY, disk, segment_bytes=SEGMENT_BYTES, instance_id=1)


def block(at: int) -> Block:
    data = encode_record(Record(at, 7, at, 1000 * at, 1, payload=b"x" * 5000))
    return Block(data, 1, at, at + 1, 1000 * at, 1000 * at, {7: (at, at)})


def append(journal: JournalFiles) -> None:
    journal.append(block(journal.next_position))


def work(disk: RecordingDisk) -> JournalFiles:
    journal = opened(disk)
    for _ in range(BLOCKS):
        append(journal)
        journal.sync()
        disk.note(journal.next_position)
    return journal


def the_next_broker_works_and_the_power_fails(disk: RecordingDisk) -> None:
    assert disk.events is not None
    disk.restart()
    interrupted = len(disk.events)
    journal = opened(disk)
    disk.note(journal.next_position)
    append(journal)
    journal.sync()
    disk.note(journal.next_position)
    for crash in power_cuts(disk.events, after=interrupted):
        again = opened(crash.disk())
        vouched = [note for note in crash.notes if isinstance(note, int)]
        assert again.next_position >= max(vouched, default=1)
        again.close()


def all_events() -> list[Event]:
    events: list[Event] = []
    disk = RecordingDisk(events)
    work(disk)
    return [event for event in events if not isinstance(event, Note)]


ALL = all_events()
SYNCS = sum(isinstance(event, Synced) for event in ALL)


@pytest.mark.row("TL1", "TL7")
@pytest.mark.parametrize("number", range(SYNCS))
def test_a_broker_that_starts_after_a_failed_sync_vouches_for_what_is_on_the_disk(
    number: int,
) -> None:
    disk = RecordingDisk([])
    with failing_sync(disk, number):
        work(disk)
    the_next_broker_works_and_the_power_fails(disk)


@pytest.mark.row("TL1", "TL7")
@pytest.mark.parametrize("count", range(len(ALL)))
def test_a_broker_that_starts_after_a_kill_vouches_for_what_is_on_the_disk(count: int) -> None:
    disk = RecordingDisk([])
    disk.kill_after(count)
    with contextlib.suppress(Killed):
        work(disk)
    the_next_broker_works_and_the_power_fails(disk)


@pytest.mark.row("TL7")
@pytest.mark.parametrize("blocks", [1, 4])  # sync, and the sync when a segment is sealed
def test_after_a_failed_sync_a_journal_vouches_for_nothing_more(blocks: int) -> None:
    disk = RecordingDisk([])
    journal = opened(disk)
    for _ in range(blocks):
        append(journal)
    assert journal.has_unsealed == (blocks > 1)
    again = journal.sync if blocks == 1 else journal.seal
    with failing_sync(disk):
        again()
    with pytest.raises(StoreError, match="a write or a sync has failed"):
        again()
    with pytest.raises(StoreError, match="a write or a sync has failed"):
        journal.sync()
    with pytest.raises(StoreError, match="a write or a sync has failed"):
        append(journal)
    journal.close()
    the_next_broker_works_and_the_power_fails(disk)


@pytest.mark.row("TL7", "TL16")
def test_after_a_failed_write_a_journal_takes_no_later_block() -> None:
    disk = SimulatedDisk()
    journal = opened(disk)
    append(journal)
    at = journal.next_position
    disk.arm("pwrite", errno.EIO)
    with pytest.raises(StoreError, match="pwrite"):
        append(journal)
    with pytest.raises(StoreError, match="a write or a sync has failed"):
        journal.append(block(at + 1))  # of a task that has yet to hear of the failure
    again = opened(disk.after_kill())
    assert again.next_position == at
    append(again)
    assert again.next_position == at + 1


@pytest.mark.row("RE4", "RE11")
def test_a_loss_of_power_never_looks_as_if_no_destination_had_been_waited_for() -> None:
    """A file that is lost would count as confirmed all that waits for a destination."""
    events: list[Event] = []
    disk = RecordingDisk(events)
    file = ProgressFile(DIRECTORY, disk)
    assert file.progress is None
    for position in (0, 1, 7):
        file.write(ReplicationProgress(position))
        disk.note(position)
    begun = next(at for at, event in enumerate(events) if isinstance(event, Note))
    for crash in power_cuts(events, after=begun):
        found = ProgressFile(DIRECTORY, crash.disk()).progress
        assert found is not None
        assert found.confirmed in {0, 1, 7}
