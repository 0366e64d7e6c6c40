from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import trio

from haclient.client import HAClient
from haclient.errors import DisconnectedError, GraceExpired, UsageError
from haclient.service import first_signal, run
from haclient_fake_server.config import BrokerConfig
from support.broker_thread import broker_thread, publish
from support.process import LIMIT_S


def test_without_a_signal_the_result_is_that_of_main() -> None:
    async def main() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    before = signal.getsignal(signal.SIGTERM)
    assert run(main) == 7
    assert signal.getsignal(signal.SIGTERM) is before
    assert not any(thread.name == "haclient-grace" for thread in threading.enumerate())


def test_an_error_of_main_leaves_it_as_it_is() -> None:
    async def main() -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(main)


@pytest.mark.row("HA24")
@pytest.mark.parametrize("grace", [0, 0.0, 10])
def test_sigterm_cancels_main_in_order(grace: float) -> None:
    ended: list[str] = []

    async def main() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await trio.sleep_forever()
        finally:
            ended.append("in order")

    assert run(main, grace=grace) is None
    assert ended == ["in order"]


@pytest.mark.row("HA24")
def test_sigint_ends_in_order_too_and_is_told_of_afterwards() -> None:
    ended: list[str] = []

    async def main() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await trio.sleep_forever()
        finally:
            ended.append("in order")

    with pytest.raises(KeyboardInterrupt):
        run(main)
    assert ended == ["in order"]


def test_sigint_is_told_of_also_when_main_returns_by_itself() -> None:
    """A loop over a stream ends by the shutdown, maybe before `main` is cancelled."""

    async def main() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(main)


def test_a_main_that_returns_by_itself_in_spite_of_a_signal_has_a_result() -> None:
    async def main() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.CancelScope(shield=True):
            for _ in range(10):
                await trio.lowlevel.checkpoint()
        return 3

    assert run(main) == 3


@pytest.mark.parametrize("grace", [-1, float("nan"), float("inf")])
def test_a_grace_that_is_no_time_is_refused(grace: float) -> None:
    async def main() -> None:
        pytest.fail("it must not run")

    with pytest.raises(UsageError, match="grace is a finite number of seconds, zero or above, not"):
        run(main, grace=grace)


def test_another_thread_than_the_main_one_is_refused() -> None:
    async def main() -> None:
        pytest.fail("it must not run")

    with ThreadPoolExecutor() as pool:
        running = pool.submit(run, main)
    with pytest.raises(UsageError, match="signals are handled by the main thread"):
        running.result()


def test_after_the_first_signal_the_defaults_count_and_at_the_end_what_was_before() -> None:
    seen: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    with first_signal([signal.SIGTERM, signal.SIGUSR1], seen.append):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert seen == [signal.SIGUSR1]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_end_of_the_grace_is_a_time_out() -> None:
    assert issubclass(GraceExpired, TimeoutError)


@pytest.mark.row("HA24")
def test_a_client_in_a_trio_run_of_another_thread_is_left_to_its_thread() -> None:
    consumes, seen = threading.Event(), list[str]()

    async def consume(uri: str) -> None:
        async with HAClient("other", servers=[uri]) as client, client.stream("orders") as messages:
            consumes.set()
            seen.append((await anext(messages)).text)

    async def main(uri: str) -> None:
        async with trio.open_nursery() as nursery:
            run_there = partial(trio.run, consume, uri)
            nursery.start_soon(trio.to_thread.run_sync, run_there)
            await trio.to_thread.run_sync(consumes.wait, LIMIT_S)
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(publish, uri, "orders", [b"later"])

    with broker_thread(BrokerConfig()) as broker:
        assert run(partial(main, broker.uri)) is None
    assert seen == ["later"]


@pytest.mark.row("HA24")
def test_a_publish_of_a_main_that_cleans_up_is_refused_where_it_is_shielded() -> None:
    async def main(uri: str) -> None:
        async with HAClient.memory_backed("cleaner", servers=[uri]) as client:
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True), pytest.raises(DisconnectedError):
                    await client.publish("orders", b"bye")

    with broker_thread(BrokerConfig()) as broker:
        assert run(partial(main, broker.uri)) is None
