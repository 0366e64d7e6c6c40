"""A broker with queues, in a process of its own; the commands run in this one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from haclient_fake_server.testing.processes import BrokerProcess
from support.process import running_broker
from support.queue_commands import QUEUES, QueueCommands


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Its log has no topic that begins with `un`; `people` has a state of the world."""
    data = tmp_path_factory.mktemp("broker") / "log"
    options = [word for queue in QUEUES for word in ("--queue", queue)]
    logged = ("--log-topic", "^([^u]|u[^n])", "--sow", "people:/id")
    with running_broker(data, *options, *logged) as broker:
        yield broker


@pytest.fixture
def queue(broker: BrokerProcess, capfd: pytest.CaptureFixture[str]) -> QueueCommands:
    """The commands against the broker."""
    return QueueCommands(broker, capfd)
