from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from haclient_stores.bookmark_stores import record_file
from haclient_stores.bookmark_stores.record_file import BLOCK_BYTES, GROW_BYTES, RecordFile
from haclient_stores.disk.files import PAGE_BYTES, File, RealDisk
from haclient_stores.errors import StoreCorrupt

BOOT = b"this boot......."
UNKNOWN = bytes(16)  # a machine that has no boot id
PER_BLOCK = BLOCK_BYTES // 16 - 1


def made(path: Path, boot: bytes = BOOT) -> tuple[File, RecordFile]:
    file = RealDisk().open(path, create=True)
    return file, record_file.create(file, boot_id=boot, owner="me")


def reopened(file: File, boot: bytes = BOOT) -> tuple[list[tuple[int, int]], RecordFile]:
    found: list[tuple[int, int]] = []

    def take(words: array[int], _: bool) -> None:  # noqa: FBT001  # a callback
        found.extend(zip(words[0::2], words[1::2], strict=True))

    opened = record_file.recover(file, boot, take)
    return [record for record in found if record[0] < 200 << 56], opened


@pytest.mark.parametrize("count", [0, 1, PER_BLOCK - 1, PER_BLOCK, PER_BLOCK + 1, 17 * PER_BLOCK])
@pytest.mark.parametrize("in_bulk", [True, False])
def test_records_read_back_however_many_blocks_they_fill(
    tmp_path: Path, count: int, *, in_bulk: bool
) -> None:
    file, log = made(tmp_path / "log")
    records = [(number, number * 2) for number in range(1, count + 1)]
    if in_bulk:
        log.put_words(array("Q", [word for record in records for word in record]))
    else:
        log.put_all(records)
    copy_file, copy = made(tmp_path / "copy")
    log.copy_to(copy, PAGE_BYTES, log.end)
    copy.close()
    assert reopened(copy_file)[0] == records
    copy_file.close()
    log.close()
    log.close()
    found, log = reopened(file)
    assert found == records
    log.put(5, 6)
    log.seal()
    log.seal()
    log.close()
    found, log = reopened(file)
    assert found == [*records, (5, 6)]
    log.close()
    file.close()


def test_room_is_reserved_ahead(tmp_path: Path) -> None:
    file, log = made(tmp_path / "log")
    assert log.has_room(1000)
    assert not log.has_room(200_000)
    log.reserve(1000)
    assert file.size() == PAGE_BYTES + GROW_BYTES
    log.reserve(200_000)
    assert log.has_room(200_000)
    for _ in range(200_000):
        log.put(1, 1)
    assert file.size() == PAGE_BYTES + 4 * GROW_BYTES
    log.close()
    file.close()


@pytest.mark.row("PS21")
def test_a_block_without_its_seal_before_the_end_is_corrupt(tmp_path: Path) -> None:
    file, log = made(tmp_path / "log")
    log.put_all((1, 1) for _ in range(PER_BLOCK + 5))
    log.close()
    file.pwrite(bytes(8), PAGE_BYTES + BLOCK_BYTES - 16)
    with pytest.raises(StoreCorrupt, match="has no seal") as caught:
        reopened(file)
    assert caught.value.offset == PAGE_BYTES + BLOCK_BYTES - 16
    file.close()


@pytest.mark.row("PS21")
def test_records_behind_a_hole_are_cut_off_for_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, log = made(tmp_path / "log")
    log.put_all((number, 1) for number in range(1, 11))
    log.close()
    file.pwrite(bytes(8), PAGE_BYTES + 16 * 4)
    found, log = reopened(file)
    assert found == [(number, 1) for number in range(1, 5)]
    assert "a torn record was cut off" in caplog.text
    log.put(99, 1)
    log.close()
    assert reopened(file)[0] == [*found, (99, 1)]
    file.close()


def test_a_file_that_ends_within_its_header_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(bytes(100))
    file = RealDisk().open(tmp_path / "log")
    with pytest.raises(StoreCorrupt, match="within its header"):
        reopened(file)
    file.close()


@pytest.mark.parametrize("boot", [BOOT, UNKNOWN])
def test_sealed_records_that_power_loss_kept_from_the_disk_are_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, boot: bytes
) -> None:
    file, log = made(tmp_path / "log", boot)
    log.put_all((1, 1) for _ in range(PER_BLOCK + 5))
    log.seal()
    log.close()
    if boot != UNKNOWN:
        file.pwrite(b"another boot id.", 48)
    file.pwrite(b"damaged", PAGE_BYTES + BLOCK_BYTES)
    found, log = reopened(file, boot)
    assert len(found) == PER_BLOCK
    assert "not on disk when the machine stopped" in caplog.text
    log.close()
    file.close()


def test_a_page_lost_behind_a_seal_takes_only_what_came_after_that_seal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, log = made(tmp_path / "log")
    log.put_all((number, 1) for number in range(1, 11))
    log.seal()
    lost_from = log.end
    log.put_all((number, 1) for number in range(11, 1001))
    log.seal()
    log.close()
    file.pwrite(b"another boot id.", 48)
    file.pwrite(bytes(2 * PAGE_BYTES - lost_from), lost_from)  # the end of the first page
    found, log = reopened(file)
    assert found == [(number, 1) for number in range(1, 11)]
    assert "not on disk when the machine stopped" in caplog.text
    log.put(99, 1)
    log.close()
    assert reopened(file)[0] == [*found, (99, 1)]
    file.close()


def test_a_page_of_a_full_block_that_power_loss_took_leaves_what_a_partial_seal_protects(
    tmp_path: Path,
) -> None:
    file, log = made(tmp_path / "log")
    log.put_all((number, 1) for number in range(1, 11))
    log.seal()
    lost_from = log.end
    log.put_all((number, 1) for number in range(11, PER_BLOCK + 100))
    log.close()
    file.pwrite(b"another boot id.", 48)
    file.pwrite(bytes(2 * PAGE_BYTES - lost_from), lost_from)
    found, log = reopened(file)
    assert found == [(number, 1) for number in range(1, 11)]
    log.close()
    file.close()
