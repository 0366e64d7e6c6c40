"""Sealed segments as Parquet are read for their segments, and each position is there once."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from haclient.cli.app import run
from haclient.errors import StoreCorrupt, StoreError
from haclient.pyspark.journal import sealing
from haclient.pyspark.journal.frames import JournalPlan
from haclient.pyspark.journal.log import JournalLog
from haclient.pyspark.journal.sealed import checksums, sealed_file, sealed_path, sums_path
from haclient.pyspark.journal.sealing import seal_journal
from haclient.pyspark.journal.source import (
    JournalRangeReader,
    JournalSettings,
    JournalStreamReader,
)
from haclient.pyspark.rows import DataLoss, signed
from haclient_fake_server.journal.format import manifest_name, segment_name
from support.journals import JournalWriter, deletion, message, model_rows

SEGMENT = 64 * 1024
COUNT = 2000


def append(writer: JournalWriter, count: int) -> None:
    """Blocks of ten rows: a delete in each, two topics, keys and correlation ids."""
    for number in range(0, count, 10):
        topic = "orders" if number % 30 else "prices"
        rows = [
            message(
                b"x" * (100 + each),
                topic=topic,
                publisher_id=2**64 - 1 - each % 3,
                key=b"k%d" % each if each % 2 else b"",
                correlation_id=b"c" * (each % 4),
            )
            for each in range(9)
        ]
        writer.append([*rows, deletion(b"k1,k3", topic=topic)])
    writer.seal()


def write(folder: Path, count: int = COUNT) -> JournalWriter:
    writer = JournalWriter(folder, segment_bytes=SEGMENT)
    append(writer, count)
    return writer


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several row groups in each file of these tests."""
    monkeypatch.setattr(sealing, "ROWS_PER_GROUP", 100)


def reader(folder: Path, **options: str) -> JournalRangeReader:
    return JournalRangeReader(JournalSettings({"journalPath": str(folder), **options}))


def values(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        plain = [
            each.cast(pa.int64()) if pa.types.is_timestamp(each.type) else each
            for each in batch.columns
        ]
        rows += zip(*(column.to_pylist() for column in plain), strict=True)
    return rows


def read(folder: Path, **options: str) -> list[tuple[Any, ...]]:
    source = reader(folder, **options)
    return values(batch for split in source.partitions() for batch in source.read(split))


def positions(folder: Path, **options: str) -> list[int]:
    return [row[0] for row in read(folder, columns="position", **options)]


def model(folder: Path) -> list[tuple[Any, ...]]:
    return [
        tuple(row._replace(publisher_id=signed(row.publisher_id), sequence=signed(row.sequence)))
        for row in model_rows(folder)
    ]


def spoil(path: Path, *, at: int = -1) -> None:
    """Change a byte of a file; of a segment, one of its first block."""
    data = bytearray(path.read_bytes())
    data[at if at >= 0 else 200] ^= 0x55
    path.write_bytes(data)


def sealed_and_spoilt(folder: Path) -> list[int]:
    """Seal a journal as Parquet and spoil its segments, so that reading one fails."""
    numbers = [int(path.name.split(".")[1]) for path in seal_journal(folder)]
    for number in numbers:
        path = folder / segment_name(number)
        stride = next(m for m in JournalLog(folder).manifests if m.number == number).index[0]
        spoil(path, at=stride.offset + 100)
    return numbers


def test_sealed_segments_are_read_from_their_files_with_the_same_rows(tmp_path: Path) -> None:
    write(tmp_path)
    rows = model(tmp_path)
    assert read(tmp_path) == rows
    assert len(sealed_and_spoilt(tmp_path)) > 3
    assert read(tmp_path) == rows
    assert read(tmp_path, maxPartitionBytes="1k", columns="data,position") == [
        (row[9], row[4]) for row in rows
    ]


@pytest.mark.parametrize("columns", ["position", "sequence,topic", "data,position"])
def test_of_a_sealed_segment_only_the_columns_that_are_asked_for_are_read(
    tmp_path: Path, columns: str
) -> None:
    write(tmp_path)
    rows = read(tmp_path, columns=columns)
    sealed_and_spoilt(tmp_path)
    for path in (tmp_path / "parquet").glob("*.parquet"):
        data = bytearray(path.read_bytes())
        footer = pq.read_metadata(path)
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            for column in map(group.column, range(group.num_columns)):
                if column.path_in_schema not in columns.split(","):
                    at = column.dictionary_page_offset or column.data_page_offset
                    size = column.total_compressed_size
                    data[at : at + size] = bytes(size)  # whoever reads it fails
        path.write_bytes(data)
        sums_path(path).write_bytes(checksums(path))
    assert read(tmp_path, columns=columns) == rows
    with pytest.raises(StoreCorrupt):  # neither the files nor the segments have all of them
        read(tmp_path)


def test_ranges_topics_and_times_of_sealed_segments_are_exact(tmp_path: Path) -> None:
    write(tmp_path)
    rows = model(tmp_path)
    asked: list[dict[str, str]] = [
        {"startingPosition": "333", "endingPosition": "1234"},
        {"topic": "prices"},
        {"topicPattern": "^o", "columns": "position"},
        {"messageType": "xml"},
        {"startingTimestamp": "2026-01-31T09:30:00.000500Z", "columns": "position"},
        {"endingTimestamp": "2026-01-31T09:30:00.000500Z", "columns": "sequence,position"},
        {"startingBookmark": rows[700][1], "columns": "position"},
        {"endingBookmark": rows[700][1], "batchRows": "7"},
    ]
    expected = [read(tmp_path, **options) for options in asked]
    sealed_and_spoilt(tmp_path)
    for number in range(1, 4):  # these are left as Parquet alone
        (tmp_path / segment_name(number)).unlink()
        (tmp_path / manifest_name(number)).unlink()
    assert [read(tmp_path, **options) for options in asked] == expected
    assert [len(each) for each in expected[:2]] == [902, 670]


@pytest.mark.parametrize("seed", range(8))
def test_a_file_with_a_changed_byte_is_named_and_its_segment_is_read(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path)
    rows, chosen = model(tmp_path), random.Random(seed)
    path = chosen.choice(seal_journal(tmp_path))
    size = path.stat().st_size
    spoil(path, at=chosen.choice([chosen.randrange(4, size), chosen.randrange(size - 3000, size)]))
    assert read(tmp_path) == rows
    assert str(path) in caplog.text
    assert "the journal is read instead" in caplog.text
    assert seal_journal(tmp_path, verify=True) == [path]
    caplog.clear()
    assert read(tmp_path) == rows
    assert not caplog.text


def test_a_damaged_file_whose_segment_was_removed_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path)
    first, *_ = seal_journal(tmp_path)
    for name in (segment_name(1), manifest_name(1)):
        (tmp_path / name).unlink()
    assert positions(tmp_path) == [*range(1, COUNT + 1)]
    group = pq.read_metadata(first).row_group(2)
    spoil(first, at=group.column(4).data_page_offset + 60)
    with pytest.raises(StoreCorrupt, match=r"journal\.00000001\.parquet"):
        positions(tmp_path)


@pytest.mark.parametrize("change", ["no checksums", "cut", "empty", "other checksums"])
def test_a_file_that_is_not_whole_counts_as_none(tmp_path: Path, change: str) -> None:
    write(tmp_path)
    rows = model(tmp_path)
    first, second, *_ = seal_journal(tmp_path)
    match change:
        case "no checksums":
            sums_path(first).unlink()
        case "cut":
            first.write_bytes(first.read_bytes()[:-5])
        case "empty":
            first.write_bytes(b"")
        case _:
            shutil.copy(sums_path(second), sums_path(first))
    assert sealed_file(tmp_path, 1) is None
    assert read(tmp_path) == rows
    assert seal_journal(tmp_path) == [first]


@pytest.mark.parametrize("start", ["EPOCH", "2001-01-01"])
def test_a_file_that_is_damaged_at_its_end_does_not_hide_what_its_segment_had(
    tmp_path: Path, start: str
) -> None:
    writer = write(tmp_path)
    seal_journal(tmp_path)
    for number in range(1, 4):
        writer.files.forget_oldest()
        writer.files.remove_files(number)
    path = sealed_path(tmp_path, 2)
    spoil(path, at=path.stat().st_size - 20)
    with pytest.raises(
        DataLoss, match=r"00000002\.parquet.*, and its segment was removed: restore"
    ):
        read(tmp_path, startingOffsets=start)
    rest = positions(tmp_path, startingOffsets=start, failOnDataLoss="false")
    assert rest == [*range(rest[0], COUNT + 1)]
    assert rest[0] > 1
    assert positions(tmp_path, startingPosition=str(rest[0])) == rest


def test_a_file_of_another_journal_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "old")
    seal_journal(tmp_path / "old")
    write(tmp_path / "new", 1000)
    shutil.copytree(tmp_path / "old" / "parquet", tmp_path / "new" / "parquet")
    for path in (tmp_path / "new" / "parquet").glob("journal.*"):
        assert sealed_file(tmp_path / "new", int(path.name.split(".")[1])) is not None
    assert read(tmp_path / "new") == model(tmp_path / "new")


def write_later(folder: Path, start_id: int) -> JournalWriter:
    """As `write`, with the same positions and sizes, by a broker that was started later."""
    writer = JournalWriter(folder, segment_bytes=SEGMENT, start_id=start_id)
    writer.now_us += 3600 * 10**6
    append(writer, COUNT)
    return writer


def replace_journal(folder: Path, source: Path | None = None) -> None:
    """Replace all but the Parquet files."""
    for path in folder.glob("journal.*"):
        path.unlink()
    for path in [] if source is None else source.glob("journal.*"):
        shutil.copy(path, folder)


def test_no_file_of_a_journal_that_was_there_before_is_read(tmp_path: Path) -> None:
    write(tmp_path).close()
    old = seal_journal(tmp_path)
    replace_journal(tmp_path)
    writer = write_later(tmp_path, 5)
    assert read(tmp_path) == model(tmp_path)
    for number in range(1, 4):  # the files that are left of these are those of before
        writer.files.forget_oldest()
        writer.files.remove_files(number)
    assert read(tmp_path) == model(tmp_path)
    assert seal_journal(tmp_path) == old[3:]
    assert read(tmp_path) == model(tmp_path)


def test_no_file_of_a_segment_is_read_that_was_sealed_after_the_backup_that_is_restored(
    tmp_path: Path,
) -> None:
    folder, backup = tmp_path / "journal", tmp_path / "backup"
    writer = write(folder, 300)
    live = writer.files.live.number
    shutil.copytree(folder, backup)
    append(writer, 600)
    writer.close()
    seal_journal(folder)
    assert sealed_path(folder, live).exists()
    replace_journal(folder, backup)
    writer = write_later(folder, 5)
    assert read(folder) == model(folder)
    seal_journal(folder)
    assert read(folder) == model(folder)


def test_a_stream_goes_on_where_removed_segments_are_left_as_parquet(tmp_path: Path) -> None:
    write(tmp_path)
    settings = JournalSettings({"journalPath": str(tmp_path), "startingBookmark": "EPOCH"})
    offset = JournalStreamReader(settings).initialOffset()
    sealed_and_spoilt(tmp_path)
    for number in range(1, 4):
        (tmp_path / segment_name(number)).unlink()
        (tmp_path / manifest_name(number)).unlink()
    stream = JournalStreamReader(settings)
    found: list[Any] = []
    while (end := stream.latestOffset(offset, settings.limit)) != offset:
        for split in stream.partitions(offset, end):
            found += values(stream.read(split))
        offset = end
    assert [row[4] for row in found] == [*range(1, COUNT + 1)]
    log = settings.open_log()
    log.check_identity(log.place(1))
    with pytest.raises(DataLoss, match="another log"):
        log.check_identity(log.place(1)._replace(start_id=5))


class Broker:
    """Writes, seals and removes at random, as a broker with `parquet=True` does.

    Args:
        folder: Of the journal.
        chosen: What it does.
    """

    def __init__(self, folder: Path, chosen: random.Random) -> None:
        self.folder, self.chosen = folder, chosen
        self.writer = write(folder, 300)

    def step(self) -> None:
        what = self.chosen.choice(["append", "seal", "remove", "damage"])
        if what == "append":
            append(self.writer, 10 * self.chosen.randrange(1, 60))
        elif what == "seal":
            seal_journal(self.folder)
        elif what == "remove":
            files = self.writer.files
            oldest = next(iter(files.segments))
            if oldest != files.live.number and sealed_path(self.folder, oldest).exists():
                files.forget_oldest()
                files.remove_files(oldest)
        else:
            left = [n for n in self.writer.files.segments if sealed_path(self.folder, n).exists()]
            if left:  # its segment is still there
                path = sealed_path(self.folder, self.chosen.choice(left))
                spoil(path, at=self.chosen.randrange(path.stat().st_size))
                assert seal_journal(self.folder, verify=True)[0] == path

    def steps(self, most: int) -> None:
        for _ in range(self.chosen.randrange(most)):
            self.step()


@pytest.mark.parametrize("seed", range(12))
def test_each_position_is_read_once_while_sealing_and_removing_go_on(
    tmp_path: Path, seed: int
) -> None:
    chosen = random.Random(seed)
    broker = Broker(tmp_path, chosen)
    options = {"columns": "position", "maxPartitionBytes": chosen.choice(["1", "90k", "128m"])}
    for _ in range(4):
        broker.steps(5)
        source = reader(tmp_path, **options)
        splits = source.partitions()
        end = broker.writer.files.next_position
        found: list[int] = []
        for split in splits:
            broker.steps(3)
            found += [row[0] for row in values(source.read(split))]
        assert found == [*range(1, end)]


@pytest.mark.parametrize("seed", range(12))
def test_the_parts_of_read_journal_have_each_position_once_while_both_go_on(
    tmp_path: Path, seed: int
) -> None:
    chosen = random.Random(seed)
    broker = Broker(tmp_path, chosen)
    for _ in range(4):
        broker.steps(6)
        first = chosen.randrange(1, broker.writer.files.next_position)
        settings = JournalSettings({"journalPath": str(tmp_path), "startingPosition": str(first)})
        log = JournalLog(tmp_path, sealed=True)
        plan = JournalPlan(settings, log, settings.range_of(log))
        end = log.end_position
        found: list[int] = []
        for part in plan.parts(verify=chosen.random() < 0.5):
            broker.steps(3)
            if isinstance(part, range):
                limits = {"startingPosition": part.start, "endingPosition": part.stop - 1}
                found += positions(tmp_path, **{name: str(at) for name, at in limits.items()})
            else:
                for file in part:
                    found += pq.read_table(file.path)["position"].to_pylist()
        assert [each for each in found if each >= first] == [*range(first, end)]
        assert found == sorted(found)


def test_a_sealing_that_ends_after_any_step_leaves_a_journal_that_is_read(tmp_path: Path) -> None:
    write(tmp_path)
    rows = model(tmp_path)
    first, *_ = seal_journal(tmp_path)
    whole, sums = first.read_bytes(), sums_path(first).read_bytes()
    temporary, new_sums = first.with_name(f".{first.name}.new"), first.with_name(".x.crc.new")
    steps: list[dict[Path, bytes]] = [
        {},
        {temporary: whole[:1000]},
        {temporary: whole},
        {temporary: whole, new_sums: sums[:5]},
        {temporary: whole, sums_path(first): sums},
        # A damaged file was to be replaced: its own checksums are gone already.
        {temporary: whole, sums_path(first): sums, first: whole[:-100] + bytes(100)},
        {sums_path(first): sums, first: whole},
    ]
    for left in steps:
        for path in (first, sums_path(first), temporary, new_sums):
            path.unlink(missing_ok=True)
        for path, data in left.items():
            path.write_bytes(data)
        assert read(tmp_path) == rows
        assert seal_journal(tmp_path) == ([] if left == steps[-1] else [first])
        assert read(tmp_path) == rows
        assert not temporary.exists()


def test_the_command_seals_a_journal_and_mends_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    assert run(["pyspark", "seal", str(tmp_path), "--compression", "none", "--json"]) == 0
    first, *_ = written = json.loads(capsys.readouterr().out)["written"]
    assert {pq.read_metadata(path).row_group(0).column(0).compression for path in written} == {
        "UNCOMPRESSED"
    }
    spoil(Path(first))
    assert run(["pyspark", "seal", str(tmp_path)]) == 0
    assert run(["pyspark", "seal", str(tmp_path), "--verify"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in said] == ["0 segments sealed", "1 segment sealed"]
    spoil(tmp_path / segment_name(2), at=500)
    sealed_path(tmp_path, 2).unlink()
    assert run(["pyspark", "seal", str(tmp_path)]) != 0
    assert "journal.00000002: corrupt at byte" in capsys.readouterr().err


def test_row_groups_of_long_messages_have_fewer_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "BYTES_PER_GROUP", 20_000)
    writer = JournalWriter(tmp_path, segment_bytes=SEGMENT)
    writer.append([message(b"x" * 3000) for _ in range(20)])
    writer.append([message(b"y" * 30_000) for _ in range(2)])
    writer.append([message()])
    writer.seal()
    (path,) = seal_journal(tmp_path)
    footer = pq.read_metadata(path)
    groups = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    file = sealed_file(tmp_path, 1)
    assert file is not None
    assert sum(groups) == file.manifest.next_position - 1 >= 20
    assert max(groups) < 8


def test_a_file_that_is_removed_while_it_is_read_is_replaced_by_its_segment(tmp_path: Path) -> None:
    write(tmp_path)
    first, *_ = seal_journal(tmp_path)
    source = reader(tmp_path, columns="position")
    (split,) = source.partitions()
    reading = source.read(split)
    found = values([next(reading)])
    first.unlink()
    assert found + values(reading) == [(position,) for position in range(1, COUNT + 1)]
    file = sealed_file(tmp_path, 2)
    assert file is not None
    file.path.unlink()
    with pytest.raises(StoreError, match=r"journal\.00000002\.parquet cannot be read"):
        next(file.read(["position"], 1, COUNT))
