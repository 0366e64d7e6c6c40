from __future__ import annotations

from pathlib import Path

import pytest

from haclient_fake_server.journal.files import JournalFiles
from haclient_stores.disk.durable_file import DurabilityOptions
from haclient_stores.disk.files import RealDisk
from haclient_stores.errors import HAClientError, StoreCorrupt, StoreLocked, UsageError
from haclient_stores.publish_stores.segment import MIN_SEGMENT_BYTES
from haclient_stores.publish_stores.store_directory import CONTROL_MAGIC, Directory
from support.recording import Created, Event, NamesSynced, RecordingDisk, Synced

PATH = Path("/stores/p")


def opened(disk: RecordingDisk) -> Directory:
    return Directory(PATH, disk, DurabilityOptions(), segment_bytes=MIN_SEGMENT_BYTES)


@pytest.mark.row("PS11", "PS22")
def test_a_new_directory_is_on_disk_before_it_is_used() -> None:
    events: list[Event] = []
    directory = opened(RecordingDisk(events))
    kinds = [type(event) for event in events]
    assert kinds.index(Created) < kinds.index(Synced) < kinds.index(NamesSynced)
    assert bytes(directory.files.control[:8]) == CONTROL_MAGIC
    directory.close([])


@pytest.mark.row("PS12")
def test_an_owner_and_notes_stay() -> None:
    disk = RecordingDisk()
    directory = opened(disk)
    directory.open_for("orders-1")
    directory.set_note("line", "7")
    with pytest.raises(StoreLocked, match="in use by another process as client 'orders-1'"):
        opened(disk)
    directory.close([])
    again = opened(disk)
    assert (again.client_name, again.notes) == ("orders-1", {"line": "7"})
    with pytest.raises(StoreLocked, match="belongs to the client"):
        again.open_for("orders-2")
    again.close([])
    with pytest.raises(UsageError, match="the store is closed"):
        again.set_note("line", "8")


@pytest.mark.row("PS20")
def test_a_sync_covers_what_its_checkpoint_says() -> None:
    directory = opened(RecordingDisk([]))
    directory.sync(lambda: 7)
    directory.sync(lambda: 5)
    assert directory.synced_sequence == 7
    directory.close([])


def test_what_cannot_be_opened_is_not_locked() -> None:
    disk = RecordingDisk()
    disk.open(PATH / "notes.json", create=True).pwrite(b"[]", 0)
    with pytest.raises(StoreCorrupt, match="not a JSON object of texts"):
        opened(disk)
    disk.remove(PATH / "notes.json")
    opened(disk).close([])


def test_a_note_that_could_not_be_read_back_is_refused() -> None:
    disk = RecordingDisk()
    directory = opened(disk)
    for key, value in (("lines", 1), (1, "lines"), (None, None)):
        with pytest.raises(UsageError, match="a note is a text under a text, not"):
            directory.set_note(key, value)  # type: ignore[arg-type]  # wrong on purpose
    directory.close([])
    opened(disk).close([])


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    given: list[tuple[str | Path, str]] = [("", "path is the directory of the store, not ''")]
    given.append((5, "path is the directory of the store, not 5"))  # type: ignore[arg-type]  # wrong on purpose
    given.append((tmp_path / ("n" * 300), "cannot create the directory: File name too long"))
    (tmp_path / "file").write_bytes(b"x")
    given.append((tmp_path / "file", "is a file, where a directory is wanted"))
    JournalFiles(tmp_path / "log", RealDisk(), segment_bytes=2**16, instance_id=1).close()
    given.append((tmp_path / "log", "the data directory of a broker"))
    for path, what in given:
        with pytest.raises(HAClientError, match=what):
            Directory(path, None, DurabilityOptions(), segment_bytes=MIN_SEGMENT_BYTES)
    assert not (tmp_path / "log" / "control").exists()
