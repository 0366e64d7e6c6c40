"""What a mark says about the brokers of a test."""

from __future__ import annotations

import pytest

from haclient.errors import UsageError
from haclient_fake_server.config import BrokerConfig, LogTopic, QueueTopic, SowTopic
from haclient_fake_server.testing.marked_config import config_of


def test_texts_are_read_as_on_the_command_line_and_objects_are_taken() -> None:
    found = config_of(
        (),
        {
            "sow": ["orders:/id,history", "keyed:", SowTopic("prices", ("/symbol",))],
            "queues": ("jobs,max_backlog=10", QueueTopic(name="work")),
            "users": {"ann": "secret"},
            "log_topics": ["^a", "orders", "jobs", LogTopic("work")],
            "message_types": ["ours"],
        },
        segment_bytes=4096,
    )
    assert found == BrokerConfig(
        sow_topics=(
            SowTopic("orders", ("/id",), history=True),
            SowTopic("keyed"),
            SowTopic("prices", ("/symbol",)),
        ),
        queues=(
            QueueTopic(name="jobs", max_per_subscription_backlog=10),
            QueueTopic(name="work"),
        ),
        users={"ann": "secret"},
        log_topics=(LogTopic("^a"), LogTopic("orders"), LogTopic("jobs"), LogTopic("work")),
        message_types=("ours",),
        segment_bytes=4096,
    )


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"queue": ["jobs"]}, "unknown keyword 'queue', did you mean queues.* There are sow, "),
        ({"xyz": 1}, "unknown keyword 'xyz'[.] There are sow, queues, users, "),
        ({"sow": "orders:/id"}, "sow: wanted a list, found 'orders:/id'"),
        ({"sow": [1]}, "sow: wanted texts or SowTopics, found 1"),
        ({"sow": ["orders/id"]}, "^sow orders/id: expected TOPIC:/key"),
        ({"queues": ["jobs,limit=1"]}, "^queue jobs,limit=1: unknown option 'limit'"),
        ({"log_topics": ["("]}, "^log-topic [(]: "),
        ({"users": ["ann:secret"]}, "users: wanted a dict of passwords by user$"),
        ({"message_types": ["a/b"]}, "message type 'a/b'"),
    ],
)
def test_what_cannot_be_is_said_in_the_words_of_the_mark(
    keywords: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        config_of((), keywords, segment_bytes=4096)


def test_arguments_without_a_keyword_are_refused() -> None:
    with pytest.raises(UsageError, match=r"wanted keywords alone .*, found 'orders:/id'"):
        config_of(("orders:/id",), {}, segment_bytes=4096)
