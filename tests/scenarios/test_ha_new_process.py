"""A process that goes on where an earlier one was, maybe on another server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import pytest
import trio

from haclient.ha import HAClient
from haclient.transport.exceptions import open_nursery
from haclient_stores.bookmarks import MOST_RECENT, Timestamp
from haclient_stores.logged_bookmark import LoggedBookmarkStore
from support.clock import in_virtual_time
from support.peer import Server, listening
from support.recovery import entered, live

pytestmark = in_virtual_time

ALIVE_US = 1_700_000_000_000_000


@pytest.fixture
async def server() -> AsyncGenerator[Server]:
    async with listening() as found:
        yield found


def store_of_an_earlier_process(path: Path) -> LoggedBookmarkStore:
    earlier = LoggedBookmarkStore(path)
    earlier.discard("s", earlier.log("s", "7|9|"))
    earlier.note_alive(ALIVE_US)
    earlier.close()
    return LoggedBookmarkStore(path)


@pytest.mark.row("BS9", "RE8")
@pytest.mark.parametrize("takes_a_mixture", [True, False])
async def test_it_asks_for_the_time_of_the_last_connection_too(
    server: Server, tmp_path: Path, *, takes_a_mixture: bool
) -> None:
    store = store_of_an_earlier_process(tmp_path / "bookmarks")
    client = HAClient("ha", servers=[server.uri], bookmark_store=store, heartbeat=None)
    async with entered(client, partial(live, server)) as peer, open_nursery() as nursery:

        async def subscribe() -> None:
            await client.bookmark_subscribe(
                "orders", sub_id="s", bookmark=MOST_RECENT, handler=lambda _: None
            )

        nursery.start_soon(subscribe)
        if not takes_a_mixture:
            first = await peer.expect("subscribe")
            await peer.refuse(first, "invalid bookmark")
            assert (await peer.answer("subscribe")).bookmark == "7|9|"
        else:
            time = Timestamp(ALIVE_US - 5_000_000)
            assert (await peer.answer("subscribe")).bookmark == f"7|9|,{time}"
        await trio.testing.wait_all_tasks_blocked()
        await client.disconnect()
