"""One broker of a cluster, in this process or as a process of its own."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import trio

from haclient.errors import UsageError
from haclient.transport.memory import origin
from haclient_fake_server.config import BrokerConfig, LogTopic, ReplicateTo, SowTopic
from haclient_fake_server.server import BrokerServer
from haclient_fake_server.testing.faults import Kill
from haclient_fake_server.testing.processes import BrokerProcess

if TYPE_CHECKING:
    from haclient_fake_server.engine.destinations import DestinationStatus

__all__ = ["LocalBroker", "ProcessBroker", "arguments_of"]


class LocalBroker:
    """A broker in a task of this process.

    Args:
        config: What to run.
        nursery: Where.

    Attributes:
        address: Where it listens; the same after a restart.
        server: The broker, while it runs.
    """

    def __init__(self, config: BrokerConfig, nursery: trio.Nursery) -> None:
        (self.address,) = config.listen
        self._config = config
        self._nursery = nursery
        self.server: BrokerServer | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    @property
    def is_running(self) -> bool:
        """Whether it serves."""
        return self.server is not None

    async def start(self) -> None:
        """Start it on the data that it has left; does nothing while it runs."""
        if self.server is None:
            self._scope, self._ended = trio.CancelScope(), trio.Event()
            await self._nursery.start(self._run)

    async def kill(self) -> None:
        """End it now; every acknowledged message is in its journal at any moment."""
        self._scope.cancel()
        if self.server is not None:
            await self._ended.wait()

    async def kill_at(self, fault: Kill) -> None:
        """A SIGKILL would end this process.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"a kill at {fault.at} takes a broker that is a process: on='process'")

    @property
    def destinations(self) -> tuple[DestinationStatus, ...]:
        """Where it replicates to, and how far that is; empty while it does not run."""
        return self.server.destinations if self.server is not None else ()

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        origin.set(self._config.name)  # what this task and its children dial is known by its name
        try:
            with self._scope:
                config = replace(self._config, listen=(self.address,))
                async with BrokerServer(config) as server:
                    (self.address,) = server.uris
                    self.server = server
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self.server = None
            self._ended.set()


class ProcessBroker:
    """A broker that is a process.

    Args:
        config: What to run.

    Raises:
        UsageError: The command line has no words for something in it.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.process = BrokerProcess(
            *arguments_of(config), data_dir=config.data_dir, listen=config.listen[0]
        )

    @property
    def address(self) -> str:
        """Where it listens; the same after a restart."""
        return self.process.address

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self.process.is_running

    async def start(self) -> None:
        """Start it on the data that it has left; does nothing while it runs."""
        if not self.is_running:
            await trio.to_thread.run_sync(self.process.start)

    async def kill(self) -> None:
        """SIGKILL."""
        await trio.to_thread.run_sync(self.process.kill)

    async def kill_at(self, fault: Kill) -> None:
        """SIGKILL, at a point."""
        await trio.to_thread.run_sync(self.process.kill_at, fault)

    @property
    def destinations(self) -> tuple[DestinationStatus, ...]:
        """Not known of a process.

        Raises:
            UsageError: Always.
        """
        raise UsageError("how far replication is, is known of brokers of this process only")


def arguments_of(config: BrokerConfig) -> list[str]:
    """A configuration as arguments of `python -m haclient_fake_server`, but for address and data.

    Raises:
        UsageError: The command line has no words for something in it.
    """
    plain = BrokerConfig(
        name=config.name,
        listen=config.listen,
        data_dir=config.data_dir,
        log_topics=tuple(LogTopic(each.pattern) for each in config.log_topics)
        or BrokerConfig().log_topics,
        sow_topics=tuple(SowTopic(each.name, each.keys) for each in config.sow_topics),
        replicate_to=tuple(ReplicateTo(each.uri, each.mode) for each in config.replicate_to),
        fsync=config.fsync,
        segment_bytes=config.segment_bytes,
    )
    names = [field.name for field in fields(config)]
    mute = [name for name in names if getattr(config, name) != getattr(plain, name)]
    if "replicate_to" in mute:
        mute.remove("replicate_to")
        mute += _mute_of_replication(config.replicate_to)
    if mute:
        raise UsageError(f"a broker that is a process cannot be told its {', '.join(mute)}")
    arguments = ["--name", plain.name]
    for topic in plain.log_topics:
        arguments += ["--log-topic", topic.pattern]
    for sow in plain.sow_topics:
        arguments += ["--sow", f"{sow.name}:{','.join(sow.keys)}"]
    for to in plain.replicate_to:
        arguments += ["--replicate-to", f"{to.uri},{to.mode}"]
    arguments += ["--fsync", plain.fsync, "--segment-bytes", str(plain.segment_bytes)]
    return arguments


def _mute_of_replication(targets: tuple[ReplicateTo, ...]) -> list[str]:
    """What is not the usual value in any of them: users gave that, and know it by its name."""
    plain = [(each, ReplicateTo(each.uri, each.mode)) for each in targets]
    return [
        field.name
        for field in fields(ReplicateTo)
        if any(getattr(each, field.name) != getattr(usual, field.name) for each, usual in plain)
    ]
