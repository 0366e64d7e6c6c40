"""Commands whose server takes its time, or never answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from haclient.cli import sow, sow_and_subscribe, subscribe
from haclient.cli.output import OutputWriter, as_line
from haclient.cli.queue import consume
from haclient.cli.termination import ExitCode, exit_code_of
from haclient.errors import TimedOut
from haclient.protocol.messages import Message
from support.clock import in_virtual_time
from support.peer import Server, listening, together

pytestmark = [in_virtual_time, pytest.mark.row("CLI9")]
LATE_S = 15.0  # longer than the limit for connecting, within that of a silent server


async def answer_late(server: Server) -> None:
    peer = await server.accept()
    await peer.log_on()
    await peer.answer("heartbeat")
    query: Message = await peer.hear()
    if query.topic == "/HACLIENT/queues":  # this server has no statistics
        await peer.refuse(query, "invalid topic")
        query = await peer.hear()
    await trio.sleep(LATE_S)
    await peer.ack(query, query_id=query.query_id)
    await peer.records(query, b'{"id":1}')
    await peer.ack(query, "completed", query_id=query.query_id)
    await peer.hear_or_end()


def options_of(server: Server, timeout: float | None) -> dict[str, object]:
    words = ("client_name", "at", "top_n", "skip_n", "format", "pretty")
    return {
        **dict.fromkeys(words),
        "servers": (server.uri,),
        "topic": "t",
        "filter": "",
        "order_by": "",
        "batch_size": 10,
        "select": (),
        "timeout": timeout,
        "as_json": False,
    }


@pytest.mark.parametrize("timeout", [None, 30.0])
async def test_the_limit_of_a_query_is_that_of_the_command(
    tmp_path: Path, timeout: float | None
) -> None:
    with (tmp_path / "out").open("wb") as file:
        output = OutputWriter(file.fileno())
        async with listening() as server:
            request = sow._SowRequest(**options_of(server, timeout))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # each by its name
            code, _ = await together(
                partial(sow._query, request, as_line, output), partial(answer_late, server)
            )
    assert code == ExitCode.OK
    assert (tmp_path / "out").read_bytes() == b'{"id":1}\n'


@pytest.mark.parametrize("delta", [False, True])
async def test_the_limit_of_a_query_that_is_followed_is_that_of_the_command(
    tmp_path: Path, *, delta: bool
) -> None:
    with (tmp_path / "out").open("wb") as file:
        async with listening() as server:
            given = {**options_of(server, 30.0), "count": 1, "delta": delta}
            request = sow_and_subscribe._SowAndSubscribeRequest(**given)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # each by its name
            run = sow_and_subscribe._SubscribeRun(request, as_line, OutputWriter(file.fileno()))
            code, _ = await together(
                partial(sow_and_subscribe._work, run), partial(answer_late, server)
            )
    assert code == ExitCode.OK
    assert (tmp_path / "out").read_bytes() == b'{"id":1}\n'


async def answer_nothing(server: Server) -> None:
    """Accept the logon and its heartbeat, and no command."""
    peer = await server.accept()
    await peer.log_on()
    await peer.answer("heartbeat")
    await peer.listen_until_end()


def subscribing(server: Server, output: OutputWriter, last: int | None) -> Awaitable[int]:
    request = subscribe.SubscribeArguments(
        servers=(server.uri,),
        client_name=None,
        topic="t",
        filter="",
        bookmark=None,
        sub_id=None,
        store=None,
        count=None,
        timeout=1.0,
        as_json=False,
        last=last,
    )
    return subscribe._work(subscribe.SubscribeRun(request, request.start, None), output)


def consuming(server: Server, output: OutputWriter) -> Awaitable[int]:
    request = consume._ConsumeRequest(
        servers=(server.uri,),
        client_name=None,
        name="work",
        filter="",
        count=None,
        max_backlog=10,
        ack=True,
        cancel=False,
        expire=False,
        no_ack=False,
        timeout=1.0,
        as_json=False,
    )
    consumer = consume.consumer_for(request)
    return consume._work(request, consumer, partial(consume._print, consumer, as_line, output))


@pytest.mark.row("CC24")
@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (partial(subscribing, last=None), "the server did not name its queues within 1 s"),
        (partial(subscribing, last=1), "no server accepted it within 1 s"),
        (consuming, "the server did not name its queues within 1 s"),
    ],
    ids=["subscribe", "last", "consume"],
)
async def test_the_limit_of_the_command_is_that_of_the_first_answer(
    tmp_path: Path, work: Callable[[Server, OutputWriter], Awaitable[int]], reason: str
) -> None:
    with (tmp_path / "out").open("wb") as file:
        output = OutputWriter(file.fileno())
        async with listening() as server:
            with pytest.raises(TimedOut, match=reason) as caught:
                await together(partial(work, server, output), partial(answer_nothing, server))
    assert exit_code_of(caught.value) == (3, caught.value)
