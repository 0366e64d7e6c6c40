"""Fixtures for pytest: brokers and clusters to test an application against.

Installed with the package, under the name `haclient`; `-p no:haclient` switches it off. Loading it
does not import the package, so a test run that uses no fixture pays nothing.

| fixture | gives | needs |
|---|---|---|
| `amps_broker` | a `Cluster` of one broker, in this process, on TCP | an async test under trio |
| `amps_memory_broker` | the same on `mem://`, for virtual time | an async test under trio |
| `amps_cluster` | clusters: `await amps_cluster("east", "west")` | an async test under trio |
| `amps_broker_process` | a `BrokerProcess`, to kill, pause and start again | nothing |

Async fixtures need pytest-trio (or anyio's plugin with its trio backend), and fail with one line
where neither runs the test. Brokers listen on free ports of the loopback interface, keep their data
in a temporary directory, and end with the test.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Literal, Protocol

import pytest

if TYPE_CHECKING:
    from haclient_fake_server.config import BrokerConfig
    from haclient_fake_server.testing.cluster import Cluster, On
    from haclient_fake_server.testing.processes import BrokerProcess

__all__ = [
    "ClusterFactory",
    "amps_broker",
    "amps_broker_process",
    "amps_cluster",
    "amps_memory_broker",
    "amps_under_trio",
]

ASYNC: Final = frozenset({"amps_broker", "amps_cluster", "amps_memory_broker"})
"""The fixtures that have to be run under trio."""


class ClusterFactory(Protocol):
    """Starts clusters; the fixture `amps_cluster`."""

    async def __call__(
        self,
        *names: str,
        on: On = "tcp",
        mode: Literal["sync", "async"] = "sync",
        config: BrokerConfig | None = None,
    ) -> Cluster:
        """Start brokers that replicate to each other; they end with the test.

        Use `async with Cluster(...)` for further options.

        Args:
            names: The brokers' instance names, one or more.
            on: How the brokers run.
            mode: How they replicate.
            config: Everything else; see `Cluster`.

        Returns:
            The cluster, when all its brokers listen.

        Raises:
            UsageError: A name or a word cannot be, or a broker cannot be configured so.
            HAClientError: A broker did not start.
        """
        ...


@pytest.fixture
def amps_under_trio(request: pytest.FixtureRequest) -> None:
    """Used by the other fixtures: fails with one clear line where async ones cannot be run."""
    plugins = request.config.pluginmanager.get_plugins()
    has_trio = any(getattr(each, "__name__", "") == "pytest_trio.plugin" for each in plugins)
    test: object = getattr(request.node, "obj", None)
    test = getattr(getattr(test, "hypothesis", None), "inner_test", test)
    is_ours = has_trio and request.node.get_closest_marker("trio") is not None
    is_anyios = "anyio_backend" in request.fixturenames  # it runs async fixtures as well
    if inspect.iscoroutinefunction(test) and (is_ours or is_anyios):
        return
    wanted = next((name for name in request.fixturenames if name in ASYNC), "amps_cluster")
    pytest.fail(
        f"{wanted} needs pytest-trio and an async test, marked @pytest.mark.trio or run with "
        "trio_mode = true",
        pytrace=False,
    )


@pytest.fixture
async def amps_cluster(
    amps_under_trio: None,  # noqa: ARG001 - set up before, for its error
) -> AsyncGenerator[ClusterFactory]:
    """Clusters of brokers that replicate to each other; call it with their names, and await."""
    import trio  # noqa: PLC0415 - loading the plugin must cost nothing

    from haclient_fake_server.testing.cluster import Cluster, run_cluster  # noqa: PLC0415 - the same

    async with trio.open_nursery() as nursery:

        async def start(
            *names: str,
            on: On = "tcp",
            mode: Literal["sync", "async"] = "sync",
            config: BrokerConfig | None = None,
        ) -> Cluster:
            cluster = Cluster(*names, on=on, mode=mode, config=config)
            await nursery.start(run_cluster, cluster)
            return cluster

        yield start
        nursery.cancel_scope.cancel()


@pytest.fixture
async def amps_broker(amps_cluster: ClusterFactory) -> Cluster:
    """One broker in this process, on TCP; connect to `amps_broker.uri`."""
    return await amps_cluster("broker")


@pytest.fixture
async def amps_memory_broker(amps_cluster: ClusterFactory) -> Cluster:
    """One broker in this process, in memory: for tests under `autojump_clock`."""
    return await amps_cluster("broker", on="memory")


@pytest.fixture
def amps_broker_process() -> Generator[BrokerProcess]:
    """One broker as a process, its journal in a temporary directory; it needs no trio."""
    from haclient_fake_server.testing.processes import BrokerProcess  # noqa: PLC0415 - as above

    with (
        TemporaryDirectory() as folder,
        BrokerProcess(data_dir=Path(folder) / "data") as broker,
    ):
        yield broker
