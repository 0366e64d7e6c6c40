"""A journal is read from its files: whole, growing, rolled, shortened at its beginning, damaged."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from haclient.errors import StoreCorrupt, StoreError, UsageError
from haclient.protocol.identity import publisher_id
from haclient.pyspark.journal.log import (
    JournalLog,
    JournalPlace,
    _Scan,  # pyright: ignore[reportPrivateUsage] - to write between two looks at a file
    read_chunks,
    read_pieces,
)
from haclient.pyspark.journal.pieces import Piece, pack, wanted_pieces
from haclient.pyspark.journal.records import RowRange, headers_at, record_offsets
from haclient.pyspark.rows import DataLoss
from haclient_fake_server.journal.format import (
    FORMAT_VERSION,
    INDEX_STRIDE_BYTES,
    SEGMENT_HEADER_BYTES,
    Manifest,
    manifest_name,
    read_blocks,
    segment_name,
)
from support.journals import JournalWriter, message, model_rows

SMALL = 64 * 1024
VERSION_1 = Path(__file__).parents[2] / "unit/fake_server/journal/version_1"


def write(
    folder: Path, *, blocks: int = 60, per_block: int = 10, segment_bytes: int = SMALL
) -> JournalWriter:
    """A journal of several segments with two topics; it stays open."""
    writer = JournalWriter(folder, segment_bytes=segment_bytes)
    for number in range(blocks):
        topic = "orders" if number < blocks // 2 else "prices"
        writer.append(message(b"x" * (200 + number), topic=topic) for _ in range(per_block))
    writer.seal()
    return writer


def opened(folder: Path) -> JournalLog:
    return JournalLog(folder)


def positions(log: JournalLog, splits: Iterable[list[Piece]]) -> list[int]:
    """The positions of the records in some splits, in the order in which they are read."""
    found: list[int] = []
    for split in splits:
        for chunk in read_pieces(log.directory, split):
            offsets = record_offsets(chunk.data, chunk.blocks, base=chunk.base)
            found += headers_at(chunk.data, offsets)["position"].tolist()
    return [position for position in found if position]


def all_splits(log: JournalLog, max_bytes: int = 2**30) -> list[list[Piece]]:
    return splits_of(log, RowRange(), max_bytes=max_bytes)


def splits_of(
    log: JournalLog, wanted: RowRange, *, topic: str = "", max_bytes: int = 2**30
) -> list[list[Piece]]:
    found = wanted_pieces(log.manifests, wanted, lambda _, name: topic in {"", name})
    return pack(found, max_bytes)


def blocks_of(folder: Path, number: int) -> list[tuple[int, int]]:
    """Where the blocks of a segment begin and end."""
    data = (folder / segment_name(number)).read_bytes()
    return [(b.offset, b.end) for b in read_blocks(data, SEGMENT_HEADER_BYTES, segment=number)]


def damage(path: Path, offset: int) -> None:
    """Turn a byte over."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0xFF]))


# --- what is there ----------------------------------------------------------------------------


def test_the_log_has_what_the_broker_has_written(tmp_path: Path) -> None:
    writer = write(tmp_path)
    log = opened(tmp_path)
    assert len(log.manifests) > 2
    assert (log.first_position, log.end_position) == (1, writer.files.next_position)
    assert log.topics(lambda _, __: True) == {1: "orders", 2: "prices"}
    assert log.topics(lambda _, topic: topic == "prices") == {2: "prices"}
    assert positions(log, all_splits(log)) == [*range(1, 601)]


def test_walking_a_segment_gives_what_its_manifest_says(tmp_path: Path) -> None:
    writer = write(tmp_path, blocks=400, segment_bytes=2**20)
    sealed = JournalLog(tmp_path)
    for path in tmp_path.glob("*.manifest.json"):
        path.unlink()
    walked = opened(tmp_path)
    for with_manifest, without in zip(sealed.manifests, walked.manifests, strict=True):
        for name in ("number", "first_position", "next_position", "data_bytes", "last_us"):
            assert getattr(with_manifest, name) == getattr(without, name)
        assert with_manifest.topics == without.topics or without is walked.manifests[0]
        assert [s.position for s in with_manifest.index][1:] == [s.position for s in without.index][
            1:
        ]
    writer.close()


@pytest.mark.parametrize("with_manifests", [True, False])
def test_removals_from_queues_are_passed_over(tmp_path: Path, *, with_manifests: bool) -> None:
    writer = JournalWriter(tmp_path, segment_bytes=SMALL)
    for number in range(200):
        writer.append([message(b"x" * (300 + number))] * 4)
        writer.remove_from_queue([(9, 4 * number + each, 1) for each in range(number % 9)])
    for _ in range(20):
        writer.remove_from_queue([(9, 1, 1)] * 1000)  # whole segments without a message
    writer.seal()
    if not with_manifests:
        for path in tmp_path.glob("*.manifest.json"):
            path.unlink()
    log = opened(tmp_path)
    assert log.end_position == writer.files.next_position == 801
    assert positions(log, all_splits(log, max_bytes=10_000)) == [*range(1, 801)]
    assert log.position_of_message(9, 500) == 500
    writer.append([message()])
    log.refresh()
    assert positions(log, all_splits(log)) == [*range(1, 802)]
    writer.close()


def test_a_journal_of_version_1_is_read(tmp_path: Path) -> None:
    for path in VERSION_1.glob("journal.*"):
        shutil.copy(path, tmp_path)
    log = opened(tmp_path)
    assert positions(log, all_splits(log)) == [*range(1, 19)]
    writer = JournalWriter(tmp_path)  # a broker of this version goes on with it
    log.refresh()
    assert positions(log, all_splits(log)) == [*range(1, 19)]
    assert [manifest.number for manifest in log.manifests] == [1, 2, 3]
    writer.close()


def test_a_log_that_grows_is_followed_without_reading_it_again(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, segment_bytes=SMALL)
    log = opened(tmp_path)
    assert (log.first_position, log.end_position) == (1, 1)
    for number in range(100):
        writer.append([message(b"y" * 2000, topic=f"t{number % 3}")] * 3)
        log.refresh()
        assert log.end_position == writer.files.next_position
        if number % 10 == 0:
            writer.seal()
    assert log.topics(lambda _, __: True) == {1: "t0", 2: "t1", 3: "t2"}
    assert positions(log, all_splits(log)) == [*range(1, 301)]
    assert len(log.manifests) > 5


def test_a_segment_that_is_full_and_not_sealed_yet_is_read(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, segment_bytes=SMALL)
    for _ in range(200):
        writer.append([message(b"y" * 1000)])
    assert writer.files.has_unsealed
    log = opened(tmp_path)
    assert not list(tmp_path.glob("*.manifest.json"))
    assert positions(log, all_splits(log)) == [*range(1, 201)]


def test_the_snapshot_beside_the_last_segment_of_a_stopped_broker_is_not_trusted(
    tmp_path: Path,
) -> None:
    write(tmp_path, blocks=5).close()
    writer = JournalWriter(tmp_path, segment_bytes=SMALL, start_id=78)
    writer.topics["orders"] = 1
    writer.append([message()])
    assert opened(tmp_path).end_position == writer.files.next_position


def test_removed_segments_are_gone_at_the_next_look(tmp_path: Path) -> None:
    write(tmp_path)
    log = opened(tmp_path)
    second = log.manifests[1].first_position
    (tmp_path / segment_name(1)).unlink()
    log.refresh()
    assert log.first_position == second
    assert positions(log, all_splits(log)) == [*range(second, 601)]


@pytest.mark.row("TL9")
@pytest.mark.parametrize("with_manifests", [True, False])
def test_compressed_segments_are_read_like_others(tmp_path: Path, *, with_manifests: bool) -> None:
    write(tmp_path).close()
    before = positions(log := opened(tmp_path), all_splits(log))
    for manifest in log.manifests[:-1]:
        path = tmp_path / segment_name(manifest.number)
        compressed = gzip.compress(path.read_bytes()[: manifest.data_bytes])
        path.with_name(path.name + ".gz").write_bytes(compressed)
        path.unlink()
        if not with_manifests:
            (tmp_path / manifest_name(manifest.number)).unlink()
    log = opened(tmp_path)
    assert positions(log, all_splits(log, 4096)) == before
    damage(tmp_path / (segment_name(1) + ".gz"), 2000)
    with pytest.raises(StoreCorrupt):
        positions(log, all_splits(log))


def test_the_instance_is_checked(tmp_path: Path) -> None:
    JournalWriter(tmp_path, instance_id=publisher_id("east")).close()
    JournalLog(tmp_path, instance="east")
    with pytest.raises(UsageError, match="the option instance is 'west', but another instance"):
        JournalLog(tmp_path, instance="west")


@pytest.mark.parametrize("missing", [True, False])
def test_a_directory_without_a_journal_is_refused(tmp_path: Path, *, missing: bool) -> None:
    folder = tmp_path / "none" if missing else tmp_path
    what = "no directory here" if missing else r"no journal \(journal.00000001"
    with pytest.raises(UsageError, match=f"journalPath names .*{what}"):
        JournalLog(folder)


# --- splits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [1, INDEX_STRIDE_BYTES, 2**20, 2**30])
def test_splits_have_every_row_once_whatever_their_size(tmp_path: Path, max_bytes: int) -> None:
    write(tmp_path, blocks=1000, segment_bytes=2**20).close()
    log = opened(tmp_path)
    splits = all_splits(log, max_bytes)
    assert positions(log, splits) == [*range(1, 10_001)]
    sizes = [sum(each.end - each.start for each in split) for split in splits]
    assert all(size <= max(max_bytes, 2 * INDEX_STRIDE_BYTES) for size in sizes)
    if max_bytes == 2**30:
        assert len(splits) == 1


@pytest.mark.parametrize(("first", "end"), [(1, 2), (5000, 5001), (4000, 6000), (9999, 20_000)])
def test_only_strides_that_may_hold_the_range_are_read(
    tmp_path: Path, first: int, end: int
) -> None:
    write(tmp_path, blocks=1000, segment_bytes=2**20).close()
    log = opened(tmp_path)
    splits = splits_of(log, RowRange(first, end))
    found = positions(log, splits)
    last = min(end, 10_001)
    assert set(range(first, last)) <= set(found)
    assert len(found) <= last - first + 2 * 10 * (INDEX_STRIDE_BYTES // 2000 + 1)


def test_a_range_of_times_reads_only_the_strides_that_may_hold_it(tmp_path: Path) -> None:
    writer = write(tmp_path, blocks=1000, segment_bytes=2**20)
    log = opened(tmp_path)
    rows = model_rows(tmp_path)
    for wanted in (rows[0], rows[4000], rows[-1]):
        time = wanted.timestamp
        splits = splits_of(log, RowRange(from_us=time, until_us=time + 1))
        found = positions(log, splits)
        assert wanted.position in found
        assert len(found) < 4000
        assert log.position_of_time(time) == wanted.position
    later = RowRange(from_us=writer.now_us + 1)
    assert splits_of(log, later) == []
    assert log.position_of_time(writer.now_us + 1) == log.end_position


def test_segments_without_a_wanted_topic_are_not_read(tmp_path: Path) -> None:
    write(tmp_path).close()
    log = opened(tmp_path)
    splits = splits_of(log, RowRange(), topic="prices")
    numbers = {piece.segment for split in splits for piece in split}
    assert 1 not in numbers
    assert positions(log, splits)[-1] == 600
    assert splits_of(log, RowRange(), topic="other") == []


def test_an_empty_range_needs_nothing(tmp_path: Path) -> None:
    write(tmp_path).close()
    log = opened(tmp_path)
    assert splits_of(log, RowRange(7, 7)) == []


def test_a_message_is_found_by_its_bookmark(tmp_path: Path) -> None:
    writer = write(tmp_path)
    log = opened(tmp_path)
    for row in model_rows(tmp_path)[::97]:
        assert log.position_of_message(row.publisher_id, row.sequence) == row.position
    assert log.position_of_message(9, 100_000) is None
    assert log.position_of_message(10, 1) is None
    writer.close()


def test_a_number_of_bytes_ends_at_a_stride_and_always_gets_on(tmp_path: Path) -> None:
    write(tmp_path, blocks=1000, segment_bytes=2**20).close()
    log = opened(tmp_path)
    position, ends = 1, [1]
    while position < log.end_position:
        position = log.end_after_bytes(position, 1)
        ends.append(position)
    assert ends == sorted(set(ends))
    assert len(ends) > 5
    assert log.end_after_bytes(1, 2**40) == log.end_position
    assert log.end_after_bytes(log.end_position, 1) == log.end_position


def test_a_segment_without_messages_has_no_strides(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, segment_bytes=4096)
    writer.append([message(b"x" * 5000)])  # larger than a segment, so it begins the next one
    writer.seal()
    log = opened(tmp_path)
    assert [len(each.index) for each in log.manifests] == [0, 1]
    assert log.position_of_message(9, 1) == 1
    assert log.end_after_bytes(1, 1) == 2
    writer.close()


def test_bytes_that_were_read_before_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, blocks=2000, segment_bytes=2**24).close()
    log = opened(tmp_path)
    limit = 3 * INDEX_STRIDE_BYTES
    position, steps = 1, 0
    while position < log.end_position:
        position, steps = log.end_after_bytes(position, limit), steps + 1
    assert steps <= sum(each.data_bytes for each in log.manifests) // limit + 1


@pytest.mark.parametrize("chunk_bytes", [100, 5000, 2**20])
def test_blocks_longer_than_a_chunk_are_read_whole(tmp_path: Path, chunk_bytes: int) -> None:
    write(tmp_path, blocks=5)
    path = tmp_path / segment_name(1)
    found = [
        (block.offset, block.end)
        for chunk in read_chunks(
            path, 1, SEGMENT_HEADER_BYTES, path.stat().st_size, chunk_bytes=chunk_bytes
        )
        for block in chunk.blocks
    ]
    assert found == blocks_of(tmp_path, 1)


# --- torn and damaged -------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 1, 30, 56, 57, -1])
def test_a_last_block_that_is_not_whole_is_not_part_of_the_log(tmp_path: Path, keep: int) -> None:
    writer = write(tmp_path, blocks=5)
    before = writer.files.next_position
    path = tmp_path / segment_name(1)
    whole = path.read_bytes()
    writer.append([message(b"half")] * 3)
    start, end = blocks_of(tmp_path, 1)[-1]
    torn = path.read_bytes()[: start + keep if keep >= 0 else end + keep]
    path.write_bytes(torn + bytes(len(whole) - len(torn)))
    log = opened(tmp_path)
    assert log.end_position == before
    assert positions(log, all_splits(log)) == [*range(1, before)]
    # The rest of it arrives: a reader that has looked too early goes on with it.
    path.write_bytes(whole[:start] + path.read_bytes()[start:])
    log.refresh()
    assert log.end_position == before


def test_a_block_that_was_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    writer = write(tmp_path, blocks=5)
    before = writer.files.next_position
    writer.append([message(b"late")] * 3)
    path = tmp_path / segment_name(1)
    whole = path.read_bytes()
    start, end = blocks_of(tmp_path, 1)[-1]
    path.write_bytes(whole[: end - 5] + bytes(len(whole) - end + 5))
    log = opened(tmp_path)
    assert log.end_position == before
    path.write_bytes(whole)
    log.refresh()
    assert log.end_position == before + 3
    assert start < log.manifests[-1].data_bytes == end


def spoil_fourth_block(directory: Path, *, zero: bool) -> int:
    """Damage it or make it zeros; where it ends."""
    start, end = blocks_of(directory, 1)[3]
    path = directory / segment_name(1)
    if zero:
        data = path.read_bytes()
        path.write_bytes(data[:start] + bytes(end - start) + data[end:])
    else:
        damage(path, start + 100)
    return end


@pytest.mark.parametrize("zero", [True, False])
def test_damage_before_what_was_synced_is_an_error(tmp_path: Path, *, zero: bool) -> None:
    writer = write(tmp_path, blocks=5)
    writer.files.sync()
    writer.append([message(b"this names what was synced")])
    spoil_fourth_block(tmp_path, zero=zero)
    with pytest.raises(StoreCorrupt, match=r"a whole block follows at .*, and this was synced"):
        opened(tmp_path)


@pytest.mark.parametrize("zero", [True, False])
def test_damage_before_a_whole_block_is_an_error_though_nothing_was_synced(
    tmp_path: Path, *, zero: bool
) -> None:
    write(tmp_path, blocks=8)
    end = spoil_fourth_block(tmp_path, zero=zero)
    with pytest.raises(StoreCorrupt, match=f"a whole block follows at {end}, start the broker on"):
        opened(tmp_path)


def test_blocks_that_are_written_while_the_end_is_looked_at_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = write(tmp_path, blocks=5)
    log = JournalLog(tmp_path)
    extend = _Scan.extend

    def extend_and_append(scan: _Scan) -> None:
        extend(scan)
        writer.append([message(b"since")])
        writer.append([message(b"and again")])

    monkeypatch.setattr(_Scan, "extend", extend_and_append)
    log.refresh()
    monkeypatch.undo()
    log.refresh()
    assert log.end_position == writer.files.next_position
    writer.close()


def test_damage_in_a_sealed_segment_is_found_when_it_is_read(tmp_path: Path) -> None:
    write(tmp_path).close()
    start, _ = blocks_of(tmp_path, 1)[3]
    damage(tmp_path / segment_name(1), start + 100)
    log = opened(tmp_path)
    with pytest.raises(StoreCorrupt, match=rf"{segment_name(1)}: corrupt at byte {start}: the che"):
        positions(log, all_splits(log))


def test_damage_in_a_segment_without_a_manifest_is_found_at_once(tmp_path: Path) -> None:
    write(tmp_path).close()
    start, _ = blocks_of(tmp_path, 1)[3]
    (tmp_path / manifest_name(1)).unlink()
    damage(tmp_path / segment_name(1), start + 100)
    with pytest.raises(StoreCorrupt, match=f"corrupt at byte {start}: the checksum of a block is"):
        opened(tmp_path)


def test_a_sealed_segment_that_was_cut_is_an_error(tmp_path: Path) -> None:
    write(tmp_path).close()
    start, _ = blocks_of(tmp_path, 1)[3]
    path = tmp_path / segment_name(1)
    path.write_bytes(path.read_bytes()[:start])
    log = opened(tmp_path)
    with pytest.raises(StoreCorrupt, match=f"corrupt at byte {start}: the log ends here, blocks"):
        positions(log, all_splits(log))


def test_a_missing_segment_in_the_middle_is_an_error(tmp_path: Path) -> None:
    write(tmp_path).close()
    (tmp_path / segment_name(2)).unlink()
    with pytest.raises(StoreCorrupt, match=f"this segment is missing, {segment_name(3)} is there"):
        opened(tmp_path)


def test_a_segment_that_is_named_like_another_is_an_error(tmp_path: Path) -> None:
    write(tmp_path).close()
    last = opened(tmp_path).manifests[-1].number
    shutil.copy(tmp_path / segment_name(1), tmp_path / segment_name(last + 1))
    with pytest.raises(StoreCorrupt, match=f"this is segment 1: name it {segment_name(1)}"):
        opened(tmp_path)


def test_a_segment_with_a_damaged_header_is_an_error(tmp_path: Path) -> None:
    write(tmp_path).close()
    damage(tmp_path / segment_name(1), 20)
    with pytest.raises(StoreCorrupt, match="the checksum of the segment header is wrong"):
        opened(tmp_path)


def test_a_newer_version_of_the_format_is_named(tmp_path: Path) -> None:
    write(tmp_path, blocks=5).close()
    path = tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    data[8:10] = (FORMAT_VERSION + 1).to_bytes(2, "little")
    path.write_bytes(data)
    with pytest.raises(
        StoreError, match=rf"{tmp_path}: journal version {FORMAT_VERSION + 1}, but this version"
    ):
        opened(tmp_path)


def test_a_newer_version_of_a_manifest_is_named(tmp_path: Path) -> None:
    write(tmp_path).close()
    path = tmp_path / manifest_name(1)
    path.write_text(json.dumps({"format": FORMAT_VERSION + 1}), encoding="utf-8")
    with pytest.raises(
        StoreError,
        match=f"manifest version {FORMAT_VERSION + 1}, but this version of haclient reads",
    ):
        opened(tmp_path)


def test_a_manifest_that_cannot_be_read_is_built_from_its_segment(tmp_path: Path) -> None:
    write(tmp_path).close()
    before = opened(tmp_path)
    (tmp_path / manifest_name(1)).write_text("{", encoding="utf-8")
    (tmp_path / manifest_name(2)).write_bytes(b"\xff")
    log = opened(tmp_path)
    assert positions(log, all_splits(log)) == positions(before, all_splits(before))


def test_a_segment_that_was_removed_after_planning_is_data_loss(tmp_path: Path) -> None:
    write(tmp_path).close()
    log = opened(tmp_path)
    splits = all_splits(log)
    (tmp_path / segment_name(1)).unlink()
    with pytest.raises(DataLoss, match="was removed after the query was planned"):
        positions(log, splits)


# --- the identity of a log --------------------------------------------------------------------


def test_a_place_is_known_in_its_log_whatever_is_appended(tmp_path: Path) -> None:
    writer = write(tmp_path)
    log = opened(tmp_path)
    places = [log.place(position) for position in (1, 300, log.end_position)]
    writer.append([message()])
    writer.close()
    JournalWriter(tmp_path, segment_bytes=SMALL, start_id=78).close()
    log.refresh()
    for place in places:
        assert log.check_place(place, fail_on_data_loss=True) == place.position
    assert log.place(log.end_position).start_id == 78
    assert log.place(log.end_position - 1).start_id == 77


def test_another_log_is_data_loss_even_where_removed_positions_are_not(tmp_path: Path) -> None:
    write(tmp_path / "a").close()
    place = opened(tmp_path / "a").place(100)
    JournalWriter(tmp_path / "b", start_id=5).close()
    for fail in (True, False):
        with pytest.raises(DataLoss, match="is another log than the one that was read up to posi"):
            opened(tmp_path / "b").check_place(place, fail_on_data_loss=fail)


def test_copies_of_a_log_that_went_different_ways_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path / "a", blocks=5).close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    common = opened(tmp_path / "a").place(50)
    for name, start_id in (("a", 100), ("b", 200)):
        writer = JournalWriter(tmp_path / name, segment_bytes=SMALL, start_id=start_id)
        writer.topics["orders"] = 1
        writer.append([message()] * 5)
        writer.close()
    a, b = opened(tmp_path / "a"), opened(tmp_path / "b")
    assert b.check_place(common, fail_on_data_loss=True) == 50
    place = a.place(a.end_position)
    assert place.position == b.end_position
    with pytest.raises(DataLoss, match="is another log"):
        b.check_place(place, fail_on_data_loss=True)


def test_an_end_that_was_lost_and_written_again_is_data_loss(tmp_path: Path) -> None:
    writer = write(tmp_path, blocks=5)
    path = tmp_path / segment_name(1)
    before = path.read_bytes()
    writer.append([message()] * 5)
    read = opened(tmp_path).place(writer.files.next_position)
    writer.close()
    path.write_bytes(before)
    (tmp_path / manifest_name(1)).unlink()
    with pytest.raises(DataLoss, match=f"position {read.position} was read, but the log was lost"):
        opened(tmp_path).check_place(read, fail_on_data_loss=False)
    again = JournalWriter(tmp_path, segment_bytes=SMALL, start_id=78)
    again.topics["orders"] = 1
    again.append([message()] * 9)
    with pytest.raises(DataLoss, match="but the log was lost from position 51 on and continued"):
        opened(tmp_path).check_place(read, fail_on_data_loss=False)


def test_a_place_before_the_oldest_segment_is_data_loss_unless_that_is_accepted(
    tmp_path: Path,
) -> None:
    write(tmp_path).close()
    log = opened(tmp_path)
    place = log.place(5)
    (tmp_path / segment_name(1)).unlink()
    log.refresh()
    with pytest.raises(DataLoss, match="position 5 is wanted, the oldest that is left is"):
        log.check_place(place, fail_on_data_loss=True)
    assert log.check_place(place, fail_on_data_loss=False) == log.first_position


def test_a_start_that_the_last_segment_does_not_repeat_is_found_in_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haclient_fake_server.journal.segments.MAX_LOG_STARTS", 16)
    writer = write(tmp_path)
    place = opened(tmp_path).place(100)
    writer.close()
    for start_id in range(100, 120):
        writer = JournalWriter(tmp_path, segment_bytes=SMALL, start_id=start_id)
        writer.topics |= {"orders": 1, "prices": 2}
        for _ in range(20):
            writer.append([message(b"x" * 300)] * 10)
        writer.close()
    log = opened(tmp_path)
    assert place.start_id not in [start.id for start in log.starts]
    assert log.check_place(place, fail_on_data_loss=True) == 100
    assert log.place(100) == place


def test_a_start_that_no_segment_repeats_is_found_where_it_was_written(tmp_path: Path) -> None:
    places: list[JournalPlace] = []
    for start_id in range(100, 140):  # a segment repeats the 16 last ones
        writer = JournalWriter(tmp_path, segment_bytes=SMALL, start_id=start_id)
        writer.topics["orders"] = 1
        writer.append([message(b"x" * 50)] * 2)
        places.append(opened(tmp_path).place(writer.files.next_position))
        writer.close()
    writer = JournalWriter(tmp_path, segment_bytes=SMALL, start_id=999)
    writer.topics["orders"] = 1
    for _ in range(40):
        writer.append([message(b"y" * 4000)] * 2)
    writer.seal()
    writer.close()
    log = opened(tmp_path)
    assert len(log.manifests) > 2
    for place in places:
        assert log.check_place(place, fail_on_data_loss=True) == place.position


def test_a_place_without_a_start_is_of_no_log(tmp_path: Path) -> None:
    write(tmp_path, blocks=2).close()
    with pytest.raises(DataLoss, match="is another log"):
        opened(tmp_path).check_place(JournalPlace(3, 0), fail_on_data_loss=True)


def test_topics_that_are_not_text_have_marks_in_their_names(tmp_path: Path) -> None:
    write(tmp_path).close()
    path = tmp_path / manifest_name(1)
    manifest = Manifest.from_json(path.read_text(encoding="utf-8"))
    manifest.topics[1] = ("json", b"a\xff".decode("utf-8", "surrogateescape"))
    path.write_text(manifest.to_json(), encoding="utf-8")
    assert opened(tmp_path).topics(lambda _, __: True)[1] == "a\N{REPLACEMENT CHARACTER}"
