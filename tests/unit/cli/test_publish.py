"""`haclient publish` before and beside its connection."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from haclient.cli.app import run
from haclient.cli.publishing import Pace, Summary

WORDS = ("publish", "--server", "tcp://127.0.0.1:1/amps", "--topic", "t")


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
