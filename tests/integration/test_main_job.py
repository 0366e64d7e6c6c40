"""The main job on real input: rows of a file, published and consumed while everything is killed.

Whatever dies, and whenever, the rows that come out are the rows of the file: each exactly once and
in order across an orderly stop, and across a SIGKILL of the subscriber at most the one row twice
that had been printed but not yet discarded.
"""

from __future__ import annotations

import importlib.util
import random
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path

import msgspec
import pytest

from haclient.cli.app import run
from haclient.cli.demo.processes import reserved_ports
from haclient_fake_server.testing.processes import BrokerProcess
from support.command_line import printed_to_pipe
from support.process import LIMIT_S, Child, haclient, running_broker, start_haclient

pytestmark = pytest.mark.in_parts

PIPE_BYTES = 8192  # a subscriber runs at most this far ahead of what the test has read
FIRST = b"the first row of all"
GIVES_UP = ("--timeout", "8")  # after the death of the broker; before it, something comes sooner
PATIENT = ("--timeout", str(LIMIT_S))  # a broker may take long to start again


def data_file(name: str) -> Path:
    """A file that vega_datasets carries, found without importing it (it would import pandas)."""
    spec = importlib.util.find_spec("vega_datasets")
    assert spec is not None, "vega_datasets is part of the test group"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "_data" / name


def rows_of(path: Path) -> list[bytes]:
    return path.read_bytes().removesuffix(b"\n").split(b"\n")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """For a test that kills it."""
    with running_broker(tmp_path / "broker") as broker:
        yield broker


class PublishSummary(msgspec.Struct):
    """What `publish --json` prints."""

    published: int
    skipped: int
    resent: int


class Job:
    """The commands of the job, with one publish store and one bookmark store.

    What is killed is a process of its own; the other commands run in this one.
    """

    def __init__(self, broker: BrokerProcess, directory: Path, file: Path) -> None:
        self.file = file
        self.publish_store = directory / "publisher"
        self._bookmark_store = directory / "subscriber"
        self._common = ("--server", broker.uri, "--topic", directory.name)

    @property
    def publish_from_stdin(self) -> tuple[str | Path, ...]:
        return ("publish", *self._common, "--store", self.publish_store)

    @property
    def publish(self) -> tuple[str | Path, ...]:
        return (*self.publish_from_stdin, "--file", self.file)

    @property
    def subscribe(self) -> tuple[str | Path, ...]:
        store = ("--store", self._bookmark_store, "--bookmark", "recent")
        return ("subscribe", *self._common, *store)

    def published(self, file: Path | None = None) -> PublishSummary:
        """Publish a file to its end."""
        report = StringIO()
        with redirect_stdout(report):
            words = (*self.publish_from_stdin, "--file", file or self.file, "--json")
            assert run([*map(str, words)]) == 0
        return msgspec.json.decode(report.getvalue(), type=PublishSummary)

    def watching(self) -> Child:
        """Somebody without a store who shows how far the publisher is."""
        return start_haclient("subscribe", *self._common, "--bookmark", "epoch")

    def see_first_row(self, subscriber: Child) -> None:
        """Publish a first row and see it arrive: what comes next is printed as it is published.

        A subscriber that starts slowly would begin when the publisher has ended.
        """
        assert run(["publish", *self._common, "-m", FIRST.decode()]) == 0
        assert subscriber.lines(1) == [FIRST]

    def subscribing(self, *more: str) -> Child:
        return start_haclient(*self.subscribe, *more, pipe_bytes=PIPE_BYTES)

    def everything(self, *words: str | Path) -> list[bytes]:
        """All that the broker has of the topic, or what another replay prints."""
        found: list[bytes] = []
        replay = words or ("subscribe", *self._common, "--bookmark", "epoch")
        with printed_to_pipe(found.extend):
            assert run([*map(str, replay), "--exit"]) == 0
        return [line.removesuffix(b"\n") for line in found]

    def rest(self) -> list[bytes]:
        """What the subscriber has not had yet."""
        return self.everything(*self.subscribe)


@pytest.mark.row("CLI1", "CLI3", "CLI9")
def test_every_row_arrives_once_when_the_broker_is_killed_and_comes_back(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    job = Job(broker, tmp_path, data_file("stocks.csv"))
    rows = rows_of(job.file)
    with job.subscribing("-n", str(len(rows) + 1), *PATIENT) as subscriber:
        job.see_first_row(subscriber)
        with start_haclient(*job.publish, "--rate", "100", *PATIENT) as publisher:
            found = subscriber.lines(20)
            assert publisher.is_running
            broker.kill()
            broker.start()
            found += subscriber.rest()
            assert subscriber.wait() == 0, subscriber.err
            assert publisher.wait() == 0, publisher.err
    assert found == rows
    assert job.everything() == [FIRST, *rows]
    again = job.published()
    assert (again.published, again.skipped) == (0, len(rows))


@pytest.mark.row("CLI1", "CLI3", "CLI9")
def test_who_gives_up_on_a_dead_broker_goes_on_in_the_next_run(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    job = Job(broker, tmp_path, data_file("stocks.csv"))
    rows = rows_of(job.file)
    with (
        job.watching() as watcher,
        start_haclient(*job.publish, "--rate", "25", *GIVES_UP) as publisher,
    ):
        watcher.lines(1)  # from now on a row comes in each of the subscriber's limits
        with job.subscribing(*GIVES_UP) as subscriber:
            found = subscriber.lines(20)
            assert publisher.is_running
            broker.kill()
            for child in (publisher, subscriber):
                assert child.wait() == 1
                lost, *_, error = child.err.splitlines()
                told = r"haclient: warning: client \S+ lost its connection to tcp://"
                assert re.match(told, lost)
                assert error.startswith("haclient: error: the connection was lost")
            found += subscriber.rest()
    assert 20 <= len(found) < len(rows)
    broker.start()
    summary = job.published()
    assert summary.resent > 0
    assert summary.published + summary.skipped == len(rows)
    assert found + job.rest() == rows
    assert job.everything() == rows


@pytest.mark.row("CLI1", "HA7", "HA17", "SC6")
@pytest.mark.parametrize("remembers", ["store", pytest.param("memory", marks=pytest.mark.full)])
def test_a_job_goes_on_at_the_second_server(tmp_path: Path, remembers: str) -> None:
    rows = rows_of(data_file("stocks.csv"))
    with reserved_ports(2) as ports, ExitStack() as stack:
        east, west = [
            stack.enter_context(
                running_broker(
                    tmp_path / name,
                    *("--name", name, "--replicate-to", f"tcp://127.0.0.1:{other}"),
                    port=port,
                )
            )
            for name, port, other in zip(("east", "west"), ports, reversed(ports), strict=True)
        ]
        common = ("--server", f"{east.uri},{west.uri}", "--topic", "rows", *PATIENT)
        store = ("--store", tmp_path / "reader") if remembers == "store" else ()
        begin = ("--bookmark", "recent" if remembers == "store" else "epoch")
        file = ("--file", data_file("stocks.csv"), "--rate", "250")
        subscriber = stack.enter_context(
            start_haclient("subscribe", *common, *store, *begin, "-n", str(len(rows) + 1))
        )
        assert run(["publish", *common, "-m", FIRST.decode()]) == 0
        assert subscriber.lines(1) == [FIRST]  # it is at work before the publisher starts
        west.pause()  # which holds the acknowledgements: the publisher cannot end before the kill
        publisher = stack.enter_context(start_haclient("publish", *common, *file))
        found = subscriber.lines(20)
        east.kill()
        west.resume()
        found += subscriber.lines(100)  # of the other one, while the first is dead
        assert publisher.is_running
        east.start()  # the two are synchronous: all is persisted when both have it
        found += subscriber.rest()
        assert subscriber.wait() == 0, subscriber.err
        assert publisher.wait() == 0, publisher.err
    assert found == rows


@pytest.mark.row("CLI3")
def test_rows_are_exactly_once_over_any_number_of_sigterms(
    shared_broker: BrokerProcess, tmp_path: Path, *, full_length: bool
) -> None:
    job = Job(shared_broker, tmp_path, data_file("airports.csv"))
    rows, chance, found = rows_of(job.file), random.Random(11), list[bytes]()
    assert job.published().published == len(rows)
    ends = 6 if full_length else 2
    for _ in range(ends):
        with job.subscribing() as child:
            found += child.lines(chance.randint(1, 300))
            assert child.stop(signal.SIGTERM) == 0, child.err
            found += child.rest()
    assert ends < len(found) < len(rows)
    assert found + job.rest() == rows


@pytest.mark.row("CLI3")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_sigkill_repeats_at_most_the_row_that_was_printed_last(
    shared_broker: BrokerProcess, tmp_path: Path, seed: int, *, full_length: bool
) -> None:
    job = Job(shared_broker, tmp_path, data_file("airports.csv"))
    rows, chance = rows_of(job.file), random.Random(seed)
    job.published()
    taken = 0  # rows that came out so far, without repetition
    kills = 6 if full_length else 3
    for _ in range(kills):
        with job.subscribing() as child:
            found = child.lines(chance.randint(1, 300))
            child.kill()
            found += child.rest()
        repeated = 1 if taken and found[0] == rows[taken - 1] else 0
        assert found[repeated:] == rows[taken : taken + len(found) - repeated]
        taken += len(found) - repeated
    assert kills < taken < len(rows)
    found = job.rest()
    repeated = 1 if found[0] == rows[taken - 1] else 0
    assert found[repeated:] == rows[taken:]


@pytest.mark.row("CLI9", "PS8")
@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.full)])
def test_a_publisher_killed_at_any_moment_publishes_only_what_is_missing(
    shared_broker: BrokerProcess, tmp_path: Path, seed: int, *, full_length: bool
) -> None:
    job = Job(shared_broker, tmp_path, data_file("seattle-weather.csv"))
    rows, chance, seen = rows_of(job.file), random.Random(seed), 0
    with job.watching() as watcher:
        job.see_first_row(watcher)
        for _ in range(3 if full_length else 2):
            with start_haclient(*job.publish, "--rate", "100") as publisher:
                seen += len(watcher.lines(chance.randint(1, 100)))
                assert publisher.is_running
                publisher.kill()
        assert seen < len(rows)
        summary = job.published()
        assert summary.published + summary.skipped == len(rows)
        assert summary.skipped >= seen
    assert job.everything() == [FIRST, *rows]


@pytest.mark.row("CLI9", "PS9")
def test_a_store_that_knows_less_than_the_server_doubles_nothing(
    shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    job = Job(shared_broker, tmp_path, data_file("stocks.csv"))
    rows, older = rows_of(job.file), tmp_path / "older"
    with (
        job.watching() as watcher,
        start_haclient(*job.publish, "--rate", "400") as publisher,
    ):
        watcher.lines(100)
        publisher.kill()
        shutil.copytree(job.publish_store, older)
        job.published()
    shutil.rmtree(job.publish_store)
    shutil.copytree(older, job.publish_store)  # as after a power failure
    summary = job.published()
    assert (summary.published, summary.skipped) == (0, len(rows))
    assert job.everything() == rows


@pytest.mark.row("CLI9")
def test_stdin_and_other_files_in_between_neither_skip_nor_double_a_row(
    shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    job = Job(shared_broker, tmp_path, data_file("stocks.csv"))
    rows, other = rows_of(job.file), tmp_path / "other.csv"
    other.write_bytes(b"other 1\nother 2\nother 3\n")
    with (
        job.watching() as watcher,
        start_haclient(*job.publish, "--rate", "400") as publisher,
    ):
        watcher.lines(100)
        publisher.kill()
    piped = haclient(*job.publish_from_stdin, stdin=b"piped 1\npiped 2\n")
    assert piped.code == 0, piped.err
    assert job.published(other).published == 3
    summary = job.published()
    assert summary.published + summary.skipped == len(rows)
    assert job.published(other).published == 0
    found = job.everything()
    extra = [b"piped 1", b"piped 2", b"other 1", b"other 2", b"other 3"]
    assert [row for row in found if row not in extra] == rows
    assert [row for row in found if row in extra] == extra
