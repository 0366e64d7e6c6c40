"""The commands when all is well: their output, their signals and their pipes."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from haclient.cli.app import run
from haclient_fake_server.testing.processes import BrokerProcess
from support.command_line import CommandLine
from support.process import SMALL_PIPE_BYTES, haclient, running_broker, start_haclient


def interrupt(number: int) -> None:
    """Send this process a signal, which the running command handles."""
    os.kill(os.getpid(), number)


# -- as processes of their own ---------------------------------------------------------------------


@pytest.mark.row("CLI1", "CLI9")
def test_messages_come_out_as_they_went_in(shared_broker: BrokerProcess) -> None:
    environment = {"AMPS_URI": shared_broker.uri}
    text = '{"id": 1}\n\nümlaut\n'.encode()
    done = haclient("publish", "--topic", "plain", stdin=text, environment=environment)
    assert done.code == 0, done.err
    result = haclient(
        *("subscribe", "--topic", "plain", "--bookmark", "epoch", "-n", "3"),
        environment=environment,
    )
    assert (result.code, result.lines) == (0, ['{"id": 1}', "", "ümlaut"])


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (signal.SIGTERM, 0, ""),
        (signal.SIGINT, 130, "haclient: note: interrupted after 1 messages\n"),
    ],
    ids=["term", "int"],
)
def test_a_signal_ends_a_subscription_in_order(
    commands: CommandLine, shared_broker: BrokerProcess, number: int, code: int, told: str
) -> None:
    topic = f"signal-{number}"
    commands.publish(topic, "before")
    words = ("--server", shared_broker.uri, "--topic", topic, "--bookmark", "epoch")
    with start_haclient("subscribe", *words) as child:
        assert child.line() == "before"
        assert (child.stop(number), child.err) == (code, told)


@pytest.mark.row("CLI9")
def test_a_reader_that_goes_away_ends_a_subscription_in_order(
    commands: CommandLine, shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    rows = tmp_path / "rows"
    rows.write_text("".join(f"{number:0100}\n" for number in range(1000)))
    assert commands("publish", "--topic", "gone", "--file", rows)[0] == 0
    with start_haclient(
        *("subscribe", "--server", shared_broker.uri, "--topic", "gone", "--bookmark", "epoch"),
        pipe_bytes=SMALL_PIPE_BYTES,
    ) as child:
        child.lines(3)
        child.close_stdout()
        assert (child.wait(), child.err) == (0, "")


@pytest.mark.row("CLI9")
def test_a_result_that_nobody_reads_is_no_error(shared_broker: BrokerProcess) -> None:
    environment = {"AMPS_URI": shared_broker.uri}
    with start_haclient("publish", "--topic", "unread", environment=environment) as child:
        child.close_stdout()
        assert (child.wait(), child.err) == (0, "")


@pytest.mark.row("CLI5")
def test_a_broker_stops_on_sigterm_and_keeps_its_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running_broker(tmp_path / "log") as broker:
        commands = CommandLine(broker, capfd)
        commands.publish("kept", "before")
        assert broker.stop() == 0
        broker.start()
        replay = ("subscribe", "--topic", "kept", "--bookmark", "epoch", "-e")
        assert commands(*replay) == (0, ["before"], "")


# -- in this process -------------------------------------------------------------------------------


@pytest.mark.row("CLI9")
def test_a_service_that_is_ended_before_it_has_what_was_asked_for_is_interrupted(
    commands: CommandLine,
) -> None:
    commands.publish("too few", "before")

    def read(pipe: BinaryIO) -> None:
        assert pipe.readline() == b"before\n"
        interrupt(signal.SIGTERM)

    words = ("subscribe", "--topic", "too few", "--bookmark", "epoch", "--count", "3")
    code, err = commands.read_by(read, *words)
    assert (code, err) == (130, "haclient: error: interrupted after 1 messages\n")


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("ping",), "interrupted"),
        (("sow", "--topic", "t"), "interrupted: the result is incomplete"),
    ],
    ids=["ping", "sow"],
)
def test_an_interrupted_question_has_no_answer(
    words: tuple[str, ...], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def interrupt_who_waits() -> None:
            with silent.accept()[0] as connection:
                connection.recv(1)  # it has asked, so its signal handlers are in place
                interrupt(signal.SIGINT)
                while connection.recv(1024):
                    pass

        thread = threading.Thread(target=interrupt_who_waits)
        thread.start()
        uri = f"tcp://127.0.0.1:{silent.getsockname()[1]}/amps/json"
        assert run([*words, "--server", uri]) == 130
        thread.join()
    assert capfd.readouterr() == ("", f"haclient: error: {told}\n")


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    "words",
    [
        ("subscribe", "--topic", "guests", "--bookmark", "epoch"),
        ("subscribe", "--topic", "guests", "--last", "1"),
        ("sow-and-subscribe", "--topic", "guests"),
    ],
    ids=["replay", "last", "sow"],
)
def test_a_reader_that_goes_away_is_noticed_though_no_message_comes(
    commands: CommandLine, words: tuple[str, ...]
) -> None:
    commands.publish("guests", '{"id": 77}')

    def read(pipe: BinaryIO) -> None:
        assert pipe.readline() == b'{"id": 77}\n'

    assert commands.read_by(read, *words, "--filter", "/id = 77") == (0, "")


@pytest.mark.row("CLI9")
def test_what_nobody_has_read_comes_again_from_the_store(
    commands: CommandLine, tmp_path: Path
) -> None:
    rows = tmp_path / "rows"
    rows.write_text("".join(f"{number}\n" for number in range(2000)))
    assert commands("publish", "--topic", "unread-rows", "--file", rows)[0] == 0

    def read(pipe: BinaryIO) -> None:
        assert [pipe.readline() for _ in range(5)][-1] == b"4\n"

    words = ("subscribe", "--topic", "unread-rows", "--store", tmp_path / "store")
    assert commands.read_by(read, *words, pipe_bytes=SMALL_PIPE_BYTES) == (0, "")
    code, lines, _ = commands(*words, "-e")
    printed = [int(line) for line in lines]
    assert (code, printed) == (0, list(range(printed[0], 2000)))  # without a gap
    assert printed[0] >= 5  # after what was printed


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (signal.SIGINT, 130, "haclient: note: interrupted after 1 messages\n"),
        (signal.SIGTERM, 0, ""),
    ],
    ids=["int", "term"],
)
def test_a_signal_ends_a_query_that_is_followed_in_order(
    commands: CommandLine, number: int, code: int, told: str
) -> None:
    commands.publish("guests", '{"id": 78}')

    def read(pipe: BinaryIO) -> None:
        assert pipe.readline() == b'{"id": 78}\n'
        interrupt(number)
        assert pipe.read() == b""

    words = ("sow-and-subscribe", "--topic", "guests", "--filter", "/id = 78")
    assert commands.read_by(read, *words) == (code, told)


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("words", [("-e",), ("--last", "2", "-e")], ids=["exit", "last"])
def test_bytes_that_are_no_text_come_out_as_they_went_in(
    commands: CommandLine, words: tuple[str, ...], tmp_path: Path
) -> None:
    bodies = [b"\xff\xfe", b"a\x00\x80b"]
    (tmp_path / "rows").write_bytes(b"\n".join(bodies) + b"\n")
    topic = f"bytes-{len(words)}"
    assert commands("publish", "--topic", topic, "--file", tmp_path / "rows")[0] == 0
    found: list[bytes] = []
    replay = ("subscribe", "--topic", topic, "--bookmark", "epoch", *words)
    assert commands.read_by(found.extend, *replay) == (0, "")
    assert found == [body + b"\n" for body in bodies]
    _, lines, _ = commands(*replay, "--json")
    assert [base64.b64decode(json.loads(line)["data_base64"]) for line in lines] == bodies


@pytest.mark.row("CLI3", "CLI9")
def test_a_replay_begins_at_a_bookmark_or_a_time(commands: CommandLine) -> None:
    commands.publish("history", "a", "b", "c")
    common = ("subscribe", "--topic", "history", "--exit", "--bookmark")
    everything = [json.loads(line) for line in commands(*common, "19700101T000000Z", "--json")[1]]
    assert [(each["topic"], each["data"]) for each in everything] == [
        ("history", body) for body in "abc"
    ]
    marks = [each["bookmark"] for each in everything]
    assert commands(*common, marks[0]) == (0, ["b", "c"], "")
    assert commands(*common, "now") == (0, [], "")
    assert commands(*common, f"({marks[0]}:{marks[1]}]") == (0, ["b"], "")


@pytest.mark.row("CLI2")
def test_a_delimiter_may_be_any_bytes(commands: CommandLine, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_bytes(b"one\0two\nlines\0")
    words = ("publish", "--topic", "nul", "--file", rows, "--delimiter", r"\0", "--json")
    _, [told], _ = commands(*words)
    assert json.loads(told)["published"] == 2
    _, lines, _ = commands("subscribe", "--topic", "nul", "--bookmark", "epoch", "-e", "--json")
    assert [json.loads(line)["data"] for line in lines] == ["one", "two\nlines"]


@pytest.mark.row("CLI1")
def test_the_first_server_that_answers_is_used(
    shared_broker: BrokerProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    servers = f"tcp://127.0.0.1:1/amps/json,{shared_broker.uri}"
    assert run(["publish", "--server", servers, "--topic", "second", "-m", "x"]) == 0
    assert "published 1 message to second" in capfd.readouterr().out


@pytest.mark.row("CLI9")
def test_another_sub_id_of_the_same_store_starts_afresh(
    commands: CommandLine, tmp_path: Path
) -> None:
    commands.publish("two readers", "1", "2")
    words = ("subscribe", "--topic", "two readers", "--exit", "--store", tmp_path / "store")
    assert commands(*words, "--sub-id", "a")[1] == ["1", "2"]
    assert commands(*words, "--sub-id", "a")[1] == []
    assert commands(*words, "--sub-id", "b")[1] == ["1", "2"]
    assert commands(*words, "--sub-id", "a", "--bookmark", "epoch")[1] == ["1", "2"]
