"""One broker or several that replicate to each other, with faults between all of them.

::

    async with Cluster("east", "west") as cluster:
        async with HAClient("orders", servers=cluster.uris) as client:
            await cluster.apply(Partition("east", "west"))
            ...
            await cluster.apply(Heal(), Kill("east"))

All connections from clients to a broker, and from one broker to another, go through a `Wire` of
their own. `on` chooses how the brokers run: in this process on TCP, in this process in memory
(`mem://`, for virtual time), or as processes. Nothing else changes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias, get_args

import trio

from haclient.errors import UsageError
from haclient.transport.links.memory_network import network, origin
from haclient.transport.tasks import open_nursery
from haclient_fake_server.config import (
    BrokerConfig,
    LogTopic,
    ReplicateTo,
    SowTopic,
    entitlement_argument,
    parse_queue,
    queue_argument,
    sow_argument,
)
from haclient_fake_server.engine.replication.destination import DestinationStatus
from haclient_fake_server.server import BrokerServer
from haclient_fake_server.testing.faults import (
    BOTH,
    CLIENT,
    Acks,
    Cut,
    Direction,
    Fault,
    Heal,
    Kill,
    LinkFault,
    Partition,
    Refuse,
    Restart,
    Slow,
    check_fault,
)
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_fake_server.testing.proxy import FaultProxy, MemorySwitch, Wire

__all__ = ["Cluster", "LocalBroker", "On", "ProcessBroker", "arguments_of", "run_cluster"]


class LocalBroker:
    """A broker in a task of this process.

    Args:
        config: The configuration of the broker.
        nursery: In which its task runs.

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
        """Start the broker on the data of its earlier run; does nothing while it runs.

        Raises:
            StoreError: Its journal cannot be opened.
            OSError: Its address cannot be used for listening.
        """
        if self.server is None:
            self._scope, self._ended = trio.CancelScope(), trio.Event()
            await self._nursery.start(self._run)

    async def kill(self) -> None:
        """Cancel the broker's task. What it has acknowledged is in its journal at any moment."""
        self._scope.cancel()
        if self.server is not None:
            await self._ended.wait()

    async def kill_at(self, fault: Kill) -> None:
        """Not possible here: SIGKILL would end this process.

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
        config: The configuration of the broker.

    Raises:
        UsageError: The command line has no option for something in the configuration.
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
        """Start the broker on the data of its earlier run; does nothing while it runs.

        Raises:
            HAClientError: The process ended instead of listening.
            TimedOut: It does not listen after five minutes.
        """
        if not self.is_running:
            await trio.to_thread.run_sync(self.process.start)

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end of the process."""
        await trio.to_thread.run_sync(self.process.kill)

    async def kill_at(self, fault: Kill) -> None:
        """Have the process kill itself at a point; see `BrokerProcess.kill_at`."""
        await trio.to_thread.run_sync(self.process.kill_at, fault)

    @property
    def destinations(self) -> tuple[DestinationStatus, ...]:
        """Not known of a process.

        Raises:
            UsageError: Always.
        """
        raise UsageError("how far replication is, is known of brokers of this process only")


def arguments_of(config: BrokerConfig) -> list[str]:
    """A configuration as arguments of `haclient broker run`.

    Args:
        config: The configuration of the broker; its addresses and its directory are left out.

    Raises:
        UsageError: The command line has no option for something in the configuration.
    """
    plain = BrokerConfig(
        name=config.name,
        listen=config.listen,
        data_dir=config.data_dir,
        log_topics=tuple(LogTopic(each.pattern) for each in config.log_topics)
        or BrokerConfig().log_topics,
        sow_topics=tuple(
            replace(each, message_type=SowTopic("").message_type) for each in config.sow_topics
        ),
        queues=tuple(parse_queue(queue_argument(each)) for each in config.queues),
        entitlements=config.entitlements,
        message_types=config.message_types,
        replicate_to=tuple(ReplicateTo(each.uri, each.mode) for each in config.replicate_to),
        fsync=config.fsync,
        segment_bytes=config.segment_bytes,
        admin=config.admin,
    )
    names = [field.name for field in fields(config)]
    unsupported = [name for name in names if getattr(config, name) != getattr(plain, name)]
    if "replicate_to" in unsupported:
        unsupported.remove("replicate_to")
        unsupported += _unsupported_of_replication(config.replicate_to)
    if unsupported:
        raise UsageError(
            f"the command line of a broker process has no option for: {', '.join(unsupported)}"
        )
    arguments = ["--name", plain.name]
    for topic in plain.log_topics:
        arguments += ["--log-topic", topic.pattern]
    for sow in plain.sow_topics:
        arguments += ["--sow", sow_argument(sow)]
    for queue in plain.queues:
        arguments += ["--queue", queue_argument(queue)]
    for name in plain.message_types:
        arguments += ["--message-type", name]
    for each in plain.entitlements:
        arguments += ["--entitle", entitlement_argument(each)]
    for to in plain.replicate_to:
        arguments += ["--replicate-to", f"{to.uri},{to.mode}"]
    if plain.admin:
        arguments += ["--admin", plain.admin]
    arguments += ["--fsync", plain.fsync, "--segment-bytes", str(plain.segment_bytes)]
    return arguments


def _unsupported_of_replication(targets: tuple[ReplicateTo, ...]) -> list[str]:
    """The names of the attributes that the command line has no option for and that were given."""
    plain = [(each, ReplicateTo(each.uri, each.mode)) for each in targets]
    return [
        field.name
        for field in fields(ReplicateTo)
        if any(getattr(each, field.name) != getattr(usual, field.name) for each, usual in plain)
    ]


On: TypeAlias = Literal["tcp", "memory", "process"]
"""How the brokers of a cluster run: in this process, on TCP or in memory, or as processes."""

SEGMENT_BYTES: Final = 4 * 2**20
"""Small journal files: a test's brokers come and go."""

PORT: Final = 9007
"""The port of `mem://` addresses, where every number is free."""


class Cluster:
    """Running brokers, for as long as the `async with` block.

    Args:
        names: The brokers' instance names, one or more.
        on: How the brokers run.
        links: By broker, those that it replicates to; `None` for each to all others.
        mode: How they replicate.
        heartbeat_s: In seconds; see `ReplicateTo`.
        downgrade_after_s: In seconds; see `ReplicateTo`.
        config: Everything else; the cluster sets `name`, `listen`, `replicate_to` and `data_dir`.
            With `on="process"` only what `haclient-fake-server` has options for.
        data_dir: The directory of the journals; `None` for a temporary one.

    Raises:
        UsageError: `on` is none of these; or there is no name, or one is used twice, is unknown, or
            is `client`.
    """

    def __init__(  # noqa: PLR0913  # the parts of a cluster, all by keyword
        self,
        *names: str,
        on: On = "tcp",
        links: Mapping[str, Sequence[str]] | None = None,
        mode: Literal["sync", "async"] = "sync",
        heartbeat_s: float = 3.0,
        downgrade_after_s: float | None = None,
        config: BrokerConfig | None = None,
        data_dir: Path | None = None,
    ) -> None:
        if on not in get_args(On):
            raise UsageError(f"on={on!r}: wanted one of {', '.join(map(repr, get_args(On)))}")
        if not names or not all(map(_is_name, names)):
            raise UsageError(f"a cluster of {names}: wanted names, as in Cluster('east', 'west')")
        self.names = names
        if links is None:
            links = {name: [each for each in self.names if each != name] for name in self.names}
        known = {*self.names} - {CLIENT}
        linked = {*links, *(target for targets in links.values() for target in targets)}
        if len(known) < len(self.names) or linked - known:
            raise UsageError(
                f"brokers {self.names}, links {dict(links)}: wanted names that differ, none of "
                f"them {CLIENT!r}, and links between them"
            )
        self._links = {(name, to) for name in links for to in links[name]}
        self._on = on
        self._replicate = (mode, downgrade_after_s, heartbeat_s)
        default = BrokerConfig() if on == "process" else BrokerConfig(segment_bytes=SEGMENT_BYTES)
        self._config = config or default
        self._data_dir = data_dir
        self._stack = AsyncExitStack()
        self._scope = trio.CancelScope()
        self._nodes: dict[str, LocalBroker | ProcessBroker] = {}
        self._proxies: dict[tuple[str, str], FaultProxy] = {}
        self._wires: dict[tuple[str, str], Wire] = {}
        self._addresses: dict[tuple[str, str], str] = {}

    async def __aenter__(self) -> Self:
        """Start all brokers; returns when they listen.

        Raises:
            UsageError: A broker that is a process cannot be configured so.
            HAClientError: A broker did not start.
            OSError: An address cannot be used for listening.
        """
        async with AsyncExitStack() as stack:
            folder = self._data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            nursery = await stack.enter_async_context(open_nursery())
            await self._make_wires(stack)
            for name in self.names:
                config = self._config_of(name, folder / name)
                node = self._nodes[name] = self._make_node(config, nursery, stack)
                await node.start()
                for (_, target), proxy in self._proxies.items():
                    if target == name:
                        proxy.target = node.address
            self._scope = nursery.cancel_scope
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all brokers and connections."""
        self._scope.cancel()
        await self._stack.__aexit__(kind, error, traceback)

    # -- for clients --------------------------------------------------------------------------

    @property
    def uris(self) -> list[str]:
        """The addresses for clients, in the order of the names; the same after restarts."""
        return [f"{self._addresses[CLIENT, name]}/amps/json" for name in self.names]

    @property
    def uri(self) -> str:
        """The first of `uris`."""
        return self.uris[0]

    # -- for tests ----------------------------------------------------------------------------

    async def apply(self, *faults: Fault) -> None:
        """Apply faults, one after the other.

        Args:
            faults: What goes wrong, or is undone.

        Raises:
            UsageError: One of them is not a fault, and none is applied; or one names an unknown
                broker, and those before it are applied.
            HAClientError: A broker did not start again.
        """
        for fault in faults:
            check_fault(fault)
        for fault in faults:
            match fault:
                case Kill():
                    await self._kill(fault)
                case Restart():
                    node = self._node(fault.name)
                    await node.kill()
                    await node.start()
                case Partition():
                    self._partition(fault)
                case Heal():
                    for wire in self._wires_between(fault.a, fault.b):
                        wire.heal()
                case Cut() | Acks() | Slow() | Refuse():
                    for wire in self._wires_of(fault):
                        wire.apply(fault)

    def wire(self, source: str, target: str) -> Wire:
        """The wire of the connections from a dialler to a broker.

        Args:
            source: A broker's name, or `CLIENT`.
            target: A broker's name.

        Raises:
            UsageError: There are no such connections.
        """
        if (source, target) not in self._wires:
            raise UsageError(f"no connections from {source!r} to {target!r} in this cluster")
        return self._wires[source, target]

    def is_running(self, name: str) -> bool:
        """Whether a broker runs.

        Raises:
            UsageError: There is no such broker.
        """
        return self._node(name).is_running

    def process(self, name: str) -> BrokerProcess:
        """The process of a broker, for its id, its output, `pause` and `resume`.

        Raises:
            UsageError: There is no such broker, or the brokers are not processes.
        """
        node = self._node(name)
        if not isinstance(node, ProcessBroker):
            raise UsageError(f"{name!r} is not a process: the cluster is on={self._on!r}")
        return node.process

    def destination(self, source: str, target: str) -> DestinationStatus:
        """The state of the replication from one broker to another.

        Args:
            source: Name of the sending broker, which must run in this process.
            target: Name of the receiving broker.

        Raises:
            UsageError: It does not replicate there, is a process, or does not run.
        """
        address = self._addresses.get((source, target), "")
        for status in self._node(source).destinations:
            if status.address == address:
                return status
        raise UsageError(f"{source!r} does not run, or does not replicate to {target!r}")

    # -- implementation -----------------------------------------------------------------------

    async def _make_wires(self, stack: AsyncExitStack) -> None:
        pairs = [(CLIENT, name) for name in self.names] + sorted(self._links)
        switch = MemorySwitch(network()) if self._on == "memory" else None
        if switch is not None:
            stack.callback(switch.close)
        for source, target in pairs:
            if switch is not None:
                wire = switch.wire(source, f"{target}:{PORT}")
                address = f"mem://{target}:{PORT}"
            else:
                proxy = await stack.enter_async_context(FaultProxy())
                self._proxies[source, target] = proxy
                wire, address = proxy.wire, proxy.uri
            wire.on_cut = self._disarm
            self._wires[source, target] = wire
            self._addresses[source, target] = address

    def _config_of(self, name: str, folder: Path) -> BrokerConfig:
        mode, downgrade_after_s, heartbeat_s = self._replicate
        targets = [target for source, target in sorted(self._links) if source == name]
        return replace(
            self._config,
            name=name,
            listen=(f"mem://{name}:{PORT}" if self._on == "memory" else "tcp://127.0.0.1:0",),
            data_dir=folder,
            replicate_to=tuple(
                ReplicateTo(self._addresses[name, target], mode, downgrade_after_s, heartbeat_s)
                for target in targets
            ),
        )

    def _make_node(
        self, config: BrokerConfig, nursery: trio.Nursery, stack: AsyncExitStack
    ) -> LocalBroker | ProcessBroker:
        if self._on != "process":
            return LocalBroker(config, nursery)
        node = ProcessBroker(config)
        stack.callback(node.process.close)
        return node

    def _node(self, name: str) -> LocalBroker | ProcessBroker:
        if name not in self._nodes:
            raise UsageError(f"no broker {name!r} runs here; there are {', '.join(self.names)}")
        return self._nodes[name]

    def _wires_of(self, fault: LinkFault) -> list[Wire]:
        found = [
            wire
            for (source, target), wire in self._wires.items()
            if fault.source in {"", source} and fault.target in {"", target}
        ]
        if not found:
            raise UsageError(
                f"no connections from {fault.source!r} to {fault.target!r} in this cluster"
            )
        return found

    def _wires_between(self, a: str, b: str) -> list[Wire]:
        """The wires between two names in both directions; an empty name means all."""
        wanted = {a, b} - {""}
        found = [wire for pair, wire in self._wires.items() if wanted <= set(pair)]
        if not found:
            raise UsageError(f"there is no connection between {a!r} and {b!r} here")
        return found

    async def _kill(self, fault: Kill) -> None:
        node = self._node(fault.name)
        if fault.at:
            await node.kill_at(fault)
        else:
            await node.kill()

    def _partition(self, fault: Partition) -> None:
        if fault.a == fault.b:
            raise UsageError(f"a partition between {fault.a!r} and itself: wanted two names")
        self._wires_between(fault.a, fault.b)
        sent_by_a: dict[tuple[str, str], Direction] = {
            (fault.a, fault.b): "up",
            (fault.b, fault.a): "down",
        }
        for pair, direction in sent_by_a.items():
            for each in (direction,) if fault.one_way else BOTH:
                if pair in self._wires:
                    self._wires[pair].block(each, dropped=fault.dropped)

    def _disarm(self, cut: Cut) -> None:
        """Disarm a cut on all wires: it applies once, where its place is reached first."""
        for wire in self._wires.values():
            wire.disarm(cut)


def _is_name(found: object) -> bool:
    return isinstance(found, str) and bool(found)


async def run_cluster(
    cluster: Cluster, *, task_status: trio.TaskStatus[Cluster] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a cluster until cancelled.

    Args:
        cluster: The cluster; it must not be running yet.
        task_status: Receives the cluster once all its brokers listen.

    Raises:
        UsageError: A broker runs as a process, which does not support its configuration.
        HAClientError: A broker did not start.
        OSError: A broker could not listen on its address.
    """
    async with cluster:
        task_status.started(cluster)
        await trio.sleep_forever()
