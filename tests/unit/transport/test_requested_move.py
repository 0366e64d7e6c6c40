from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.errors import DisconnectedError
from haclient.transport.reconnector import RequestedMove


def test_its_words_have_no_password() -> None:
    move = RequestedMove("tcp://user:secret@localhost:9007/amps/json")
    assert "secret" not in move.safe_uri
    assert "localhost:9007" in move.safe_uri


async def test_who_waits_is_told_how_it_has_ended() -> None:
    move = RequestedMove("tcp://localhost:9007/amps/json")
    assert not move.has_left
    async with trio.open_nursery() as nursery:
        nursery.start_soon(move.ended)
        await wait_all_tasks_blocked()
        move.end()
    await move.ended()


async def test_a_move_that_has_failed_raises_why() -> None:
    move = RequestedMove("tcp://localhost:9007/amps/json")
    move.end(DisconnectedError("lost"))
    with pytest.raises(DisconnectedError, match="lost"):
        await move.ended()
