"""Options of the broker and what happens to it, combined: defects sit where two features meet.

What has to hold is in `support.broker_world`: what was acknowledged is in the log, once and in the
order of its publisher; every replay is that log; records and queues are what the publishers and
consumers were told; replicas have the same; nothing is logged as an error, and nothing grows.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Final

import pytest

from haclient_fake_server.engine import replay
from haclient_fake_server.engine.connections import BookmarkSubscription, Connection
from haclient_fake_server.engine.persisted_acks import PersistedAcks
from haclient_fake_server.engine.publishers import KnownPublishers
from haclient_fake_server.engine.queues.dispatcher import QueueDispatcher
from haclient_fake_server.engine.queues.queue import Queue
from haclient_fake_server.engine.sow.table import SowTable
from haclient_fake_server.journal.format import Record
from support.broker_world import CHANGES, OPTIONS, Case, problems_of

pytestmark = pytest.mark.row("TL4", "TL8", "QB30", "RE1", "AK6")

QUICK: Final = 20  # cases of a sample
REPLICAS: Final = tuple(option for option in OPTIONS if option.endswith("replica"))
OF_REPLICAS: Final = {"replica stops", "replica is killed", "downgrade", "upgrade"}
CONSUMES: Final = {"semantics", "lease_s", "expiration_s", "topics"}  # what excludes at-most-once
RESTARTS: Final = {"stop", "kill", "write fails", "clock ahead", "clock back"}


def is_possible(case: Case) -> bool:
    """Whether its parts go together at all; what is refused does."""
    changes, options = {*case.changes}, {*case.options}
    moves = "publishers move" in changes
    return (
        len({*REPLICAS} & {*case.options}) <= 1
        and (case.has_replica or not OF_REPLICAS & changes)
        and not (case.has_replica and case.has_clocks)  # beyond the promise
        and not ("filtered log" in options and {"pattern", "queue of a pattern"} & options)
        and not (moves and ("sync replica" not in options or {"downgrade", "upgrade"} & changes))
        # The answer to a query is more than a connection may have unsent there.
        and not ("cut" in options and "large" in changes)
        and not (case.overlaps and len(RESTARTS & changes) > 1)
        and len([each for each in options if OPTIONS[each].get("queue", {}).keys() & CONSUMES]) < 2
    )


def met(case: Case) -> set[frozenset[str]]:
    """The pairs of features in a case."""
    crossed = itertools.product(case.options, case.changes)
    return {frozenset(each) for each in (*crossed, case.options, case.changes)}


def sample(seed: int, count: int) -> list[Case]:
    """Cases of two options and two changes that cover the pairs of features soon."""
    source, covered, chosen = random.Random(seed), set[frozenset[str]](), list[Case]()
    options = [*OPTIONS, *REPLICAS]  # changes of replicas are possible with them alone

    def draw() -> Case:
        chosen_options = dict.fromkeys(source.sample(options, 2))
        return Case((*chosen_options,), (*source.sample(CHANGES, 2),), seed, source.random() < 0.3)

    while len(chosen) < count:
        drawn = [*filter(is_possible, (draw() for _ in range(40)))]
        chosen.append(max(drawn, key=lambda case: len(met(case) - covered)))
        covered |= met(chosen[-1])
    return chosen


def check(cases: list[Case]) -> None:
    found = {case: problems for case in cases if (problems := problems_of(case))}
    assert not found, "\n".join(f"{case}: {problems[:5]}" for case, problems in found.items())


def test_pairs_of_features_of_the_broker_go_together() -> None:
    check(sample(1, QUICK))


@pytest.mark.full
@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_of_the_broker_goes_together_with_each_change(option: str) -> None:
    check([*filter(is_possible, (Case((option,), (change,)) for change in CHANGES))])


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 8))
def test_more_pairs_of_features_of_the_broker_go_together(seed: int) -> None:
    check(sample(seed, QUICK))


# -- planted bugs have to be found ------------------------------------------------------------


def _drop_an_ack(patch: pytest.MonkeyPatch) -> None:
    flush = PersistedAcks.flush

    def drop(
        self: PersistedAcks, connection: Connection, *, before: int = 0, always: bool = False
    ) -> None:
        if connection.publisher.seen < 20:
            flush(self, connection, before=before, always=always)
        else:
            connection.ack_is_scheduled = False

    patch.setattr(PersistedAcks, "flush", drop)


def _forget_an_ack_of_a_queue(patch: pytest.MonkeyPatch) -> None:
    def forget(_: object, queue: Queue) -> None:
        queue.removals.clear()

    patch.setattr(QueueDispatcher, "_record_removals", forget)


def _skip_a_record_in_a_replay(patch: pytest.MonkeyPatch) -> None:
    wanted = replay.Replay._wanted_head

    def skip(self: replay.Replay, item: BookmarkSubscription, record: Record) -> bytes | None:
        return None if record.position == 11 else wanted(self, item, record)

    patch.setattr(replay, "_needs_general_scan", lambda *_: True)
    patch.setattr(replay.Replay, "_wanted_head", skip)


def _forget_an_expiration(patch: pytest.MonkeyPatch) -> None:
    set_deadline = SowTable._set_deadline

    def forget(self: SowTable, key: str, due_us: int) -> None:
        if due_us % 3:
            set_deadline(self, key, due_us)

    patch.setattr(SowTable, "_set_deadline", forget)


def _forget_what_was_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KnownPublishers, "restore", lambda *_, **__: None)


@pytest.mark.parametrize(
    ("plant", "option", "change"),
    [
        (_drop_an_ack, "plain", "pause"),
        (_forget_an_ack_of_a_queue, "queue leases", "kill"),
        (_skip_a_record_in_a_replay, "from the log", "stall"),
        (_forget_an_expiration, "sow expiration", "minute"),
        (_forget_what_was_seen, "plain", "repeat"),
    ],
)
def test_a_planted_bug_of_the_broker_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    option: str,
    change: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case((option,), (change,))
    check([case])
    plant(monkeypatch)
    assert problems_of(case)
