"""`haclient.aio.run`: `main` is a task, which a signal cancels after the drain."""

from __future__ import annotations

import asyncio  # noqa: TID251  # what is tested
import os
import signal
from collections.abc import Generator

import pytest

from haclient import EPOCH, Message, aio
from haclient.errors import GraceExpired, UsageError
from support.broker_thread import BrokerThread, broker_thread


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give blocks that are left more than a second, after which the process would be ended."""
    monkeypatch.setattr("haclient.facade.shutdown.CLOSING_S", 120.0)


@pytest.fixture(scope="module")
def broker() -> Generator[BrokerThread]:
    with broker_thread() as running:
        yield running


def signalled() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_coroutine_instead_of_its_function_is_refused_by_name() -> None:
    async def main() -> None:
        pytest.fail("it must not run")

    with pytest.raises(UsageError, match=r"run\(main\), not run\(main\(\)\)"):
        aio.run(main())  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize("grace", [0, 25.0])
def test_sigterm_cancels_a_main_of_asyncio(grace: float) -> None:
    ended: list[str] = []

    async def main() -> None:
        try:
            signalled()
            await asyncio.Event().wait()
        finally:
            ended.append("in order")

    assert aio.run(main, grace=grace) is None
    assert ended == ["in order"]


def test_a_cancellation_of_mains_own_leaves_it_as_it_is() -> None:
    async def main() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        aio.run(main)


@pytest.mark.row("HA24")
def test_a_stream_of_asyncio_ends_and_what_main_does_then_is_flushed(broker: BrokerThread) -> None:
    seen: list[str] = []

    async def main() -> str:
        async with aio.HAClient.memory_backed("reader", servers=[broker.uri]) as client:
            await client.publish_many("shipped", [b"1", b"2"])
            async with client.bookmark_stream("shipped", sub_id="s", bookmark=EPOCH) as messages:
                async for message in messages:
                    seen.append(message.text)
                    if len(seen) == 1:
                        signalled()
                await client.publish("left over", b"last")
        return "ended"

    assert aio.run(main) in {"ended", None}  # None: all was flushed before it returned
    assert seen[0] == "1"


def test_the_end_of_the_grace_says_what_is_left(broker: BrokerThread) -> None:
    goes_on = asyncio.Event()

    async def handle(_message: Message) -> None:
        signalled()
        await goes_on.wait()

    async def main() -> None:
        async with aio.HAClient.memory_backed("slow", servers=[broker.uri]) as client:
            await client.publish_persisted("slow", b"1")
            await client.bookmark_subscribe("slow", sub_id="s1", bookmark=EPOCH, handler=handle)
            await asyncio.Event().wait()

    with pytest.raises(GraceExpired, match=r"'slow'.*at work: s1"):
        aio.run(main, grace=0.05)
