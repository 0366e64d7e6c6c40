"""Configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from haclient.errors import UsageError
from haclient_fake_server.config import (
    BrokerConfig,
    FsyncPolicy,
    LogTopic,
    QueueTopic,
    ReplicateTo,
    SowTopic,
    parse_log_topic,
    parse_queue,
    parse_replicate_to,
    parse_sow_topic,
    queue_argument,
    read_users,
    sow_argument,
)


@pytest.mark.row("TL2", "TL6")
def test_without_a_word_everything_is_logged_in_memory_on_loopback() -> None:
    config = BrokerConfig()
    assert config.listen == ("tcp://127.0.0.1:0",)
    assert config.data_dir is None
    assert config.log_topics == (LogTopic(".*"),)
    assert config.flush_interval_s == 0.1


def test_the_engine_is_told_what_concerns_it() -> None:
    config = BrokerConfig(
        name="east",
        users={"ann": "secret"},
        log_topics=(),
        sow_topics=(SowTopic("orders", ("/id",)),),
        ack_interval_s=0.5,
        version="5.3.4.0",
    )
    assert BrokerConfig(message_types=("ours",)).engine_settings().message_types == ("ours",)
    settings = config.engine_settings()
    assert (settings.name, settings.users, settings.version) == (
        "east",
        {"ann": "secret"},
        "5.3.4.0",
    )
    assert (settings.log_topics, settings.ack_interval_s) == ((), 0.5)
    assert settings.sow_topics == config.sow_topics


@pytest.mark.row("RE4")
def test_the_engine_is_told_where_to_replicate() -> None:
    to = (ReplicateTo("tcp://west:1", "async"),)
    assert BrokerConfig(replicate_to=to).engine_settings().replicate_to == to


def test_a_policy_may_be_given_as_a_plain_word() -> None:
    plain: Any = "batch"
    assert BrokerConfig(fsync=plain).fsync is FsyncPolicy.BATCH


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"name": ""}, "wanted a name that is not empty"),
        ({"name": None}, "wanted a name that is not empty"),
        ({"message_types": "ours"}, "message_types has a str: wanted a tuple of str"),
        ({"message_types": ("",)}, "message type '': wanted 1 to 255 characters"),
        ({"message_types": ("a/b",)}, "message type 'a/b': wanted 1 to 255 characters, no slash"),
        ({"listen": "tcp://127.0.0.1:0"}, "listen has a str: wanted a tuple of str"),
        ({"listen": (1,)}, "listen has a int: wanted a tuple of str"),
        ({"data_dir": "data"}, "data_dir='data': wanted a pathlib.Path, or None"),
        ({"users": ["ann"]}, "users: wanted a mapping from user to password"),
        ({"users": {"ann": None}}, "users: wanted a mapping from user to password"),
        ({"log_topics": ("orders",)}, "log_topics has a str: wanted a tuple of LogTopic"),
        (
            {"replicate_to": ("tcp://ann:secret@h:1",)},
            "replicate_to has a str: wanted a tuple of ReplicateTo$",
        ),
        (
            {"sow_topics": (SowTopic("a"), SowTopic("a", ("/id",)))},
            "sow_topics .*'a', 'a'.*: wanted names, each once",
        ),
        ({"sow_topics": (SowTopic(""),)}, "sow_topics .*: wanted names, each once"),
        ({"fsync": "sometimes"}, "fsync='sometimes': wanted one of none, interval, batch"),
        ({"segment_bytes": 0}, "segment_bytes=0: wanted 1024 bytes or more"),
        ({"segment_bytes": "x"}, "segment_bytes='x': wanted 1024 bytes or more"),
        ({"preallocated_files": 0}, "preallocated_files=0: wanted 1 or more, the one that"),
        ({"preallocated_files": "2"}, "preallocated_files='2': wanted 1 or more, the one that"),
        ({"high_water_bytes": 0}, "high_water_bytes=0: wanted 1 bytes or more"),
        ({"ack_interval_s": -1}, "ack_interval_s=-1: wanted 0 seconds or more"),
        ({"redial_s": 0}, "redial_s=0: wanted more than 0 seconds"),
        ({"flush_interval_s": float("nan")}, "flush_interval_s=nan: wanted more than 0 seconds"),
        ({"dial_timeout_s": "x"}, "dial_timeout_s='x': wanted more than 0 seconds"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_written(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=f"^broker .*: {why}") as caught:
        BrokerConfig(**wrong)
    assert "secret" not in str(caught.value)


@pytest.mark.row("X3")
@pytest.mark.parametrize("interval_s", [1e-6, 0.1, 1.0])
def test_the_wider_range_of_flush_intervals_is_taken(interval_s: float) -> None:
    config = BrokerConfig(flush_interval_s=interval_s)
    assert config.flush_interval_s == interval_s


def test_acks_need_not_be_collected() -> None:
    assert BrokerConfig(ack_interval_s=0).engine_settings().ack_interval_s == 0


def test_a_sow_topic_has_keys() -> None:
    assert parse_sow_topic("orders:/id") == SowTopic("orders", keys=("/id",))
    kept = parse_sow_topic("orders:/id,history,/b")
    assert kept == SowTopic("orders", keys=("/id", "/b"), history=True)
    kept = parse_sow_topic("orders:/id,expiration=2.5")
    assert kept == SowTopic("orders", keys=("/id",), expiration_s=2.5)
    several = parse_sow_topic("^orders:/id,pattern")
    assert several == SowTopic("^orders", keys=("/id",), is_pattern=True)
    kept = parse_sow_topic("orders:history", allow_user_keys=True)
    assert kept == SowTopic("orders", history=True)
    assert parse_sow_topic("a:b:/id,/sub/key") == SowTopic("a:b", keys=("/id", "/sub/key"))


@pytest.mark.parametrize(
    "text", ["orders", ":/id", "orders:", "orders:id", "orders:/id,", "orders:/", "orders:/id,x=1"]
)
def test_a_sow_topic_without_keys_is_a_mistake(text: str) -> None:
    with pytest.raises(UsageError, match="TOPIC:/key"):
        parse_sow_topic(text)


@pytest.mark.parametrize("option", ["history=true", "pattern=", "file_backed=true"])
def test_an_option_of_a_sow_topic_that_takes_no_value_is_not_passed_over(option: str) -> None:
    with pytest.raises(UsageError, match="file_backed"):
        parse_sow_topic(f"orders:/id,{option}")


@pytest.mark.parametrize("lifetime", ["expiration", "expiration=", "expiration=2s"])
def test_the_lifetime_of_records_is_in_seconds(lifetime: str) -> None:
    with pytest.raises(UsageError, match="wanted expiration=SECONDS"):
        parse_sow_topic(f"orders:/id,{lifetime}")


@pytest.mark.row("CLI5", "RE4")
@pytest.mark.parametrize(
    ("text", "mode", "downgrade_after_s"),
    [
        ("tcp://west:1", "sync", None),
        ("tcp://west:1,sync", "sync", None),
        ("tcp://west:1,async", "async", None),
        ("tcp://west:1,sync,downgrade=2.5", "sync", 2.5),
    ],
)
def test_a_destination_is_synchronous_unless_told_otherwise(
    text: str, mode: str, downgrade_after_s: float | None
) -> None:
    to = parse_replicate_to(text)
    assert (to.address, to.mode) == ("tcp://west:1", mode)
    assert to.downgrade_after_s == downgrade_after_s


@pytest.mark.parametrize("option", ["downgrade=", "downgrade=0", "downgrade=nan", "sync=1", ""])
def test_what_a_destination_is_not_is_a_mistake(option: str) -> None:
    with pytest.raises(UsageError, match="downgrade"):
        parse_replicate_to(f"tcp://west:1,{option}")


@pytest.mark.parametrize("text", ["(", "(?=a)", r"(a)\1"])
def test_a_pattern_that_re2_cannot_carry_out_is_a_mistake(text: str) -> None:
    with pytest.raises(UsageError, match="--log-topic"):
        parse_log_topic(text)


def test_a_queue_on_the_command_line_is_a_name_a_topic_and_options() -> None:
    assert parse_queue("work") == QueueTopic(name="work")
    assert parse_queue("work:jobs") == QueueTopic(name="work", topics=("jobs",))
    text = (
        "work:^jobs/,max_backlog=20,queue_backlog=100,lease=30,leasing=strict,delivery=fast,"
        "max_deliveries=5,max_cancels=3,expiration=86400,dead_letter=dead,recovery_point=now"
    )
    assert parse_queue(text) == QueueTopic(
        name="work",
        topics=("^jobs/",),
        max_per_subscription_backlog=20,
        max_backlog=100,
        lease_s=30.0,
        leasing="strict",
        delivery="fast",
        max_deliveries=5,
        max_cancels=3,
        expiration_s=86_400.0,
        dead_letter="dead",
        recovery_point="now",
    )
    assert parse_queue("work,semantics=at-most-once").semantics == "at-most-once"
    assert parse_queue("work,priority=/p").priority == "/p"
    for option, wanted in (("", True), ("=true", True), ("=false", False)):
        assert parse_queue(f"work,file_backed{option}").file_backed is wanted
    assert parse_queue("work,barrier=/stop = 1").barrier == "/stop = 1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "wanted a name"),
        ("wo.*rk", "wanted a name"),
        (":jobs", "wanted a name"),
        ("work:", "wanted a topic after the colon, found none"),
        ("lease=5", "wanted NAME[:TOPIC] first, found 'lease=5'"),
        ("work lease=5", "wanted NAME[:TOPIC] first, found 'work lease=5': a comma precedes each"),
        ("work,lease", "lease: wanted lease=VALUE"),
        ("work,lease=", "lease: wanted lease=VALUE"),
        ("work,dead_letter=", "dead_letter: wanted dead_letter=VALUE"),
        ("work,leese=5", "unknown option 'leese'; the options: max_backlog, "),
        ("work,max_per_subscription_backlog=5", "unknown option 'max_per_subscription_backlog'"),
        ("work,lease=5,lease=6", "lease is given twice"),
        ("work,lease=soon", "lease=soon: wanted a number"),
        ("work,file_backed=", "file_backed: wanted file_backed=VALUE"),
        ("work,file_backed=yes", "file_backed=yes: wanted true or false"),
        ("work,file_backed,file_backed=true", "file_backed is given twice"),
        ("work,lease=0", "queue 'work': lease=0.0: wanted more than 0 seconds"),
        ("work,lease=nan", "wanted more than 0 seconds"),
        ("work,lease=inf", "wanted more than 0 seconds"),
        ("work,max_backlog=0", "queue 'work': max_backlog=0: wanted 1 or more"),
        ("work,queue_backlog=0", "queue 'work': queue_backlog=0: wanted 1 or more"),
        ("work,expiration=-1", "queue 'work': expiration=-1.0: wanted more than 0 seconds"),
        ("work,max_backlog=1.5", "max_backlog=1.5: wanted a whole number"),
        ("work,max_deliveries=-1", "wanted 0 or more"),
        ("work,semantics=once", "wanted one of at-least-once, at-most-once"),
        ("work,delivery=slow", "wanted one of fast, round-robin, proportional"),
        ("work,priority=/p,barrier=/q = 1", "exclude each other"),
        ("work,priority=/p +", "priority: "),
        ("work:(,lease=1", "topics: "),
        ("work,dead_letter=work", "is one of its own topics"),
        (
            "work,recovery_point=yesterday",
            "recovery_point='yesterday': wanted epoch, now, a bookmark or a time such as ",
        ),
    ],
)
def test_a_wrong_queue_is_refused_in_one_line_that_repeats_it(text: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_queue(text)
    message = str(refused.value)
    assert message.startswith(f"--queue {text}: ")
    assert told in message
    assert "\n" not in message


def test_the_engine_is_told_of_the_queues() -> None:
    queues = (QueueTopic(name="work", topics=("jobs",)),)
    assert BrokerConfig(queues=queues).engine_settings().queues == queues


def test_queues_are_checked_with_the_rest_of_a_configuration() -> None:
    with pytest.raises(UsageError, match="broker 'broker': queue 'work': another queue has"):
        BrokerConfig(queues=(QueueTopic(name="work"), QueueTopic(name="work")))
    wrong: Any = ("work",)
    with pytest.raises(UsageError, match="queues has a str: wanted a tuple of QueueTopic"):
        BrokerConfig(queues=wrong)


def test_users_are_read_with_colons_in_their_passwords(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("# comment\n\nalice:se:cret\nbob:\n", encoding="utf-8")
    assert read_users(file) == {"alice": "se:cret", "bob": ""}


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("text", "told"),
    [("x\n", "line 1"), (":p\n", "line 1"), ("a:1\na:2\n", "line 2 names a user for the second")],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "users"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=told):
        read_users(file)


def test_a_user_file_that_cannot_be_read_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_users(tmp_path / "none")
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="not a text file in UTF-8"):
        read_users(file)


@pytest.mark.parametrize(
    "text",
    [
        "jobs",
        "jobs:orders",
        "jobs,max_backlog=10,lease=2.5,semantics=at-least-once",
        "jobs,queue_backlog=3,priority=/px,dead_letter=dead,file_backed,max_deliveries=2",
    ],
)
def test_a_queue_is_the_same_after_it_was_an_argument(text: str) -> None:
    queue = parse_queue(text)
    assert parse_queue(queue_argument(queue)) == queue


@pytest.mark.parametrize(
    "text",
    ["a:/id", "a:/id,/px,history", "a:", "a:history", "^a:/id,pattern,file_backed,expiration=0"],
)
def test_a_topic_with_a_state_is_the_same_after_it_was_an_argument(text: str) -> None:
    topic = parse_sow_topic(text, allow_user_keys=True)
    assert parse_sow_topic(sow_argument(topic), allow_user_keys=True) == topic


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        (SowTopic("/HACLIENT/ours", ("/id",)), "names under /HACLIENT/ are the broker's own"),
        (SowTopic("a\nb", ("/id",)), "is a control character"),
        (SowTopic("unlogged", ("/id",), history=True), "which is in the log, but no log topic"),
    ],
)
def test_what_the_engine_refuses_is_said_before_an_address_is_taken(
    topic: SowTopic, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        BrokerConfig(log_topics=(LogTopic("logged"),), sow_topics=(topic,))
