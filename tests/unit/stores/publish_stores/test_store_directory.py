from __future__ import annotations

from pathlib import Path

import pytest

from haclient_fake_server.journal.files import JournalFiles
from haclient_stores.disk.durable_file import DurabilityOptions
from haclient_stores.disk.files import RealDisk
from haclient_stores.errors import HAClientError, StoreCorrupt, StoreError, StoreLocked, UsageError
from haclient_stores.publish_stores.file import FilePublishStore
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


@pytest.mark.row("PS11")
@pytest.mark.parametrize("names", [["etc"], ["control", "readme"], ["00000001.seg", "a.txt"]])
def test_a_directory_that_holds_anything_else_is_refused_and_left_alone(
    tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(StoreError, match="and is no publish store: give the store a new or an em"):
        FilePublishStore(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert not any(path.stat().st_size for path in tmp_path.iterdir())


@pytest.mark.row("PS11")
def test_the_file_of_another_program_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "control").write_bytes(b"Package: haclient")
    with pytest.raises(StoreCorrupt, match="not a HAPUBCTL file"):
        FilePublishStore(tmp_path)
    assert (tmp_path / "control").read_bytes() == b"Package: haclient"


@pytest.mark.row("PS11")
@pytest.mark.parametrize("names", [[], ["lost+found"], ["control"], ["control", "notes.json.new"]])
def test_a_directory_that_is_empty_or_was_just_begun_becomes_a_store(
    tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        (tmp_path / name).touch()
    FilePublishStore(tmp_path).close()
    (tmp_path / "readme").touch()  # ours for good now, whatever else is put there
    FilePublishStore(tmp_path).close()
