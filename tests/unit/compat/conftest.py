"""A broker in a thread, and clients with the official names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator

import pytest

from haclient import compat
from haclient_fake_server.config import BrokerConfig, QueueTopic
from haclient_fake_server.engine.settings import SowTopic
from support.broker_thread import BrokerThread, broker_thread

LIMIT_S = 300.0
PAUSE_S = 0.005


@pytest.fixture
def broker() -> Generator[BrokerThread]:
    config = BrokerConfig(
        queues=(QueueTopic(name="jobs", max_per_subscription_backlog=2),),
        sow_topics=(SowTopic("prices", ("/id",)),),
    )
    with broker_thread(config) as running:
        yield running


def chooser(*uris: str) -> compat.DefaultServerChooser:
    made = compat.DefaultServerChooser()
    made.add_all(uris)
    return made


@pytest.fixture
def ha(broker: BrokerThread) -> Generator[compat.HAClient]:
    with compat.HAClient("orders-7") as client:
        client.set_server_chooser(chooser(broker.uri))
        client.connect_and_logon()
        yield client


@pytest.fixture
def plain(broker: BrokerThread) -> Generator[compat.Client]:
    with compat.Client("plain-1") as client:
        client.connect(broker.uri)
        client.logon()
        yield client


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    pause = threading.Event()
    for _ in range(int(LIMIT_S / PAUSE_S)):
        if condition():
            return
        pause.wait(PAUSE_S)
    raise AssertionError("it did not happen in time")
