"""Arguments that can never work, of everything that a store is made of."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from haclient import HAClient, SOWRecoveryPointAdapter
from haclient.stores import (
    ConflatingRecoveryPointAdapter,
    FilePublishStore,
    HybridPublishStore,
    LoggedBookmarkStore,
    MemoryBookmarkStore,
    MemoryPublishStore,
    NullBookmarkStore,
    PrunePolicy,
    RingBookmarkStore,
    RingPublishStore,
    SqliteRecoveryPointAdapter,
    TransactionalRecoveryPoint,
    UndiscardedWatch,
    prune,
)
from haclient_stores.checks import check_callable, check_count, check_seconds, check_word
from haclient_stores.errors import UsageError

Make: TypeAlias = Callable[..., Any]
"""Takes anything, for what it is given is wrong on purpose."""


MAKE: Final[dict[str, Make]] = {
    each.__name__: each
    for each in (
        LoggedBookmarkStore,
        RingBookmarkStore,
        MemoryBookmarkStore,
        NullBookmarkStore,
        TransactionalRecoveryPoint,
        FilePublishStore,
        HybridPublishStore,
        RingPublishStore,
        MemoryPublishStore,
        PrunePolicy,
        UndiscardedWatch,
        SqliteRecoveryPointAdapter,
        ConflatingRecoveryPointAdapter,
        SOWRecoveryPointAdapter,
        prune,
    )
}
BOOKMARK_FILES: Final = "LoggedBookmarkStore", "RingBookmarkStore"
DIRECTORIES: Final = "FilePublishStore", "HybridPublishStore", "RingPublishStore"
TRACKED: Final = *BOOKMARK_FILES, "MemoryBookmarkStore", "TransactionalRecoveryPoint"
STORES: Final = (
    *TRACKED,
    "NullBookmarkStore",
    *DIRECTORIES,
    "MemoryPublishStore",
)


_open: Final[list[sqlite3.Connection]] = []


def _connected() -> sqlite3.Connection:
    _open.append(sqlite3.connect(":memory:"))
    return _open[-1]


@pytest.fixture(autouse=True)
def connections_are_closed() -> Iterator[None]:
    yield
    while _open:
        _open.pop().close()


def arguments(kind: str, path: Path) -> dict[str, object]:
    """What each cannot be made without."""
    needed: dict[str, dict[str, object]] = {
        **{each: {"path": path} for each in (*BOOKMARK_FILES, *DIRECTORIES)},
        "RingPublishStore": {"path": path, "capacity_bytes": 2**20},
        "TransactionalRecoveryPoint": {"connection": _connected()},
        "SqliteRecoveryPointAdapter": {"path": path},
        "ConflatingRecoveryPointAdapter": {"inner": SqliteRecoveryPointAdapter(path.parent / "db")},
        "SOWRecoveryPointAdapter": {"client": HAClient("points", servers=["tcp://h:1/amps/json"])},
        "prune": {"paths": [path]},
    }
    return needed.get(kind, {})


NOT_COUNTS: Final[tuple[object, ...]] = ("x", None, 1.5, True, -1, math.nan, [])
NOT_SECONDS: Final[tuple[object, ...]] = ("x", None, True, -1.0, math.nan, [])
NOT_PATHS: Final[tuple[object, ...]] = (5, "", b"x", "a\0b")
NOT_TEXTS: Final[tuple[object, ...]] = (5, "", None, b"x", "\ud800")

ARGUMENTS: Final[list[tuple[tuple[str, ...], str, tuple[object, ...]]]] = [
    (("RingBookmarkStore",), "subscriptions", (*NOT_COUNTS, 0, 65_537)),
    ((*BOOKMARK_FILES, "FilePublishStore", "HybridPublishStore"), "path", (None, *NOT_PATHS)),
    (("RingPublishStore",), "path", NOT_PATHS),  # None is memory
    ((*BOOKMARK_FILES, *DIRECTORIES), "durability", ("x", None, 5, [], {})),
    (DIRECTORIES, "group_interval_s", (*NOT_SECONDS, 0, math.inf)),
    (("RingPublishStore",), "when_full", ("drop", None, 5, [], {})),
    (("PrunePolicy",), "every_messages", NOT_COUNTS),
    (("PrunePolicy",), "over_bytes", NOT_COUNTS),
    (("PrunePolicy",), "growths", NOT_COUNTS),
    (("PrunePolicy",), "idle_s", NOT_SECONDS),
    (("UndiscardedWatch",), "after_s", (*NOT_SECONDS, 0)),
    (("ConflatingRecoveryPointAdapter",), "max_updates", (*NOT_COUNTS, 0)),
    (("ConflatingRecoveryPointAdapter",), "max_age_s", (*NOT_SECONDS, 0)),
    (("SqliteRecoveryPointAdapter",), "path", (None, *NOT_PATHS)),
    (("SOWRecoveryPointAdapter",), "topic", NOT_TEXTS),
    *[
        (("SOWRecoveryPointAdapter",), f"{field}_field", NOT_TEXTS)
        for field in ("client_name", "sub_id", "bookmark")
    ],
    (("prune",), "paths", (None, 5, "orders.bm", b"orders.bm")),
]
TABLE: Final = [
    pytest.param(kind, name, wrong, id=f"{kind}-{name}-{number}")
    for kinds, name, all_wrong in ARGUMENTS
    for kind in kinds
    for number, wrong in enumerate(all_wrong)
]


@pytest.mark.row("PS18", "BS15", "BS24", "RP2")
@pytest.mark.parametrize(("kind", "name", "wrong"), TABLE)
def test_what_can_never_work_is_one_line_and_nothing_is_made(
    tmp_path: Path, kind: str, name: str, wrong: object
) -> None:
    path = tmp_path / "store"
    with pytest.raises(UsageError) as caught:
        MAKE[kind](**{**arguments(kind, path), name: wrong})
    assert str(caught.value).startswith(f"{name} is ")
    assert str(caught.value).endswith(f", not {wrong!r}")
    assert "\n" not in str(caught.value)
    assert not path.exists()


@pytest.mark.row("PS12", "BS21")
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("wrong", NOT_TEXTS)
def test_a_store_belongs_to_a_name(tmp_path: Path, kind: str, wrong: object) -> None:
    store = MAKE[kind](**arguments(kind, tmp_path / "store"))
    with pytest.raises(UsageError, match="client_name is a text"):
        store.open_for(wrong)
    assert store.client_name == ""
    store.open_for("orders-7")
    store.close()


@pytest.mark.row("BS7")
@pytest.mark.parametrize("wrong", [5, b"x", "\ud800"])
@pytest.mark.parametrize("kind", TRACKED)
def test_a_subscription_that_is_no_text_is_never_entered(
    tmp_path: Path, kind: str, wrong: object
) -> None:
    store = MAKE[kind](**arguments(kind, tmp_path / "store"))
    store.open_for("orders-7")
    for call in (store.purge, lambda sub_id: store.log(sub_id, "1|1|")):
        with pytest.raises(UsageError, match="sub_id is a text, not "):
            call(wrong)
    assert not store.subscriptions
    store.log("s", "1|1|")
    store.close()


@pytest.mark.row("BS16")
@pytest.mark.parametrize("wrong", [None, 5, "", "a\0b"])
def test_prune_looks_at_all_paths_before_it_prunes_one(tmp_path: Path, wrong: object) -> None:
    path = tmp_path / "orders.bm"
    store = LoggedBookmarkStore(path)
    for sequence in range(1, 500):
        store.discard("s", store.log("s", f"1|{sequence}|"))
    store.close()
    before = path.read_bytes()
    with pytest.raises(UsageError, match="path is the file of a store, not "):
        MAKE["prune"](paths=[path, wrong])
    assert path.read_bytes() == before
    assert prune([path])
    assert path.read_bytes() != before


def test_what_works_passes() -> None:
    check_count("a", 3, 3, 3)
    check_count("a", 2**70)
    check_seconds("a", math.inf)
    check_seconds("a", 0, zero=True)
    check_seconds("a", Fraction(1, 2))  # as the numbers of numpy, which are neither int nor float
    check_word("a", "x", ("x", "y"))
    check_callable("a", None)
    check_callable("a", int)
