"""The fixtures, as users get them: by name, from the entry point, with pytest-trio or without."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from haclient.ha import HAClient
from haclient_fake_server.cluster import Cluster
from haclient_fake_server.faults import Cut
from haclient_fake_server.processes import BrokerProcess
from haclient_fake_server.pytest_plugin import ClusterFactory
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


def test_it_is_registered_for_users() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"haclient": PLUGIN}
