"""What a crash may take, by the tables of the stores' documentation: no more than that."""

from __future__ import annotations

import pytest

from simulation.history import MessageId
from simulation.plans import (
    BookmarkStoreKind,
    DurabilityKind,
    PublisherPlan,
    PublishStoreKind,
    SubscriberPlan,
)
from simulation.surviving import (
    EVERYTHING,
    HYBRID_MEMORY_BYTES,
    Waiting,
    deliveries_at_risk,
    discards_at_risk,
    survives_up_to,
    synced_up_to,
    unsynced,
)

NOW = 100.0
WAITING = {
    101: Waiting(MessageId("p", 1), 90.0, 100),
    102: Waiting(MessageId("p", 2), 95.0, 100),
    103: Waiting(MessageId("p", 3), NOW, 100),
}


def survives(  # noqa: PLR0913  the cases of a table
    store: PublishStoreKind,
    durability: DurabilityKind = "process",
    *,
    power: bool,
    synced: int = 0,
    found: int = 0,
    since: float = 0.0,
    waiting: dict[int, Waiting] = WAITING,
) -> int:
    plan = PublisherPlan(name="p", store=store, servers=(), durability=durability)
    synced = synced_up_to(plan, waiting, synced=synced, since=since, now=NOW)
    return survives_up_to(plan, waiting, power=power, synced=synced, found=found)


@pytest.mark.parametrize("store", ["memory", "ring_memory"])
def test_memory_ends_with_its_process(store: PublishStoreKind) -> None:
    assert survives(store, power=False) == survives(store, power=True) == 0


@pytest.mark.parametrize("store", ["file", "ring"])
@pytest.mark.parametrize("durability", ["process", "group", "fsync"])
def test_files_survive_a_killed_process(
    store: PublishStoreKind, durability: DurabilityKind
) -> None:
    assert survives(store, durability, power=False) == EVERYTHING


@pytest.mark.parametrize("store", ["file", "ring", "hybrid"])
def test_a_loss_of_power_leaves_what_was_synced(store: PublishStoreKind) -> None:
    assert survives(store, power=True, synced=101) == 101
    assert survives(store, "group", power=True, synced=101) == 102, "there was time for a sync"
    assert survives(store, "group", power=True, since=NOW) == 0, "but not in this process"
    assert survives(store, "fsync", power=True) == EVERYTHING


def test_a_hybrid_store_loses_no_more_than_its_memory() -> None:
    half = HYBRID_MEMORY_BYTES // 2
    large = {n: Waiting(MessageId("p", n), NOW, half) for n in (1, 2, 3)}
    assert survives("hybrid", power=False) == 0
    assert survives("hybrid", power=False, waiting=large) == 1
    assert survives("hybrid", power=False, waiting=large, found=2) == 2, "it was in files"
    assert survives("hybrid", power=True, waiting=large, found=2) == 0
    assert survives("hybrid", "group", power=False) == 102
    assert survives("hybrid", "fsync", power=False) == EVERYTHING


ONE, TWO = MessageId("p", 1), MessageId("p", 2)
DISCARDED = {ONE: 90.0, TWO: NOW}


def at_risk(
    store: BookmarkStoreKind,
    durability: DurabilityKind = "process",
    *,
    power: bool,
    needs_sync: bool = True,
    since: float = 0.0,
) -> set[MessageId]:
    plan = SubscriberPlan(name="s", servers=(), topics=(), store=store, durability=durability)
    left = unsynced(plan, DISCARDED, needs_sync=needs_sync, since=since, now=NOW)
    return set(discards_at_risk(plan, left, behind={TWO}, power=power))


def test_a_killed_process_forgets_what_was_in_memory_or_has_no_room_in_a_ring() -> None:
    assert at_risk("logged", power=False) == set()
    assert at_risk("ring", power=False) == {TWO}
    assert at_risk("memory", power=False) == {ONE, TWO}
    assert at_risk("adapter", power=False) == set(), "the next process is asked"


@pytest.mark.parametrize("durability", ["group", "fsync"])
def test_a_loss_of_power_takes_what_is_not_synced(durability: DurabilityKind) -> None:
    assert at_risk("logged", power=True) == {ONE, TWO}
    assert at_risk("logged", power=True, needs_sync=False) == set()
    assert at_risk("logged", durability, power=True) == {TWO}
    assert at_risk("logged", durability, power=True, since=NOW) == {ONE, TWO}
    assert at_risk("ring", durability, power=True, needs_sync=False) == {TWO}


@pytest.mark.parametrize(
    ("store", "durability", "killed", "without_power"),
    [
        ("logged", "process", set[int](), {1, 2}),
        ("logged", "group", set[int](), {2}),
        ("ring", "fsync", {1, 2}, {1, 2}),
        ("memory", "process", {1, 2}, {1, 2}),
        ("adapter", "process", {1, 2}, {1, 2}),
    ],
)
def test_a_crash_takes_the_records_of_deliveries_that_no_file_has(
    store: BookmarkStoreKind,
    durability: DurabilityKind,
    killed: set[int],
    without_power: set[int],
) -> None:
    plan = SubscriberPlan(
        name="s", servers=("b",), topics=("orders",), store=store, durability=durability
    )
    for power, lost in ((False, killed), (True, without_power)):
        at_risk = deliveries_at_risk(
            plan,
            {MessageId("p", 1): NOW - 5, MessageId("p", 2): NOW},
            power=power,
            needs_sync=True,
            since=0.0,
            now=NOW,
        )
        assert {message.number for message in at_risk} == lost
