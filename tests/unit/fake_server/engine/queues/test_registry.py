"""Which queues there are, and which topics feed them."""

from __future__ import annotations

import pytest

from haclient_fake_server.engine.journal import MemoryJournal
from haclient_fake_server.engine.patterns import TopicMatcher
from haclient_fake_server.engine.queues.registry import QueueRegistry
from haclient_fake_server.engine.settings import QueueTopic
from support.queue_engine import QueueWorld, numbers

QUEUES = (
    QueueTopic(name="own"),
    QueueTopic(name="work", topics=("jobs", "tasks")),
    QueueTopic(name="all", topics=("^jobs", "own")),
    QueueTopic(name="work", topics=("jobs",), message_type="nvfix"),
)


@pytest.fixture
def registry() -> QueueRegistry:
    return QueueRegistry(QUEUES, MemoryJournal())


def test_a_queue_is_known_by_its_name_and_message_type(registry: QueueRegistry) -> None:
    assert len(registry) == 4
    assert [queue.settings for queue in registry] == list(QUEUES)
    found = registry.get("work", "nvfix")
    assert found is not None
    assert found.settings is QUEUES[3]
    assert registry.get("work", "binary") is None
    assert registry.get("jobs", "json") is None


@pytest.mark.parametrize(
    ("topic", "names"),
    [
        ("own", ["own"]),
        ("own|all", ["own", "all"]),
        ("w.rk", ["work"]),
        ("jobs", []),
        ("j.bs", []),
    ],
)
def test_a_subscription_is_about_the_queues_whose_names_match(
    registry: QueueRegistry, topic: str, names: list[str]
) -> None:
    found = registry.matching(TopicMatcher(topic), "json")
    assert [queue.settings.name for queue in found] == names
    assert all(queue.settings.message_type == "json" for queue in found)


@pytest.mark.parametrize(
    ("topic", "kind", "names"),
    [
        ("jobs", "json", ["work", "all"]),
        ("jobs2", "json", ["all"]),
        ("tasks", "json", ["work"]),
        ("own", "json", ["own", "all"]),
        ("jobs", "nvfix", ["work"]),
        ("work", "json", []),
    ],
)
def test_a_topic_feeds_the_queues_that_name_or_match_it(
    registry: QueueRegistry, topic: str, kind: str, names: list[str]
) -> None:
    assert [queue.settings.name for queue in registry.fed_by(topic, kind)] == names


def test_a_message_is_kept_in_memory_for_its_batch_alone() -> None:
    world = QueueWorld(*QUEUES)
    registry = world.engine._routes.queues
    world.publish_numbers(3)
    assert sorted(registry.reader._fresh) == [1, 2, 3]
    world.publish(b"{}", topic="elsewhere")
    assert registry.reader._fresh == {}
    for name in ("work", "all"):
        table = world.queue(name).table
        assert all(row and row.place for row in map(table.row, table.positions()))
    assert len(world.queue("own").table) == 0


def test_a_message_that_left_its_queue_in_its_own_batch_has_no_place_to_note() -> None:
    world = QueueWorld(QueueTopic(name="work", topics=("jobs",), semantics="at-most-once"))
    worker = world.consumer()
    world.publish_numbers(2)
    assert numbers(worker) == [1]
    world.publish_numbers(1, first=3)
    assert world.states() == (2, 1)


def test_a_queue_over_an_expression_gets_topics_that_are_new() -> None:
    world = QueueWorld(QueueTopic(name="work", topics=("^jobs/",)))
    worker = world.consumer()
    world.publish(b'{"n": 1}', topic="jobs/a")
    world.publish(b'{"n": 2}', topic="other")
    assert numbers(worker) == [1]
