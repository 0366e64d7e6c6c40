"""The programs of docs/without-trio.md, run as they stand, but for the port."""

from __future__ import annotations

import runpy
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from haclient.blocking import HAClient
from haclient_fake_server.config import BrokerConfig, SowTopic
from support.broker_thread import BrokerThread, broker_thread
from support.documents import blocks
from support.process import Child

pytestmark = pytest.mark.row("CC35")
PAGE = Path(__file__).parents[2] / "docs/without-trio.md"
SERVER = "tcp://127.0.0.1:9007/amps/json"
PROGRAMS = [
    block.text for block in blocks(PAGE.read_text(encoding="utf-8")) if block.language == "python"
]
BLOCKING, SIGNALS, NOTEBOOK, ASYNCIO = PROGRAMS[:4]  # then parts of the examples for the web
ORDER = {"id": 1, "px": 10.5}


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[BrokerThread]:
    monkeypatch.chdir(tmp_path)  # the programs make their files there
    config = BrokerConfig(sow_topics=(SowTopic("orders", ("/id",)),))
    with broker_thread(config) as running:
        yield running


def run(program: str, broker: BrokerThread) -> dict[str, object]:
    """Run a program; the names that it leaves behind."""
    assert program.count(SERVER) == 1
    path = Path("program.py")
    path.write_text(program.replace(SERVER, broker.uri), encoding="utf-8")
    return runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("program", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
def test_a_program_prints_what_it_has_published_and_has_finished_with_it(
    broker: BrokerThread, capsys: pytest.CaptureFixture[str], program: str
) -> None:
    run(program, broker)
    assert capsys.readouterr().out == f"{ORDER}\n"
    run(program.replace("10.5", "11.5"), broker)  # it resumes behind what was discarded
    assert capsys.readouterr().out == f"{ORDER | {'px': 11.5}}\n"
    assert Path("orders.pub").is_dir()
    assert Path("orders.bm").is_file()


@pytest.mark.row("HA24")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_that_is_told_to_end_finishes_and_ends_in_order(
    broker: BrokerThread, number: signal.Signals
) -> None:
    Path("service.py").write_text(SIGNALS.replace(SERVER, broker.uri), encoding="utf-8")
    with HAClient.memory_backed("pub", servers=[broker.uri]) as client:
        client.publish_json("orders", ORDER)
        with Child([sys.executable, "service.py"]) as service:
            assert "10.5" in service.line()
            code, err = service.stop(number), service.err
    assert code == (0 if number == signal.SIGTERM else -number), err
    assert "ResourceWarning" not in err


def test_the_cell_of_a_notebook_leaves_an_open_client_and_the_records(
    broker: BrokerThread,
) -> None:
    names = run(NOTEBOOK, broker)
    client = names["amps"]
    assert isinstance(client, HAClient)
    try:
        assert names["orders"] == [ORDER]
        assert client.health().is_ready  # for the next cells
    finally:
        client.close()
