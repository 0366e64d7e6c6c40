"""One run of `haclient publish`: its pace, its book, and what it says in the end."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from haclient.cli.app import run
from haclient.cli.linebook import NOTE, LineBook, Source
from haclient.cli.lines import scan_file
from haclient.cli.publishing import Pace, Summary
from haclient.stores import FilePublishStore
from support.command_line import CommandLine
from support.process import running_broker, start_haclient


async def test_a_rate_spreads_messages_evenly(autojump_clock: trio.testing.MockClock) -> None:
    start, pace = autojump_clock.current_time(), Pace(4.0)
    for _ in range(9):
        await pace.wait()
    assert trio.current_time() - start == pytest.approx(2.0)


async def test_without_a_rate_nobody_waits() -> None:
    with trio.testing.assert_no_checkpoints():
        await Pace(None).wait()


def test_a_summary_tells_only_what_happened() -> None:
    assert (
        Summary(topic="t", published=2, seconds=0.5).told() == "published 2 messages to t in 0.50 s"
    )
    told = Summary(topic="t", published=0, skipped=3, resent=2, failed=1).told()
    assert told.endswith(
        ", 3 already published, 2 sent again from the store, 1 refused by the server"
    )


def test_a_file_whose_numbers_were_taken_by_somebody_else_is_refused(
    haclient: CommandLine, rows: Path, tmp_path: Path
) -> None:
    store = FilePublishStore(tmp_path / "store")
    book, _ = LineBook().begin(Source(str(rows), "taken", b"\n"), scan_file(rows, b"\n"), 0)
    store.open_for("me")
    store.set_note(NOTE, book.note())
    store.reconcile(seen=0, persisted=0, clock_us=1_700_000_000_000_000)
    store.close()
    words = ("publish", "--topic", "taken", "--file", rows, "--store", tmp_path / "store")
    code, _, err = haclient(*words)
    assert code == 1
    assert "--from-start" in err
    assert haclient(*words, "--from-start")[0] == 0
    assert haclient("publish", "--topic", "taken", "--store", tmp_path / "store")[0] == 0


@pytest.mark.row("CLI9")
def test_stdin_settles_the_book_of_an_open_file(
    haclient: CommandLine, rows: Path, tmp_path: Path
) -> None:
    words = ("publish", "--topic", "open", "--store", tmp_path / "store")
    assert haclient(*words, "--file", rows)[0] == 0
    store = FilePublishStore(tmp_path / "store")  # as a kill after the third line leaves it
    source = Source(str(rows), "open", b"\n")
    book, _ = LineBook().begin(source, scan_file(rows, b"\n"), store.last_sequence - 3)
    store.set_note(NOTE, book.note())
    store.close()
    assert haclient(*words)[0] == 0  # the test's stdin is empty
    _, [line], _ = haclient(*words, "--file", rows, "--json")
    assert json.loads(line)["skipped"] == 3


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("with_store", [True, False], ids=["store", "memory"])
def test_a_server_that_dies_and_does_not_come_back_is_told_in_time(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    rows: Path,
    with_store: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    store = ("--store", str(tmp_path / "store")) if with_store else ()
    with running_broker(tmp_path / "log") as broker:
        common = ("--server", broker.uri, "--topic", "t")
        with start_haclient("subscribe", *common, "--bookmark", "epoch") as watcher:

            def kill_after_the_first_row() -> None:
                watcher.lines(1)
                broker.kill()

            # Only a watcher that is there already is sure to see the first row before the last.
            assert run(["publish", *common, "--file", str(rows)]) == 0
            watcher.lines(5)
            thread = threading.Thread(target=kill_after_the_first_row)
            thread.start()
            paced = ("--file", str(rows), "--rate", "2", "--timeout", "1")
            assert run(["publish", *common, *paced, *store]) == 1
            thread.join()
    told = "wait in the store" if with_store else "not known to be persisted"
    assert told in capfd.readouterr().err
