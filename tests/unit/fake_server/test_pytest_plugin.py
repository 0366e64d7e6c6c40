"""The fixtures, as users get them: by name, from the entry point, with pytest-trio or without."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import trio

from haclient.client import HAClient
from haclient_fake_server.pytest_plugin import ClusterFactory
from haclient_fake_server.testing.cluster import Cluster
from haclient_fake_server.testing.cluster_thread import ClusterThread
from haclient_fake_server.testing.faults import Cut
from haclient_fake_server.testing.processes import BrokerProcess
from support.broker import RawClient
from support.clock import in_virtual_time
from support.journey import Journey

ROOT = Path(__file__).parents[3]
PLUGIN = "haclient_fake_server.pytest_plugin"


@pytest.mark.row("FI1", "FI7")
async def test_amps_broker_is_there_and_can_be_disturbed(amps_broker: Cluster) -> None:
    async with Journey([amps_broker.uri]) as journey:
        await amps_broker.apply(Cut())
        await journey.publish(3)
        await journey.arrive()


@pytest.mark.row("FI7")
@in_virtual_time
async def test_amps_memory_broker_lives_in_virtual_time(amps_memory_broker: Cluster) -> None:
    assert amps_memory_broker.uri.startswith("mem://")
    async with HAClient("a", servers=[amps_memory_broker.uri]) as client:
        await client.flush()


@pytest.mark.row("FI4")
async def test_amps_cluster_starts_clusters(amps_cluster: ClusterFactory) -> None:
    first = await amps_cluster("a", "b", mode="async")
    second = await amps_cluster("a", "b")
    assert len({*first.uris, *second.uris}) == 4
    assert first.destination("a", "b").mode == "async"


async def test_amps_broker_process_is_a_process(amps_broker_process: BrokerProcess) -> None:
    async with RawClient.connect(amps_broker_process.uri) as client:
        assert (await client.logon("p")).status == "success"
    amps_broker_process.kill()
    assert not amps_broker_process.is_running


ORDERS = {"sow": ["orders:/id"], "queues": ["jobs,max_backlog=10"], "users": {"ann": "secret"}}


async def check_orders(uri: str) -> None:
    """The broker has the configuration of `ORDERS`."""
    async with RawClient.connect(uri) as client:
        assert (await client.logon("p")).reason == "auth failure"
    async with RawClient.connect(uri) as client:
        await client.logon("p", user_id="ann", pw="secret")
        for topic in ("orders", "jobs"):
            await client.send(c="sow", cid=topic, t=topic, a="processed")
            assert (await client.ack("processed", topic)).status == "success"


@pytest.mark.amps(**ORDERS)
async def test_a_mark_configures_the_broker_of_a_test(amps_broker: Cluster) -> None:
    await check_orders(amps_broker.uri)


@pytest.mark.amps(**ORDERS)
async def test_a_mark_configures_a_process(amps_broker_process: BrokerProcess) -> None:
    await check_orders(amps_broker_process.uri)


@pytest.mark.amps(**ORDERS)
def test_a_mark_configures_a_broker_in_a_thread(amps_broker_thread: ClusterThread) -> None:
    trio.run(check_orders, amps_broker_thread.uri)


@pytest.mark.amps(sow=["orders:/id"], users={"ann": "1"})
class TestMarks:
    """The mark of a function comes first, keyword by keyword."""

    @pytest.mark.amps(queues=["jobs"], users={"ann": "secret"})
    async def test_they_are_joined(self, amps_cluster: ClusterFactory) -> None:
        cluster = await amps_cluster("a")
        await check_orders(cluster.uri)


SILENT = """
import sys

def test_nothing_is_loaded():
    ours = {name.partition(".")[0] for name in sys.modules}
    assert not ours & {"trio", "haclient", "haclient_stores", "msgspec"}
"""
PROCESS = """
def test_a_process(amps_broker_process):
    assert amps_broker_process.uri.startswith("tcp://127.0.0.1:")
"""
ANYIO = """
import pytest

@pytest.fixture
def anyio_backend():
    return "trio"

async def test_it(anyio_backend, amps_under_trio): pass
def test_sync(anyio_backend, amps_under_trio): pass
"""
WRONG = """
import pytest

@pytest.mark.amps(queue=["jobs"])
def test_keyword(amps_broker_thread): pass

@pytest.mark.amps(sow=["orders"])
def test_value(amps_broker_process): pass

@pytest.mark.amps(users={"ann": "1", "#bob": "2"})
def test_users(amps_broker_process): pass
"""
WITH_TRIO = """
import pytest
from hypothesis import HealthCheck, given, settings, strategies
from haclient import HAClient

@pytest.mark.trio
async def test_a_client(amps_broker):
    async with HAClient("a", servers=[amps_broker.uri]) as client:
        await client.flush()

@pytest.mark.trio
@settings(max_examples=2, suppress_health_check=list(HealthCheck), deadline=None)
@given(number=strategies.integers())
async def test_a_property(amps_cluster, number):
    assert await amps_cluster("a", on="memory")

@pytest.mark.trio
class TestIt:
    async def test_a_method(self, amps_memory_broker):
        assert amps_memory_broker.uri

@pytest.fixture
async def own(amps_broker):
    return amps_broker.uri

@pytest.mark.trio
async def test_a_fixture_of_their_own(own):
    assert own
"""
WRONG_WITH_TRIO = """
import pytest

@pytest.mark.trio
@pytest.mark.amps(queue=["jobs"])
async def test_keyword(amps_broker): pass
"""
NAMES = ("amps_broker", "amps_memory_broker", "amps_cluster")
MARKED, UNMARKED = "@pytest.mark.trio\nasync def", "async def"
SYNC, MARKED_SYNC = "def", "@pytest.mark.trio\ndef"


def misplaced(*kinds: str) -> str:
    """Tests of each kind that ask for each async fixture."""
    tests = (
        f"{kind} test_{name}_{number}({name}): pass\n"
        for number, kind in enumerate(kinds)
        for name in NAMES
    )
    return "import pytest\n" + "".join(tests)


def run(folder: Path, *options: str, ini: str = "", **sources: str) -> str:
    """The output of a separate pytest for some files, with only the named plugins."""
    for name, source in sources.items():
        (folder / f"test_{name}.py").write_text(source, encoding="utf-8")
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}\n", encoding="utf-8")
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", PLUGIN, *options],
        cwd=folder,
        env={
            "PYTHONPATH": paths,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PATH": os.environ["PATH"],
        },
        capture_output=True,
        text=True,
        check=False,
    ).stdout


@pytest.fixture(scope="module")
def without_trio(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of a run without pytest-trio; starting pytest costs more than the tests."""
    return run(
        tmp_path_factory.mktemp("without"),
        "--strict-markers",
        "-o",
        "markers=trio",
        a_silent=SILENT,
        anyio=ANYIO,
        misplaced=misplaced(MARKED, UNMARKED, SYNC),
        process=PROCESS,
        wrong=WRONG,
    )


@pytest.fixture(scope="module")
def with_trio(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of a run with pytest-trio."""
    return run(
        tmp_path_factory.mktemp("with"),
        "-p",
        "pytest_trio.plugin",
        misplaced=misplaced(UNMARKED, SYNC, MARKED_SYNC),
        with_trio=WITH_TRIO,
        wrong=WRONG_WITH_TRIO,
    )


def test_loading_it_loads_nothing_of_ours_and_no_trio(without_trio: str) -> None:
    assert "PASSED test_a_silent.py::test_nothing_is_loaded" in without_trio


def test_without_pytest_trio_the_process_is_there_and_nothing_else_breaks(
    without_trio: str,
) -> None:
    assert "PASSED test_process.py::test_a_process" in without_trio


def test_a_wrong_mark_is_said_in_one_line(without_trio: str) -> None:
    known = "There are sow, queues, users, log_topics, message_types"
    for said in (
        f"unknown keyword 'queue', did you mean queues? {known}",
        "sow orders: expected TOPIC:/key[,/key][,history][,pattern][,file_backed]",
        "users: a broker process reads them from lines user:password: wanted users without ':' and",
    ):
        assert f"\n@pytest.mark.amps: {said}" in without_trio


def test_a_wrong_mark_is_said_once_with_pytest_trio(with_trio: str) -> None:
    assert with_trio.count("\n@pytest.mark.amps: unknown keyword 'queue'") == 1


def test_with_pytest_trio_a_marked_test_gets_a_broker(with_trio: str) -> None:
    assert "PASSED test_with_trio.py::test_a_client" in with_trio


def test_what_an_async_fixture_needs_is_said_in_one_line(with_trio: str, without_trio: str) -> None:
    for output in (with_trio, without_trio):
        for name in NAMES:
            assert output.count(f"ERROR test_misplaced.py::test_{name}_") == 3
            said = f"{name} needs pytest-trio and an async test, marked @pytest.mark.trio or run"
            others = 1 if output is without_trio and name == "amps_cluster" else 0  # under anyio
            assert output.count(f"\n{said} with trio_mode = true\n") == 3 + others
        assert "Traceback" not in output


def test_a_test_of_anyio_is_left_to_it(without_trio: str) -> None:
    assert "ERROR test_anyio.py::test_sync" in without_trio
    assert "FAILED test_anyio.py::test_it" in without_trio
    assert "async def functions are not natively supported" in without_trio


def test_hypothesis_and_methods_get_a_broker_under_pytest_trio(with_trio: str) -> None:
    for test in ("test_a_property", "TestIt::test_a_method", "test_a_fixture_of_their_own"):
        assert f"PASSED test_with_trio.py::{test}" in with_trio


def test_a_mode_of_pytest_asyncio_that_takes_all_fixtures_is_named(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser): parser.addini('asyncio_mode', 'as pytest-asyncio has it')"
    )
    source = "async def test_it(amps_broker): pass"
    output = run(tmp_path, "-p", "pytest_trio.plugin", ini="asyncio_mode = auto", it=source)
    assert "amps_broker runs under trio, and with asyncio_mode = auto pytest-asyncio" in output


def test_it_is_registered_for_users() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"haclient": PLUGIN}
