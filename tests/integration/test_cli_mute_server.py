"""Commands against a server that accepts the logon, and then answers nothing."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest
import trio

from support.peer import Server, listening
from support.process import LIMIT_S, python_environment


async def serve(server: Server) -> None:
    """Accept each connection, its logon and its heartbeat."""
    while True:
        peer = await server.accept()
        await peer.log_on()
        await peer.answer("heartbeat")


@pytest.mark.row("CLI9", "CC24")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["subscribe", "--topic", "t"], "subscribe: no server accepted it within 1 s"),
        (["subscribe", "--topic", "t", "--last", "1"], "no server accepted it within 1 s"),
        (["queue", "consume", "work"], "the server did not name its queues within 1 s"),
    ],
)
async def test_the_limit_of_the_command_is_that_of_the_first_answer(
    words: list[str], reason: str
) -> None:
    async with listening() as server, trio.open_nursery() as nursery:
        nursery.start_soon(serve, server)
        command = [sys.executable, "-m", "haclient", *words, "--server", server.uri]
        done = await trio.to_thread.run_sync(
            partial(
                subprocess.run,
                [*command, "--timeout", "1"],
                env=python_environment(),
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        )
        nursery.cancel_scope.cancel()
    assert done.returncode == 3, done.stderr
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1
