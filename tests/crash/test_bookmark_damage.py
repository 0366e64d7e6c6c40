"""Every byte of a small bookmark log flipped: noticed, or without effect."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from haclient_stores.bookmark_stores import record_file
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.disk.files import PAGE_BYTES
from haclient_stores.errors import StoreCorrupt

pytestmark = [pytest.mark.row("BS14", "PS21"), pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that grows by a block at a time: less to write for each try."""
    monkeypatch.setattr(record_file, "GROW_BYTES", record_file.BLOCK_BYTES)


def test_every_byte_of_a_small_log_flipped_is_noticed_or_has_no_effect(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    every: int,
    request: pytest.FixtureRequest,
) -> None:
    path = tmp_path / "s.bm"
    store = LoggedBookmarkStore(path)
    store.open_for("me")
    store.subscription("s").begin(acked=False, start="3|4|")
    store.subscription("s").log_batch([f"{1 + n % 2}|{n}|" for n in range(1, 9)])
    for number in (1, 2, 4):
        store.discard("s", number)
    end = store._log.file.end
    truth = store.explain("s")
    store.close()
    whole = path.read_bytes()
    corrupt = 0
    # Most of the header is not in use.
    step = 1 if request.config.getoption("--kills") else 41 * every
    for offset in (*range(200), *range(200, PAGE_BYTES, step), *range(PAGE_BYTES, end + 64)):
        damaged = bytearray(whole)
        damaged[offset] ^= 0x10
        path.write_bytes(damaged)
        caplog.clear()
        try:
            store = LoggedBookmarkStore(path)
        except StoreCorrupt as error:
            corrupt += 1
            assert error.offset in {0, 8, 128, PAGE_BYTES}, offset
            continue
        assert store.explain("s") == truth, offset
        assert store.client_name == "me", offset
        if offset >= end + 32:  # behind the last record and its seal, where all has to be zero
            assert [r.levelno for r in caplog.records] == [logging.WARNING], offset
        store.close()
    assert corrupt >= end - PAGE_BYTES + 36
