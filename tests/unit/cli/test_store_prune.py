"""`store prune --wait` beside a live application, at any moment of either side's life."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from haclient.stores import LoggedBookmarkStore
from support.process import Child, haclient, start_haclient

_OWNER = """
import sys
import trio
from haclient.transport import store_maintenance
from haclient.stores import *
from support.reporting import unheard
async def main():
    store = LoggedBookmarkStore(sys.argv[1], prune_policy=None)
    store.open_for("me")
    maintenance = store_maintenance.StoreMaintenance(store, [store], reporter=unheard())
    if sys.argv[2] == "full":
        def prune():
            raise StoreFull("no room for it")
        store.prune = prune
    async with trio.open_nursery() as nursery:
        for task in maintenance.tasks if sys.argv[2] != "old" else []:
            nursery.start_soon(task)
        print("open", flush=True)
        await trio.sleep_forever()
trio.run(main)
"""

DISCARDED = 100_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A bookmark log of which nearly everything is dead."""
    path = tmp_path / "s.bm"
    store = LoggedBookmarkStore(path)
    store.open_for("me")
    subscription = store.subscription("s")
    subscription.log_batch([f"7|{number}|" for number in range(1, DISCARDED + 2)])
    subscription.discard_up_to(DISCARDED)
    store.close()
    return path


@pytest.fixture
def request_file(log: Path) -> Path:
    return log.with_name("s.bm.prune-request")


def owner(log: Path, kind: str = "") -> Child:
    child = Child([sys.executable, "-c", _OWNER, str(log), kind])
    assert child.line() == "open"
    return child


def undiscarded(log: Path) -> int:
    store = LoggedBookmarkStore(log)
    found = store.subscription("s").undiscarded_count
    store.close()
    return found


@pytest.fixture
def is_whole(log: Path, request_file: Path) -> Iterator[None]:
    yield
    assert undiscarded(log) == 1
    assert not request_file.exists()


@pytest.mark.usefixtures("is_whole")
def test_the_client_that_has_it_in_use_prunes_it(log: Path) -> None:
    with owner(log):
        result = haclient("store", "prune", log, "--wait", "60", "--json")
    assert result.code == 0, result.err
    values = json.loads(result.out)
    assert values["after_bytes"] < values["before_bytes"]
    assert values["after_bytes"] == log.stat().st_size


@pytest.mark.usefixtures("is_whole")
def test_a_store_that_nobody_uses_is_pruned_at_once(log: Path) -> None:
    before = log.stat().st_size
    assert haclient("store", "prune", log, "--wait", "60").code == 0
    assert log.stat().st_size < before


@pytest.mark.usefixtures("is_whole")
def test_a_client_that_never_answers_is_told_of_with_75(log: Path) -> None:
    with owner(log, "old"):
        before = log.read_bytes()
        result = haclient("store", "prune", log, "--wait", "0.3")
        assert log.read_bytes() == before
    assert result.code == 75
    assert "as client 'me', which has not pruned it within 0.3 s" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.usefixtures("is_whole")
def test_the_reason_why_a_client_could_not_prune_is_told(log: Path) -> None:
    with owner(log, "full"):
        result = haclient("store", "prune", log, "--wait", "60")
    assert result.code == 1
    assert "the client that has it in use answers: no room for it" in result.err


@pytest.mark.usefixtures("is_whole")
def test_when_the_client_is_killed_before_it_answers_the_command_prunes_it(
    log: Path, request_file: Path
) -> None:
    before = log.stat().st_size
    with owner(log, "old") as client, start_haclient("store", "prune", log, "--wait", "60") as asks:
        while not request_file.exists():
            assert asks.is_running
        client.kill()
        assert asks.wait() == 0
    assert log.stat().st_size < before


def test_a_request_whose_command_was_killed_is_carried_out_by_the_next_client(
    log: Path, request_file: Path
) -> None:
    before = log.stat().st_size
    with owner(log, "old"), start_haclient("store", "prune", log, "--wait", "60") as asks:
        while not request_file.exists() or not request_file.read_bytes().endswith(b"\n"):
            assert asks.is_running
        asks.kill()
    assert request_file.read_bytes().startswith(b"prune ")
    with owner(log) as client:
        while request_file.read_bytes() != b"done\n":
            assert client.is_running
    assert log.stat().st_size < before
    assert undiscarded(log) == 1
    with owner(log):  # what nobody has read is no answer to the next command
        assert haclient("store", "prune", log, "--wait", "60").code == 0
    assert not request_file.exists()


@pytest.mark.usefixtures("is_whole")
@pytest.mark.parametrize("wait", ["0", "-1", "nan"])
def test_a_wait_that_is_no_time_is_a_usage_error(log: Path, wait: str) -> None:
    assert haclient("store", "prune", log, "--wait", wait).code == 2
