"""One broker for all tests that neither kill it nor fill it, and commands in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from haclient_fake_server.testing.processes import BrokerProcess
from support.command_line import CommandLine
from support.process import running_broker

QUEUES = ("killed", "stopped", "signalled", "from", "once")
BACKLOG = 20


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Everything is logged; there are two topics with a state of the world, and queues.

    A test that looks at a whole topic has one of its own: tests run in any order.
    """
    sow = [word for topic in ("people", "guests") for word in ("--sow", f"{topic}:/id")]
    queues = [
        word for name in QUEUES for word in ("--queue", f"{name},max_backlog={BACKLOG},lease=60")
    ]
    data = tmp_path_factory.mktemp("broker") / "log"
    with running_broker(data, *sow, *queues) as broker:
        yield broker


@pytest.fixture
def commands(
    shared_broker: BrokerProcess,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> CommandLine:
    """The command line against the shared broker."""
    monkeypatch.delenv("AMPS_URI", raising=False)
    return CommandLine(shared_broker, capfd)
