from __future__ import annotations

import threading
from pathlib import Path

import pytest

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.errors import StoreCorrupt, StoreError, UsageError
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.tools.inspect import StoreFile, kind_of, size_of, viewed

pytestmark = pytest.mark.row("PS23")


def test_stores_that_are_in_use_are_seen_as_they_are_and_stay_as_they_are(tmp_path: Path) -> None:
    logged = LoggedBookmarkStore(tmp_path / "s.bm")
    ring = RingBookmarkStore(tmp_path / "s.ring")
    for store in (logged, ring):
        store.open_for("me")
        store.log("s", "1|1|")
        store.log("s", "1|2|")
        store.discard("s", 1)
        before = store.path.read_bytes()
        with viewed(store.path) as seen:
            assert isinstance(seen, type(store))
            assert seen.client_name == "me"
            assert str(seen.most_recent("s")) == "1|1|"
            seen.purge()
            seen.prune()
        assert store.path.read_bytes() == before
        store.close()


def test_a_publish_store_that_is_in_use_is_seen_too(tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "p")
    for _ in range(5):
        store.store(b'{"s":', b"}", b"body")
    store.discard_up_to(2)
    before = {path: path.read_bytes() for path in (tmp_path / "p").iterdir()}
    with viewed(tmp_path / "p") as seen:
        assert isinstance(seen, FilePublishStore)
        assert [sequence for sequence, _ in seen.replay()] == [3, 4, 5]
    assert {path: path.read_bytes() for path in (tmp_path / "p").iterdir()} == before
    assert size_of(tmp_path / "p") == sum(map(len, before.values()))
    store.close()


def test_a_log_that_is_written_meanwhile_is_read_as_of_one_moment(tmp_path: Path) -> None:
    store = LoggedBookmarkStore(tmp_path / "s.bm")
    stop = threading.Event()

    def work() -> None:
        log = store.subscription("s")
        sequence = 0
        while not stop.is_set():
            batch = [f"1|{sequence + n}|" for n in range(1, 101)]
            sequence += 100
            for number in log.log_batch(batch):
                log.discard(number)

    thread = threading.Thread(target=work)
    thread.start()
    seen: list[int] = []
    while len(seen) < 5:
        with viewed(store.path) as found:
            point = str(found.most_recent("s")) if isinstance(found, LoggedBookmarkStore) else ""
            seen.append(int(point.split("|")[1]) if "|" in point else 0)
    stop.set()
    thread.join()
    assert seen == sorted(seen)
    assert seen[-1] > 0
    store.close()


def test_damage_is_told_and_progress_shown(tmp_path: Path) -> None:
    path = tmp_path / "s.bm"
    store = LoggedBookmarkStore(path)
    store.log("s", "1|1|")
    store.close()
    steps: list[int] = []
    with viewed(path, steps.append):
        assert steps
    data = bytearray(path.read_bytes())
    data[4096 + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt), viewed(path):
        pass


def test_anything_else_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello, world")
    for wrong in (tmp_path, tmp_path / "text"):
        with pytest.raises(StoreError, match=f"{wrong}: neither a bookmark store nor"):
            kind_of(wrong)
    with pytest.raises(StoreError, match="none: No such file"):
        kind_of(tmp_path / "none")


def test_a_view_ends_with_its_block_also_by_an_error(tmp_path: Path) -> None:
    LoggedBookmarkStore(tmp_path / "s.bm").close()
    views: list[StoreFile] = []

    def look() -> None:
        with viewed(tmp_path / "s.bm") as found:
            views.append(found)
            raise LookupError

    with pytest.raises(LookupError):
        look()
    with pytest.raises(UsageError, match="closed"):
        views[0].open_for("me")
