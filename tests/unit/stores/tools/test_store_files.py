from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.prune_request import PruneRequest
from haclient_stores.bookmark_stores.record_file import LOG_MAGIC
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.disk.files import RealDisk
from haclient_stores.disk.view_disk import ViewDisk
from haclient_stores.errors import StoreCorrupt, StoreError, StoreLocked, UsageError
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.tools import store_files
from haclient_stores.tools.store_files import (
    BookmarkFile,
    StoreFile,
    kind_of,
    prune,
    size_of,
    viewed,
)


@pytest.mark.row("PS23")
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


def test_who_looks_at_a_log_carries_out_no_request(tmp_path: Path) -> None:
    LoggedBookmarkStore(tmp_path / "s.bm").close()
    PruneRequest(RealDisk(), tmp_path / "s.bm").make()
    with viewed(tmp_path / "s.bm") as seen:
        assert isinstance(seen, LoggedBookmarkStore)
        assert seen.prune_requested
        assert not seen.prunes_on_close


@pytest.mark.row("PS23")
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


@pytest.mark.row("PS23")
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
            stop.wait(0.001)  # lets the other thread run

    thread = threading.Thread(target=work)
    thread.start()
    seen: list[int] = []
    while len(seen) < 3 or not seen[-1]:
        with viewed(store.path) as found:
            point = str(found.most_recent("s")) if isinstance(found, LoggedBookmarkStore) else ""
            seen.append(int(point.split("|")[1]) if "|" in point else 0)
    stop.set()
    thread.join()
    assert seen == sorted(seen)
    assert seen[-1] > 0
    store.close()


@pytest.mark.row("PS23")
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


@pytest.mark.row("PS23")
def test_anything_else_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello, world")
    for wrong in (tmp_path, tmp_path / "text"):
        with pytest.raises(StoreError, match=f"{wrong}: neither a bookmark store nor"):
            kind_of(wrong)
    with pytest.raises(StoreError, match="none: No such file"):
        kind_of(tmp_path / "none")


def headerless(kind: type[BookmarkFile], path: Path) -> Path:
    """A store whose process was killed before the magic, which is written last."""
    kind(path).close()
    path.write_bytes(bytes(len(LOG_MAGIC)) + path.read_bytes()[len(LOG_MAGIC) :])
    return path


@pytest.mark.row("PS23", "BS16")
@pytest.mark.parametrize("kind", [LoggedBookmarkStore, RingBookmarkStore])
def test_a_bookmark_file_without_a_header_is_empty_and_stays_as_it_is(
    tmp_path: Path, kind: type[BookmarkFile]
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_bytes(bytes(3))
    for path in (tmp_path / "empty", tmp_path / "short", headerless(kind, tmp_path / "s.bm")):
        before = path.read_bytes()
        assert kind_of(path) is None
        with viewed(path) as seen:
            assert not isinstance(seen, FilePublishStore)
            assert (seen.client_name, list(seen.subscriptions)) == ("", [])
        (done,) = prune([path])
        assert (done.before_bytes, done.after_bytes) == (len(before), len(before))
        assert path.read_bytes() == before
        kind(path).close()  # a client makes it its store


@pytest.mark.row("PS23")
def test_only_a_file_can_be_without_a_header(tmp_path: Path) -> None:
    for wrong in (tmp_path, Path(os.devnull)):
        with pytest.raises(StoreError, match="neither a bookmark store nor"):
            kind_of(wrong)


@pytest.mark.row("PS23")
def test_a_file_that_gets_its_header_meanwhile_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.ring"
    path.touch()

    def make() -> ViewDisk:
        monkeypatch.undo()
        RingBookmarkStore(path).close()
        return ViewDisk()

    monkeypatch.setattr(store_files, "ViewDisk", make)
    with viewed(path) as seen:
        assert isinstance(seen, RingBookmarkStore)


@pytest.mark.row("PS23")
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


def filled(path: Path) -> LoggedBookmarkStore:
    store = LoggedBookmarkStore(path)
    store.open_for("me")
    for number in store.subscription("s").log_batch([f"7|{n}|" for n in range(1, 20_001)]):
        if number % 1000:
            store.discard("s", number)
    return store


@pytest.mark.usefixtures("small_growth")
@pytest.mark.row("BS16", "BS17")
def test_logs_are_pruned_and_what_never_grows_is_left_alone(tmp_path: Path) -> None:
    filled(tmp_path / "s.bm").close()
    RingBookmarkStore(tmp_path / "s.ring").close()
    FilePublishStore(tmp_path / "p").close()
    steps: list[int] = []
    logged, ring, publish = prune(
        [tmp_path / "s.bm", str(tmp_path / "s.ring"), tmp_path / "p"], on_progress=steps.append
    )
    assert logged.after_bytes < logged.before_bytes / 2
    assert logged.after_bytes == (tmp_path / "s.bm").stat().st_size
    assert ring.before_bytes == ring.after_bytes
    assert publish.before_bytes == publish.after_bytes
    assert steps == sorted(steps)
    assert steps[-1] > 600_000
    store = LoggedBookmarkStore(tmp_path / "s.bm")
    assert store.client_name == "me"
    assert store.subscription("s").undiscarded_count == 20
    store.close()


@pytest.mark.row("BS16", "BS17")
def test_a_file_in_use_is_refused_and_a_missing_one_not_made(tmp_path: Path) -> None:
    store = filled(tmp_path / "s.bm")
    with pytest.raises(StoreLocked, match="as client 'me'"):
        prune([tmp_path / "s.bm"])
    store.close()
    with pytest.raises(StoreError, match="No such file"):
        prune([tmp_path / "none"])
    assert not (tmp_path / "none").exists()
