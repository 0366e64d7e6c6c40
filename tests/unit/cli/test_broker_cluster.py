"""`haclient broker cluster`."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from haclient.cli.app import run
from haclient.cli.demo.processes import reserved_ports
from support.process import start_haclient


@pytest.mark.row("CLI5")
def test_the_brokers_of_a_cluster_replicate_and_a_killed_one_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with start_haclient(
        "broker", "cluster", "-n", "3", environment={"TMPDIR": str(tmp_path)}
    ) as it:
        servers = [f"{it.line().removeprefix('listening ')}/amps/json" for _ in range(3)]
        assert it.line() == f"AMPS_URI={','.join(servers)}"
        words = ("--topic", "orders", "-m", '{"id":1}')
        assert run(["publish", "--server", servers[0], *words]) == 0
        query = ("--topic", "orders", "--bookmark", "epoch", "-n", "1")
        for server in servers:
            assert run(["subscribe", "--server", server, *query]) == 0
            assert '{"id":1}' in capfd.readouterr().out
        threads = Path(f"/proc/{it.pid}/task").iterdir()
        one, *others = (
            int(pid) for each in threads for pid in (each / "children").read_text().split()
        )
        os.kill(one, signal.SIGKILL)
        assert run(["subscribe", "--server", ",".join(servers), *query]) == 0
        assert '{"id":1}' in capfd.readouterr().out
        assert len(others) == 2
        for other in others:
            os.kill(other, signal.SIGKILL)
        assert it.wait() == 1
        assert "has ended: killed by SIGKILL" in it.err
        assert "error: all brokers have ended" in it.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.row("CLI5")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_cluster_says_where_it_listens_and_ends_on_a_signal(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    told: list[str] = []

    def stop(text: str, **_: bool) -> None:
        told.extend(text.splitlines())
        os.kill(os.getpid(), number)

    monkeypatch.setattr("haclient.cli.broker_cluster.print_result", stop)
    assert run(["broker", "cluster", "-n", "2"]) == code
    assert len(told) == 3
    assert list(tmp_path.iterdir()) == []
    for line in told[:2]:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(line.rpartition(":")[2])))


@pytest.mark.row("CLI5")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("-n", "1"), "1 is not in the range 2<=x<=16"),
        (("--port", "65534"), "--port 65534: 3 ports from it exceed 65535"),
        (("--queue", "a,b=c"), "--queue a,b=c: unknown option 'b'"),
        (("--replication", "maybe"), "'maybe' after the address is not sync, async or downgrade"),
        (("--sow", "a:", "--replication", "maybe"), "'maybe' after the address"),  # a: is accepted
        (("--message-type", "a/b"), "message type 'a/b': wanted 1 to 255 characters, no slash"),
    ],
)
def test_a_cluster_that_cannot_run_starts_no_broker(
    words: tuple[str, ...], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["broker", "cluster", *words]) == 2
    assert told in capfd.readouterr().err


@pytest.mark.row("CLI5")
def test_a_cluster_fills_no_directory_of_something_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broker-2").mkdir()
    (tmp_path / "broker-2" / "photo.jpg").touch()
    assert run(["broker", "cluster", "--data", str(tmp_path)]) == 2
    assert "'photo.jpg'" in capfd.readouterr().err


@pytest.mark.row("CLI5")
def test_a_cluster_names_the_port_that_is_taken(capfd: pytest.CaptureFixture[str]) -> None:
    with reserved_ports(1) as [port], socket.create_server(("127.0.0.1", port)):
        assert run(["broker", "cluster", "--port", str(port)]) == 1
    assert f"127.0.0.1:{port}: Address already in use" in capfd.readouterr().err
