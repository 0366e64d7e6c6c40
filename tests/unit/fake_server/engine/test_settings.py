"""What an engine is when nothing was said."""

from __future__ import annotations

from typing import Any

import pytest

from haclient.errors import UsageError
from haclient_fake_server.engine.settings import (
    EngineSettings,
    LogTopic,
    QueueTopic,
    ReplicateTo,
    SowTopic,
)


@pytest.mark.row("TL2")
def test_by_default_every_topic_is_logged_and_none_has_a_state() -> None:
    settings = EngineSettings()
    assert settings.log_topics == (LogTopic(".*"),)
    assert settings.sow_topics == ()
    assert settings.users is None


def test_a_sow_topic_is_of_json_unless_told_otherwise() -> None:
    assert SowTopic("orders", ("/id",)).message_type == "json"


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("tcp://west:9007", "tcp://west:9007"),
        ("tcp://west:9007/", "tcp://west:9007"),
        ("tcp://me:secret@[::1]:9007/amps/json", "tcp://[::1]:9007"),
    ],
)
def test_a_destination_is_called_by_its_address_without_credentials(uri: str, address: str) -> None:
    to = ReplicateTo(uri)
    assert (to.address, to.mode, to.downgrade_after_s) == (address, "sync", None)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"mode": "maybe"}, "mode 'maybe', not sync or async"),
        ({"downgrade_after_s": 0.0}, "downgrade_after_s=0.0, wanted seconds"),
        ({"heartbeat_s": -1.0}, "heartbeat_s=-1.0, wanted seconds"),
    ],
)
def test_a_nonsensical_destination_is_refused(fields: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        ReplicateTo("tcp://west:1", **fields)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(UsageError, match="host and port"):
        ReplicateTo("tcp://west")


def test_destinations_must_differ_and_need_a_log() -> None:
    twice = (ReplicateTo("tcp://west:1"), ReplicateTo("tcp://me:x@west:1", "async"))
    with pytest.raises(UsageError, match="named twice"):
        EngineSettings(replicate_to=twice)
    with pytest.raises(UsageError, match="no topic is logged"):
        EngineSettings(replicate_to=twice[:1], log_topics=())


def test_a_queue_is_at_least_once_over_the_topic_of_its_name_unless_told_otherwise() -> None:
    queue = QueueTopic(name="work")
    assert (queue.underlying, queue.publish_target, queue.takes_over_topic) == (
        ("work",),
        "work",
        True,
    )
    assert (queue.semantics, queue.chosen_delivery) == ("at-least-once", "proportional")
    assert (queue.lease_s, queue.max_per_subscription_backlog, queue.max_backlog) == (None, 1, None)


@pytest.mark.parametrize(
    ("fields", "target", "takes_over"),
    [
        ({"topics": ("jobs",)}, "jobs", False),
        ({"topics": ("jobs", "tasks")}, "", False),
        ({"topics": ("^jobs",)}, "", False),
        ({"topics": ("^jobs",), "default_publish_target": "jobs/x"}, "jobs/x", False),
        ({"topics": ("jobs", "tasks"), "default_publish_target": "tasks"}, "tasks", False),
        ({"topics": ("work", "jobs")}, "work", True),
        ({"topics": ("wo.k",)}, "work", True),
    ],
)
def test_a_publish_to_a_queue_goes_to_its_topic_if_there_is_one(
    fields: dict[str, Any], target: str, *, takes_over: bool
) -> None:
    queue = QueueTopic(name="work", **fields)
    assert (queue.publish_target, queue.takes_over_topic) == (target, takes_over)


def test_at_most_once_is_delivered_in_turn() -> None:
    assert QueueTopic(name="work", semantics="at-most-once").chosen_delivery == "round-robin"
    assert QueueTopic(name="work", delivery="fast").chosen_delivery == "fast"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": ""}, "wanted a name that is not empty"),
        ({"name": "wo.*"}, "no regular expression"),
        ({"name": "/HACLIENT/queue"}, "not under /HACLIENT/"),
        ({"name": "a\nb"}, "character 1 of the topic is a control character"),
        ({"name": "work", "topics": ("a\x7f",)}, "character 1 of the topic is a control"),
        ({"name": "work", "dead_letter": "\tdead"}, "character 0 of the topic is a control"),
        ({"topics": ("",)}, "topics has an empty one"),
        ({"topics": ("(",)}, "topics: "),
        ({"default_publish_target": "other"}, "'other' is none of its topics"),
        ({"topics": ("^jobs",), "dead_letter": "jobs/dead"}, "is one of its own topics"),
        ({"semantics": "exactly-once"}, "wanted one of at-least-once, at-most-once"),
        ({"delivery": "random"}, "wanted one of fast, round-robin, proportional"),
        ({"leasing": "loose"}, "wanted one of sublet, strict"),
        ({"max_cancels_rule": "below"}, "wanted one of above, at"),
        ({"expiration_model": "newest"}, "wanted one of default, queue, latest, earliest"),
        ({"semantics": "at-most-once", "delivery": "fast"}, "at-most-once has round-robin alone"),
        ({"max_backlog": 0}, "max_backlog=0: wanted 1 or more"),
        ({"max_per_subscription_backlog": 0}, "max_per_subscription_backlog=0: wanted 1 or more"),
        ({"max_per_subscription_backlog": True}, "=True: wanted 1 or more"),
        ({"max_per_subscription_backlog": 1.0}, "=1.0: wanted 1 or more"),
        ({"max_deliveries": -1}, "max_deliveries=-1: wanted 0 or more"),
        ({"max_cancels": "2"}, "max_cancels='2': wanted 0 or more"),
        ({"lease_s": 0}, "lease_s=0: wanted more than 0 seconds"),
        ({"lease_s": float("nan")}, "lease_s=nan: wanted more than 0 seconds"),
        ({"lease_s": "30"}, "lease_s='30': wanted more than 0 seconds"),
        ({"expiration_s": -1.0}, "expiration_s=-1.0: wanted more than 0 seconds"),
        ({"expiration_s": 1e12}, "315360000 at most"),
        ({"priority": "/p", "barrier": "/b = 1"}, "priority and barrier exclude each other"),
        ({"priority": "/p +"}, "priority: "),
        ({"barrier": "/b ="}, "barrier: "),
        ({"recovery_point": ""}, "recovery_point"),
        ({"recovery_point": "latest"}, "recovery_point"),
        ({"recovery_point": "recent"}, "recovery_point"),
    ],
)
def test_a_wrong_value_of_a_queue_is_named_in_one_line(fields: dict[str, Any], told: str) -> None:
    name = fields.pop("name", "work")
    with pytest.raises(UsageError) as refused:
        QueueTopic(name=name, **fields)
    message = str(refused.value)
    assert message.startswith(f"queue {name!r}: ")
    assert told in message
    assert "\n" not in message


@pytest.mark.parametrize("point", ["epoch", "now", "0", "1|2|", "20240101T000000Z", "0|1|"])
def test_a_queue_begins_at_a_place_in_the_log(point: str) -> None:
    assert QueueTopic(name="work", recovery_point=point).recovery_point == point


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"queues": (QueueTopic(name="a"), QueueTopic(name="a"))}, "another queue has that name"),
        (
            {"queues": (QueueTopic(name="a"),), "sow_topics": (SowTopic("a", ("/id",)),)},
            "a topic with a state has that name",
        ),
        (
            {"queues": (QueueTopic(name="a", topics=("b",)),), "log_topics": (LogTopic("a"),)},
            "'b' is not in the transaction log",
        ),
        (
            {"queues": (QueueTopic(name="a", dead_letter="d"),), "log_topics": (LogTopic("a"),)},
            "'d' is not in the transaction log",
        ),
        (
            {"queues": (QueueTopic(name="a"),), "log_topics": (LogTopic("a", "nvfix"),)},
            "'a' is not in the transaction log",
        ),
        (
            {"queues": (QueueTopic(name="a", topics=("^b",)),), "log_topics": ()},
            "a queue needs a log",
        ),
        (
            {
                "queues": (QueueTopic(name="a", topics=("^b",)),),
                "log_topics": (LogTopic("a"), LogTopic("b", filter="/x = 1")),
            },
            "a log topic has a filter",
        ),
        (
            {"queues": (QueueTopic(name="a", topics=("b",), dead_letter="a"),)},
            "dead_letter 'a' publishes to 'b', one of its own topics",
        ),
        (
            {
                "queues": (
                    QueueTopic(name="a", dead_letter="c"),
                    QueueTopic(name="c", topics=("x", "y")),
                )
            },
            "dead_letter 'c' is a queue without a topic for publishes",
        ),
        (
            {
                "queues": (
                    QueueTopic(name="a", dead_letter="b"),
                    QueueTopic(name="b", dead_letter="c"),
                    QueueTopic(name="over-c", topics=("^c$",), dead_letter="a"),
                )
            },
            "its dead letters return to it by way of 'b', 'over-c', 'a'",
        ),
    ],
)
def test_queues_have_names_of_their_own_and_topics_that_are_logged(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        EngineSettings(**settings)


def test_queues_of_one_name_may_be_of_different_types() -> None:
    queues = (QueueTopic(name="a"), QueueTopic(name="a", message_type="nvfix"))
    assert EngineSettings(queues=queues).queues == queues


@pytest.mark.parametrize("rule", [{"priority": "/p"}, {"barrier": "/b = 1"}])
@pytest.mark.parametrize("kind", ["bson", "xml", "binary"])
def test_priorities_and_barriers_need_messages_that_can_be_read(
    kind: str, rule: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match=f"messages of type '{kind}' have no fields"):
        QueueTopic(name="work", message_type=kind, **rule)  # type: ignore[arg-type]  # texts


@pytest.mark.parametrize(
    "fields", [{"sow_topics": (SowTopic("a\rb"),)}, {"log_topics": (LogTopic("a\x85b"),)}]
)
def test_no_topic_has_a_control_character(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="character 1 of the topic is a control character"):
        EngineSettings(**fields)


@pytest.mark.row("TL2")
def test_a_log_with_a_part_of_the_messages_has_no_state_and_no_queue() -> None:
    part = LogTopic("^(orders|jobs)$", filter="/px > 10")
    with pytest.raises(UsageError, match="only a part of its messages"):
        EngineSettings(log_topics=(part,), sow_topics=(SowTopic("orders", ("/id",)),))
    with pytest.raises(UsageError, match="'jobs' is not in the transaction log"):
        EngineSettings(log_topics=(part,), queues=(QueueTopic(name="jobs"),))
    whole = (part, LogTopic("^(orders|jobs)$"))
    EngineSettings(log_topics=whole, sow_topics=(SowTopic("orders", ("/id",)),))
    with pytest.raises(UsageError, match="only a part of"):
        EngineSettings(log_topics=whole, sow_topics=(SowTopic("^x", ("/id",), is_pattern=True),))
    with pytest.raises(UsageError, match="log topic 'orders': "):
        LogTopic("orders", filter="/px >")
