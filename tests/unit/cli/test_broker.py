"""Options of `haclient broker run`."""

from __future__ import annotations

import gc
import os
import signal
import socket
from pathlib import Path

import pytest

from haclient.cli.app import run


@pytest.mark.row("CLI5")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_broker_says_where_it_listens_and_ends_on_a_signal(
    number: int,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    told: list[str] = []

    def echo(text: str, **_: bool) -> None:
        told.append(text)
        os.kill(os.getpid(), number)

    monkeypatch.setattr("haclient.cli.broker.print_result", echo)
    users = tmp_path / "users"
    users.write_text("me:secret\n")
    (tmp_path / "log" / "lost+found").mkdir(parents=True)  # as in each new file system
    words = ("--listen", "tcp://127.0.0.1:0", "--data", str(tmp_path / "log"))
    log = ("--event-log", str(tmp_path / "events"))
    more = ("--sow", "people:/id", "--log-topic", "^a", "--user-file", str(users))
    to = ("--replicate-to", "tcp://127.0.0.1:1,async")
    types = ("--message-type", "ours", "--message-type", "theirs")
    assert run(["broker", "run", *words, *log, *more, *to, *types]) == code
    [line] = told
    assert line.startswith("listening tcp://127.0.0.1:")
    assert (tmp_path / "events").exists()
    assert "error" not in capfd.readouterr().err


@pytest.mark.row("CLI5")
def test_without_data_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    places: list[Path] = []

    def stop(_text: str, *, aside: bool) -> None:
        assert aside
        places.extend(tmp_path.iterdir())
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("haclient.cli.broker.print_result", stop)
    assert run(["broker", "run", "--listen", "tcp://127.0.0.1:0"]) == 0
    [place] = places
    assert str(place) in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.row("AD5", "CLI5")
def test_a_broker_runs_with_the_sample_of_a_configuration_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["broker", "sample-config"]) == 0
    text = capfd.readouterr().out
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    path = tmp_path / "broker.xml"
    path.write_text(text.replace(":9007", f":{port}").replace(":8085", ":0"))
    assert run(["broker", "verify-config", str(path)]) == 0
    assert capfd.readouterr().out == f"{path}: ok\n"
    told: list[str] = []

    def echo(line: str, **_: bool) -> None:
        told.append(line)
        if line.startswith("admin"):
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("haclient.cli.broker.print_result", echo)
        assert run(["broker", "run", "--config", str(path)]) == 0
    assert told[0] == f"listening tcp://127.0.0.1:{port}"
    assert (tmp_path / "east" / "journal.00000001").exists()


@pytest.mark.row("AD5")
def test_a_configuration_file_says_it_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broker.xml"
    path.write_text("<AMPSConfig>\n<Logging/></AMPSConfig>")
    assert run(["broker", "run", "--config", str(path), "--sow", "a:/id"]) == 2
    assert "--config and --sow" in capfd.readouterr().err
    for words in (["run", "--config"], ["verify-config"]):
        assert run(["broker", *words, str(path)]) == 2
        assert f"{path}:2: <Logging>: not supported" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--log-topic", "("), "--log-topic"),
        (("--listen", "nonsense"), "nonsense"),
        (("--listen", "mem://broker:1"), "no other process reaches it"),
        (
            ("--replicate-to", "tcp://west:1,maybe"),
            "'maybe' after the address is not sync, async or",
        ),
        (("--replicate-to", "west"), "west"),
        (("--in-memory",), "--in-memory keeps the log in memory, --data in files"),
        (("--message-type", "a/b"), "message type 'a/b': wanted 1 to 255 characters, no slash"),
        (("--queue", "a\nb"), "character 1 of the topic is a control character"),
        (("--sow", "a\nb:/id"), "character 1 of the topic is a control character"),
    ],
)
def test_a_broker_that_cannot_run_says_why(
    words: tuple[str, ...], told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["broker", "run", "--data", str(tmp_path / "log"), *words]) == 2
    assert told in capfd.readouterr().err


@pytest.mark.row("CLI5")
def test_a_directory_of_something_else_is_not_filled_with_a_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photo.jpg").touch()
    assert run(["broker", "run", "--data", str(tmp_path), "--listen", "tcp://127.0.0.1:0"]) == 2
    assert "'photo.jpg'" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


@pytest.mark.row("CLI5", "CLI9")
@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("127.0.0.1:{port}", "cannot listen: Address already in use"),
        ("127.0.0.1:80x", "with a port from 0 to 65535"),
        ("no.such.host.invalid:1", "cannot listen: "),
    ],
)
def test_a_broker_that_cannot_listen_leaves_no_directory(
    host: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://{host.format(port=taken.getsockname()[1])}"
        assert run(["broker", "run", "--listen", address]) in {1, 2}
    err = capfd.readouterr().err
    assert err.startswith("haclient: error: ")
    assert address in err
    assert told in err
    assert list(tmp_path.iterdir()) == []


def test_what_has_survived_a_collection_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    survivors: list[list[int]] = []
    looked_at: list[bool] = []

    def stop(_text: str, *, aside: bool) -> None:
        assert aside
        survivors.append([len(survivors)])
        gc.collect()
        looked_at.append(any(each is survivors[0] for each in gc.get_objects(generation=2)))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("haclient.cli.broker.print_result", stop)
    before = list(gc.callbacks)
    assert run(["broker", "run", "--listen", "tcp://127.0.0.1:0", "--in-memory"]) == 0
    assert looked_at == [False]
    assert (gc.callbacks, gc.get_freeze_count()) == (before, 0)
