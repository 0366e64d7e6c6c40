"""Damage in the files of a journal is named with the bookmark of the message that it hits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from haclient.errors import StoreCorrupt
from haclient.pyspark.jobs.audit import audit
from haclient.pyspark.jobs.damage import Damage, note_damage
from haclient.pyspark.jobs.journals import parts_of
from haclient.pyspark.jobs.latency import add_latency
from haclient.pyspark.jobs.reconcile import reconcile
from haclient.pyspark.jobs.verdict import FindingKind
from haclient.pyspark.journal import sealing
from haclient.pyspark.journal.log import JournalLog
from haclient.pyspark.journal.sealed import sealed_path
from haclient.pyspark.journal.sealing import seal_journal
from haclient_fake_server.journal.format import segment_name
from support.journals import JournalWriter, message

COUNT = 1200
PER_BLOCK = 10


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of a few segments, all but the last one sealed."""
    folder = tmp_path_factory.mktemp("healthy") / "east"
    writer = JournalWriter(folder, segment_bytes=64 * 1024)
    for first in range(0, COUNT, PER_BLOCK):
        writer.append(message(b"message %05d" % n * 16) for n in range(first, first + PER_BLOCK))
    writer.seal()
    writer.close()
    return folder


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def flip_message(journal: Path, segment: int, number: int) -> str:
    """Flip a byte in the body of a message; the bookmark of the first message of its block."""
    path = journal / segment_name(segment)
    flip(path, path.read_bytes().index(b"message %05d" % number) + 3)
    return bookmark(number - number % PER_BLOCK)


def flip_sealed(journal: Path, segment: int, group: int) -> str:
    """Flip a byte of a column in a group of rows; the bookmark of the first row of the group."""
    path = sealed_path(journal, segment)
    footer = pq.read_metadata(path)
    place = footer.schema.names.index("sequence")
    column = footer.row_group(group).column(place)
    first = footer.row_group(group).column(footer.schema.names.index("position")).statistics.min
    flip(path, column.data_page_offset + column.total_compressed_size // 2)
    return bookmark(first - 1)


def first_of(journal: Path, segment: int) -> int:
    return JournalLog(journal, sealed=True).manifests[segment - 1].first_position - 1


def bookmark(number: int) -> str:
    return f"9|{number + 1}|"


def found_in(journal: Path) -> tuple[list[Damage], int]:
    """What the tasks of an audit find, and how many rows they read, without a session."""
    reader, splits = parts_of(JournalLog(journal, sealed=True))
    found: list[Damage] = []
    rows = 0
    for split in splits:
        batches = note_damage(reader, split, found)
        rows += sum(batch.num_rows for batch in batches)
    return found, rows


def test_the_message_of_a_damaged_block_is_named(healthy: Path, tmp_path: Path) -> None:
    journal = shutil.copytree(healthy, tmp_path / "east")
    assert found_in(journal) == ([], COUNT)
    wanted = flip_message(journal, 1, 57)
    (damage,), _ = found_in(journal)
    assert (damage.bookmark, damage.position) == (wanted, 51)
    assert "journal.00000001: corrupt at byte" in damage.detail
    assert Damage.decode(damage.encode()) == damage


def test_the_message_of_a_damaged_parquet_file_is_named_and_read_from_its_segment(
    healthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "ROWS_PER_GROUP", 50)
    journal = shutil.copytree(healthy, tmp_path / "east")
    assert len(seal_journal(journal, compression="none")) > 1
    assert found_in(journal) == ([], COUNT)
    wanted = flip_sealed(journal, 2, 1)
    (damage,), rows = found_in(journal)
    assert damage.bookmark == wanted
    assert "journal.00000002.parquet: corrupt at byte" in damage.detail
    assert rows == COUNT
    path = sealed_path(journal, 3)
    flip(path, path.stat().st_size - 9)  # where the end begins
    damages, rows = found_in(journal)
    assert [each.bookmark for each in damages] == [wanted, bookmark(first_of(journal, 3))]
    assert rows == COUNT


def test_a_block_whose_messages_cannot_be_read_has_no_bookmark(tmp_path: Path) -> None:
    (tmp_path / "journal.00000001").write_bytes(b"\xff" * 100)
    damage = Damage.of(StoreCorrupt(tmp_path / "journal.00000001", 64, "the checksum is wrong"))
    assert (damage.bookmark, damage.position) == ("", None)


@pytest.mark.row("AU1", "AU3")
@pytest.mark.usefixtures("spark")
def test_damage_in_any_file_is_a_violation_and_nothing_else_is_judged(
    healthy: Path, tmp_path: Path
) -> None:
    journal = shutil.copytree(healthy, tmp_path / "east")
    assert audit(journal).is_good
    seal_journal(journal)
    good = audit(journal)
    assert (good.is_good, good.facts["messages"]) == (True, COUNT)
    wanted = [flip_message(journal, 1, 3), flip_sealed(journal, 2, 0)]
    sealed_path(journal, 1).unlink()
    result = audit(journal)
    assert [(each.kind, each.bookmark) for each in result.violations] == [
        (FindingKind.DAMAGED, each) for each in wanted
    ]
    assert (result.judgement, result.counts) == ("bad", {FindingKind.DAMAGED: 2})
    assert "files are damaged, and nothing else was compared" in result.not_verified[0]
    compared = reconcile(healthy, journal)
    assert [each.bookmark for each in compared.violations] == wanted
    add_latency(result, journal)
    assert result.tables == {}
    # The last segment is walked on the driver.
    live = shutil.copytree(healthy, tmp_path / "live")
    last = max(int(path.name[8:16]) for path in live.glob("journal.*[0-9]"))
    hit = flip_message(live, last, COUNT - 25)
    assert [each.bookmark for each in audit(live).violations] == [hit]
