"""Paths of stores: missing parents, and a working directory that changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from haclient.protocol.codec import publish_head
from haclient.recovery_points.sqlite import SqliteRecoveryPointAdapter
from haclient.stores import (
    FilePublishStore,
    HybridPublishStore,
    LoggedBookmarkStore,
    RingBookmarkStore,
    RingPublishStore,
)
from haclient_stores.adapters.recovery_point import RecoveryPoint
from haclient_stores.audit_log import AuditLog
from haclient_stores.publish_stores.publish_log import PublishLog

SEGMENT_BYTES = 256 * 1024
PUBLISH_STORES: dict[str, Callable[[Path], PublishLog]] = {
    "file": lambda path: FilePublishStore(path, segment_bytes=SEGMENT_BYTES),
    "ring": lambda path: RingPublishStore(path, capacity_bytes=2**22),
    "hybrid": lambda path: HybridPublishStore(path, memory_bytes=2**21),
}
BOOKMARK_STORES: dict[str, Callable[[Path], LoggedBookmarkStore | RingBookmarkStore]] = {
    "logged": LoggedBookmarkStore,
    "ring": RingBookmarkStore,
}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Begins in a directory; goes to another one."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda: monkeypatch.chdir(tmp_path / "there")


@pytest.mark.parametrize("kind", BOOKMARK_STORES)
def test_a_bookmark_store_makes_the_directories_that_are_missing(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "not" / "yet" / "s.bm"
    with closing(BOOKMARK_STORES[kind](path)) as store:
        store.log("s1", "7|1|")
    assert path.is_file()


@pytest.mark.parametrize("kind", PUBLISH_STORES)
def test_a_publish_store_stays_where_it_was_opened(
    kind: str, elsewhere: Callable[[], None], tmp_path: Path
) -> None:
    with closing(PUBLISH_STORES[kind](Path("a/s"))) as store:
        store.open_for("me")
        elsewhere()
        for _ in range(2):
            for _ in range(30):  # more than the memory of the hybrid one
                store.store(publish_head("orders"), b"}", bytes(80_000))
            store.sync()
            store.discard_up_to(store.last_sequence)
        store.store(publish_head("orders"), b"}", b"last")
    assert not list((tmp_path / "there").iterdir())
    with closing(PUBLISH_STORES[kind](tmp_path / "here" / "a" / "s")) as store:
        assert [frame[-4:] for _, frame in store.replay()] == [b"last"]


@pytest.mark.parametrize("kind", BOOKMARK_STORES)
def test_a_bookmark_store_stays_where_it_was_opened(
    kind: str, elsewhere: Callable[[], None], tmp_path: Path
) -> None:
    with closing(BOOKMARK_STORES[kind](Path("a/s"))) as store:
        elsewhere()
        store.discard("s1", store.log("s1", "7|1|"))
        store.prune()
        store.sync()
    assert not list((tmp_path / "there").iterdir())
    with closing(BOOKMARK_STORES[kind](tmp_path / "here" / "a" / "s")) as store:
        assert str(store.most_recent("s1")) == "7|1|"


async def test_recovery_points_stay_where_they_were_opened(
    elsewhere: Callable[[], None], tmp_path: Path
) -> None:
    adapter = SqliteRecoveryPointAdapter("points.db")
    await adapter.recover("me")
    elsewhere()
    adapter.update(RecoveryPoint("s1", "7|1|"))
    await adapter.close()
    again = SqliteRecoveryPointAdapter(tmp_path / "here" / "points.db")
    assert [each.bookmark for each in await again.recover("me")] == ["7|1|"]


def test_an_audit_log_stays_where_it_was_opened(
    elsewhere: Callable[[], None], tmp_path: Path
) -> None:
    log = AuditLog("audit")
    elsewhere()
    log.open_for("me", 1, 1_700_000_000_000_000)
    log.close()
    assert not list((tmp_path / "there").iterdir())
    assert len(list((tmp_path / "here" / "audit").iterdir())) == 2
