"""Workers on streams of the reference broker, across a restart of the client."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio

from haclient import MOST_RECENT, HAClient, Message
from haclient.stores import LoggedBookmarkStore
from haclient.workers import ThreadPool, run_workers
from support.broker import running_broker

LIMIT_S = 120.0


@pytest.mark.row("MS10")
async def test_what_no_worker_has_finished_comes_again_after_a_restart(tmp_path: Path) -> None:
    lock = threading.Lock()
    seen: list[bytes] = []
    refused = {b"7"}

    def work(message: Message) -> None:
        if message.data in refused:
            raise LookupError("not yet")
        with lock:
            seen.append(message.data)

    async def consume(uri: str, count: int) -> None:
        store = LoggedBookmarkStore(tmp_path / "s.bm")
        async with (
            HAClient("s", servers=[uri], bookmark_store=store) as client,
            client.bookmark_stream("orders", sub_id="s", bookmark=MOST_RECENT) as messages,
        ):
            with trio.CancelScope() as scope:

                def finished(_: Message, __: None) -> None:
                    if len(seen) == count:
                        scope.cancel()

                await run_workers(
                    messages,
                    work,
                    ThreadPool(3),
                    on_result=finished,
                    on_handler_error="continue",
                )

    with trio.fail_after(LIMIT_S):
        async with running_broker() as server:
            uri = f"{server.uris[0]}/amps/json"
            async with HAClient("p", servers=[uri]) as client:
                for number in range(20):
                    await client.publish("orders", b"%d" % number)
            await consume(uri, 19)
            assert sorted(map(int, seen)) == [each for each in range(20) if each != 7]
            seen.clear()
            refused.clear()
            await consume(uri, 1)
            assert seen == [b"7"]
