"""The surface of the client; what it does with a server is in tests/scenarios."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from haclient import Client, ConnectionState
from haclient.client import HAClient
from haclient.errors import UsageError
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore


@pytest.mark.row("CC1")
def test_a_new_client_has_a_name_and_its_stores_and_no_connection() -> None:
    publishes, bookmarks = MemoryPublishStore(), MemoryBookmarkStore()
    client = Client("c", publish_store=publishes, bookmark_store=bookmarks)
    assert (client.name, client.state, client.connection_info["server_version"]) == (
        "c",
        ConnectionState.DISCONNECTED,
        "",
    )
    assert client.publish_store is publishes
    assert client.bookmark_store is bookmarks
    assert client.unpersisted_count == 0
    assert Client("c").unpersisted_count == 0


@pytest.mark.row("HB1", "HB3")
@pytest.mark.parametrize("heartbeat", [0.0, -1.0])
def test_a_heartbeat_that_can_never_work_is_refused(heartbeat: float) -> None:
    with pytest.raises(UsageError):
        Client("c", heartbeat=heartbeat)


@pytest.mark.parametrize("made", [Client, partial(HAClient, servers=["tcp://a:1/amps/json"])])
@pytest.mark.parametrize("argument", ["publish_store", "bookmark_store"])
def test_a_path_is_no_store(made: Callable[..., Client], argument: str) -> None:
    with pytest.raises(UsageError, match=rf"{argument} is a store, .*Store\(path\), not str"):
        made("c", **{argument: "orders.bm"})


def test_stores_that_were_exchanged_are_refused_and_let_go_of(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="publish_store is a store"):
        Client("c", publish_store=MemoryBookmarkStore())  # type: ignore[arg-type]  # what is tested
    path = tmp_path / "orders.pub"
    with pytest.raises(UsageError, match="bookmark_store is a store"):
        Client("c", publish_store=FilePublishStore(path), bookmark_store=str(path))  # type: ignore[arg-type]  # what is tested
    FilePublishStore(path).close()


def test_one_server_is_given_in_a_list_too() -> None:
    with pytest.raises(UsageError, match="servers is a list of connection strings"):
        HAClient("c", servers="tcp://a:1/amps/json")


def test_a_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="on_handler_error"):
        Client("c", on_handler_error="ignore")  # type: ignore[arg-type]  # what is tested


async def test_a_client_runs_once() -> None:
    async with Client("c") as client:
        with pytest.raises(UsageError, match="runs once"):
            await client.__aenter__()
    assert client.state is ConnectionState.SHUTDOWN


@pytest.mark.row("PS12")
@pytest.mark.parametrize("made", [Client, partial(HAClient, servers=["tcp://h:1/amps/json"])])
def test_a_client_that_cannot_be_made_has_not_taken_its_stores(
    made: Callable[..., object], tmp_path: Path
) -> None:
    store = FilePublishStore(tmp_path / "p")
    with pytest.raises(UsageError, match="on_handler_error is"):
        made("c", publish_store=store, on_handler_error="ignore")
    assert store.client_name == ""
    store.close()


@pytest.mark.parametrize("kind", [Client, HAClient])
def test_an_unknown_argument_names_the_class_and_one_like_it(kind: type[Client]) -> None:
    with pytest.raises(
        TypeError, match=rf"^{kind.__name__}\(\) has no argument 'hartbeat': did you"
    ):
        kind("c", hartbeat=1.0)  # type: ignore[call-arg]  # wrong on purpose
