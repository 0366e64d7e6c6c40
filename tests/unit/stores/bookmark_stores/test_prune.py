from __future__ import annotations

from pathlib import Path

import pytest

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.prune import prune
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.errors import StoreError, StoreLocked
from haclient_stores.publish_stores.file import FilePublishStore

pytestmark = pytest.mark.row("BS16", "BS17")


def filled(path: Path) -> LoggedBookmarkStore:
    store = LoggedBookmarkStore(path)
    store.open_for("me")
    for number in store.subscription("s").log_batch([f"7|{n}|" for n in range(1, 100_001)]):
        if number % 1000:
            store.discard("s", number)
    return store


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
    assert steps[-1] > 3_000_000
    store = LoggedBookmarkStore(tmp_path / "s.bm")
    assert store.client_name == "me"
    assert store.subscription("s").undiscarded_count == 100
    store.close()


def test_a_file_in_use_is_refused_and_a_missing_one_not_made(tmp_path: Path) -> None:
    store = filled(tmp_path / "s.bm")
    with pytest.raises(StoreLocked, match="as client 'me'"):
        prune([tmp_path / "s.bm"])
    store.close()
    with pytest.raises(StoreError, match="No such file"):
        prune([tmp_path / "none"])
    assert not (tmp_path / "none").exists()
