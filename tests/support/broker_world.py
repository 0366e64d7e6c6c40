"""One broker with options, what happens to it, and what its clients then have to have seen.

A case is a broker with two options, or one, and changes while two publishers publish. Publishers
behave as clients with a store do: they keep what was not acknowledged, and send it again after each
logon. Readers follow the log over all of their connections; a subscriber, a table of records and
two consumers of a queue see the rest. The model is what the publishers have sent and been told, and
shares no code with the broker. Everything runs in this process, on files of its own, in virtual
time.
"""

from __future__ import annotations

import contextlib
import logging
import random
import tempfile
from collections.abc import Callable, Generator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
import trio
import trio.testing
from trio._core import _run as scheduler  # its order is to come from the case
from typing_extensions import override

from haclient.errors import UsageError
from haclient_fake_server.admin import JournalAction
from haclient_fake_server.engine import replay
from haclient_fake_server.engine.queues import message_table
from haclient_stores.errors import StoreError
from support.broker_clients import (
    Actor,
    Consumer,
    Key,
    Live,
    Publication,
    Publisher,
    Reader,
    Surroundings,
    Table,
    query,
)
from support.broker_nodes import EAST, EXPIRATION_S, LEASE_S, OPTIONS, WEST, Case, Node
from support.feature_world import Rounds

__all__ = ["CHANGES", "OPTIONS", "Case", "problems_of"]

TOPICS: Final = "orders", "prices", "work"
LARGE, SMALL = 3000, 40  # bytes of padding: a large message fills more than a small segment
PAGE: Final = 3
CUTS: Final = {"disconnect", "kick", "stop", "kill", "write fails", "clock ahead", "clock back"}
"""Here what is on its way to a consumer is lost."""
HOUR_S: Final = 3600.0
SLACK_S: Final = 3.0  # of the time of an expiration: a replica gives a second, a restart takes one
REST_S: Final = 20.0
MOST_ROUNDS: Final = 40_000

CHANGES: Final = (
    *("stop", "kill", "write fails", "no room", "clock ahead", "clock back"),
    *("stall", "pause", "disconnect", "reader leaves", "repeat", "hour", "lease", "minute"),
    *("archive", "compress", "remove"),
    *("replica stops", "replica is killed", "downgrade", "upgrade"),
    *("publishers move", "replace", "kick", "ack by filter"),
    *("delete by filter", "delete by keys", "large", "burst"),
)


class World:
    """The brokers, the clients, and what they have to agree on."""

    def __init__(self, case: Case, root: Path, around: Surroundings) -> None:
        self.case = case
        self.around = around
        self.problems = around.problems
        self.chance = random.Random(str(case))
        self.east = Node("east", case, root, around)
        self.west = Node("west", case, root, around)
        self.nodes = [self.east, self.west] if case.has_replica else [self.east]
        self.is_removed = "by age" in case.options
        self.jumped_at = -1.0
        self.publishers = [Publisher(name, EAST, around) for name in ("p", "q")]
        rate = "rate=50" if "rate" in case.options else ""
        self.log = Reader("log", EAST, around)
        rate = "fully_durable" if "durable reader" in case.options else rate
        self.reader = Reader("reader", EAST, around, options=rate)
        self.slow = Reader("slow", EAST, around)
        conflation = "conflation=100ms" if "conflation" in case.options else ""
        self.live = Live("live", EAST, around, topic="orders")
        self.prices = Live("prices", EAST, around, topic="prices", options=conflation)
        self.table = Table("table", EAST, around, topic="prices")
        self.jobs = Consumer.new_jobs()
        self.consumers = [Consumer(name, EAST, around, self.jobs) for name in ("c", "d")]
        if "queue once" in case.options:
            for consumer in self.consumers:
                consumer.is_at_most_once = True
        self.readers = [self.log, self.reader, self.slow]
        if "entitlements" in case.options:
            self.readers.append(Reader("bob", EAST, around, topic="orders"))
        if "past" in case.options:
            self.readers.append(
                Reader("past", EAST, around, topic="prices", command="sow_and_subscribe")
            )
        self.page = Table("page", EAST, around, topic="prices", page=PAGE)
        self.actors: list[Actor] = [
            *(*self.publishers, *self.readers, self.live, self.prices, self.table),
            *self.consumers,
            *([self.page] if "page" in case.options else []),
        ]
        self.count = 0
        self._rows = self._tasks = 0

    # -- what is published --------------------------------------------------------------------

    async def publish(self, count: int, *, size: int = 0, pace_s: float = 0.001) -> None:
        """Publish messages, the publishers in turn, to all topics."""
        for _ in range(count):
            publisher = self.publishers[self.count % 2]
            self.count += 1
            n = len(publisher.sent) + 1
            topic = TOPICS[n % 3]
            more: dict[str, str | int] = {}
            if topic == "prices" and "sow expiration" in self.case.options and n % 5 == 2:
                more["e"] = 5
            await publisher.publish(topic, size or (LARGE if n % 7 == 0 else SMALL), **more)
            if pace_s and self.chance.random() < 0.4:
                await trio.sleep(pace_s)

    # -- what happens -------------------------------------------------------------------------

    async def begin(self) -> None:
        for node in self.nodes:
            await node.start()
        await self.connect()
        await trio.sleep(5)
        self._tasks = trio.lowlevel.current_statistics().tasks_living
        self._rows = self._connections()
        await self.publish(14)

    async def connect(self) -> None:
        for actor in [*self.actors]:
            await actor.connect()

    async def _come_back(self, node: Node | None = None) -> None:
        """A broker starts again, and all of its clients connect to it."""
        node = node or self.east
        await trio.sleep(0.01)  # they receive what was sent before
        for actor in self.actors:
            if actor.address == node.address:
                await actor.disconnect()
        await trio.sleep(0.01)
        await node.start()
        await self.connect()

    async def change(self, change: str) -> None:
        """Carry out a change; some last until `heal`."""
        name = change.replace(" ", "_")
        await getattr(self, f"do_{name}")()

    async def do_stop(self) -> None:
        await self.publish(2)
        await self.east.stop()
        await self.publish(2)
        await self._come_back()

    async def do_kill(self) -> None:
        await self.publish(3)
        await self.east.kill()
        await self.publish(1)
        await self._come_back()

    async def do_write_fails(self) -> None:
        self.east.disk.writes_fail = True
        await self.publish(3)
        await trio.sleep(1)
        if self.east.is_up:
            self.problems.append("the broker goes on after a failed write")
            await self.east.stop()
        await self._come_back()

    async def do_no_room(self) -> None:
        self.east.disk.has_room = False
        await self.publish(4)
        await trio.sleep(25)

    async def do_clock_ahead(self) -> None:
        await self._set_clock(HOUR_S)

    async def do_clock_back(self) -> None:
        await self._set_clock(-HOUR_S)

    async def _set_clock(self, by_s: float) -> None:
        await self.east.stop()
        self.east.ahead_s += by_s
        self.jumped_at = trio.current_time()
        await self._come_back()

    async def do_stall(self) -> None:
        for actor in self.actors:
            if actor.is_slow:
                actor.stall(stalls=True)
        await self.publish(8, size=LARGE)

    async def do_pause(self) -> None:
        await self.reader.pause(pauses=True)

    async def do_disconnect(self) -> None:
        for actor in self.actors:
            await actor.disconnect()
        await self.publish(3)
        await trio.sleep(1)
        await self.connect()

    async def do_reader_leaves(self) -> None:
        await self.reader.disconnect()
        self.actors.remove(self.reader)

    async def do_repeat(self) -> None:
        for publisher in self.publishers:
            publisher.repeats = True
            await publisher.disconnect()
        await self.publish(2)
        await self.connect()

    async def do_hour(self) -> None:
        await trio.sleep(HOUR_S)

    async def do_minute(self) -> None:
        await trio.sleep(75)

    async def do_lease(self) -> None:
        for consumer in self.consumers:
            consumer.holds_all = True
        await self.publish(6)
        await trio.sleep(2 * LEASE_S)

    async def do_archive(self) -> None:
        await self._maintain("archive")

    async def do_compress(self) -> None:
        await self._maintain("compress")

    async def do_remove(self) -> None:
        self.is_removed = True
        await self._maintain("remove")

    async def _maintain(self, action: JournalAction) -> None:
        if not self.case.overlaps:
            await trio.sleep(1)  # consumers acknowledge, segments are sealed
        server = self.east.server
        if server is None:
            return
        for row in server.rows("transaction_log")[:-1]:
            try:
                await server.maintain_journal(action, int(row["number"]))
            except UsageError:
                if action == "remove":
                    break
            except StoreError:
                if self.east.server is server:
                    raise
                break  # it was killed meanwhile, and has no files any more

    async def do_replica_stops(self) -> None:
        await self.west.stop()
        await self.publish(4)
        await trio.sleep(2)

    async def do_replica_is_killed(self) -> None:
        await self.publish(2)
        await self.west.kill()
        await self.publish(2)
        await self._come_back(self.west)

    async def do_downgrade(self) -> None:
        if self.east.server is not None and "async replica" not in self.case.options:
            self.east.server.downgrade(f"mem://{WEST}")

    async def do_upgrade(self) -> None:
        if self.east.server is not None and "async replica" not in self.case.options:
            self.east.server.downgrade(f"mem://{WEST}")
            await self.publish(2)
            self.east.server.upgrade(f"mem://{WEST}")

    async def do_publishers_move(self) -> None:
        for publisher in self.publishers:
            await publisher.disconnect()
            await self.publish(1)
            publisher.address = WEST if publisher.address == EAST else EAST
            await publisher.connect()
            await self.publish(1)

    async def do_replace(self) -> None:
        await self.reader.replace()
        await self.publish(2)
        await self.slow.replace()

    async def do_kick(self) -> None:
        for actor in self.actors:
            if self.east.server is not None and actor.address == EAST:
                with contextlib.suppress(UsageError):  # it has left meanwhile
                    self.east.server.disconnect(actor.name)
        await self.publish(2)
        await trio.sleep(0.01)
        await self.connect()

    async def do_ack_by_filter(self) -> None:
        for consumer in self.consumers:
            consumer.holds_all = True
        await self.publish(6)
        for consumer in self.consumers:
            await consumer.finish_by_filter()

    async def do_delete_by_filter(self) -> None:
        for publisher in self.publishers:
            await publisher.delete("prices", self.chance.randrange(4))

    async def do_delete_by_keys(self) -> None:
        for publisher in self.publishers:
            which = self.chance.randrange(4)
            key = self.table.keys.get(f"{publisher.name}-{which}")
            more = {} if key is None else {"sow_keys": key}
            await publisher.delete("prices", which, **more)

    async def do_large(self) -> None:
        await self.publish(6, size=4 * LARGE)

    async def do_burst(self) -> None:
        await self.publish(30, pace_s=0)

    async def heal(self) -> None:
        """All that lasts ends."""
        for node in self.nodes:
            node.disk.has_room = True
        await trio.sleep(0.1)
        for node in self.nodes:
            if not node.is_up and node is not self.east:
                await node.start()
        if not self.east.is_up:
            await self._come_back()
        if self.reader not in self.actors:
            self.actors.append(self.reader)
        for actor in self.actors:
            actor.stall(stalls=False)
        await trio.sleep(1)  # who was cut meanwhile has noticed it
        await self.connect()
        await self.reader.pause(pauses=False)
        if "downgrade" in self.case.changes:
            await self.do_upgrade()
        await trio.sleep(REST_S)
        for consumer in self.consumers:
            await consumer.acknowledge_held()
        await trio.sleep(REST_S)

    # -- what has to be true ------------------------------------------------------------------

    async def run(self) -> None:
        await self.begin()
        if self.case.overlaps:
            async with trio.open_nursery() as nursery:
                for change in self.case.changes:
                    nursery.start_soon(self.change, change)
                await self.publish(12)
        else:
            for change in self.case.changes:
                await self.change(change)
                await self.publish(6)
        await self.heal()
        await self.publish(24)
        await trio.sleep(3)
        await self._check_records("soon")
        await trio.sleep(3 * REST_S)
        await self._connect_slow()
        await self._check("at rest")
        if not self.problems:
            await (self.do_kill if self.chance.random() < 0.5 else self.do_stop)()
            await trio.sleep(3 * REST_S)
            await self._connect_slow()
            await self._check("after a restart")

    async def _connect_slow(self) -> None:
        """Who was cut as a slow client comes back; nobody else may have been cut."""
        if self.may_cut:
            await self.connect()
            await trio.sleep(REST_S)

    @property
    def may_cut(self) -> bool:
        return bool({"cut", "little memory"} & {*self.case.options})

    def _connections(self) -> int:
        assert self.east.server is not None
        away = sum(actor.address == WEST for actor in self.actors)
        return len(self.east.server.rows("clients")) + away

    async def _check(self, when: str) -> None:
        if not self.east.is_up:
            self.problems.append(f"{when}: the broker does not run")
            return
        self.east.check_statistics()
        for publisher in self.publishers:
            if publisher.acked != len(publisher.sent):
                self.problems.append(
                    f"{when}: of {publisher.name} {publisher.acked} of {len(publisher.sent)} "
                    "are acknowledged"
                )
        tasks, rows = trio.lowlevel.current_statistics().tasks_living, self._connections()
        if tasks > self._tasks or rows != self._rows:
            self.problems.append(
                f"{when}: {tasks} tasks and {rows} connections, "
                f"there were {self._tasks} and {self._rows}"
            )
        await self._check_records(when)
        await self._check_logs(when)
        self._check_live(self.live, "orders")
        if "conflation" not in self.case.options:
            self._check_live(self.prices, "prices")
        if when == "at rest" and not self.may_cut:
            self._check_latest()
        await self._check_queue(when)

    def _publications(self, topic: str = "") -> list[tuple[Key, Publication]]:
        return [
            ((publisher.name, each.sequence), each)
            for publisher in self.publishers
            for each in publisher.sent
            if each.body and (not topic or each.topic == topic)
        ]

    def _is_logged(self, each: Publication) -> bool:
        filtered = "filtered log" in self.case.options
        return each.is_even or each.topic != "orders" or not filtered

    # -- records

    async def _check_records(self, when: str) -> None:
        for node in self.nodes:
            found = await query(node.address, self.around, "prices")
            if isinstance(found, str):
                self.problems.append(f"{when}: the query at {node.name} was refused: {found}")
            else:
                self._compare_records(f"{when}, {node.name}", found)
        self._compare_records(f"{when}, table", self.table.records)
        if self.page in self.actors:
            page = sorted(self.table.records.items(), key=lambda item: (-item[1], item[0]))
            if self.page.records != dict(page[:PAGE]):
                self.problems.append(f"{when}: the page is {self.page.records} of {page}")

    def _compare_records(self, where: str, found: dict[str, int]) -> None:
        now = trio.current_time()
        latest: dict[str, Publication] = {}
        for publisher in self.publishers:
            for each in publisher.sent:
                if each.topic == "prices" and each.body:
                    latest[each.id] = each
                elif each.topic == "prices":
                    latest.pop(each.id, None)
        for id_ in sorted({*latest, *found}):
            last, n = latest.get(id_), found.get(id_)
            may_live, may_die = (False, True) if last is None else self._life(last, now)
            wanted = None if last is None else last.sequence
            if not (may_live and n == wanted) and not (may_die and n is None):
                self.problems.append(f"{where}: record {id_} is {n} and not {wanted}")

    def _life(self, each: Publication, now: float) -> tuple[bool, bool]:
        """Whether a record may be there, and whether it may be gone."""
        if "sow expiration" not in self.case.options:
            return True, False
        life_s = float(each.fields.get("e", EXPIRATION_S))
        acked_at = now if each.acked_at is None else each.acked_at
        if each.sent_at <= self.jumped_at:
            return True, True
        return now < acked_at + life_s + SLACK_S, now > each.sent_at + life_s - SLACK_S

    # -- logs

    async def _check_logs(self, when: str) -> None:
        """Compare all logs with that of the reader that was never away."""
        order = self.log.received
        wanted = {key for key, each in self._publications() if self._is_logged(each)}
        self._compare_sets(f"{when}, log", order, wanted)
        for reader in self.readers:
            if reader.refusals and self.is_removed and reader.name == "past":
                continue
            if reader.refusals and not (self.is_removed and reader is self.reader):
                self.problems.append(f"{when}, {reader.name}: {reader.refusals}")
            whole = [key for key in order if self._is_for(reader, key)]
            for number, segment in enumerate(reader.segments):
                is_last = number == len(reader.segments) - 1
                self._compare_orders(
                    f"{when}, {reader.name}", segment, whole, begins=not number, ends=is_last
                )
        for node in self.nodes:
            fresh = Reader(f"fresh {node.name}", node.address, self.around)
            await fresh.connect()
            await trio.sleep(1)
            await fresh.disconnect()
            where = f"{when}, {fresh.name}"
            if node is self.west:
                if not self.is_removed:
                    self._compare_sets(where, fresh.received, wanted)
                continue
            self._compare_orders(
                where, fresh.received, order, begins=not self.is_removed, ends=True
            )
            await self._check_middle(where, fresh)
            await self._check_past(where, fresh)

    def _is_for(self, reader: Reader, key: Key) -> bool:
        topic = self.log.topics[key]
        if reader.name == "bob":
            return topic == "orders" and key[1] % 2 == 0
        return reader.name != "past" or topic == "prices"

    def _compare_sets(self, where: str, found: list[Key], wanted: set[Key]) -> None:
        if len(found) != len({*found}):
            twice = sorted({key for key in found if found.count(key) > 1})
            self.problems.append(f"{where}: {twice} came twice")
        missing, more = wanted - {*found}, {*found} - wanted
        if missing or more:
            self.problems.append(f"{where}: without {sorted(missing)}, with {sorted(more)}")
        self._compare_publishers(where, found)

    def _compare_publishers(self, where: str, found: list[Key]) -> None:
        for publisher in self.publishers:
            numbers = [n for name, n in found if name == publisher.name]
            if any(one >= two for one, two in pairwise(numbers)):
                self.problems.append(f"{where}: {publisher.name} in the order {numbers}")

    def _compare_orders(
        self, where: str, found: list[Key], order: list[Key], *, begins: bool, ends: bool
    ) -> None:
        """Check that what was found is a part of the log without gaps."""
        first = order.index(found[0]) if found and found[0] in order else 0
        last = len(order) if ends else first + len(found)
        first = 0 if begins else first
        if found != order[first:last]:
            missing, more = {*order[first:last]} - {*found}, {*found} - {*order[first:last]}
            self.problems.append(
                f"{where}: {len(found)} messages and not {last - first}, "
                f"without {sorted(missing)}, with {sorted(more)}"
            )

    async def _check_middle(self, where: str, fresh: Reader) -> None:
        """A replay from a message on has all that follow it."""
        if fresh.received:
            at = self.chance.randrange(len(fresh.received))
            part = Reader("part", EAST, self.around)
            part.begin_after(fresh.bookmarks[at])
            await part.connect()
            await trio.sleep(1)
            await part.disconnect()
            if part.refusals and self.is_removed:
                return  # meanwhile
            self._compare_orders(
                f"{where}, part", part.received, fresh.received[at + 1 :], begins=True, ends=True
            )

    async def _check_past(self, where: str, fresh: Reader) -> None:
        """A query of a moment has the records of then, of the publisher of a message."""
        places = [n for n, key in enumerate(fresh.received) if fresh.topics[key] == "prices"]
        expires = {"sow expiration"} & {*self.case.options}
        if "history" not in self.case.options or self.is_removed or expires or not places:
            return
        at = self.chance.choice(places)
        name, last = fresh.received[at]
        found = await query(EAST, self.around, "prices", bm=fresh.bookmarks[at])
        if isinstance(found, str):
            self.problems.append(f"{where}: a query of the past was refused: {found}")
            return
        publisher = next(each for each in self.publishers if each.name == name)
        wanted: dict[str, int] = {}
        for each in publisher.sent[:last]:
            if each.topic == "prices" and each.body:
                wanted[each.id] = each.sequence
            elif each.topic == "prices":
                wanted.pop(each.id, None)
        own = {id_: n for id_, n in found.items() if id_.startswith(name)}
        if own != wanted:
            self.problems.append(f"{where}: the past of {name} {last} is {own}, not {wanted}")

    # -- subscriptions

    def _check_live(self, live: Live, topic: str) -> None:
        for span in live.spans:
            self._compare_publishers(live.name, span.received)
            if not span.is_slow or span.end == float("inf"):
                missing = [
                    key
                    for key, each in self._publications(topic)
                    if span.begin < each.sent_at
                    and (each.acked_at or 0) < span.end
                    and key not in span.received
                ]
                if missing:
                    self.problems.append(f"{live.name}: without {missing}")
            places = {key: n for n, key in enumerate(self.log.received)}
            found = [places[key] for key in span.received if key in places]
            if any(one >= two for one, two in pairwise(found)):
                self.problems.append(f"{live.name}: in another order than the log: {found}")

    def _check_latest(self) -> None:
        """The last message of each key has come to those that may miss others."""
        wanted: dict[str, int] = {}
        for _, each in self._publications("prices"):
            wanted[each.id] = each.sequence
        if self.prices.latest != wanted:
            self.problems.append(f"prices: {self.prices.latest}, not {wanted}")

    # -- queue

    async def _check_queue(self, when: str) -> None:
        published = {key for key, _ in self._publications("work")}
        dead = self.log.dead
        gone = {*dead}
        may_lose = when != "at rest" or CUTS & {*self.case.changes}
        for key in published:
            job = self.jobs.get(key)
            is_sent = job is not None and job.deliveries > 0
            if "queue once" in self.case.options and (is_sent or may_lose):
                continue  # it is lost with its connection
            if key not in gone and (job is None or job.acked_at is None):
                self.problems.append(f"{when}: job {key} is lost")
            confirmed_at = None if job is None else job.confirmed_at
            if confirmed_at is not None and confirmed_at < self.log.dead_at.get(key, 0.0):
                self.problems.append(f"{when}: job {key} died after its acknowledgement")
        if unknown := {*self.jobs, *gone} - published:
            self.problems.append(f"{when}: unknown jobs {unknown}")
        if len(dead) > len(gone) and not self.case.has_replica:
            self.problems.append(f"{when}: {len(dead)} dead letters of {len(gone)} jobs")
        for node in self.nodes:
            left = await query(node.address, self.around, "jobs")
            if left:
                self.problems.append(f"{when}: the queue of {node.name} has {left}")


# -- running ---------------------------------------------------------------------------------------


class _Complaints(logging.Handler):
    """Errors and tracebacks in the log of the broker."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.texts.append(f"logged: {record.getMessage()}")


@contextlib.contextmanager
def _surroundings(case: Case) -> Generator[_Complaints]:
    """No threads, an order of tasks that the case decides, small chunks, and a look at the log."""

    async def run_inline(function: Callable[..., object], *values: object, **_: object) -> object:
        await trio.lowlevel.checkpoint()
        result = function(*values)
        await trio.lowlevel.checkpoint()
        return result

    complaints, log = _Complaints(), logging.getLogger("haclient_fake_server")
    log.addHandler(complaints)
    state = scheduler._r.getstate()
    scheduler._r.seed(str(case))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
            patch.setattr(trio.to_thread, "run_sync", run_inline)
            patch.setattr(replay, "CHUNK_BYTES", 700)
            patch.setattr(message_table, "PAGED_ROWS", 3)
            patch.setattr(message_table, "RESIDENT_CHUNKS", 2)
            yield complaints
    finally:
        scheduler._r.setstate(state)
        log.removeHandler(complaints)


async def _run(case: Case, root: Path, rounds: Rounds, problems: list[str]) -> None:
    logon = {"user_id": "ann", "pw": "x"} if "entitlements" in case.options else {}
    with rounds.scope:
        async with trio.open_nursery() as nursery:
            world = World(case, root, Surroundings(nursery, problems, logon, {}))
            await world.run()
            nursery.cancel_scope.cancel()
    if rounds.scope.cancelled_caught:
        problems.append(f"after {rounds.count} rounds there is still work")


def problems_of(case: Case) -> list[str]:
    """What is wrong, in one line each."""
    problems: list[str] = []
    shared = Path("/dev/shm")  # noqa: S108  # files in memory, in a folder of this case
    folder = tempfile.TemporaryDirectory(dir=shared if shared.exists() else None)
    rounds = Rounds(MOST_ROUNDS)
    clock = trio.testing.MockClock(autojump_threshold=0)
    with folder as root, _surroundings(case) as complaints:
        try:
            trio.run(_run, case, Path(root), rounds, problems, clock=clock, instruments=[rounds])
        except Exception as error:  # of any class: the broker has ended with it
            problems.append(f"ended with {error!r}")
        disk_fails = {"write fails", "no room"} & {*case.changes}
        return problems + ([] if disk_fails else complaints.texts)
