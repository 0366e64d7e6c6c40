"""The fixtures, as users get them: by name, from the entry point, with pytest-trio or without."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from haclient.ha import HAClient
from haclient_fake_server.pytest_plugin import ClusterFactory
from haclient_fake_server.testing.cluster import Cluster
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
    amps_broker_process.kill()
    amps_broker_process.start()
    async with RawClient.connect(amps_broker_process.uri) as client:
        assert (await client.logon("p")).status == "success"


def run(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A pytest of its own, with nothing but what is named."""
    (folder / "test_it.py").write_text(source, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, *options],
        cwd=folder,
        env={
            "PYTHONPATH": paths,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PATH": os.environ["PATH"],
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_loading_it_loads_nothing_of_ours_and_no_trio(tmp_path: Path) -> None:
    source = """
import sys
def test_nothing_is_loaded():
    ours = {name.partition(".")[0] for name in sys.modules}
    assert not ours & {"trio", "haclient", "haclient_stores", "msgspec"}
"""
    done = run(tmp_path, source)
    assert "1 passed" in done.stdout, done.stdout


def test_without_pytest_trio_the_process_is_there_and_nothing_else_breaks(tmp_path: Path) -> None:
    source = """
def test_a_process(amps_broker_process):
    assert amps_broker_process.uri.startswith("tcp://127.0.0.1:")
"""
    done = run(tmp_path, source)
    assert "1 passed" in done.stdout, done.stdout


def test_with_pytest_trio_a_marked_test_gets_a_broker(tmp_path: Path) -> None:
    source = """
import pytest
from haclient import HAClient

@pytest.mark.trio
async def test_a_client(amps_broker):
    async with HAClient("a", servers=[amps_broker.uri]) as client:
        await client.flush()
"""
    done = run(tmp_path, source, "-p", "pytest_trio.plugin")
    assert "1 passed" in done.stdout, done.stdout


TRIO = ("-p", "pytest_trio.plugin")
MARKED, UNMARKED = "@pytest.mark.trio\nasync def", "async def"
SYNC, MARKED_SYNC = "def", "@pytest.mark.trio\ndef"


@pytest.mark.parametrize(
    ("kinds", "options"),
    [((MARKED, UNMARKED, SYNC), ()), ((UNMARKED, SYNC, MARKED_SYNC), TRIO)],
)
def test_what_an_async_fixture_needs_is_said_in_one_line(
    tmp_path: Path, kinds: tuple[str, ...], options: tuple[str, ...]
) -> None:
    names = ["amps_broker", "amps_memory_broker", "amps_cluster"]
    source = "import pytest\n"
    for number, kind in enumerate(kinds):
        for name in names:
            source += f"{kind} test_{name}_{number}({name}): pass\n"
    done = run(tmp_path, source, *options)
    assert f"{len(names) * len(kinds)} errors" in done.stdout, done.stdout
    for name in names:
        said = f"{name} needs pytest-trio and an async test, marked @pytest.mark.trio or run with"
        assert done.stdout.count(f"\n{said} trio_mode = true\n") == len(kinds), done.stdout
    assert "Traceback" not in done.stdout


def test_a_test_of_anyio_is_left_to_it(tmp_path: Path) -> None:
    source = """
import pytest

@pytest.fixture
def anyio_backend():
    return "trio"

async def test_it(anyio_backend, amps_under_trio): pass
def test_sync(anyio_backend, amps_under_trio): pass
"""
    done = run(tmp_path, source)
    assert done.stdout.count("needs pytest-trio and an async test") == 1, done.stdout
    assert "ERROR test_it.py::test_sync" in done.stdout, done.stdout
    assert "async def functions are not natively supported" in done.stdout, done.stdout


def test_hypothesis_and_methods_get_a_broker_under_pytest_trio(tmp_path: Path) -> None:
    source = """
import pytest
from hypothesis import HealthCheck, given, settings, strategies

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
    done = run(tmp_path, source, *TRIO)
    assert "3 passed" in done.stdout, done.stdout


def test_it_is_registered_for_users() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"haclient": PLUGIN}
