"""Stores with the official names, without a connection."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from haclient import compat
from haclient.compat.stores import bookmark_store_of, publish_store_of
from haclient.errors import StoreFull, StoreLocked, UsageError
from haclient.stores import BookmarkStore
from haclient.stores import MemoryPublishStore as NativeMemoryPublishStore
from haclient.stores import PublishStore as NativePublishStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.broker_thread import BrokerThread
from unit.compat.conftest import chooser, wait_until

pytestmark = pytest.mark.row("B18")


def test_stores_in_files_are_there_when_they_are_made(tmp_path: Path) -> None:
    for make in (
        compat.PublishStore,
        compat.HybridPublishStore,
        compat.MMapBookmarkStore,
        compat.RingBookmarkStore,
    ):
        path = str(tmp_path / make.__name__)
        store = make(path)
        assert Path(path).exists()
        with pytest.raises(StoreLocked):
            make(path)
        store.native.close()


def test_bookmark_stores_answer_without_a_client() -> None:
    store = compat.MemoryBookmarkStore()
    store.native.open_for("desk-1")
    number = store.native.log("s1", "1|2|")
    assert store.get_oldest_bookmark_seq("s1") == number
    store.discard("s1", number)
    assert store.get_oldest_bookmark_seq("s1") == 0
    store.purge()
    store.prune()
    assert store.get_most_recent("s1") == "0"


def test_a_store_belongs_to_one_client() -> None:
    store = compat.MemoryPublishStore()
    first, second = compat.Client("desk-1"), compat.Client("desk-2")
    store.own(first)
    store.own(first)
    with pytest.raises(UsageError, match="another client"):
        store.own(second)
    with pytest.raises(UsageError, match="no client uses"):
        compat.MemoryPublishStore().flush()


def test_a_store_that_was_read_before_connecting_is_used_by_its_client(
    broker: BrokerThread, tmp_path: Path
) -> None:
    for store in (
        compat.MemoryBookmarkStore(),
        compat.LoggedBookmarkStore(str(tmp_path / "a.bm")),
        compat.RingBookmarkStore(str(tmp_path / "a.ring")),
    ):
        assert store.get_most_recent("s1") == "0"
        with compat.HAClient("desk-1", no_store=True) as client:
            client.set_bookmark_store(store)
            assert client.get_most_recent("s1") == "0"
            client.set_server_chooser(chooser(broker.uri))
            client.connect_and_logon()
            client.bookmark_subscribe("orders", "0", sub_id="s1").close()


@pytest.mark.parametrize("kind", ["memory", "logged", "ring"])
def test_stores_are_read_in_any_thread_after_close(
    broker: BrokerThread, tmp_path: Path, kind: str
) -> None:
    path = str(tmp_path / "a.bm")
    store: compat.MemoryBookmarkStore | compat.LoggedBookmarkStore | compat.RingBookmarkStore
    if kind == "memory":
        store = compat.MemoryBookmarkStore()
    else:
        make = compat.LoggedBookmarkStore if kind == "logged" else compat.RingBookmarkStore
        store = make(path)
    with compat.HAClient("desk-1", compat.MemoryPublishStore(), store) as client:
        client.set_server_chooser(chooser(broker.uri))
        client.connect_and_logon()
        client.publish("orders", "x")
        client.publish_flush(30_000)
        with client.bookmark_subscribe("orders", "0", sub_id="s1") as stream:
            message = next(stream)
            assert message is not None
            message.discard()
            wait_until(lambda: client.get_most_recent("s1") != "0")
        expected = client.get_most_recent("s1")
    found: list[object] = []

    def read() -> None:
        found.append(client.get_most_recent("s1"))
        found.append(store.get_oldest_bookmark_seq("s1"))
        found.append(client.get_unpersisted_count())

    other = threading.Thread(target=read)
    other.start()
    other.join()
    read()
    assert found == [expected, 0, 0] * 2


def test_an_error_of_a_store_is_not_taken_for_the_end_of_its_client(ha: compat.HAClient) -> None:
    def refuse() -> int:
        raise UsageError("its own")

    def otherwise() -> int:
        raise AssertionError("the client's thread runs")

    with pytest.raises(UsageError, match="its own"):
        ha.in_thread(refuse, "a test", otherwise=otherwise)


def test_a_client_that_never_connected_closes_its_stores_and_opens_them_again(
    broker: BrokerThread, tmp_path: Path
) -> None:
    paths = str(tmp_path / "a.pub"), str(tmp_path / "a.bm")
    with compat.HAClient("desk-1", *paths) as first:
        pass
    first.close()
    with compat.HAClient("desk-1", *paths), pytest.raises(StoreLocked):
        compat.HAClient("desk-1", *paths)
    first.set_server_chooser(chooser(broker.uri))
    first.connect_and_logon()
    first.publish("orders", "x")
    first.publish_flush(30_000)
    first.close()


def test_a_store_that_is_replaced_or_whose_client_cannot_be_made_is_closed(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    with pytest.raises(UsageError, match="found 5"):
        compat.HAClient("desk-1", path, 5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # on purpose
    with compat.HAClient("desk-1", path, no_store=True) as client:
        client.set_publish_store(path)  # the same again
        client.set_publish_store(str(tmp_path / "b"))
        compat.PublishStore(path).native.close()
        client.set_bookmark_store(path + ".bm")
        client.set_bookmark_store(path + ".bm2")
        compat.LoggedBookmarkStore(path + ".bm").native.close()


def test_a_store_that_another_client_uses_stays_open(broker: BrokerThread) -> None:
    store = compat.MemoryPublishStore()
    never = compat.HAClient("desk-1", store)
    with compat.HAClient("desk-2", store) as client:
        client.set_server_chooser(chooser(broker.uri))
        client.connect_and_logon()
        never.close()
        client.publish("orders", "x")
        client.publish_flush(30_000)
    never.set_server_chooser(chooser(broker.uri))
    with pytest.raises(UsageError, match="another client"):
        never.connect_and_logon()


def test_a_store_of_haclient_replaces_one_that_has_ended(broker: BrokerThread) -> None:
    with compat.HAClient("desk-1") as client:
        client.set_server_chooser(chooser(broker.uri))
        client.connect_and_logon()
        client.disconnect()
        client.set_publish_store(NativeMemoryPublishStore())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # one of haclient works, too
        client.set_bookmark_store(MemoryBookmarkStore())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # one of haclient works, too
        client.connect_and_logon()
        client.publish("orders", "x")
        client.publish_flush(30_000)


def test_stores_are_given_as_names_of_files_or_as_those_of_haclient(tmp_path: Path) -> None:
    publishes = publish_store_of(str(tmp_path / "a.pub"))
    assert isinstance(publishes, compat.PublishStore)
    publishes.native.close()
    bookmarks = bookmark_store_of(str(tmp_path / "a.bm"))
    assert isinstance(bookmarks, compat.LoggedBookmarkStore)
    bookmarks.native.close()
    native = MemoryBookmarkStore()
    assert bookmark_store_of(native).native is native
    for of in (publish_store_of, bookmark_store_of):
        with pytest.raises(UsageError, match="found 3"):
            of(3)


def test_a_prune_does_not_hold_up_the_client(
    ha: compat.HAClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ha.get_bookmark_store()
    assert store is not None
    threads: list[int] = []
    monkeypatch.setattr(store.native, "prune", lambda: threads.append(threading.get_ident()))
    ha.prune_store()
    assert threads == [threading.get_ident()]


@pytest.mark.parametrize("kind", ["memory", "file", "hybrid"])
def test_a_publish_store_asks_its_resize_handler_before_it_grows(tmp_path: Path, kind: str) -> None:
    store: compat.MemoryPublishStore | compat.PublishStore | compat.HybridPublishStore
    if kind == "memory":
        store = compat.MemoryPublishStore()
    else:
        make = compat.PublishStore if kind == "file" else compat.HybridPublishStore
        store = make(str(tmp_path / "a"))
    asked: list[tuple[object, int]] = []

    def refuse(asking: object, size: int) -> bool:
        asked.append((asking, size))
        return False

    native = store.native
    native.open_for("desk-1")
    native.store(b"{", b"}", b"x")  # without a handler it may grow
    store.set_resize_handler(refuse)
    with pytest.raises(StoreFull, match="resize handler refused"):
        fill(native)
    assert asked[0][0] is store
    assert asked[0][1] > 0
    store.set_resize_handler(lambda _store, _size: True)
    fill(native)
    store.set_resize_handler(None)
    fill(native)
    native.close()


def fill(store: NativePublishStore) -> None:
    """Store more than a segment holds."""
    body = bytes(2**20)
    for _ in range(20):
        store.store(b"{", b"}", body)


def log_many(store: BookmarkStore) -> None:
    """Log more than the file has room for at first."""
    for number in range(1, 150_000):
        store.log("s1", f"1|{number}|")


def test_a_bookmark_store_in_a_file_asks_its_resize_handler(tmp_path: Path) -> None:
    store = compat.MMapBookmarkStore(str(tmp_path / "a.bm"))
    asked: list[tuple[object, int]] = []

    def refuse(asking: object, size: int) -> bool:
        asked.append((asking, size))
        return False

    store.set_resize_handler(refuse)
    store.native.open_for("desk-1")
    with pytest.raises(StoreFull):
        log_many(store.native)
    assert asked[0][0] is store
    assert asked[0][1] > 0
    store.native.close()


def test_what_a_resize_handler_raises_goes_to_the_exception_listener_and_refuses() -> None:
    errors: list[Exception] = []
    client = compat.Client("desk-3")
    client.set_exception_listener(errors.append)

    def fail(_store: object, size: int) -> bool:
        raise ValueError(size)

    store = compat.MemoryPublishStore()
    store.set_resize_handler(fail)
    native = store.native
    native.open_for("desk-3")
    with pytest.raises(ValueError, match=r"\d"):  # nobody else would get it
        fill(native)
    store.own(client)
    with pytest.raises(StoreFull, match="resize handler refused"):
        fill(native)
    assert [type(error) for error in errors] == [ValueError]


def test_a_store_of_haclient_was_made_with_its_resize_handler() -> None:
    given = publish_store_of(NativeMemoryPublishStore())
    with pytest.raises(UsageError, match="resize_handler="):
        given.set_resize_handler(None)


def lose_the_log(client: compat.Client, broker: BrokerThread) -> None:
    """Have the server lack what it has acknowledged."""
    client.publish("orders", "x")
    client.publish_flush(30_000)
    client.disconnect()
    client.close()
    broker.stop()
    broker.start()


@pytest.mark.parametrize("is_error", [None, True, False])
def test_a_gap_is_an_error_where_the_store_was_told_so(
    broker: BrokerThread, tmp_path: Path, *, is_error: bool | None
) -> None:
    with compat.Client("desk-4") as client:
        store = compat.PublishStore(str(tmp_path / "a.pub"))
        client.set_publish_store(store)
        client.connect(broker.uri)
        client.logon(30_000)
        if is_error is not None:
            store.set_error_on_publish_gap(is_error)  # while it is in use
        lose_the_log(client, broker)
        client.connect(broker.uri)
        if is_error:
            with pytest.raises(compat.PublishStoreGapException):
                client.logon(30_000)
            store.set_error_on_publish_gap(False)
            client.close()
            client.connect(broker.uri)
        client.logon(30_000)
        client.publish("orders", "y")
        client.publish_flush(30_000)


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_ha_client_leaves_a_server_with_a_gap_unless_its_store_was_told_otherwise(
    broker: BrokerThread, tmp_path: Path, *, goes_on: bool
) -> None:
    store = compat.PublishStore(str(tmp_path / "a.pub"))
    with compat.HAClient("desk-5", store) as client:
        client.set_bookmark_store(str(tmp_path / "a.bm"))
        client.set_server_chooser(chooser(broker.uri))
        client.set_reconnect_delay_strategy(compat.FixedDelayStrategy(1, 1))
        client.connect_and_logon()
        lose_the_log(client, broker)
        if not goes_on:
            with pytest.raises(compat.AMPSException):
                client.connect_and_logon()
            return
        store.set_error_on_publish_gap(False)
        client.connect_and_logon()
        client.publish("orders", "y")
        client.publish_flush(30_000)


def test_what_a_store_lacks_says_what_to_do_instead() -> None:
    store = compat.MemoryBookmarkStore()
    with pytest.raises(AttributeError, match="only the client calls it"):
        store.log("s1", "1|2|")  # type: ignore[attr-defined]  # on purpose
    with pytest.raises(AttributeError, match="told by its client"):
        store.set_server_version("5.3")  # type: ignore[attr-defined]  # on purpose
