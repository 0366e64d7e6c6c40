"""Recovery point adapters with the official names, and stores that have them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from typing_extensions import override

from haclient import compat
from haclient.compat.adapters import adapter_of
from haclient.errors import DisconnectedError, TimedOut, UsageError
from haclient.stores import MemoryPublishStore, RecoveryPoint, RecoveryPointAdapter, TimedAdapter
from haclient.testing import check_recovery_point_adapter
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.engine.settings import SowTopic
from support.broker_thread import BrokerThread, broker_thread
from unit.compat.conftest import chooser, wait_until

pytestmark = pytest.mark.row("B18")
TOPIC = "/ADMIN/bookmark_store"


@pytest.fixture
def broker() -> Generator[BrokerThread]:
    topics = (
        SowTopic(TOPIC, ("/clientName", "/subId")),
        SowTopic("points", ("/who", "/what")),
    )
    with broker_thread(BrokerConfig(sow_topics=topics)) as running:
        yield running


@pytest.fixture
def points(broker: BrokerThread) -> Generator[compat.HAClient]:
    """The client of an adapter."""
    with compat.HAClient("points-1") as client:
        client.set_server_chooser(chooser(broker.uri))
        client.connect_and_logon()
        yield client


class Named(TimedAdapter):
    """An adapter of this package that is made for whichever client asks first."""

    def __init__(self, client: compat.HAClient, *, conflates: bool) -> None:
        self._client = client
        self._conflates = conflates
        self._made: RecoveryPointAdapter | None = None

    @property
    def made(self) -> RecoveryPointAdapter:
        assert self._made is not None
        return self._made

    @override
    async def recover(self, client_name: str) -> list[RecoveryPoint]:
        sow = compat.SOWRecoveryPointAdapter(self._client, client_name)
        conflating = compat.ConflatingRecoveryPointAdapter(sow, 10)
        self._made = adapter_of(conflating if self._conflates else sow)
        return list(await self.made.recover(client_name))

    @override
    def update(self, point: RecoveryPoint) -> None:
        self.made.update(point)

    @override
    def purge(self, sub_id: str | None = None) -> None:
        self.made.purge(sub_id)

    @override
    async def prune(self) -> None:
        await self.made.prune()

    @override
    async def close(self) -> None:
        await self.made.close()

    @override
    def poll(self, now: float) -> None:
        assert isinstance(self.made, TimedAdapter)
        self.made.poll(now)


@pytest.mark.parametrize("conflates", [False, True])
def test_in_a_store_it_passes_the_conformance_suite(
    points: compat.HAClient, *, conflates: bool
) -> None:
    async def main() -> None:
        await check_recovery_point_adapter(lambda: Named(points, conflates=conflates))

    trio.run(main)


def test_an_application_reads_updates_purges_and_prunes(points: compat.HAClient) -> None:
    adapter = compat.SOWRecoveryPointAdapter(
        points, "desk-1", "points", "who", "what", "where", 30_000
    )
    assert list(adapter) == []
    first = compat.RecoveryPoint("s1", "1|2|", "server", 3, 1)
    adapter.update(compat.RecoveryPoint("s1", "1|1|"))
    adapter.update(first)
    adapter.update(compat.RecoveryPoint("s2", "1|5|"))
    adapter.purge("s2")
    adapter.close()
    adapter.close()
    other = compat.SOWRecoveryPointAdapter(points, "desk-1", "points", "who", "what", "where")
    assert list(other) == [first]
    (kept,) = other
    assert (kept.get_sub_id(), kept.get_bookmark()) == ("s1", "1|2|")
    assert records(points, "points") == 2
    other.prune()
    assert records(points, "points") == 1
    elsewhere = compat.SOWRecoveryPointAdapter(points, "desk-2", "points", "who", "what", "where")
    assert list(elsewhere) == []


def has_moved(client: compat.Client, begun: str) -> bool:
    return client.get_most_recent("s1") != begun


def records(client: compat.Client, topic: str) -> int:
    return sum(each is not None and each.get_command() == "sow" for each in client.sow(topic))


def store_of(
    kind: str, path: Path, adapter: object
) -> compat.MemoryBookmarkStore | compat.MMapBookmarkStore | compat.RingBookmarkStore:
    if kind == "memory":
        return compat.MemoryBookmarkStore(adapter)
    if kind == "logged":
        return compat.MMapBookmarkStore(str(path), adapter=adapter)
    return compat.RingBookmarkStore(str(path), adapter=adapter)


@pytest.mark.parametrize("kind", ["memory", "logged", "ring"])
def test_a_client_without_its_files_resumes_where_the_topic_says(
    broker: BrokerThread, points: compat.HAClient, tmp_path: Path, kind: str
) -> None:
    def consume(run: int) -> list[str]:
        adapter = compat.SOWRecoveryPointAdapter(points, "desk-1", timeout=30_000)
        with compat.HAClient("desk-1", no_store=True) as client:
            client.set_bookmark_store(store_of(kind, tmp_path / str(run), adapter))
            client.set_server_chooser(chooser(broker.uri))
            client.connect_and_logon()
            begun = client.get_most_recent("s1")
            with client.bookmark_subscribe("orders", sub_id="s1") as stream:
                got = [next(stream), next(stream)]
                for each in got:
                    assert each is not None
                    each.discard()
                wait_until(partial(has_moved, client, begun))  # by a persisted ack
        return [each.get_data() for each in got if each is not None]

    for body in "abcd":
        points.publish("orders", body)
    points.publish_flush(30_000)
    assert [consume(1), consume(2)] == [["a", "b"], ["c", "d"]]


def test_a_client_in_memory_with_an_adapter_connects_again_after_disconnect(
    broker: BrokerThread, points: compat.HAClient
) -> None:
    with compat.HAClient("desk-1", no_store=True) as client:
        client.set_bookmark_store(
            compat.MemoryBookmarkStore(compat.SOWRecoveryPointAdapter(points, "desk-1"))
        )
        client.set_server_chooser(chooser(broker.uri))
        for body in "ab":
            client.connect_and_logon()
            points.publish("orders", body)
            with client.bookmark_subscribe("orders", sub_id="s1") as stream:
                message = next(stream)
                assert message is not None
                assert message.get_data() == body
                begun = client.get_most_recent("s1")
                message.discard()
                wait_until(partial(has_moved, client, begun))
            client.disconnect()


class Official:
    """An adapter of an application, which knows the official names only."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.threads: set[int] = set()
        self.fails = False

    def has_more_calls(self, count: int) -> bool:
        return len(self.calls) > count

    def __iter__(self) -> Iterator[compat.RecoveryPoint]:
        class Point:
            def get_sub_id(self) -> str:
                return "s1"

            def get_bookmark(self) -> str:
                return "1|2|"

        return iter([Point()])  # type: ignore[list-item] # pyright: ignore[reportReturnType]  # it has the getters

    def update(self, point: compat.RecoveryPoint) -> None:
        self.threads.add(threading.get_ident())
        self.calls.append(("update", point.get_sub_id(), point.get_bookmark()))
        if self.fails:
            raise OSError("the disk is full")

    def purge(self, sub_id: str | None = None) -> None:
        self.calls.append(("purge", sub_id))

    def prune(self) -> None:
        self.calls.append(("prune",))

    def close(self) -> None:
        self.calls.append(("close",))


def test_an_adapter_of_the_application_is_called_in_a_thread_of_its_own() -> None:
    inner = Official()
    adapter = adapter_of(inner)
    assert adapter is not None

    async def main() -> None:
        assert list(await adapter.recover("desk-1")) == [RecoveryPoint("s1", "1|2|")]
        adapter.update(RecoveryPoint("s1", "1|3|"))
        await adapter.close()
        adapter.purge()
        await adapter.prune()
        await adapter.close()

    trio.run(main)
    assert [call for call in inner.calls if call[0] != "close"] == [
        ("update", "s1", "1|3|"),
        ("purge", None),
        ("prune",),
    ]
    assert inner.calls[-1] == ("close",)
    assert threading.get_ident() not in inner.threads


def test_an_update_that_fails_is_made_again_and_only_the_newest_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inner = Official()
    adapter = adapter_of(inner)
    assert isinstance(adapter, TimedAdapter)
    inner.fails = True
    adapter.update(RecoveryPoint("s1", "1|3|"))
    wait_until(lambda: "the disk is full" in caplog.text)
    for number in (4, 5):
        count = len(inner.calls)
        adapter.update(RecoveryPoint("s1", f"1|{number}|"))
        wait_until(partial(inner.has_more_calls, count))
    inner.fails = False

    def is_kept() -> bool:
        adapter.poll(0)
        return inner.calls.count(("update", "s1", "1|5|")) > 1

    wait_until(is_kept)
    trio.run(adapter.close)
    assert caplog.text.count("the disk is full") == 1
    inner.fails = True
    adapter.update(RecoveryPoint("s1", "1|6|"))
    trio.run(adapter.close)
    assert "1 recovery points were not kept" in caplog.text


class Purging(Official):
    """Fails once, at a purge, while a newer call arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.newer: list[Callable[[], None]] = []
        self.error: BaseException = OSError("the disk is busy")

    @override
    def purge(self, sub_id: str | None = None) -> None:
        super().purge(sub_id)
        if self.newer:
            self.newer.pop()()
            raise self.error


@pytest.mark.parametrize(
    ("purged", "again"),
    [
        (None, [("purge", None), ("update", "s1", "1|9|")]),
        ("s1", [("update", "s1", "1|9|")]),
        ("s2", [("purge", "s2"), ("update", "s1", "1|9|")]),
    ],
)
def test_a_call_that_failed_is_made_again_before_newer_ones_or_not_at_all(
    purged: str | None, again: list[tuple[object, ...]]
) -> None:
    inner = Purging()
    adapter = adapter_of(inner)
    assert adapter is not None
    inner.newer.append(lambda: adapter.update(RecoveryPoint("s1", "1|9|")))
    adapter.purge(purged)
    trio.run(adapter.close)
    assert inner.calls == [("purge", purged), *again, ("close",)]


def test_a_purge_of_all_replaces_a_call_that_failed_before() -> None:
    inner = Purging()
    adapter = adapter_of(inner)
    assert adapter is not None
    inner.newer.append(adapter.purge)
    adapter.purge("s1")
    trio.run(adapter.close)
    assert inner.calls == [("purge", "s1"), ("purge", None), ("close",)]


def test_a_call_that_exits_is_reported_and_made_again(caplog: pytest.LogCaptureFixture) -> None:
    inner = Purging()
    adapter = adapter_of(inner)
    assert isinstance(adapter, TimedAdapter)
    inner.error = SystemExit(1)
    inner.newer.append(lambda: None)
    adapter.purge("s1")
    wait_until(lambda: "SystemExit(1)" in caplog.text)

    def is_made_again() -> bool:
        adapter.poll(0)
        return inner.calls == [("purge", "s1"), ("purge", "s1")]

    wait_until(is_made_again)
    trio.run(adapter.close)


def test_conflating_forwards_the_newest_after_a_number_of_updates_and_at_the_end() -> None:
    inner = Official()
    adapter = compat.ConflatingRecoveryPointAdapter(inner, 3, 3_600_000)
    assert [point.get_sub_id() for point in adapter] == ["s1"]
    for number in range(1, 5):
        adapter.update(compat.RecoveryPoint("s1", f"1|{number}|"))
    wait_until(lambda: bool(inner.calls))
    assert inner.calls == [("update", "s1", "1|3|")]
    adapter.close()
    assert inner.calls[1:] == [("update", "s1", "1|4|"), ("close",)]
    adapter.update(compat.RecoveryPoint("s1", "1|5|"))
    adapter.purge("s1")
    adapter.prune()
    adapter.close()
    assert ("update", "s1", "1|5|") not in inner.calls
    assert ("purge", "s1") in inner.calls


def test_what_is_no_adapter_is_refused_with_what_it_lacks(points: compat.HAClient) -> None:
    with pytest.raises(UsageError, match="lacks __iter__, update, purge, prune, close"):
        compat.MemoryBookmarkStore(object())
    with pytest.raises(UsageError, match="lacks"):
        compat.ConflatingRecoveryPointAdapter(3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # on purpose
    for wrong in (MemoryPublishStore(), None):
        with pytest.raises(UsageError, match=r"Client of haclient\.compat"):
            compat.SOWRecoveryPointAdapter(wrong, "desk-1")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # on purpose
    adapter = compat.ConflatingRecoveryPointAdapter(compat.SOWRecoveryPointAdapter(points, "a"))
    store = compat.MemoryBookmarkStore(adapter)

    async def recover() -> None:
        await adapter.native.recover("b")

    with pytest.raises(UsageError, match="keeps the recovery points of 'a'"):
        trio.run(recover)
    assert adapter_of(adapter.native) is adapter.native
    store.native.close()


def test_the_client_of_an_adapter_has_to_be_connected_and_answer_in_time(
    broker: BrokerThread, points: compat.HAClient
) -> None:
    early = compat.SOWRecoveryPointAdapter(compat.Client("early-3"), "desk-1")
    with pytest.raises(DisconnectedError, match="connect and logon"):
        list(early)
    late = compat.SOWRecoveryPointAdapter(points, "desk-1", timeout=0.001)
    with pytest.raises(TimedOut, match="recovery points took longer"):
        list(late)
    assert broker.uri


def test_points_are_published_when_the_server_is_back(
    broker: BrokerThread,
) -> None:
    with compat.HAClient("points-2", no_store=True) as points:
        points.set_server_chooser(chooser(broker.uri))
        points.set_reconnect_delay_strategy(compat.FixedDelayStrategy(1))
        points.connect_and_logon()
        adapter = adapter_of(compat.SOWRecoveryPointAdapter(points, "desk-1"))
        assert isinstance(adapter, TimedAdapter)
        trio.run(adapter.recover, "desk-1")
        broker.stop()
        wait_until(points.disconnected)
        adapter.update(RecoveryPoint("s1", "1|3|"))
        broker.start()
        wait_until(lambda: not points.disconnected())

        def is_there() -> bool:
            adapter.poll(0)
            return records(points, TOPIC) == 1

        wait_until(is_there)
        trio.run(adapter.close)
