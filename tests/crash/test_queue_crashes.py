"""Crashes of a broker with message queues: no message is lost, and none that has left comes back.

Two queues over one topic, one with each kind of delivery, are used by a publisher and consumers.
After each batch the test notes what the queues hold. Then the broker is killed, or power fails, at
any point, and what a new broker finds is compared.

Where each block is synced before anything is sent, a queue is as after the batch that was noted
last, or as after the one that was going on: a message and its removal are there together or not at
all. Where nothing is synced, a loss of power may take the end of the log. Then the queue has every
message of that log that had not left it, and `queues.ack`, which may be ahead of the log, hides
none of those that are published afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from haclient_fake_server.engine.journal import records_of
from haclient_fake_server.engine.queues import message_table
from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.engine.settings import QueueTopic
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.format import RecordCommand
from haclient_fake_server.journal.queue_points import QueuePointFile
from support.engine import Peer
from support.queue_world import FILE_BACKED, ONCE, QUEUES, TOPIC, WORK, QueueWorld
from support.recording import Crash, Event, RecordingDisk, kills, power_cuts

pytestmark = [
    pytest.mark.row("QB29", "QB31"),
    pytest.mark.timeout(3600),
    pytest.mark.in_parts,
]

Crashes = Callable[..., Iterator[Crash]]
PUBLISHER = 7094790850998930143


class Held(NamedTuple):
    """The bookmarks of what each queue holds, leased or not."""

    work: frozenset[str]
    once: frozenset[str]


class Driver:
    """Uses the queues, and notes after each batch what they hold.

    Attributes:
        held: What the queues hold after each of the batches.
    """

    def __init__(
        self, events: list[Event], *, is_synced: bool, queues: tuple[QueueTopic, ...] = QUEUES
    ) -> None:
        self._disk = RecordingDisk(events)
        self.held: list[Held] = [Held(frozenset(), frozenset())]
        self._world = QueueWorld(self._disk, start_id=1, is_synced=is_synced, queues=queues)
        self._publisher = self._world.client("pubber")
        self._work = self._world.consumer(WORK)
        self._once: Peer | None = None
        self._leased: list[str] = []
        self._sequence = 0
        self._note(Held(frozenset(), frozenset()))

    def run(self) -> None:
        """All that happens before the crash."""
        self._publish(3)
        self._acknowledge(0, 2)
        self._once = self._world.consumer(ONCE)
        self._note_sent_once()
        for size in (900, 2500, 10, 900):
            self._publish(2, size=size)
        self._pass_time()
        self._acknowledge(0)
        self._acknowledge(0, 1, 2)
        self._pass_time()
        self._once.close()
        self._publish(2, size=2500)
        self._once = self._world.consumer(ONCE)
        self._note_sent_once()
        self._pass_time()
        self._acknowledge(*range(len(self._leased) - 1))
        self._pass_time()
        self._publish(1)

    def _publish(self, count: int, *, size: int = 10) -> None:
        """Publish some messages, one in a batch."""
        for _ in range(count):
            self._sequence += 1
            bookmark = f"{PUBLISHER}|{self._sequence}|"
            self._publisher.publish(self._sequence, b'{"x":"%b"}' % (b"x" * size), t=TOPIC)
            self._publisher.take()
            self._leased += [each.bookmark for each in self._work.take() if each.kind == "p"]
            assert self._leased[-1] == bookmark
            is_sent = self._once is not None and not self._once.closed
            if is_sent and self._once is not None:
                assert [each.bookmark for each in self._once.take()] == [bookmark]
            work, once = self.held[-1]
            self._note(Held(work | {bookmark}, once if is_sent else once | {bookmark}))

    def _acknowledge(self, *numbers: int) -> None:
        """Acknowledge some of the leased messages."""
        bookmarks = [self._leased[number] for number in numbers]
        self._leased = [each for each in self._leased if each not in bookmarks]
        self._work.send(c="sow_delete", cid="9", t=WORK, bm=",".join(bookmarks), a="stats")
        (stats,) = self._work.take()
        assert stats.records_deleted == len(bookmarks)
        self._note(Held(self.held[-1].work - {*bookmarks}, self.held[-1].once))

    def _note_sent_once(self) -> None:
        """The consumer of `once` has got all that was there."""
        assert self._once is not None
        assert {each.bookmark for each in self._once.take()} == self.held[-1].once
        self._note(Held(self.held[-1].work, frozenset()))

    def _pass_time(self) -> None:
        """Let the recovery points be written, and the files of file-backed queues."""
        self._world.advance(2.0)
        self._world.keep_snapshots()
        self._note(self.held[-1])

    def _note(self, held: Held) -> None:
        self.held.append(held)
        self._disk.note(len(self.held) - 1)


def reopened(crash: Crash, queues: tuple[QueueTopic, ...] = QUEUES) -> QueueWorld:
    return QueueWorld(crash.disk(), start_id=2, is_synced=True, queues=queues)


def found_in(world: QueueWorld) -> Held:
    return Held(frozenset(world.available(WORK)), frozenset(world.available(ONCE)))


def logged(journal: JournalFiles) -> set[str]:
    """The bookmarks of the messages in the log."""
    found: set[str] = set()
    chunk, cursor = journal.read(journal.seek(1), 2**20)
    while chunk:
        found |= {r.bookmark for r in records_of(chunk) if r.command == RecordCommand.PUBLISH}
        chunk, cursor = journal.read(cursor, 2**20)
    return found


def around(driver: Driver, crash: Crash) -> tuple[Held, Held]:
    """What the queues held after the last batch that was noted, and after the one that went on."""
    at = crash.notes[-1] if crash.notes else 0
    assert isinstance(at, int)
    return driver.held[at], driver.held[min(at + 1, len(driver.held) - 1)]


def publish_later(world: QueueWorld) -> set[str]:
    """Publish more messages than the log may have lost; their bookmarks."""
    publisher = world.client("later")
    for number in range(1, 25):
        publisher.publish(number, b"{}", t=TOPIC)
    later = {each for each in logged(world.files) if not each.startswith(f"{PUBLISHER}|")}
    assert len(later) == 24
    return later


def check_later_messages(world: QueueWorld, found: Held) -> None:
    """Later messages are queued, over another restart too, and what was there stays."""
    later = publish_later(world)
    wanted = Held(found.work | later, found.once | later)
    assert found_in(world) == wanted
    world.files.close()
    again = QueueWorld(world.disk, start_id=3, is_synced=True)
    assert found_in(again) == wanted
    again.files.close()


@pytest.mark.parametrize(
    ("crash", "is_synced"), [(kills, False), (kills, True), (power_cuts, True)]
)
def test_a_message_and_its_removal_are_there_together_or_not_at_all(
    crash: Crashes, every: int, *, is_synced: bool
) -> None:
    events: list[Event] = []
    driver = Driver(events, is_synced=is_synced)
    driver.run()
    seen: set[Held] = set()
    for each in itertools.islice(crash(events), 0, None, every):
        world = reopened(each)
        found = found_in(world)
        assert found in around(driver, each), each.at
        seen.add(found)
        check_later_messages(world, found)
    assert len(seen) > len({*driver.held}) // (1 + every)


def check_unsynced(*, is_configured: bool, every: int) -> None:
    """Check losses of power where nothing is synced.

    Args:
        is_configured: The next broker has the queues; otherwise only the one after it has them.
        every: Each so many losses of power are tried.
    """
    events: list[Event] = []
    driver = Driver(events, is_synced=False)
    driver.run()
    lost = 0
    for each in itertools.islice(power_cuts(events), 0, None, every):
        world = reopened(each, QUEUES if is_configured else ())
        in_log = logged(world.files)
        later = publish_later(world)
        world.files.close()
        again = QueueWorld(world.disk, start_id=3, is_synced=True)
        for queue, before, after in zip(found_in(again), *around(driver, each), strict=True):
            assert queue <= in_log | later
            assert (before & after & in_log) | later <= queue, each.at
        again.files.close()
        lost += not in_log.issuperset(around(driver, each)[0].work)
    assert lost, "a loss of power has taken the end of the log"


@pytest.mark.row("QB30")
@pytest.mark.parametrize(
    ("crash", "is_synced"), [(kills, False), (power_cuts, True), (power_cuts, False)]
)
def test_a_file_backed_queue_is_what_the_log_says(
    crash: Crashes, every: int, monkeypatch: pytest.MonkeyPatch, *, is_synced: bool
) -> None:
    """Its file is taken or not, its state paged out or not: what the queue holds is the same."""
    monkeypatch.setattr(message_table, "PAGED_ROWS", 3)
    monkeypatch.setattr(message_table, "RESIDENT_CHUNKS", 2)
    events: list[Event] = []
    driver = Driver(events, is_synced=is_synced, queues=FILE_BACKED)
    driver.run()
    taken = ignored = 0
    for each in itertools.islice(crash(events), 0, None, 3 * every):
        without = QueueWorld(each.disk(), start_id=2, is_synced=True, queues=QUEUES)
        wanted = found_in(without)
        world = QueueWorld(each.disk(), start_id=2, is_synced=True, queues=FILE_BACKED)
        found = found_in(world)
        assert found == wanted, each.at
        later = publish_later(world)
        world.keep_snapshots()
        world.files.close()
        again = QueueWorld(world.disk, start_id=3, is_synced=True, queues=FILE_BACKED)
        assert found_in(again) == Held(found.work | later, found.once | later), each.at
        taken += bool(world.snapshot_files.snapshots)
        ignored += not world.snapshot_files.snapshots
        assert again.snapshot_files.snapshots
        again.files.close()
    assert taken
    assert ignored


@pytest.mark.parametrize("is_configured", [True, False])
def test_where_nothing_was_synced_a_loss_of_power_takes_no_message_that_the_log_still_has(
    request: pytest.FixtureRequest, every: int, *, is_configured: bool
) -> None:
    step = 1 if request.config.getoption("--store-steps") else 3 * every
    check_unsynced(is_configured=is_configured, every=step)


def test_a_point_that_is_not_moved_back_to_the_lost_end_of_the_log_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The proof sees the defect that the log's starts in `queues.ack` are there for."""

    def valid(
        _: QueuePointFile, points: tuple[QueuePoint, ...], *_others: object
    ) -> tuple[QueuePoint, ...]:
        return points

    monkeypatch.setattr(QueuePointFile, "_valid", valid)
    with pytest.raises(AssertionError):
        check_unsynced(is_configured=False, every=1)
