"""What a forked child keeps of a killed parent: nothing that others wait for.

Each test has a parent, which is a fork of this process, and its child. The parent is killed.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from haclient.blocking import HAClient
from haclient.stores import (
    FilePublishStore,
    HybridPublishStore,
    LoggedBookmarkStore,
    RingBookmarkStore,
    RingPublishStore,
)
from haclient.subscription_manager import Entry, FileSubscriptionManager
from haclient_fake_server.config import BrokerConfig, QueueTopic
from haclient_stores.audit_log import AuditLog
from haclient_stores.errors import StoreLocked
from support.broker_thread import broker_thread
from support.forks import refusals
from support.process import LIMIT_S


class Closable(Protocol):
    def close(self) -> None: ...


STORES: dict[str, Callable[[Path], Closable]] = {
    "file": FilePublishStore,
    "ring": lambda path: RingPublishStore(path, capacity_bytes=2**20),
    "hybrid": HybridPublishStore,
    "logged bookmarks": LoggedBookmarkStore,
    "ring bookmarks": RingBookmarkStore,
    "subscriptions": FileSubscriptionManager,
    "audit log": AuditLog,
}


def written(path: Path) -> dict[Path, tuple[int, int]]:
    """The files below a directory, each with its inode and when it was written to."""
    found = {file: file.stat() for file in path.rglob("*")}
    return {file: (status.st_ino, status.st_mtime_ns) for file, status in found.items()}


@contextmanager
def orphan(prepare: Callable[[], object]) -> Generator[None]:
    """A child whose parent was killed, after `prepare` was called in the parent."""
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:  # only `os._exit` from here: the test's fixtures belong to the other process
        try:
            kept = prepare()
            if os.fork() == 0:
                os.write(writer, b"%d\n" % os.getpid())
                signal.alarm(int(LIMIT_S))
            signal.pause()
            del kept
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as child:
        pid = child.readline()
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        assert pid, "the parent has failed: see stderr"
    try:
        yield
    finally:
        os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("kind", STORES)
def test_the_store_of_a_killed_parent_can_be_opened(kind: str, tmp_path: Path) -> None:
    with orphan(lambda: STORES[kind](tmp_path / "s")):
        STORES[kind](tmp_path / "s").close()


def test_a_pruned_log_of_a_killed_parent_can_be_opened(tmp_path: Path) -> None:
    """It is another file than the one that was opened."""

    def prepare() -> LoggedBookmarkStore:
        store = LoggedBookmarkStore(tmp_path / "s")
        store.prune()
        # More than is mapped at a time.
        store.subscription("s1").log_batch([f"7|{n}|" for n in range(1, 70_001)])
        return store

    with orphan(prepare), closing(LoggedBookmarkStore(tmp_path / "s")) as store:
        assert store.subscription("s1").undiscarded_count == 70_000


@pytest.mark.parametrize("kind", STORES)
def test_a_child_leaves_the_locks_and_the_files_of_its_parent_alone(
    kind: str, tmp_path: Path
) -> None:
    with closing(STORES[kind](tmp_path / "s")) as store:
        before = written(tmp_path)
        child = os.fork()
        if child == 0:
            try:
                store.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert written(tmp_path) == before
        other = os.fork()
        if other == 0:
            code = 1
            try:
                STORES[kind](tmp_path / "s")
            except StoreLocked as error:
                code = 0 if "in use by another process" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == 0


def test_a_child_writes_nothing_into_the_files_of_its_parent(tmp_path: Path) -> None:
    """Those of an audit log and of subscriptions, whose calls no client has to pass."""
    with closing(AuditLog(tmp_path / "audit")) as log:
        manager = FileSubscriptionManager(tmp_path / "subs")
        log.open_for("me", 1, 1_700_000_000_000_000)
        log.published(1, "orders", 1_700_000_000_000_001)  # not written yet
        manager.open_for("me")
        before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

        def acknowledge() -> None:
            log.acknowledged(1, 1_700_000_000_000_002)
            log.close()

        assert refusals(acknowledge) == 0
        with pytest.raises(AssertionError, match="a call has failed in the forked process"):
            refusals(manager.clear, lambda: manager.add(Entry("s", {"c": "subscribe"}, b"")))
        assert {file: file.read_bytes() for file in before} == before
        manager.close()


def test_the_lease_of_a_killed_parent_returns_at_once_and_the_connection_of_a_live_one_stays() -> (
    None
):
    config = BrokerConfig(queues=(QueueTopic(name="jobs", lease_s=LIMIT_S),))
    with broker_thread(config) as broker, HAClient("b", servers=[broker.uri]) as client:

        def prepare() -> object:
            kept = ExitStack()
            parent = kept.enter_context(HAClient("a", servers=[broker.uri], heartbeat=None))
            assert next(kept.enter_context(parent.stream("jobs"))).text == "1"
            return kept

        client.publish("jobs", b"1")
        with orphan(prepare), client.stream("jobs") as messages:
            message = next(messages.with_timeout(LIMIT_S / 2))
            assert message is not None, "the lease did not return"
            message.ack()
        assert client.metrics.connections == 1  # although this process was forked
