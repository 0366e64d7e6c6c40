"""A broker in a thread of its own, for tests that are not async, such as those of PySpark.

::

    with broker_thread(BrokerConfig()) as broker:
        broker.publish("orders", [b"{}"], name="pubber")
        ... broker.uri ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace

import trio

from haclient_fake_server.config import BrokerConfig, LogTopic, SowTopic
from haclient_fake_server.server import BrokerServer
from support.broker import RawClient, port_of
from support.process import LIMIT_S

__all__ = ["PRICES", "BrokerThread", "broker_of_three", "broker_thread", "publish"]


PRICES = BrokerConfig(sow_topics=(SowTopic("prices", ("/id",)),))
"""A broker that keeps the last price of each id."""


class BrokerThread:
    """A broker that runs until `stop`, and again after `start`, at the same address."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._stop: Callable[[], None] = lambda: None
        self._thread = threading.Thread()
        self.uri = ""

    def start(self) -> None:
        """Start it, after its last run has ended; returns when it listens."""
        if self._thread.is_alive():  # another thread is in `stop`, and the address is in use
            self._thread.join(LIMIT_S)
        started = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._serve, started), daemon=True)
        self._thread.start()
        assert started.wait(LIMIT_S)

    def stop(self) -> None:
        """End it; returns when it is gone."""
        thread = self._thread  # `start` in another thread replaces it
        if not thread.is_alive():
            return
        self._stop()
        thread.join(LIMIT_S)

    async def _serve(self, started: threading.Event) -> None:
        async with BrokerServer(self._config) as server:
            self.uri = f"{server.uris[0]}/amps/json"
            self._config = replace(self._config, listen=(server.uris[0],))
            token, scope = trio.lowlevel.current_trio_token(), trio.CancelScope()
            self._stop = lambda: token.run_sync_soon(scope.cancel)
            started.set()
            with scope:
                await trio.sleep_forever()


@contextmanager
def broker_thread(config: BrokerConfig | None = None) -> Generator[BrokerThread]:
    """A broker for a `with` block."""
    broker = BrokerThread(config or BrokerConfig())
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@contextmanager
def broker_of_three(logged: Iterable[str], bodies: Sequence[bytes]) -> Generator[BrokerThread]:
    """A broker `east` with these topics in its log, and with messages of three publishers.

    Args:
        logged: The topics, `orders`, `trades.eu` and `prices` among them.
        bodies: Orders; the first 50 of them are trades, too, and the first 20 prices.
    """
    topics = tuple(map(LogTopic, logged))
    with broker_thread(replace(PRICES, name="east", log_topics=topics)) as broker:
        publish(broker.uri, "orders", bodies)
        publish(broker.uri, "trades.eu", bodies[:50], name="other")
        publish(broker.uri, "prices", bodies[:20], name="third")
        yield broker


def publish(
    uri: str, topic: str, bodies: Iterable[bytes], *, name: str = "pubber", first: int = 1
) -> None:
    """Publish with rising sequences, and wait until all is persisted."""
    trio.run(_publish, f"tcp://127.0.0.1:{port_of(uri)}", topic, list(bodies), name, first)


async def _publish(uri: str, topic: str, bodies: list[bytes], name: str, first: int) -> None:
    async with RawClient.connect(uri) as client:
        await client.logon(name, opts="ack_conflation=1ms")
        for number, body in enumerate(bodies, first):
            await client.send(body, c="p", t=topic, s=number, a="persisted", x=f"x{number}")
        while bodies and (await client.ack("persisted")).sequence != first + len(bodies) - 1:
            pass
