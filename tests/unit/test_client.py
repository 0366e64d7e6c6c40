"""The surface of the client; what it does with a server is in tests/scenarios."""

from __future__ import annotations

import pytest

from haclient import Client, ConnectionState
from haclient.errors import UsageError
from haclient_stores.memory_bookmark import MemoryBookmarkStore
from haclient_stores.memory_publish import MemoryPublishStore


@pytest.mark.row("CC1")
def test_a_new_client_has_a_name_and_its_stores_and_no_connection() -> None:
    publishes, bookmarks = MemoryPublishStore(), MemoryBookmarkStore()
    client = Client("c", publish_store=publishes, bookmark_store=bookmarks)
    assert (client.name, client.state, client.server_version) == (
        "c",
        ConnectionState.DISCONNECTED,
        "",
    )
    assert client.publish_store is publishes
    assert client.bookmark_store is bookmarks
    assert client.unpersisted_count == 0
    assert Client("c").unpersisted_count == 0


@pytest.mark.row("HB1", "HB3")
@pytest.mark.parametrize(("heartbeat", "idle_limit"), [(0.0, None), (-1.0, None), (3.0, 1.0)])
def test_a_heartbeat_that_can_never_work_is_refused(
    heartbeat: float, idle_limit: float | None
) -> None:
    with pytest.raises(UsageError):
        Client("c", heartbeat=heartbeat, idle_limit=idle_limit)


def test_a_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="on_handler_error"):
        Client("c", on_handler_error="ignore")  # type: ignore[arg-type]  # what is tested


async def test_a_client_runs_once() -> None:
    async with Client("c") as client:
        with pytest.raises(UsageError, match="runs once"):
            await client.__aenter__()
    assert client.state is ConnectionState.SHUTDOWN
