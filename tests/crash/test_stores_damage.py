from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from haclient_stores.bookmark_stores import record_file
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.disk.files import PAGE_BYTES
from haclient_stores.errors import StoreCorrupt
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.segment_file import HEADER_BYTES, SEAL_BYTES
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES

BASE = 1000
FRAME = len(b'....{"s":1001}body')

pytestmark = [pytest.mark.row("PS21")]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that grows by a block at a time: less to write for each try."""
    monkeypatch.setattr(record_file, "GROW_BYTES", record_file.BLOCK_BYTES)


def killed_publish_store(path: Path, *, sealed: int, unsealed: int) -> None:
    """What a process leaves that was killed after so many frames before and after a sync."""
    work = path.with_name("work")
    store = FilePublishStore(work, segment_bytes=MIN_SEGMENT_BYTES)
    store.reconcile(seen=0, persisted=0, clock_us=BASE)
    for _ in range(sealed):
        store.append(b'{"s":', b"}", b"body")
    store.sync()
    for _ in range(unsealed):
        store.append(b'{"s":', b"}", b"body")
    shutil.copytree(work, path)
    store.close()
    shutil.rmtree(work)


def segment_of(path: Path) -> Path:
    return path / "00000001.seg"


def frames_end(data: bytes) -> int:
    return HEADER_BYTES + len(data[HEADER_BYTES : -10 * SEAL_BYTES].rstrip(b"\0"))


def test_a_segment_cut_at_any_byte_is_called_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "p"
    killed_publish_store(path, sealed=4, unsealed=6)
    whole = segment_of(path).read_bytes()
    for cut in [*range(1, 200, 7), *range(HEADER_BYTES - 3, frames_end(whole) + 6), len(whole) - 1]:
        segment_of(path).write_bytes(whole[:cut])
        with pytest.raises(StoreCorrupt) as caught:
            FilePublishStore(path, segment_bytes=MIN_SEGMENT_BYTES)
        assert caught.value.path == segment_of(path)
    segment_of(path).write_bytes(b"")  # nothing says that a segment was ever in use here
    store = FilePublishStore(path, segment_bytes=MIN_SEGMENT_BYTES)
    assert list(store.replay()) == []
    store.append(b'{"s":', b"}", b"more")
    store.close()


def test_a_flipped_bit_in_sealed_frames_is_corrupt_and_names_the_offset(tmp_path: Path) -> None:
    path = tmp_path / "p"
    killed_publish_store(path, sealed=8, unsealed=0)
    whole = segment_of(path).read_bytes()
    for offset in range(HEADER_BYTES, frames_end(whole)):
        damaged = bytearray(whole)
        damaged[offset] ^= 0x10
        segment_of(path).write_bytes(damaged)
        with pytest.raises(StoreCorrupt) as caught:
            FilePublishStore(path, segment_bytes=MIN_SEGMENT_BYTES)
        assert caught.value.offset == HEADER_BYTES


def test_a_flipped_bit_in_a_header_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "p"
    killed_publish_store(path, sealed=2, unsealed=0)
    for file in (segment_of(path), path / "control"):
        whole = file.read_bytes()
        for offset in range(36):
            damaged = bytearray(whole)
            damaged[offset] ^= 0x01
            file.write_bytes(damaged)
            with pytest.raises(StoreCorrupt):
                FilePublishStore(path, segment_bytes=MIN_SEGMENT_BYTES)
        file.write_bytes(whole)


def killed_bookmark_store(path: Path, *, sealed: int, unsealed: int) -> None:
    work = path.with_name("work.bm")
    store = LoggedBookmarkStore(work)
    log = store.subscription("s")
    for number in range(1, sealed + 1):
        log.discard(log.log(f"7|{number}|"))
    store.sync()
    for number in range(sealed + 1, sealed + unsealed + 1):
        log.discard(log.log(f"7|{number}|"))
    shutil.copyfile(work, path)
    store.close()
    work.unlink()


@pytest.mark.row("BS14")
def test_a_bookmark_log_cut_at_any_byte_keeps_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "s.bm"
    killed_bookmark_store(path, sealed=0, unsealed=8)
    whole = path.read_bytes()
    synced = PAGE_BYTES + 16 * 2  # a name and a seal
    for cut in range(PAGE_BYTES, PAGE_BYTES + 16 * 20):
        path.write_bytes(whole[:cut])
        if cut < synced:
            with pytest.raises(StoreCorrupt, match="was synced up to byte"):
                LoggedBookmarkStore(path)
            continue
        store = LoggedBookmarkStore(path)
        records = (cut - PAGE_BYTES) // 16
        discards = max(0, (records - 3) // 2)  # a publisher comes, too
        assert str(store.most_recent("s")) == (f"7|{min(discards, 8)}|" if discards else "0")
        store.close()


@pytest.mark.row("BS14")
def test_a_flipped_bit_in_sealed_records_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "s.bm"
    killed_bookmark_store(path, sealed=8, unsealed=0)
    whole = path.read_bytes()
    for offset in range(PAGE_BYTES, PAGE_BYTES + 16 * 18):
        damaged = bytearray(whole)
        damaged[offset] ^= 0x04
        path.write_bytes(damaged)
        with pytest.raises(StoreCorrupt) as caught:
            LoggedBookmarkStore(path)
        assert caught.value.offset == PAGE_BYTES


def test_what_was_never_sealed_is_not_trusted_after_the_machine_was_started(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish, bookmarks = tmp_path / "p", tmp_path / "s.bm"
    killed_publish_store(publish, sealed=3, unsealed=3)
    killed_bookmark_store(bookmarks, sealed=3, unsealed=3)
    for file in (segment_of(publish), bookmarks):
        data = bytearray(file.read_bytes())
        data[48:64] = bytes(range(16))  # the boot id
        file.write_bytes(data)
    store = FilePublishStore(publish, segment_bytes=MIN_SEGMENT_BYTES)
    assert [sequence for sequence, _ in store.replay()] == [BASE + 1, BASE + 2, BASE + 3]
    store.close()
    logged = LoggedBookmarkStore(bookmarks)
    assert str(logged.most_recent("s")) == "7|3|"
    logged.close()
    assert len(caplog.records) == 2


def test_a_sealed_block_that_power_loss_kept_from_the_disk_is_a_torn_tail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "p"
    killed_publish_store(path, sealed=3, unsealed=0)
    data = bytearray(segment_of(path).read_bytes())
    data[48:64] = bytes(range(16))  # the boot id
    data[64:80] = bytes(16)  # never synced
    data[HEADER_BYTES + 20] ^= 1
    segment_of(path).write_bytes(data)
    store = FilePublishStore(path, segment_bytes=MIN_SEGMENT_BYTES)
    assert list(store.replay()) == []
    assert "not on disk when the machine stopped" in caplog.text
    store.close()
