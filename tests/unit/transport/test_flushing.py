from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import HAClient
from haclient.errors import (
    AuthenticationError,
    CommandError,
    DisconnectedError,
    NameInUse,
    PublishFailed,
    TimedOut,
)
from support.clock import in_virtual_time
from support.cores import core_at
from support.peer import Server, together
from support.recovery import entered, live, lose

pytestmark = in_virtual_time


@pytest.mark.row("CC10")
@pytest.mark.parametrize("ack", ["processed", "persisted"])
async def test_everything_before_a_flush_is_processed_when_it_is_answered(
    server: Server, ack: str
) -> None:
    async with core_at(server, has_store=False) as (core, peer):
        sequence = core.publisher.publish_nowait("t", b"x")

        async def answer() -> None:
            await peer.expect("publish")
            await peer.ack(await peer.expect("flush", ack_type=ack), ack)
            await peer.persisted(sequence)

        await together(lambda: core.flusher.flush(timeout=1, ack=ack), answer)
        with pytest.raises(TimedOut, match="flush: the server did not answer within 1 s"):
            await core.flusher.flush(timeout=1, ack="processed")


@pytest.mark.row("CC9", "PS14")
async def test_a_stored_publish_is_persisted_when_its_ack_has_come(server: Server) -> None:
    async with core_at(server, has_store=True) as (core, peer):
        await core.flusher.persisted(timeout=0)
        sequence = core.publisher.publish_nowait("t", b"x")

        async def answer() -> None:
            await peer.expect("publish")
            await peer.expect("flush", ack_type="persisted")
            await peer.persisted(sequence)

        with pytest.raises(TimedOut, match="publish_flush: 1 publishes are not persisted after 1"):
            await core.flusher.persisted(timeout=1)
        with pytest.raises(TimedOut, match=f"wait_persisted: {sequence} is not persisted after 1"):
            await core.flusher.wait_persisted(sequence, timeout=1)
        with pytest.raises(TimedOut, match="is not persisted after 1 s"):  # what is left of a limit
            await core.flusher.wait_persisted(sequence, timeout=0.99995)
        await together(lambda: core.flusher.persisted(timeout=1), answer)
        await core.flusher.wait_persisted(sequence, timeout=0.1)


@pytest.mark.row("PS6")
async def test_a_refused_publish_is_told_to_whoever_waits_for_it(server: Server) -> None:
    async with core_at(server, has_store=True) as (core, peer):
        sequence = core.publisher.publish_nowait("t", b"x")

        async def refuse() -> None:
            await peer.expect("publish")
            await peer.ack(None, "persisted", status="failure", reason="bad", s=sequence)
            await peer.persisted(sequence)

        async def wait() -> None:
            with pytest.raises(PublishFailed, match="bad") as caught:
                await core.flusher.wait_persisted(sequence, timeout=1)
            assert caught.value.sequence == sequence

        await together(wait, refuse)


@pytest.mark.row("CC9", "CC10")
async def test_every_wait_ends_with_a_connection_that_none_follows(server: Server) -> None:
    async with core_at(server, has_store=True) as (core, peer), trio.open_nursery() as nursery:
        sequence = core.publisher.publish_nowait("t", b"x")
        flusher = core.flusher

        async def fails(wait: Callable[[], Awaitable[None]]) -> None:
            with pytest.raises(DisconnectedError):
                await wait()

        for wait in (
            partial(flusher.flush, timeout=inf, ack="processed"),
            partial(flusher.persisted, timeout=inf),
            partial(flusher.wait_persisted, sequence, timeout=inf),
        ):
            nursery.start_soon(fails, wait)
        await wait_all_tasks_blocked()
        peer.link.close()


@pytest.mark.row("CC10")
@pytest.mark.parametrize("reason", ["auth failure", "name in use", "not entitled"])
async def test_a_refused_flush_is_an_answer_and_not_repeated(server: Server, reason: str) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None, exit_timeout=0)
    async with entered(client, partial(live, server)) as peer:

        async def refuse() -> None:
            await peer.refuse(await peer.expect("flush"), reason)

        async def flush() -> None:
            with pytest.raises((AuthenticationError, CommandError, NameInUse)):
                await client.flush(timeout=60.0)

        await together(flush, refuse)
        await wait_all_tasks_blocked()
        assert [each.command for each in peer.heard] == ["logon", "flush"]
        await client.disconnect()


@pytest.mark.row("HA25")
@pytest.mark.parametrize("has_store", [False, True])
async def test_what_is_left_at_the_end_is_told_with_the_reason(
    server: Server, *, has_store: bool
) -> None:
    async with core_at(server, has_store=has_store) as (core, peer):
        assert await core.flusher.finish(limit_s=3.0) == []
        sequence = core.publisher.publish_nowait("t", b"x")
        (unpersisted,) = await core.flusher.finish(limit_s=3.0)
        assert "1 publishes are not persisted after 3 s" in unpersisted
        await peer.expect("publish")

        async def persist_and_publish() -> None:
            await wait_all_tasks_blocked()
            core.publisher.publish_nowait("t", b"by a handler that goes on")
            await peer.persisted(sequence)

        left, _ = await together(lambda: core.flusher.finish(limit_s=inf), persist_and_publish)
        assert left == ["publishes not persisted: 1 were published during the shutdown"]


@pytest.mark.row("HA25")
async def test_what_was_lost_unnoticed_is_told_at_the_end_after_the_rest_is_persisted(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None, exit_timeout=5)
    async with trio.open_nursery() as nursery, entered(client, partial(live, server)) as peer:
        await client.publish("t", b"lost")
        await peer.expect("publish")
        await lose(peer)
        again = await live(server)
        await wait_all_tasks_blocked()
        sequence = await client.publish("t", b"kept")
        await again.expect("publish")

        async def persist() -> None:
            await again.expect("flush")
            await again.persisted(sequence)

        nursery.start_soon(persist)
    assert "1 publishes were not persisted and are lost with their connection" in caplog.text
    assert "2 publishes" not in caplog.text


@pytest.mark.row("HA29")
async def test_a_server_that_is_left_has_a_while_to_take_what_was_sent(server: Server) -> None:
    async with core_at(server, has_store=False) as (core, _):
        core.publisher.publish_nowait("t", b"x")
        began = trio.current_time()
        await core.flusher.drain(limit_s=3.0)
        assert trio.current_time() - began == 3.0
