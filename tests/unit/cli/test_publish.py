"""`haclient publish` before and beside its connection."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from haclient.cli.app import run
from haclient.cli.exits import Interrupted
from haclient.cli.publish import stopped
from haclient.cli.publishing import PublishRequest, PublishRun, Summary
from haclient.stores import FilePublishStore
from support.command_line import CommandLine

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
        assert capsys.readouterr().err.count("\n") == 1


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
    rows.write_text("another\n")
    _, [line], err = haclient(*words, "--json")
    assert json.loads(line)["published"] == 1
    assert err.startswith("haclient: note: ")


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
        run_ = PublishRun(request=request, store=store, delimiter=b"\n", summary=Summary(topic="t"))
        with pytest.raises(Interrupted, match="run it again to publish the rest"):
            stopped(run_, 2)
