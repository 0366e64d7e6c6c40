"""The programs of docs/queues.md, run as they stand, but for the port."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from haclient_fake_server.testing.processes import BrokerProcess
from support.documents import FORMS, programs
from support.process import Child, haclient, running_broker

PAGE = Path(__file__).parents[2] / "docs/queues.md"
SERVER = "tcp://127.0.0.1:9007/amps/json"
PROGRAMS = {form: programs(PAGE.read_text(encoding="utf-8"), form) for form in FORMS}
EACH_FORM = pytest.mark.parametrize(
    "form", [FORMS[0], *(pytest.param(form, marks=pytest.mark.full) for form in FORMS[1:])]
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One for each test: a worker that is killed leaves what it has not acknowledged."""
    with running_broker(tmp_path / "log", "--queue", "jobs,max_backlog=10,lease=30") as broker:
        yield broker


def start(program: str, broker: BrokerProcess, directory: Path) -> Child:
    assert program.count(SERVER) == 1
    path = directory / f"program_{len(program)}.py"  # two run at the same time
    path.write_text(program.replace(SERVER, broker.uri), encoding="utf-8")
    return Child(["sh", "-c", f"cd '{directory}' && exec '{sys.executable}' -u {path.name}"])


def publish(broker: BrokerProcess, *numbers: int) -> None:
    text = "".join(f'{{"job": {number}}}\n' for number in numbers).encode()
    assert haclient("publish", "--server", broker.uri, "--topic", "jobs", stdin=text).code == 0


@EACH_FORM
def test_the_workers_print_the_jobs(form: str, broker: BrokerProcess, tmp_path: Path) -> None:
    for program in PROGRAMS[form][:2]:
        publish(broker, 1, 2)
        with start(program, broker, tmp_path) as worker:
            assert [worker.line(), worker.line()] == ["{'job': 1}", "{'job': 2}"]
            worker.stop()  # acknowledges what it has done


@EACH_FORM
def test_the_worker_with_a_database_records_each_job_and_the_monitor_sees_it(
    form: str, broker: BrokerProcess, tmp_path: Path
) -> None:
    _, _, once, monitoring = PROGRAMS[form]
    publish(broker, *range(3))
    with start(once, broker, tmp_path) as worker:
        left = ""
        while left != "jobs 0 1":  # the queue is empty, and the worker is still its consumer
            assert worker.is_running, worker.err
            with start(monitoring, broker, tmp_path) as monitor:
                left = monitor.line()
    with closing(sqlite3.connect(tmp_path / "results.db")) as database:
        found = {job for (job,) in database.execute("select job from results")}
    assert found >= {'{"job": 0}', '{"job": 1}', '{"job": 2}'}
