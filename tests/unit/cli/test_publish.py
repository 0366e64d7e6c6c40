"""One run of `haclient publish`: its pace, its ledger, and what it says in the end."""

from __future__ import annotations

import json
import os
import threading
from contextlib import closing
from pathlib import Path

import pytest
import trio
import trio.testing

from haclient.cli.app import run
from haclient.cli.lines import scan_file
from haclient.cli.publish import (
    PublishPace,
    PublishRequest,
    PublishRun,
    PublishSummary,
    interrupted,
)
from haclient.cli.publish_ledger import NOTE, PublishLedger, Source
from haclient.stores import FilePublishStore
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_stores.disk.files import RealDisk
from support.command_line import CommandLine
from support.frames import fill
from support.process import running_broker, start_haclient


async def test_a_rate_spreads_messages_evenly(autojump_clock: trio.testing.MockClock) -> None:
    start, pace = autojump_clock.current_time(), PublishPace(4.0)
    for _ in range(9):
        await pace.wait()
    assert trio.current_time() - start == pytest.approx(2.0)


async def test_without_a_rate_nobody_waits() -> None:
    with trio.testing.assert_no_checkpoints():
        await PublishPace(None).wait()


def test_a_summary_of_one_message_is_singular() -> None:
    told = PublishSummary(topic="t", published=1, seconds=0.5).as_text()
    assert told == "published 1 message to t in 0.50 s"


def test_a_summary_tells_only_what_happened() -> None:
    assert (
        PublishSummary(topic="t", published=2, seconds=0.5).as_text()
        == "published 2 messages to t in 0.50 s"
    )
    told = PublishSummary(topic="t", published=0, skipped=3, resent=2, failed=1).as_text()
    assert told.endswith(
        ", 3 already published, 2 sent again from the store, 1 refused by the server"
    )


def test_a_file_whose_numbers_were_taken_by_somebody_else_is_refused(
    haclient: CommandLine, rows: Path, tmp_path: Path
) -> None:
    store = FilePublishStore(tmp_path / "store")
    ledger, _ = PublishLedger().begin(Source(str(rows), "taken", b"\n"), scan_file(rows, b"\n"), 0)
    store.open_for("me")
    store.set_note(NOTE, ledger.note())
    fill(store, rows.read_bytes().count(b"\n") + 1)
    store.close()
    words = ("publish", "--topic", "taken", "--file", rows, "--store", tmp_path / "store")
    code, _, err = haclient(*words)
    assert code == 1
    assert "--from-start" in err
    assert haclient(*words, "--from-start")[0] == 0
    assert haclient("publish", "--topic", "taken", "--store", tmp_path / "store")[0] == 0


@pytest.mark.row("CLI9")
def test_after_a_kill_and_a_start_of_the_machine_only_the_missing_lines_are_published(
    haclient: CommandLine, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("publish", "--topic", "reboot", "--store", tmp_path / "store", "--json")
    lines = rows.read_bytes().splitlines(keepends=True)
    part = tmp_path / "part"
    part.write_bytes(b"".join(lines[:2]))
    assert haclient(*words, "--file", part)[0] == 0
    store = FilePublishStore(tmp_path / "store")  # as a kill after the second line leaves it
    source = Source(str(rows), "reboot", b"\n")
    ledger, _ = PublishLedger().begin(source, scan_file(rows, b"\n"), store.last_sequence - 2)
    store.set_note(NOTE, ledger.note())
    store.close()
    for boot, skipped in ((b"b", 2), (b"c", len(lines))):
        monkeypatch.setattr(RealDisk, "boot_id", lambda _, boot=boot: boot * 16)
        code, [line], err = haclient(*words, "--file", rows)
        assert (code, err) == (0, "")
        assert json.loads(line)["skipped"] == skipped


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("delimiter", [" ", "\t", "\n"])
def test_a_delimiter_may_be_white_space(
    haclient: CommandLine, tmp_path: Path, delimiter: str
) -> None:
    rows = tmp_path / "rows"
    rows.write_text(delimiter.join("abc"))
    words = ("publish", "--topic", "words", "--file", rows, "--delimiter", delimiter, "--json")
    code, [line], err = haclient(*words)
    assert (code, err) == (0, "")
    assert json.loads(line)["published"] == 3


def test_a_file_that_does_not_tell_its_size_is_read_to_its_end(
    haclient: CommandLine, tmp_path: Path
) -> None:
    words = ("publish", "--topic", "kernel", "--file", "/proc/self/mounts", "--json")
    expected = len(Path("/proc/self/mounts").read_bytes().splitlines())
    for more in ((), ("--store", tmp_path / "store"), ("--store", tmp_path / "store")):
        code, [line], err = haclient(*words, *more)
        assert (code, err) == (0, "")
        assert json.loads(line)["published"] == expected > 0


@pytest.mark.row("CLI9")
def test_stdin_settles_the_book_of_an_open_file(
    haclient: CommandLine, rows: Path, tmp_path: Path
) -> None:
    words = ("publish", "--topic", "open", "--store", tmp_path / "store")
    assert haclient(*words, "--file", rows)[0] == 0
    store = FilePublishStore(tmp_path / "store")  # as a kill after the third line leaves it
    source = Source(str(rows), "open", b"\n")
    ledger, _ = PublishLedger().begin(source, scan_file(rows, b"\n"), store.last_sequence - 3)
    store.set_note(NOTE, ledger.note())
    store.close()
    assert haclient(*words)[0] == 0  # the test's stdin is empty
    _, [line], _ = haclient(*words, "--file", rows, "--json")
    assert json.loads(line)["skipped"] == 3


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("with_store", [True, False], ids=["store", "memory"])
def test_a_server_that_dies_and_does_not_come_back_is_told_in_time(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    with_store: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    store = ("--store", str(tmp_path / "store")) if with_store else ()
    pipe = tmp_path / "rows"
    os.mkfifo(pipe)
    with running_broker(tmp_path / "log") as broker:
        common = ("--server", broker.uri, "--topic", "t")
        with start_haclient("subscribe", *common, "--bookmark", "epoch") as watcher:

            def kill_after_the_first_row() -> None:
                with pipe.open("wb", buffering=0) as rows:
                    rows.write(b"before\n")
                    watcher.lines(1)
                    broker.kill()
                    rows.write(b"after\n")

            thread = threading.Thread(target=kill_after_the_first_row)
            thread.start()
            assert run(["publish", *common, "--file", str(pipe), "--timeout", "3", *store]) == 1
            thread.join()
    told = "wait in the store" if with_store else "not known to be persisted"
    assert told in capfd.readouterr().err


WORDS = ("publish", "--server", "tcp://127.0.0.1:1/amps", "--topic", "t")


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--file", "/no/such"), "there is no such file"),
        (("--file", "/"), "a directory"),
        (("--from-start",), "--from-start"),
        (("--delimiter", ""), "delimiter"),
    ],
)
def test_a_mistake_is_told_before_any_store_is_made(
    words: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    more = () if "--from-start" in words else ("--store", str(store))
    assert run([*WORDS, *words, *more]) == 2
    assert told in capsys.readouterr().err
    assert not store.exists()


@pytest.mark.row("CLI9")
def test_nobody_there_is_a_failure_and_the_store_is_free_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    for _ in range(2):
        assert run([*WORDS, "--store", str(store)]) == 1
        [error] = capsys.readouterr().err.splitlines()
        assert error.startswith("haclient: error: cannot connect to tcp://127.0.0.1:1/amps: ")


@pytest.mark.row("CLI1", "CLI9")
def test_a_file_is_published_once_however_often_it_is_asked_for(
    haclient: CommandLine, rows: Path, tmp_path: Path
) -> None:
    words = ("publish", "--topic", "once", "--file", rows, "--store", tmp_path / "store")
    code, [line], _ = haclient(*words)
    assert (code, line.split(" in ")[0]) == (0, "published 5 messages to once")
    code, [line], _ = haclient(*words, "--json")
    summary = json.loads(line)
    assert (summary["published"], summary["skipped"], summary["unpersisted"]) == (0, 5, 0)
    _, [line], _ = haclient(*words, "--from-start", "--json")
    assert json.loads(line)["published"] == 5
    edited = rows.read_text().replace("row 3", "row three")
    for content, how in ((edited, "begins otherwise"), ("another\n", "is shorter")):
        rows.write_text(content)
        code, lines, err = haclient(*words, "--json")
        assert (code, lines) == (2, [])
        assert f"{how} than the file of which all 5 lines were published" in err
    _, [line], _ = haclient(*words, "--json", "--from-start")
    assert json.loads(line)["published"] == 1


@pytest.mark.row("CLI1")
def test_without_a_store_messages_are_kept_in_memory_until_they_are_persisted(
    haclient: CommandLine, rows: Path
) -> None:
    code, [line], _ = haclient("publish", "--topic", "memory", "--file", rows, "--json")
    assert (code, json.loads(line)["published"]) == (0, 5)


@pytest.mark.row("CLI9", "PS6")
def test_refused_messages_are_counted_and_are_a_failure(haclient: CommandLine, rows: Path) -> None:
    code, [line], err = haclient("publish", "--topic", "people", "--file", rows, "--json")
    assert code == 1
    assert json.loads(line)["failed"] == 5
    assert "refused 5 messages" in err
    assert "line 1: bad message: topic 'people' takes JSON bodies only" in err
    assert "warning" not in err  # the library's records, one for each message


def test_an_interrupt_says_what_to_do(rows: Path, tmp_path: Path) -> None:
    with closing(FilePublishStore(tmp_path / "store")) as store:
        request = PublishRequest(
            servers=(),
            client_name=None,
            topic="t",
            file=str(rows),
            delimiter="\n",
            store=tmp_path / "store",
            from_start=False,
            rate=None,
            timeout=None,
            as_json=False,
        )
        run_ = PublishRun(
            request=request, store=store, delimiter=b"\n", summary=PublishSummary(topic="t")
        )
        assert "run it again to publish the rest" in interrupted(run_)


@pytest.mark.row("CLI2")
def test_a_message_may_be_an_option_and_a_change_of_a_record(haclient: CommandLine) -> None:
    publish = ("publish", "--topic", "people", "--json")
    code, (told,), _ = haclient(*publish, "-m", '{"id":70,"a":1,"b":1}', "-m", '{"id":71}')
    assert (code, json.loads(told)["published"]) == (0, 2)
    assert haclient(*publish, "--delta", "-m", '{"id":70,"b":2}')[0] == 0
    _, (record,), _ = haclient("sow", "--topic", "people", "--filter", "/id = 70")
    assert json.loads(record) == {"id": 70, "a": 1, "b": 2}
    assert haclient(*publish, "-m", '{"id":72}', "--expiration", "3600")[0] == 0
    haclient("sow-delete", "--topic", "people", "--filter", "/id >= 70")


@pytest.mark.row("CLI2", "CLI9")
@pytest.mark.parametrize(
    "words", [("-m", "x", "--file", "rows"), ("-m", "x", "--from-start"), ("--expiration", "0")]
)
def test_options_that_exclude_each_other_are_mistakes(
    haclient: CommandLine, words: tuple[str, ...]
) -> None:
    code, lines, err = haclient("publish", "--topic", "t", *words)
    assert (code, lines, err.count("\n")) == (2, [], 1)


@pytest.mark.row("CLI1")
def test_a_key_and_an_expiration_go_with_each_message(
    broker: BrokerProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("--topic", "with-a-key", "--key", "k-7", "--expiration", "60", "-m", "a", "-m", "b")
    assert run(["-vv", "publish", "--server", broker.uri, *words]) == 0
    sent = [line for line in capfd.readouterr().err.splitlines() if '"t":"with-a-key"' in line]
    assert len(sent) == 2
    assert all('"k":"k-7"' in each and '"e":60' in each for each in sent), sent
