"""A broker for the commands, in a process of its own; the commands run in this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from haclient_fake_server.testing.processes import BrokerProcess
from support.command_line import CommandLine
from support.process import running_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Everything is logged, and some topics have a state of the world.

    A test that looks at a whole topic has one of its own: tests run in any order.
    """
    data = tmp_path_factory.mktemp("broker") / "log"
    sow = [word for topic in ("crowd", "family", "guests") for word in ("--sow", f"{topic}:/id")]
    with running_broker(data, "--sow", "people:/id,history", *sow) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _no_server_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who runs the tests may work with a server of their own."""
    monkeypatch.delenv("AMPS_URI", raising=False)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Five rows."""
    path = tmp_path / "rows"
    path.write_text("".join(f"row {number}\n" for number in range(5)))
    return path


@pytest.fixture
def haclient(broker: BrokerProcess, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line against the broker."""
    return CommandLine(broker, capfd)
