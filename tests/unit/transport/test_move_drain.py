"""A connection is drained before a planned move, and not left if something could be lost."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.transport.core import Core
from haclient.transport.move_drain import MoveDrain
from support.clock import in_virtual_time
from support.cores import core_at
from support.peer import Peer, Server, together

pytestmark = [in_virtual_time, pytest.mark.row("HA29")]
LIMIT_S = 3.0


async def can_leave(core: Core, *, is_wanted: bool = True) -> bool:
    return await MoveDrain(core, limit_s=LIMIT_S).can_leave(lambda: is_wanted)


async def confirm(peer: Peer) -> None:
    await peer.ack(await peer.expect("flush", ack_type="persisted"), "persisted")


async def test_a_client_leaves_when_everything_is_confirmed_and_publishes_stay_held(
    server: Server,
) -> None:
    async with core_at(server, has_store=False) as (core, peer):
        left, _ = await together(lambda: can_leave(core), lambda: confirm(peer))
        assert left
        assert core.publisher.move_hold.is_active


async def test_a_client_that_is_not_to_leave_any_more_publishes_again(server: Server) -> None:
    async with core_at(server, has_store=False) as (core, peer):
        left, _ = await together(lambda: can_leave(core, is_wanted=False), lambda: confirm(peer))
        assert not left
        assert not core.publisher.move_hold.is_active


async def test_without_a_store_a_client_stays_when_the_server_does_not_confirm(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with core_at(server, has_store=False) as (core, _):
        began = trio.current_time()
        assert not await can_leave(core)
        assert trio.current_time() - began == LIMIT_S
        assert not core.publisher.move_hold.is_active
    assert "client c does not move: flush: the server did not answer within 3 s" in caplog.text


async def test_with_a_store_a_client_leaves_after_the_limit_at_the_latest(server: Server) -> None:
    async with core_at(server, has_store=True) as (core, _):
        core.publisher.publish_nowait("orders", b"x")
        began = trio.current_time()
        assert await can_leave(core)
        assert trio.current_time() - began == LIMIT_S


async def test_what_has_passed_the_hold_is_confirmed_as_well(server: Server) -> None:
    async with core_at(server, has_store=False) as (core, peer):
        hold = core.publisher.move_hold
        hold.is_exempt = lambda: True

        async def answer() -> None:
            flush = await peer.expect("flush")
            await core.publisher.publish("orders", b"x")
            await peer.ack(flush, "persisted")
            await peer.expect("publish")
            await confirm(peer)

        left, _ = await together(lambda: can_leave(core), answer)
        assert left
        assert hold.passed == 1


async def test_a_connection_that_is_lost_is_not_left(server: Server) -> None:
    async with core_at(server, has_store=False) as (core, peer):
        peer.link.close()
        await wait_all_tasks_blocked()
        assert not await can_leave(core)


async def test_the_reason_to_stay_tells_whether_messages_keep_the_confirmation_back(
    server: Server,
) -> None:
    async with core_at(server, has_store=False) as (core, _):
        drain = MoveDrain(core, limit_s=LIMIT_S)
        assert drain.why_unconfirmed(0).startswith("which did not confirm what was sent to it")
        core.publisher.move_hold.passed = 1
        assert drain.why_unconfirmed(0).startswith("whose confirmation comes after messages that")
