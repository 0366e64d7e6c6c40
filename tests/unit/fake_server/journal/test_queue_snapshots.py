"""The files of file-backed queues: taken where they are true of the log, and ignored elsewhere."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from haclient_fake_server.engine.journal import Block, Cursor
from haclient_fake_server.engine.queues.message_table import ChunkColumns
from haclient_fake_server.engine.queues.snapshot import QueueColumns, QueueSnapshot
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.format import Record, encode_record, encode_removals, segment_name
from haclient_fake_server.journal.queue_snapshots import QueueSnapshotFiles, snapshot_name
from haclient_stores.disk.files import File, RealDisk
from haclient_stores.errors import StoreError

pytestmark = pytest.mark.row("QB30")
QUEUES = [("work", "json"), ("caf\u00e9 \udcff/*", "fix")]
COLUMNS = QueueColumns(
    [
        ChunkColumns(range(1, 500), array("d"), {7: (1, 4), 2**64 - 1: (1, 2**64 - 1)}),
        ChunkColumns(
            array("Q", [500, 2**63]), array("d", [0.5, float("-inf")]), {2**64 - 1: (5, 6)}
        ),
        ChunkColumns(range(2**64 - 1, 2**64), array("d", [0.5]), {0: (0, 0)}),
    ],
    array("Q", [10**15]),
    array("Q", [3]),
    array("Q", []),
)


def opened_journal(directory: Path, start_id: int = 1) -> JournalFiles:
    return JournalFiles(directory, RealDisk(), segment_bytes=4096, instance_id=1, start_id=start_id)


def append(journal: JournalFiles, count: int = 1, *, size: int = 100) -> None:
    for _ in range(count):
        position = journal.next_position
        record = Record(position, 7, position, 1000, 1, payload=b"x" * size)
        data = encode_record(record)
        journal.append(
            Block(data, 1, position, position + 1, 1000, 1000, {7: (position, position)})
        )


def remove(journal: JournalFiles, sequence: int) -> None:
    """Append a removal, which does not move the end of the log by a position."""
    position = journal.next_position
    data = encode_removals(b"work", b"json", [(7, sequence, 1)], now_us=1000)
    journal.append(Block(data, 1, position, position, 1000, 1000))


def opened(directory: Path, journal: JournalFiles) -> QueueSnapshotFiles:
    return QueueSnapshotFiles(directory, RealDisk(), journal, queues=QUEUES)


def snapshots_of(journal: JournalFiles) -> list[QueueSnapshot]:
    end = Cursor(journal.live.number, journal.live.end)
    return [QueueSnapshot(*each, "{}", end, journal.next_position, COLUMNS) for each in QUEUES]


def write(directory: Path, journal: JournalFiles) -> list[QueueSnapshot]:
    files, snapshots = opened(directory, journal), snapshots_of(journal)
    files.write(files.prepare(snapshots))
    return snapshots


def found(directory: Path, start_id: int = 2) -> list[QueueSnapshot]:
    """What a broker that starts takes."""
    journal = opened_journal(directory, start_id)
    taken = opened(directory, journal).snapshots
    journal.close()
    return sorted(taken, key=lambda each: each.name, reverse=True)


@pytest.mark.parametrize("later", [0, 1, 100])
def test_what_was_written_is_taken_by_the_next_broker(tmp_path: Path, later: int) -> None:
    journal = opened_journal(tmp_path)
    append(journal, 30)
    snapshots = write(tmp_path, journal)
    append(journal, later)
    journal.close()
    assert found(tmp_path) == snapshots
    assert found(tmp_path, start_id=3) == snapshots


def test_a_snapshot_of_an_empty_log_is_taken(tmp_path: Path) -> None:
    journal = opened_journal(tmp_path)
    snapshots = write(tmp_path, journal)
    journal.close()
    assert found(tmp_path) == snapshots


def test_a_snapshot_is_due_when_the_log_has_grown(tmp_path: Path) -> None:
    journal = opened_journal(tmp_path)
    files = opened(tmp_path, journal)
    changes: list[Callable[[JournalFiles], None]] = [append, lambda journal: remove(journal, 1)]
    for change in changes:
        assert files.is_due
        files.write(files.prepare(snapshots_of(journal)))
        assert not files.is_due
        change(journal)
    assert files.is_due
    journal.close()


def cut(directory: Path, end: int) -> None:
    """What a loss of power may leave of the first segment."""
    path = directory / segment_name(1)
    data = path.read_bytes()
    path.write_bytes(data[:end].ljust(len(data), b"\0"))


@pytest.mark.parametrize(
    "last", [append, lambda journal: remove(journal, 1)], ids=["message", "removal"]
)
def test_a_log_that_was_cut_before_a_snapshot_ignores_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, last: Callable[[JournalFiles], None]
) -> None:
    journal = opened_journal(tmp_path)
    append(journal, 3)
    end = journal.live.end
    last(journal)
    write(tmp_path, journal)
    journal.close()
    cut(tmp_path, end)
    assert found(tmp_path) == []
    assert "ignored: the log has" in caplog.text
    journal = opened_journal(tmp_path, 3)
    append(journal, 10)
    journal.close()
    assert found(tmp_path, 4) == [], "also when the log is longer again"


def test_another_block_of_the_same_size_is_noticed(tmp_path: Path) -> None:
    """A copy of the log from before the snapshot, which went on."""
    journal = opened_journal(tmp_path)
    append(journal, 3)
    end = journal.live.end
    remove(journal, 1)
    write(tmp_path, journal)
    journal.close()
    cut(tmp_path, end)
    journal = JournalFiles(tmp_path, RealDisk(), segment_bytes=4096, instance_id=1, start_id=1)
    remove(journal, 2)
    journal.close()
    assert found(tmp_path) == []


def test_a_snapshot_of_another_log_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened_journal(tmp_path)
    append(journal, 3)
    write(tmp_path, journal)
    journal.close()
    for path in tmp_path.glob("journal.0*"):
        path.unlink()
    journal = opened_journal(tmp_path, 2)
    append(journal, 3)
    journal.close()
    assert found(tmp_path, 3) == []
    assert "it is of another log (no start 0000000000000001)" in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:0],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[:40],
        lambda data: b"X" + data[1:],
        lambda data: data.replace(b'"format": 2', b'"format": 3'),
        lambda data: data[:-30] + bytes([data[-30] ^ 1]) + data[-29:],
    ],
    ids=["empty", "cut", "longer", "header", "magic", "version", "byte"],
)
def test_a_damaged_file_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    journal = opened_journal(tmp_path)
    append(journal, 3)
    write(tmp_path, journal)
    journal.close()
    path = tmp_path / snapshot_name(*QUEUES[0])
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert [each.name for each in found(tmp_path)] == [QUEUES[1][0]]
    assert f"{path}: ignored, since it is damaged or of another version" in caplog.text


def test_every_byte_counts(tmp_path: Path) -> None:
    journal = opened_journal(tmp_path)
    append(journal, 3)
    write(tmp_path, journal)
    files = opened(tmp_path, journal)
    path = tmp_path / snapshot_name(*QUEUES[0])
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert len(opened(tmp_path, journal).snapshots) == 1, at
    path.write_bytes(whole)
    assert len(opened(tmp_path, journal).snapshots) == 2
    assert files.is_due
    journal.close()


def test_files_of_queues_that_are_file_backed_no_longer_are_removed(tmp_path: Path) -> None:
    journal = opened_journal(tmp_path)
    write(tmp_path, journal)
    QueueSnapshotFiles(tmp_path, RealDisk(), journal, queues=QUEUES[:1])
    names = {path.name for path in tmp_path.glob("queue.*.state")}
    assert names == {snapshot_name(*QUEUES[0])}
    journal.close()


def test_a_segment_that_was_removed_takes_its_snapshots_with_it(tmp_path: Path) -> None:
    journal = opened_journal(tmp_path)
    append(journal, 3)
    write(tmp_path, journal)
    append(journal, 100)
    while journal.has_unsealed:
        journal.seal()
    journal.close()
    (tmp_path / segment_name(1)).unlink()
    assert found(tmp_path) == []


def test_a_snapshot_that_cannot_be_read_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened_journal(tmp_path)
    append(journal, 3)
    write(tmp_path, journal)
    journal.close()
    real = RealDisk.open

    def unreadable(disk: RealDisk, path: Path, **how: bool) -> File:
        if path.suffix == ".state":
            raise StoreError(f"{path}: cannot read: Input/output error")
        return real(disk, path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "open", unreadable)
        assert found(tmp_path) == []
    assert "ignored, since it cannot be read" in caplog.text
    assert len(found(tmp_path, 3)) == len(QUEUES)
