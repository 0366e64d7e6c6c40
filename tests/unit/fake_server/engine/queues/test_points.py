"""The recovery points of queues: what of the log they keep."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from haclient_fake_server.engine.queues.points import QueuePoint, oldest_needed
from haclient_fake_server.engine.settings import QueueTopic
from support.engine import Peer, World


def point(name: str, position: int) -> QueuePoint:
    return QueuePoint(name, "json", ("orders",), "epoch", position)


def test_the_queue_that_is_furthest_behind_says_what_is_needed() -> None:
    assert oldest_needed([point("a", 7), point("b", 3), point("c", 9)]) == 3


def test_without_queues_nothing_is_needed() -> None:
    assert oldest_needed([]) is None


WORK = QueueTopic(name="work", topics=("orders",), max_per_subscription_backlog=100)


def published(world: World, first: int, last: int) -> None:
    publisher = world.client("pubber")
    for number in range(first, last + 1):
        publisher.publish(number, b"%d" % number)
    publisher.close()


def consumer(world: World, queue: str = "work") -> tuple[Peer, list[str]]:
    """A consumer, and the bookmarks of what it has got."""
    peer = world.client("consumer")
    peer.send(c="subscribe", cid="1", sub_id="1", t=queue, opts="max_backlog=100")
    return peer, [message.bookmark for message in peer.take()]


def acknowledge(peer: Peer, *bookmarks: str) -> None:
    peer.send(c="sow_delete", cid="2", t="work", bm=",".join(bookmarks))


def positions(world: World) -> dict[str, int]:
    return {point.name: point.position for point in world.queue_points}


@pytest.mark.row("QB29", "TL14")
def test_a_point_is_the_oldest_message_that_has_not_left_the_queue() -> None:
    world = World(queues=(WORK,))
    published(world, 1, 4)
    peer, bookmarks = consumer(world)
    acknowledge(peer, bookmarks[1])
    world.advance(2.0)
    assert positions(world) == {"work": 1}
    acknowledge(peer, bookmarks[0])
    world.advance(2.0)
    assert positions(world) == {"work": 3}
    acknowledge(peer, bookmarks[2], bookmarks[3])
    world.advance(2.0)
    assert positions(world) == {"work": 5}
    world.restart()
    published(world, 5, 6)
    world.restart()
    assert consumer(world)[1] == ["7094790850998930143|5|", "7094790850998930143|6|"]


@pytest.mark.row("QB29", "TL14")
def test_the_point_of_an_empty_queue_follows_the_end_of_the_log() -> None:
    world = World(queues=(QueueTopic(name="idle", topics=("elsewhere",)),))
    published(world, 1, 4)
    assert positions(world) == {"idle": 1}
    world.advance(2.0)
    assert positions(world) == {"idle": 5}
    assert world.engine.next_due > world.now + 1.0, "nothing more is to be written"


@pytest.mark.row("QB29", "TL14")
def test_points_are_written_at_most_once_a_second() -> None:
    world = World(queues=(WORK,))
    published(world, 1, 50)
    peer, bookmarks = consumer(world)
    seen: list[int] = []
    for bookmark in bookmarks:
        acknowledge(peer, bookmark)
        seen.append(positions(world)["work"])
        world.advance(0.1)
    assert len({*seen}) == 5
    assert seen == sorted(seen)


@pytest.mark.row("QB29", "TL14")
def test_a_queue_that_began_now_keeps_its_beginning() -> None:
    world = World()
    published(world, 1, 2)
    queue = QueueTopic(name="q", topics=("orders",), recovery_point="now")
    world.settings = replace(world.settings, queues=(queue,))
    world.restart()
    assert positions(world) == {"q": 3}
    published(world, 3, 4)
    world.restart()
    assert consumer(world, "q")[1] == ["7094790850998930143|3|"]  # a backlog of 1
    assert positions(world) == {"q": 3}


@pytest.mark.row("QB29", "TL14")
@pytest.mark.parametrize(
    "change", [{"recovery_point": "epoch"}, {"topics": ("orders", "prices")}, {"name": "other"}]
)
def test_another_queue_or_another_beginning_begins_where_the_configuration_says(
    change: dict[str, object],
) -> None:
    fields: dict[str, object] = {"name": "q", "topics": ("orders",), "recovery_point": "now"}
    world = World()
    published(world, 1, 2)
    queue = QueueTopic(**fields)  # type: ignore[arg-type]  # as listed
    world.settings = replace(world.settings, queues=(queue,))
    world.restart()
    assert positions(world) == {"q": 3}
    published(world, 3, 3)
    again = QueueTopic(**{**fields, **change})  # type: ignore[arg-type]  # as listed
    world.settings = replace(world.settings, queues=(again,))
    world.restart()
    begin = 1 if again.recovery_point == "epoch" else 4
    assert positions(world) == {again.name: begin}


@pytest.mark.row("QB29", "TL14")
@pytest.mark.parametrize(
    ("recovery_point", "begin"),
    [
        ("epoch", 1),
        ("now", 5),
        ("7094790850998930143|2|", 3),
        ("20231114T221505.000000Z", 3),
        ("20200101T000000Z", 1),
        ("4711|1|", 1),  # it is older than the log, which has no such message
    ],
)
def test_a_new_queue_begins_at_its_recovery_point(recovery_point: str, begin: int) -> None:
    world = World()
    published(world, 1, 2)  # at 22:15:00
    world.advance(10.0)
    published(world, 3, 4)
    queue = QueueTopic(name="q", topics=("orders",), recovery_point=recovery_point)
    world.settings = replace(world.settings, queues=(queue,))
    world.restart()
    assert positions(world) == {"q": begin}


def status(world: World) -> dict[str, int]:
    peer = world.client("reader")
    peer.send(c="sow", cid="3", query_id="3", t="/HACLIENT/status")
    (answer,) = [each for each in peer.take() if each.kind == "sow"]
    peer.close()
    found: dict[str, int] = json.loads(answer.data)
    return found


@pytest.mark.row("QB29", "TL14")
def test_what_a_queue_needs_is_needed_of_the_log() -> None:
    world = World(queues=(WORK, QueueTopic(name="idle", topics=("elsewhere",))))
    published(world, 1, 4)
    assert status(world)["oldest_needed_position"] == 1
    peer, bookmarks = consumer(world)
    acknowledge(peer, *bookmarks[:3])
    world.advance(2.0)
    assert status(world)["oldest_needed_position"] == 4
    acknowledge(peer, bookmarks[3])
    world.advance(2.0)
    assert status(world)["oldest_needed_position"] == 5


@pytest.mark.row("QB29", "TL14")
def test_messages_that_were_removed_from_the_log_are_reported_at_the_start() -> None:
    world = World(queues=(WORK,))
    published(world, 1, 4)
    world.journal.live.manifest.first_position = 3  # as if the oldest segment had been removed
    world.restart()
    world.advance(1.0)
    consumer(world)
    lost = "positions 1 to 2: removed although queue 'work' needs it"
    assert world.events.count(lost) == 1
    assert positions(world) == {"work": 3}
