"""Fixtures for pytest: brokers and clusters to test an application against.

Installed with the package, under the name `haclient`; `-p no:haclient` switches it off. Loading it
does not import the package, so a test run that uses no fixture pays nothing.

| fixture | gives | needs |
|---|---|---|
| `amps_broker` | a `Cluster` of one broker, in this process, on TCP | an async test under trio |
| `amps_memory_broker` | the same on `mem://`, for virtual time | an async test under trio |
| `amps_cluster` | clusters: `await amps_cluster("east", "west")` | an async test under trio |
| `amps_broker_thread` | a `ClusterThread` of one broker, on TCP | a test without trio |
| `amps_broker_process` | a `BrokerProcess`, to kill, pause and start again | nothing |

`@pytest.mark.amps(sow=["orders:/id"], queues=["jobs,max_backlog=10"])` on a test, its class or its
module configures the brokers of all of them; see `marked_config`.

Async fixtures need pytest-trio (or anyio's plugin with its trio backend), and fail with one line
where neither runs the test. Brokers listen on free ports of the loopback interface, keep their data
in a temporary directory, and end with the test.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Literal, Protocol

import pytest

if TYPE_CHECKING:
    from haclient_fake_server.config import BrokerConfig
    from haclient_fake_server.testing.cluster import Cluster, On
    from haclient_fake_server.testing.cluster_thread import ClusterThread
    from haclient_fake_server.testing.processes import BrokerProcess

__all__ = [
    "ClusterFactory",
    "amps_broker",
    "amps_broker_process",
    "amps_broker_thread",
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
            config: Everything else; see `Cluster`. The default is that of the mark `amps`.

        Returns:
            The cluster, when all its brokers listen.

        Raises:
            UsageError: A name or a word cannot be, or a broker cannot be configured so.
            HAClientError: A broker did not start.
        """
        ...


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, for `--strict-markers`."""
    text = "amps(sow=, queues=, users=, log_topics=, message_types=): configures the test's brokers"
    config.addinivalue_line("markers", text)


def _marked_config(request: pytest.FixtureRequest, *, is_process: bool) -> BrokerConfig | None:
    """The configuration from the marks of a test; `None` if there are none.

    The mark of a function comes before that of its class and of its module, keyword by keyword.
    """
    marks = list(request.node.iter_markers("amps"))
    if not marks:
        return None
    from haclient.errors import UsageError  # noqa: PLC0415 - loading the plugin must cost nothing
    from haclient_fake_server.config import BrokerConfig  # noqa: PLC0415 - the same
    from haclient_fake_server.testing.cluster import SEGMENT_BYTES  # noqa: PLC0415 - the same
    from haclient_fake_server.testing.marked_config import config_of  # noqa: PLC0415 - the same

    arguments = tuple(each for mark in marks for each in mark.args)
    keywords = {name: value for mark in reversed(marks) for name, value in mark.kwargs.items()}
    size = BrokerConfig().segment_bytes if is_process else SEGMENT_BYTES
    try:
        return config_of(arguments, keywords, segment_bytes=size)
    except UsageError as error:
        pytest.fail(f"@pytest.mark.amps: {error}", pytrace=False)


def _is_asyncio_auto(config: pytest.Config) -> bool:
    """Whether pytest-asyncio runs all async tests and fixtures."""
    try:
        mode: object = config.getoption("asyncio_mode", None) or config.getini("asyncio_mode")
    except ValueError:  # it is not installed
        return False
    return str(mode) in {"auto", "Mode.AUTO"}


@pytest.fixture
def amps_under_trio(request: pytest.FixtureRequest) -> None:
    """Used by the other fixtures: fails with one clear line where async ones cannot be run."""
    wanted = next((name for name in request.fixturenames if name in ASYNC), "amps_cluster")
    if _is_asyncio_auto(request.config):
        pytest.fail(
            f"{wanted} runs under trio, and with asyncio_mode = auto pytest-asyncio runs every "
            "async fixture: set asyncio_mode = strict, or use amps_broker_thread in asyncio tests",
            pytrace=False,
        )
    plugins = request.config.pluginmanager.get_plugins()
    has_trio = any(getattr(each, "__name__", "") == "pytest_trio.plugin" for each in plugins)
    test: object = getattr(request.node, "obj", None)
    test = getattr(getattr(test, "hypothesis", None), "inner_test", test)
    is_ours = has_trio and request.node.get_closest_marker("trio") is not None
    is_anyios = "anyio_backend" in request.fixturenames  # it runs async fixtures as well
    if inspect.iscoroutinefunction(test) and (is_ours or is_anyios):
        # A wrong mark fails here, once: pytest-trio would report it for each async fixture.
        _marked_config(request, is_process=False)
        return
    pytest.fail(
        f"{wanted} needs pytest-trio and an async test, marked @pytest.mark.trio or run with "
        "trio_mode = true",
        pytrace=False,
    )


@pytest.fixture
async def amps_cluster(
    request: pytest.FixtureRequest,
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
            marked = config or _marked_config(request, is_process=on == "process")
            cluster = Cluster(*names, on=on, mode=mode, config=marked)
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
def amps_broker_thread(request: pytest.FixtureRequest) -> Generator[ClusterThread]:
    """One broker in a thread of this process, on TCP: for plain and asyncio tests with faults."""
    from haclient_fake_server.testing.cluster_thread import (  # noqa: PLC0415 - as above
        ClusterThread,
    )

    config = _marked_config(request, is_process=False)
    with ClusterThread("broker", config=config) as broker:
        yield broker


@pytest.fixture
def amps_broker_process(request: pytest.FixtureRequest) -> Generator[BrokerProcess]:
    """One broker as a process, its journal in a temporary directory; it needs no trio."""
    from haclient_fake_server.testing.processes import BrokerProcess  # noqa: PLC0415 - as above

    with TemporaryDirectory() as folder:
        arguments = _process_arguments(request, Path(folder))
        with BrokerProcess(*arguments, data_dir=Path(folder) / "data") as broker:
            yield broker


def _process_arguments(request: pytest.FixtureRequest, folder: Path) -> list[str]:
    """The marks of a test as arguments of a broker process; users are written to a file."""
    config = _marked_config(request, is_process=True)
    if config is None:
        return []
    from haclient.errors import UsageError  # noqa: PLC0415 - as above
    from haclient_fake_server.testing.cluster import arguments_of  # noqa: PLC0415 - as above

    try:
        arguments = arguments_of(replace(config, users=None))
        if config.users is not None:
            arguments += ["--user-file", str(_user_file(config.users, folder))]
    except UsageError as error:
        pytest.fail(f"@pytest.mark.amps: {error}", pytrace=False)
    return arguments


def _user_file(users: Mapping[str, str], folder: Path) -> Path:
    """Users as the file of a broker process.

    Raises:
        UsageError: The file format cannot hold them.
    """
    from haclient.errors import UsageError  # noqa: PLC0415 - as above
    from haclient_fake_server.config import read_users  # noqa: PLC0415 - as above

    file = folder / "users"
    lines = [f"{user}:{password}\n" for user, password in users.items()]
    file.write_text("".join(lines), encoding="utf-8", newline="")
    if read_users(file) != users:
        raise UsageError(
            "users: a broker process reads them from lines user:password: wanted users without "
            "':' and without '#' at their beginning, and no line break"
        )
    return file
