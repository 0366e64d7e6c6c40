"""The commands as processes of their own, when all is well."""

from __future__ import annotations

import base64
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from haclient_fake_server.testing.processes import BrokerProcess
from support.process import haclient, running_broker, start_haclient


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("broker")
    with running_broker(data / "log", *("--sow", "people:/id"), *("--sow", "guests:/id")) as broker:
        yield broker


def publish(broker: BrokerProcess, topic: str, *lines: str) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    result = haclient("publish", "--server", broker.uri, "--topic", topic, stdin=text)
    assert result.code == 0, result.err


@pytest.mark.row("CLI1")
def test_ping_tells_version_and_times(broker: BrokerProcess) -> None:
    result = haclient("ping", "--server", broker.uri, "--json")
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    assert answer["server"] == broker.uri
    assert answer["logon_ms"] > 0
    told = haclient("ping", environment={"AMPS_URI": broker.uri})
    assert told.code == 0
    assert "round trip" in told.out


@pytest.mark.row("CLI1")
def test_ping_fails_when_one_of_the_servers_does(broker: BrokerProcess) -> None:
    result = haclient("ping", "--server", f"{broker.uri},tcp://127.0.0.1:1/amps/json")
    assert result.code == 1
    assert len(result.lines) == 1
    assert result.err.startswith("haclient: error: ")


@pytest.mark.row("CLI1", "CLI9")
def test_messages_come_out_as_they_went_in(broker: BrokerProcess) -> None:
    publish(broker, "plain", '{"id": 1}', "", "ümlaut")
    result = haclient(
        *("subscribe", "--server", broker.uri, "--topic", "plain"),
        *("--bookmark", "epoch", "-n", "3", "--timeout", "20"),
    )
    assert (result.code, result.lines) == (0, ['{"id": 1}', "", "ümlaut"])


@pytest.mark.row("CLI9")
def test_json_output_has_one_object_per_message(broker: BrokerProcess) -> None:
    publish(broker, "objects", "one", "two")
    result = haclient(
        *("subscribe", "--server", broker.uri, "--topic", "objects", "--json"),
        *("--bookmark", "epoch", "-n", "2", "--timeout", "20"),
    )
    first, second = map(json.loads, result.lines)
    assert (first["topic"], first["data"], second["data"]) == ("objects", "one", "two")
    assert first["bookmark"] != second["bookmark"]


@pytest.mark.row("CLI3")
def test_a_replay_begins_at_a_bookmark_or_a_time(broker: BrokerProcess) -> None:
    publish(broker, "history", "a", "b", "c")
    common = ("subscribe", "--server", broker.uri, "--topic", "history", "--exit")
    everything = haclient(*common, "--bookmark", "19700101T000000Z", "--json")
    bookmarks = [json.loads(line)["bookmark"] for line in everything.lines]
    assert len(bookmarks) == 3
    assert haclient(*common, "--bookmark", bookmarks[0]).lines == ["b", "c"]
    assert haclient(*common, "--bookmark", "now").lines == []
    assert haclient(*common, "--bookmark", f"({bookmarks[0]}:{bookmarks[1]}]").lines == ["b"]


@pytest.mark.row("CLI9")
def test_fewer_messages_than_asked_for_is_exit_code_3(broker: BrokerProcess) -> None:
    publish(broker, "few", "only")
    common = ("subscribe", "--server", broker.uri, "--topic", "few", "--bookmark", "epoch")
    result = haclient(*common, "-n", "2", "--timeout", "1")
    assert (result.code, result.lines) == (3, ["only"])
    assert result.err == "haclient: error: 1 of 2 messages came, then none for 1 s\n"
    assert haclient(*common, "--timeout", "1").code == 0


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("number", "more", "told"),
    [
        (signal.SIGTERM, (), None),
        (signal.SIGTERM, ("--count", "3"), "interrupted after 1 messages"),
        (signal.SIGINT, (), "interrupted after 1 messages"),
    ],
    ids=["term", "term-too-few", "int"],
)
def test_a_signal_ends_a_subscription_in_order(
    broker: BrokerProcess, number: int, more: tuple[str, ...], told: str | None
) -> None:
    topic = f"signal-{number}-{len(more)}"
    publish(broker, topic, "before")
    with start_haclient(
        *("subscribe", "--server", broker.uri, "--topic", topic, "--bookmark", "epoch", *more)
    ) as child:
        assert child.line() == "before"
        assert child.stop(number) == (0 if told is None else 130)
        assert child.err == ("" if told is None else f"haclient: error: {told}\n")


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("ping",), "interrupted"),
        (("sow", "--topic", "t"), "interrupted: the result is incomplete"),
    ],
    ids=["ping", "sow"],
)
def test_an_interrupted_question_has_no_answer(words: tuple[str, ...], told: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"tcp://127.0.0.1:{silent.getsockname()[1]}/amps/json"
        with start_haclient(*words, "--server", uri) as child:
            with silent.accept()[0]:  # it has dialled, so its signal handlers are in place
                assert child.stop(signal.SIGINT) == 130
            assert child.err == f"haclient: error: {told}\n"


@pytest.mark.row("CLI9")
def test_a_reader_that_goes_away_ends_a_subscription_in_order(broker: BrokerProcess) -> None:
    publish(broker, "gone", *(f"{number:0100}" for number in range(3000)))
    with start_haclient(
        *("subscribe", "--server", broker.uri, "--topic", "gone", "--bookmark", "epoch"),
        pipe_bytes=4096,
    ) as child:
        child.lines(3)
        child.close_stdout()
        assert child.wait() == 0
        assert child.err == ""


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
    broker: BrokerProcess, words: tuple[str, ...]
) -> None:
    publish(broker, "guests", '{"id": 77}')
    with start_haclient(*words, "--filter", "/id = 77", "--server", broker.uri) as child:
        assert child.line() == '{"id": 77}'
        child.close_stdout()
        assert child.wait() == 0
        assert child.err == ""


@pytest.mark.row("CLI9")
def test_what_nobody_has_read_comes_again_from_the_store(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker, "unread-rows", *map(str, range(2000)))
    follow = ("subscribe", "--server", broker.uri, "--topic", "unread-rows")
    store = ("--store", tmp_path / "store")
    with start_haclient(*follow, *store, pipe_bytes=4096) as child:
        read = len(child.lines(5))
        child.close_stdout()
        assert child.wait() == 0
    rest = haclient(*follow, *store, "-e")
    assert rest.code == 0
    printed = [int(line) for line in rest.lines]
    assert printed == list(range(printed[0], 2000))  # without a gap, after what was printed
    assert printed[0] >= read


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_a_signal_ends_a_query_that_is_followed_in_order(
    broker: BrokerProcess, number: int
) -> None:
    publish(broker, "guests", '{"id": 78}')
    with start_haclient(
        *("sow-and-subscribe", "--topic", "guests", "--filter", "/id = 78"),
        environment={"AMPS_URI": broker.uri},
    ) as child:
        assert child.line() == '{"id": 78}'
        is_service_end = number == signal.SIGTERM
        assert child.stop(number) == (0 if is_service_end else 130)
        told = "" if is_service_end else "haclient: error: interrupted after 1 messages\n"
        assert child.err == told


@pytest.mark.row("CLI9")
def test_records_that_are_deleted_are_counted_and_gone(broker: BrokerProcess) -> None:
    publish(broker, "guests", '{"id": 81}', '{"id": 82}', '{"id": 83}')
    common = ("--server", broker.uri, "--topic", "guests")
    deleted = haclient("sow-delete", *common, "--filter", "/id IN (81, 82)")
    assert (deleted.code, deleted.err) == (0, "")
    assert "2" in deleted.out
    found = haclient("sow", *common, "--filter", "/id IN (81, 82, 83)")
    assert (found.code, found.lines) == (0, ['{"id": 83}'])


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("words", [("-e",), ("--last", "2", "-e")], ids=["exit", "last"])
def test_bytes_that_are_no_text_come_out_as_they_went_in(
    broker: BrokerProcess, words: tuple[str, ...], tmp_path: Path
) -> None:
    bodies = [b"\xff\xfe", b"a\x00\x80b"]
    (tmp_path / "rows").write_bytes(b"\n".join(bodies) + b"\n")
    topic = f"bytes-{len(words)}"
    common = ("--server", broker.uri, "--topic", topic)
    assert haclient("publish", *common, "--file", tmp_path / "rows").code == 0
    with start_haclient("subscribe", *common, "--bookmark", "epoch", *words) as child:
        assert child.lines(2) == bodies
        assert child.wait() == 0
    with start_haclient("subscribe", *common, "--bookmark", "epoch", *words, "--json") as child:
        found = [base64.b64decode(json.loads(line)["data_base64"]) for line in child.lines(2)]
        assert found == bodies
        assert child.wait() == 0


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("words", [("ping",), ("publish", "--topic", "unread")])
def test_a_result_that_nobody_reads_is_no_error(
    broker: BrokerProcess, words: tuple[str, ...]
) -> None:
    with start_haclient(*words, environment={"AMPS_URI": broker.uri}) as child:
        child.close_stdout()
        assert child.wait() == 0
        assert child.err == ""


@pytest.mark.row("CLI1", "CLI9")
def test_sow_prints_the_records_that_match(broker: BrokerProcess) -> None:
    publish(
        broker, "people", '{"id": 1, "age": 40}', '{"id": 2, "age": 20}', '{"id": 1, "age": 41}'
    )
    common = ("sow", "--server", broker.uri, "--topic", "people")
    assert sorted(haclient(*common).lines) == ['{"id": 1, "age": 41}', '{"id": 2, "age": 20}']
    assert haclient(*common, "--filter", "/age > 30").lines == ['{"id": 1, "age": 41}']
    ordered = haclient(*common, "--order-by", "/age", "--top-n", "1", "--json")
    assert json.loads(ordered.out)["data"] == '{"id": 2, "age": 20}'


@pytest.mark.row("CLI2")
def test_a_delimiter_may_be_any_bytes(broker: BrokerProcess) -> None:
    result = haclient(
        *("publish", "--server", broker.uri, "--topic", "nul", "--delimiter", r"\0", "--json"),
        stdin=b"one\0two\nlines\0",
    )
    assert json.loads(result.out)["published"] == 2
    found = haclient(
        *("subscribe", "--server", broker.uri, "--topic", "nul", "--bookmark", "epoch"),
        *("-n", "2", "--timeout", "20", "--json"),
    )
    assert [json.loads(line)["data"] for line in found.lines] == ["one", "two\nlines"]


@pytest.mark.row("CLI1")
def test_the_first_server_that_answers_is_used(broker: BrokerProcess) -> None:
    servers = f"tcp://127.0.0.1:1/amps/json,{broker.uri}"
    result = haclient("publish", "--server", servers, "--topic", "second", stdin=b"x\n")
    assert result.code == 0, result.err


@pytest.mark.row("CLI5")
def test_a_broker_stops_on_sigterm_and_keeps_its_log(tmp_path: Path) -> None:
    with running_broker(tmp_path / "log") as broker:
        publish(broker, "kept", "before")
        assert broker.stop() == 0
        broker.start()
        result = haclient(
            *("subscribe", "--server", broker.uri, "--topic", "kept"),
            *("--bookmark", "epoch", "-n", "1", "--timeout", "20"),
        )
        assert result.lines == ["before"]


@pytest.mark.row("CLI5")
def test_a_broker_without_data_names_its_temporary_directory(tmp_path: Path) -> None:
    with start_haclient(
        "broker", "run", "--listen", "tcp://127.0.0.1:0", environment={"TMPDIR": str(tmp_path)}
    ) as child:
        assert child.line().startswith("listening tcp://127.0.0.1:")
        [directory] = tmp_path.iterdir()
        assert str(directory) in child.err
        assert child.stop() == 0


@pytest.mark.row("CLI9")
def test_another_sub_id_of_the_same_store_starts_afresh(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker, "two readers", "1", "2")
    common = ("subscribe", "--server", broker.uri, "--topic", "two readers", "--exit")
    store = ("--store", tmp_path / "store")
    assert haclient(*common, *store, "--sub-id", "a").lines == ["1", "2"]
    assert haclient(*common, *store, "--sub-id", "a").lines == []
    assert haclient(*common, *store, "--sub-id", "b").lines == ["1", "2"]
    assert haclient(*common, *store, "--sub-id", "a", "--bookmark", "epoch").lines == ["1", "2"]
