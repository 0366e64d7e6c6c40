"""The simulator: production clients, stores and brokers in one process, on a virtual clock.

Fault model. A run consists of nodes: machines with a disk and a clock of their own, joined by a
network. What may happen to them, at any moment and in any combination that a plan draws:

*Connections* (`wires`) have latency, small reads, partial sends and small buffers. They are reset
or ended, lost after any byte, or half open: silent without an end. For a while a broker loses each
connection to a client soon after it was opened. Two nodes are parted in both
directions or in one: what was sent is held and arrives after the partition; nobody connects
meanwhile. Replication from one broker to another may lag, by less than a client's overlap. Bytes
that arrive are never changed or reordered: that is what a stream promises.

*Processes* (`nodes`) are killed between any two steps of any task: their disk keeps what was
written (page cache), their connections are reset. Machines lose their power: their disk keeps what
was synced and any subset of the pages written since, some of them torn (`disk`), and their peers
hear nothing. Both come back, with the disk that was left. A broker loses its power only when it
syncs every batch, which is what it promises to survive; clients do with any store.

*Machines* of brokers lose their disk or are restored from an older backup, in two stories only
(`stories`): what was acknowledged is then in the other broker, and all else with the publishers.
These have stores that survive their processes. One that does not could publish at the restored
broker before that one has caught up, which then never takes what came before.

*Logs* of brokers have small files in some plans; full ones are archived and compressed at any time,
and removed when no subscriber needs them any more (`removing`).

*Brokers* put what slow clients do not read into files, and accept no connections for a while.

*Stores* (`store_kinds`) are all that there are, of every durability: publishes in files, in a ring,
in memory, in memory that spills into files, with and without a limit, at which they wait or raise;
discards in a log that is pruned by hand or by a policy, in a ring whose subscriber discards in
order, in memory, and in memory with the recovery points in a topic of the servers. `surviving` says
what each of them may lose in a crash.

*Publishers without a store* know from `publish_flush` and `wait_persisted` what has become of a
publish. What they are told is lost is abandoned; what they are told is persisted has to arrive.

*Other processes* try to open a store that is in use: at any time, and just when it is pruned.

*Disks* report no space, failed reads, writes, maps and syncs, and short writes, now and then; bytes
at rest are not changed. What a failed sync has not written counts as written, as kernels see it. A
process that a failed operation ends is a crash like another.

*Clocks* of machines jump by seconds at any time: no clock is ever wrong by more than 1.5 s when a
process begins. The client compares its clock with the servers' when it resumes on another one, and
its overlap there (5 s by default) is what it allows for: two clocks and a replica that lags. Clocks
of clients also step by hours, in both directions, while the client runs. A process may begin with a
clock that is hours behind, which costs repetitions; but one that is hours ahead is set right before
the next process begins: a time that was wrong from the start is believed, here and in the store's
file, so it is beyond the promise. So is the clock of a publisher that is set back between two of
its processes: one that has lost its store numbers from the clock, and a replica that lags does not
know the numbers that it used. And so is a broker that has replicas and a clock that is wrong by
more: what it recorded carries that time, and a replica that is behind would seem to have recorded
it before the overlap. The clock of a lone broker steps by hours, too.

*Queues* (`queue_planning`) belong to the first broker. Their consumers are processes without a
store, whose handlers return, raise, take longer than their lease, or are killed with their process;
some acknowledge by hand, late or never, and some wait in their handlers for the acks of what they
publish. They leave and come back. What a queue promises is checked
from their side (`queue_checkers`).

*Time* is trio's virtual clock, and the order in which tasks run is drawn from the seed, too.

What the promise does not cover is not an error and is counted (`checkers`). Clients move between
synchronous replicas only; an asynchronous one has readers of its own.

Afterwards faults stop, everything runs, and within a bound all of it has to be delivered, and every
queue empty (`draining`). Then all subscribers start once more, to see what comes again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final, cast

import trio
import trio.testing
from trio._core import _run as scheduler  # its order is to come from the seed

from haclient.errors import PublishGap, UsageError
from haclient.transport import store_maintenance
from haclient.transport.links.memory_network import MemoryConnection
from haclient.transport.tasks import unwrapped
from haclient_fake_server import offline_queue
from haclient_fake_server.admin import JournalAction
from haclient_stores.errors import StoreError, StoreLocked
from simulation import checkers, queue_checkers
from simulation.actors import Broker, Counts, Reader, Surroundings
from simulation.consuming import Consumer, LinkBook
from simulation.draining import drained
from simulation.history import (
    Abandoned,
    Disturbed,
    Drained,
    Fact,
    History,
    MessageId,
    Resumed,
    text_of,
)
from simulation.inspection import dead_letters_of, log_of, sizes, sow_of
from simulation.nodes import Life, Node
from simulation.plans import Plan, Step
from simulation.publishing import Publisher
from simulation.removing import Removals
from simulation.subscribing import Subscriber
from simulation.surviving import BOOKMARK_GROUP_S
from simulation.wires import Wires

__all__ = ["Outcome", "Run", "simulate"]

LIVENESS_S: Final = 60.0
"""Virtual seconds within which everything is delivered once faults have stopped."""

_FLAP_S: Final = 0.08
_REMOVAL_S: Final = 0.01
_OFFLINE_BLOCK_BYTES: Final = 1024
_STORM_S: Final = 5.0
_STORM: Final = 40  # two clients of one node, both of whose servers flap, come to 26
_SETTLED_FOR_S: Final = 2.0
_DOWN_S: Final = 0.5
_WORK: Final = frozenset({"publish", "discard", "prune", "query", "order", "wait"})
_LASTING: Final = frozenset({"slow", "lag", "silence", "disk"})
_LOOK_S: Final = 0.25
_LIMITS: Final = {
    "segments": 3,
    "entries": 10,
    "waiting": 128,
    "sessions": 16,
    "connections": 24,
}


@dataclass(slots=True)
class Outcome:
    """What a run came to.

    Attributes:
        failures: Complaints, the first ones of each checker; empty when all is well.
        trace: What happened, and when.
        logs: What each broker has in the end, in its order.
    """

    failures: list[str] = field(default_factory=list[str])
    trace: list[tuple[float, str | Fact]] = field(default_factory=list[tuple[float, str | Fact]])
    counts: Counts = field(default_factory=Counts)
    beyond: checkers.Beyond = field(default_factory=checkers.Beyond)
    virtual_s: float = 0.0
    logs: dict[str, list[checkers.LogRecord]] = field(
        default_factory=dict[str, list[checkers.LogRecord]]
    )

    def lines(self) -> Iterator[str]:
        """The trace, to be read."""
        for at, what in self.trace:
            yield f"{at:10.4f} {what if isinstance(what, str) else text_of(what)}"

    @property
    def digest(self) -> str:
        """Equal for two runs in which the same things happened."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()


def simulate(plan: Plan) -> Outcome:
    """Run a plan from its beginning to its end, in no time."""
    outcome = Outcome()
    with _deterministic(plan.seed):
        try:
            trio.run(Run(plan, outcome).run, clock=trio.testing.MockClock(autojump_threshold=0))
        except Exception as error:  # a bug of the simulator, or an invariant of the product
            cause = unwrapped(error) if isinstance(error, BaseExceptionGroup) else error
            outcome.failures.append(f"error: {cause!r}")
    return outcome


@contextlib.contextmanager
def _deterministic(seed: int) -> Generator[None]:
    """Nothing but the seed decides which task is next, and no thread takes part."""

    async def run_inline(function: Callable[..., object], *values: object, **_: object) -> object:
        await trio.lowlevel.checkpoint()
        result = function(*values)
        await trio.lowlevel.checkpoint()
        return result

    state, allowed = scheduler._r.getstate(), scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    threads, every_s = trio.to_thread.run_sync, store_maintenance._BOOKMARKS_EVERY_S
    scheduler._r.seed(seed)
    vars(scheduler)["_ALLOW_DETERMINISTIC_SCHEDULING"] = True
    vars(store_maintenance)["_BOOKMARKS_EVERY_S"] = BOOKMARK_GROUP_S
    block_bytes = offline_queue.BLOCK_BYTES
    vars(offline_queue)["BLOCK_BYTES"] = _OFFLINE_BLOCK_BYTES
    trio.to_thread.run_sync = run_inline  # type: ignore[assignment]  # the same, but for threads
    try:
        yield
    finally:
        scheduler._r.setstate(state)
        vars(scheduler)["_ALLOW_DETERMINISTIC_SCHEDULING"] = allowed
        vars(store_maintenance)["_BOOKMARKS_EVERY_S"] = every_s
        vars(offline_queue)["BLOCK_BYTES"] = block_bytes
        trio.to_thread.run_sync = threads


class Run:
    """One run; `do_<kind>` carries out a step."""

    def __init__(self, plan: Plan, outcome: Outcome) -> None:
        self.plan = plan
        self.outcome = outcome
        self.nodes: dict[str, Node] = {}
        self.history = History(self._say)
        self._hurry: list[trio.CancelScope] = []
        self._gaps: list[PublishGap] = []
        self._dead: list[queue_checkers.DeadLetter] = []
        self._removals = Removals(self)
        self._all: dict[str, list[checkers.LogRecord]] = {}  # with what was removed

    async def run(self) -> None:
        """Everything."""
        outcome = self.outcome
        self._build()
        tasks = trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as nursery:
            for node in self.nodes.values():
                nursery.start_soon(node.supervise)
            await self._play(nursery)
            self._stop_faults()
            if await self._delivered() and await drained(self):
                await self._finish()
            nursery.cancel_scope.cancel()
        left = trio.lowlevel.current_statistics().tasks_living - tasks
        if left:
            outcome.failures.append(f"task left: {left} tasks outlive the run")
        self._judge()
        outcome.virtual_s = trio.current_time()

    # -- the nodes ------------------------------------------------------------

    def _build(self) -> None:
        plan = self.plan
        self.wires = Wires(plan.links, Random(f"wires {plan.seed}"))
        around = Surroundings(plan, self.history, self.outcome.counts)
        self._gaps = around.gaps
        self.brokers = {
            name: Broker(name, around, lambda name=name: self.nodes[name].clock_us())  # type: ignore[misc]  # the name is bound now
            for name in plan.brokers
        }
        self.publishers = {each.name: Publisher(each, around) for each in plan.publishers}
        self.subscribers = {each.name: Subscriber(each, around) for each in plan.subscribers}
        self.readers = {name: Reader(name, around) for name in plan.readers}
        links = LinkBook(self.history, self._life_of, lambda: self.home.clock_ahead_us)
        self.wires.watched = lambda connection: self._watch(connection, links)
        self.consumers = {
            each.name: Consumer(each, around, links, partial(self._kill_process, each.name))
            for each in plan.consumers
        }
        clients = {**self.publishers, **self.subscribers, **self.consumers, **self.readers}
        programs = {**self.brokers, **clients}
        for name, program in programs.items():
            chance = Random(f"{name} {plan.seed}")
            self.nodes[name] = Node(name, program, wires=self.wires, chance=chance, trace=self._say)

    @property
    def home(self) -> Broker:
        """The broker that has the queues."""
        return self.brokers[self.plan.brokers[0]]

    def _life_of(self, name: str) -> int:
        life = self.nodes[name].life
        return 0 if life is None else life.number

    def _watch(self, connection: MemoryConnection, links: LinkBook) -> None:
        if connection.source in self.consumers:
            links.watch(connection)

    def _kill_process(self, name: str) -> None:
        """A handler has killed its process."""
        now = trio.current_time()
        self.history.add(Disturbed(now, now + _DOWN_S))
        self.nodes[name].crash(power=False, down_s=_DOWN_S)

    def _say(self, what: str | Fact) -> None:
        self.outcome.trace.append((trio.current_time(), what))

    # -- the script -----------------------------------------------------------

    async def _play(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        for step in self.plan.script:
            await trio.sleep(step.after)
            self._say(f"step {step}")
            self._record_disturbance(step)
            getattr(self, f"do_{step.kind}")(step)

    def _record_disturbance(self, step: Step) -> None:
        if self.plan.queues and step.kind not in _WORK:
            now = trio.current_time()
            until = float("inf") if step.kind in _LASTING else now + step.seconds
            self.history.add(Disturbed(now, until))

    def _target(self, step: Step) -> Node:
        return self.nodes[step.node or self.wires.busiest(self.plan.brokers)]

    def _later(self, seconds: float, call: Callable[[], object]) -> None:
        async def wait() -> None:
            with scope:
                await trio.sleep(seconds)
            call()

        scope = trio.CancelScope()
        self._hurry.append(scope)
        self._nursery.start_soon(wait)

    def do_publish(self, step: Step) -> None:
        self.publishers[step.node].publish(step.count)

    def do_discard(self, step: Step) -> None:
        with self._application_of(step.node):
            self.subscribers[step.node].discard(step.count, step.other)

    def do_order(self, step: Step) -> None:
        self.consumers[step.node].order(step.other)

    def do_prune(self, step: Step) -> None:
        with self._application_of(step.node):
            self.subscribers[step.node].prune()

    @contextlib.contextmanager
    def _application_of(self, name: str) -> Generator[None]:
        """An application that meets an error of its store dies of it."""
        node = self.nodes[name]
        try:
            yield
        except StoreError as error:
            self._say(f"{name}: {error}")
            assert node.life is not None
            if not node.life.disk.failures:
                node.complaints.append(f"crash: {name}: {error!r}")
            node.crash(power=False, down_s=0.5)

    def do_intrude(self, step: Step) -> None:
        owner = self.publishers.get(step.node) or self.subscribers[step.node]
        life = self.nodes[step.node].life
        if life is None:
            return
        meanwhile = life.disk.meanwhile
        match step.other:
            case "rename":
                meanwhile["rename"] = lambda: self._intrude(step.node, owner, life)
                self.do_prune(step)
            case "lock":
                meanwhile["lock"] = lambda: self.do_prune(step)
                self._intrude(step.node, owner, life)
            case _:
                self._intrude(step.node, owner, life)
        meanwhile.clear()

    def _intrude(self, name: str, owner: Publisher | Subscriber, life: Life) -> None:
        try:
            if not owner.intrude(life.disk):
                return
        except StoreLocked:
            return
        except StoreError as error:
            self._say(f"{name}: an intruder meets {error}")
            return
        # Whoever has met an error of the disk may be about to end, and have closed the store.
        if life.alive and not life.disk.failures:
            complaint = f"lock: a second process has opened the store of {name}"
            self.nodes[name].complaints.append(complaint)

    def do_wait(self, step: Step) -> None:
        """Nothing happens: the pause before the step is what is wanted."""

    def do_query(self, step: Step) -> None:
        self.readers[step.node].query()

    def do_archive(self, step: Step) -> None:
        """Archive, or compress, the full files of a broker's log, or some of them."""
        server, action = self.brokers[step.node].server, cast("JournalAction", step.kind)
        if server is None:
            return
        for row in server.rows("transaction_log")[step.count : -1]:
            with contextlib.suppress(UsageError):  # it was done before, or is not sealed yet
                server.begin_journal_action(action, str(row["number"]))

    do_compress = do_archive

    def do_remove(self, step: Step) -> None:
        """Remove the oldest files of a broker's log, one after the other."""
        beside_readers = step.other == "beside readers"

        def remove() -> None:
            self._removals.remove_oldest(step.node, self._wants(), beside_readers=beside_readers)

        for number in range(step.count + 1):
            self._later(number * _REMOVAL_S, remove)

    def do_transport(self, step: Step) -> None:
        """For a while a broker accepts no connections; the odd ones lose those that they have."""
        server = self.brokers[step.node].server
        if server is None:
            return

        def switch(*, enabled: bool) -> None:
            for where in server.uris:
                server.set_transport(where, enabled=enabled)

        switch(enabled=False)
        self._later(step.seconds, partial(switch, enabled=True))
        if step.count % 2:
            self.wires.reset(step.node)

    def do_kill(self, step: Step) -> None:
        self._target(step).crash(power=False, down_s=step.seconds)

    def do_power(self, step: Step) -> None:
        self._target(step).crash(power=True, down_s=step.seconds)

    def do_backup(self, step: Step) -> None:
        self._target(step).take_backup()

    def do_restore(self, step: Step) -> None:
        self._target(step).restore(down_s=step.seconds)

    def do_reset(self, step: Step) -> None:
        self.wires.reset(step.node)

    def do_end(self, step: Step) -> None:
        self.wires.end(step.node)

    def do_cut(self, step: Step) -> None:
        self.wires.cut(step.node, step.count)

    def do_flap(self, step: Step) -> None:
        """For a while a broker loses each connection to a client soon after it was opened."""

        async def flap() -> None:
            with trio.move_on_after(step.seconds) as scope:
                self._hurry.append(scope)
                while True:
                    await trio.sleep(_FLAP_S)
                    for connection in self.wires.of(step.node):
                        if connection.source not in self.plan.brokers:
                            connection.reset()

        self._nursery.start_soon(flap)

    def do_silence(self, step: Step) -> None:
        self.wires.silence(step.node)

    def do_slow(self, step: Step) -> None:
        self.wires.slow(step.node, step.seconds)

    def do_lag(self, step: Step) -> None:
        self.wires.lag(step.node, step.other, step.seconds)

    def do_partition(self, step: Step) -> None:
        self._part((step.node, step.other), step.seconds)
        self._part((step.other, step.node), step.seconds)

    def do_partition_one_way(self, step: Step) -> None:
        self._part((step.node, step.other), step.seconds)

    def _part(self, way: tuple[str, str], seconds: float) -> None:
        self.wires.part(*way)
        self._later(seconds, lambda: self.wires.join(*way))

    def do_disk(self, step: Step) -> None:
        life = self.nodes[step.node].life
        if life is not None and life.alive:
            life.disk.arm(step.other, step.count)

    def do_clock(self, step: Step) -> None:
        self.nodes[step.node].set_clock(step.seconds)

    def do_step_clock(self, step: Step) -> None:
        self.nodes[step.node].stepped_us += int(step.seconds * 1_000_000)

    # -- the end --------------------------------------------------------------

    def _stop_faults(self) -> None:
        self._say("faults stop")
        for scope in self._hurry:
            scope.cancel()
        self.wires.heal()
        if self.plan.queues:
            # A later cut would lose what a queue delivers at most once, which is no defect.
            self.wires.call_off_cuts()
        for consumer in self.consumers.values():
            consumer.healthy = True
        for node in self.nodes.values():
            if node.life is not None:
                node.life.disk.disarm()
            node.disk.disarm()
            node.come_back()

    async def _delivered(self) -> bool:
        """Wait until everything is persisted and delivered; liveness is that this happens soon."""
        with trio.move_on_after(LIVENESS_S):
            looked_at = -1
            while True:
                if self._at_rest() and looked_at != len(self.history.facts):
                    looked_at = len(self.history.facts)
                    if not any(self._lost()):
                        return True
                await trio.sleep(_LOOK_S)
        self.outcome.failures.append(f"liveness: not everything is delivered in {LIVENESS_S:g} s")
        for name, publisher in self.publishers.items():
            if not publisher.done:
                self.outcome.failures.append(f"liveness: {name} is not done")
        return False

    def _at_rest(self) -> bool:
        """Whether everybody runs and everything is persisted."""
        done = all(publisher.done for publisher in self.publishers.values())
        return done and all(node.up for node in self.nodes.values())

    def _lost(self) -> Iterator[str]:
        return checkers.lost(self.history.facts, self._wants())

    def _wants(self) -> checkers.Wants:
        return {
            each.name: each.wants
            for subscriber in self.subscribers.values()
            for each in subscriber.subscriptions
        }

    async def _finish(self) -> None:
        """Discard what is ever discarded, start all subscribers again, and see what comes."""
        # The application discards what it holds now. A slow subscriber that a late fault restarts
        # is still being given the rest again, which would then stay undiscarded.
        await self._redelivered()
        for subscriber in self.subscribers.values():
            if self.plan.finishes:
                subscriber.discard(0)
        with trio.move_on_after(LIVENESS_S):
            await trio.sleep(_SETTLED_FOR_S)
            while not self._settled():  # noqa: ASYNC110  nobody tells, and time is virtual
                await trio.sleep(_LOOK_S)
        for name, subscriber in self.subscribers.items():
            subscriber.calm = self.plan.finishes and not subscriber.plan.keeps
            subscriber.look()
            self.nodes[name].crash(power=False, down_s=0.1)
        await self._redelivered()
        await trio.sleep(_SETTLED_FOR_S)
        await self._inspect()

    async def _redelivered(self) -> None:
        """Wait until each subscription was given again what it has not discarded."""
        facts = self.history.facts
        with trio.move_on_after(LIVENESS_S) as scope:
            while not self._resumed():  # noqa: ASYNC110  nobody tells, and time is virtual
                await trio.sleep(_LOOK_S)
            looked_at = -1
            while looked_at != len(facts) or any(checkers.skipped(facts)):
                looked_at = len(facts)
                await trio.sleep(_SETTLED_FOR_S)
        if scope.cancelled_caught:
            complaint = f"liveness: not all that is undiscarded comes again in {LIVENESS_S:g} s"
            self.outcome.failures.append(complaint)

    def _settled(self) -> bool:
        """Whether what was discarded is wherever it is to be kept."""
        return all(subscriber.settled for subscriber in self.subscribers.values())

    def _resumed(self) -> bool:
        """Whether each subscription has resumed in the process that its node runs now.

        A client that is killed while its last acks are sent takes its drain time to end, and only
        then is it started again: until then nothing of it can be missing.
        """
        lives = {
            each.subscription: each.life for each in self.history.facts if isinstance(each, Resumed)
        }
        for name, subscriber in self.subscribers.items():
            node = self.nodes[name]
            if not node.up or node.life is None:
                return False
            if any(lives.get(each.name) != node.life.number for each in subscriber.subscriptions):
                return False
        return True

    async def _inspect(self) -> None:
        """Compare the replicas, and look at what everybody holds at rest."""
        failures, facts = self.outcome.failures, self.history.facts
        abandoned = frozenset(fact.message for fact in facts if isinstance(fact, Abandoned))
        self.outcome.logs = {name: await log_of(name) for name in self.plan.brokers}
        removed = {name: self._removals.removed_from(name) for name in self.plan.brokers}
        self.outcome.counts.removed = sum(map(len, removed.values()))
        self._all = logs = {name: removed[name] + log for name, log in self.outcome.logs.items()}
        failures.extend(checkers.agreement(logs, abandoned))
        missing = {name: broker.missing for name, broker in self.brokers.items()}
        # Recovery points and what queues write are records, too.
        in_full = all(each.store != "adapter" for each in self.plan.subscribers)
        in_full = in_full and not self.plan.queues
        told = checkers.divergence(logs, missing, removed=removed, in_full=in_full)
        failures.extend(told)
        answers = {name: await sow_of(name) for name in self.plan.brokers}
        failures.extend(checkers.states(logs, answers))
        failures.extend(checkers.bounded(sizes(self), _LIMITS))
        if self.plan.queues:
            self._dead = await dead_letters_of(self.plan.brokers[0])

    def _dialled(self) -> dict[str, list[float]]:
        """When each client has opened connections."""
        dialled = self.wires.dialled
        return {name: dialled[name] for name in dialled if name not in self.plan.brokers}

    def _publish_gaps(self) -> Iterator[str]:
        """No server is refused for a publish gap where what was acknowledged is not lost.

        It may be, after two losses of power or of a disk.
        """
        brokers, harms = {*self.plan.brokers, ""}, {"power", "restore", "disk"}
        harm = [step for step in self.plan.script if step.kind in harms and step.node in brokers]
        if len(harm) < 2:
            yield from (f"publish gap: {each}" for each in self._gaps)

    def _judge(self) -> None:
        outcome, facts = self.outcome, self.history.facts
        for node in self.nodes.values():
            outcome.counts.crashes += node.crashes
            outcome.failures.extend(node.complaints)
        for name, broker in self.brokers.items():
            outcome.counts.offlined += broker.offlined
            if broker.faults:
                outcome.failures.append(f"crash: {name}: {broker.faults} internal errors")
        for reader in self.readers.values():
            outcome.failures.extend(reader.complaints)
        for subscriber in self.subscribers.values():
            outcome.failures.extend(subscriber.complaints)
        logs = [{message for _, message in log} for log in outcome.logs.values()]
        everywhere = frozenset(set.intersection(*logs) if logs else ())
        checks: tuple[Iterator[str], ...] = (
            self._lost(),
            checkers.repeated(facts),
            checkers.handed_out_twice(facts),
            checkers.order(facts),
            checkers.holes(facts, self._wants()),
            checkers.recovery_points(facts, everywhere),
            checkers.skipped(facts),
            checkers.storms(self._dialled(), within_s=_STORM_S, limit=_STORM),
            self._publish_gaps(),
            *(self._check_queues() if self.plan.queues else ()),
        )
        for check in checks:
            outcome.failures.extend(text for text, _ in zip(check, range(3), strict=False))
        outcome.beyond = checkers.count_beyond(facts, everywhere)
        self._say(f"end: {outcome.failures}")

    def _check_queues(self) -> Iterator[Iterator[str]]:
        facts, dead = self.history.facts, self._dead
        queues = {each.name: each for each in self.plan.queues}
        log = self._all.get(self.plan.brokers[0], ())
        places: dict[MessageId, int] = {message: at for at, (_, message) in enumerate(log)}
        pools = {each.name for each in self.plan.consumers if each.workers > 1}
        cutting = {
            each.name
            for each in self.plan.consumers
            if each.at_lease_end == "cut" and not each.by_hand and not each.extends
        }
        yield queue_checkers.one_lease(facts, queues)
        yield queue_checkers.lost_acks(facts, queues)
        yield queue_checkers.unsent_acks(facts, queues)
        yield queue_checkers.at_most_once(facts, queues)
        yield queue_checkers.confirmed(facts, queues)
        yield queue_checkers.cut_off(facts, queues, cutting)
        yield queue_checkers.after_the_end(facts)
        yield queue_checkers.order(facts, queues, places, pools)
        yield queue_checkers.barriers(facts, queues, places, pools)
        if log and any(isinstance(fact, Drained) for fact in facts):
            yield queue_checkers.unprocessed(facts, queues, dead)
            yield queue_checkers.late_acks(facts, queues, dead)
            yield queue_checkers.dead_letters(facts, queues, dead)
