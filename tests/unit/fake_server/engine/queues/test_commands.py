"""Acknowledging and browsing."""

from __future__ import annotations

import pytest

from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message
from haclient_fake_server.engine.queues import commands
from haclient_fake_server.engine.settings import QueueTopic
from support.engine import Peer, decode
from support.queue_engine import QueueWorld, acknowledge, consume, delivered, numbers

BACKLOG = 5


def busy_world(**options: object) -> tuple[QueueWorld, Peer, list[Message]]:
    """A world whose worker has five of seven messages."""
    world = QueueWorld(max_per_subscription_backlog=BACKLOG, **options)
    world.publish_numbers(7)
    worker = world.consumer(opts=f"max_backlog={BACKLOG}")
    messages = delivered(worker)
    assert len(messages) == BACKLOG
    return world, worker, messages


def stats(peer: Peer) -> tuple[int | None, int | None]:
    """What the only ack that came says: removed, and matched."""
    (answer,) = peer.acks()
    assert (answer.ack_type, answer.status) == ("stats", "success")
    return answer.records_deleted, answer.matches


def test_a_list_of_bookmarks_is_acknowledged_at_once_and_each_counts_once() -> None:
    world, worker, messages = busy_world()
    marks = [message.bookmark for message in messages[:3]]
    other = world.client("other")
    acknowledge(other, *marks, marks[0], f" {marks[1]}", a="stats", cid="9")
    assert stats(other) == (3, 3)
    assert numbers(worker) == [6, 7]
    assert world.states() == (0, 4)


@pytest.mark.parametrize("file_backed", [False, True])
def test_a_long_list_is_acknowledged_in_steps_for_which_later_commands_wait(
    monkeypatch: pytest.MonkeyPatch, *, file_backed: bool
) -> None:
    monkeypatch.setattr(commands, "STEP_MESSAGES", 2)
    monkeypatch.setattr(commands, "PAGED_STEP_MESSAGES", 2)
    world, _, (first, *_) = busy_world(file_backed=file_backed)
    marks = [first.bookmark.replace("|1|", f"|{number}|") for number in range(7, 0, -1)]
    other = world.client("other")
    frame = {"c": "sow_delete", "t": "work", "bm": ",".join(marks), "a": "stats", "cid": "9"}
    query = {"c": "sow", "t": "work", "cid": "10", "query_id": "10", "a": "completed"}
    other.send_all([encode_frame(frame, b""), encode_frame(query, b"")])
    answers = other.take()
    assert [each.kind for each in answers] == ["ack", "group_begin", "group_end", "ack"]
    assert (answers[0].records_deleted, answers[0].matches) == (7, 7)
    assert world.states() == (0, 0)


@pytest.mark.parametrize("before", [0, 5])
def test_a_malformed_bookmark_of_a_long_list_is_refused_before_anything_has_changed(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setattr(commands, "STEP_MESSAGES", 2)
    world, worker, messages = busy_world()
    marks = [each.bookmark for each in messages]
    acknowledge(worker, *marks[:before], "1|x|", *marks[before:], a="processed", cid="9")
    (answer,) = worker.acks()
    assert (answer.status, answer.reason) == ("failure", "invalid bookmark")
    assert world.states() == (2, 5)
    acknowledge(worker, *marks, a="processed", cid="10")
    assert [each.status for each in worker.acks()] == ["success"]


def test_what_is_unknown_or_gone_already_has_no_effect_and_is_no_error() -> None:
    world, worker, messages = busy_world()
    acknowledge(worker, messages[0].bookmark)
    delivered(worker)
    acknowledge(worker, messages[0].bookmark, "1|2|", "0|0|", a="stats", cid="9")
    assert stats(worker) == (0, 0)
    assert world.states() == (1, 5)


@pytest.mark.parametrize(
    "text", ["nonsense", "1|x|", ",", "0|x|EPOCH", "1|1|,20240101T000000Z", "-1|2|"]
)
def test_a_malformed_bookmark_is_refused_and_nothing_has_changed(text: str) -> None:
    world, worker, messages = busy_world()
    acknowledge(worker, f"{messages[0].bookmark},{text}", a="processed", cid="9")
    (answer,) = worker.acks()
    assert (answer.status, answer.reason) == ("failure", "invalid bookmark")
    assert world.states() == (2, 5)


@pytest.mark.parametrize("fields", [{}, {"bm": "1|1|", "filter": "/n = 1"}])
def test_either_bookmarks_or_a_filter_have_to_be_given(fields: dict[str, str]) -> None:
    world, worker, _ = busy_world()
    acknowledge(worker, **{**fields, "a": "processed"}, cid="9")
    (answer,) = worker.acks()
    assert (answer.status, answer.reason) == ("failure", "invalid bookmark")
    assert world.states() == (2, 5)


@pytest.mark.parametrize("options", ["expire,cancel", "cancel,lease_extension=1s", "lease=1"])
def test_options_that_contradict_each_other_are_refused(options: str) -> None:
    world, worker, messages = busy_world()
    acknowledge(worker, messages[0].bookmark, opts=options, a="processed", cid="9")
    (answer,) = worker.acks()
    assert (answer.status, answer.reason) == ("failure", "invalid options")
    assert world.states() == (2, 5)


@pytest.mark.parametrize("step", [1, 2, 500])
def test_a_filter_acknowledges_what_matches_whoever_has_it(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(commands, "STEP_MESSAGES", step)
    world, worker, _ = busy_world()
    other = world.client("other")
    acknowledge(other, filter="/n IN (2, 3, 7, 9)", a="stats", cid="9")
    assert stats(other) == (3, 3)
    assert numbers(worker) in ([6], [6, 7])  # 7 may be delivered between two steps
    assert world.states() == (0, 4)


def test_a_strict_queue_ends_only_the_own_leases_and_what_nobody_has() -> None:
    world, worker, messages = busy_world(leasing="strict")
    other = world.client("other")
    acknowledge(other, filter="/n > 0", a="stats", cid="9")
    assert stats(other) == (2, 7)
    assert world.states() == (0, 5)
    acknowledge(other, messages[0].bookmark, opts="expire", a="stats", cid="10")
    assert stats(other) == (0, 1)
    acknowledge(worker, filter="/n > 0", a="stats", cid="9")
    assert stats(worker) == (5, 5)


def test_a_cancel_by_filter_returns_each_message_once() -> None:
    world, worker, messages = busy_world()
    acknowledge(worker, filter="/n < 3", opts="cancel")
    assert numbers(worker) == [1, 2]
    assert world.queue().counts["cancelled"] == 2
    assert world.states() == (2, len(messages))


def test_a_lease_of_a_queue_without_leases_that_end_is_not_extended() -> None:
    world, worker, messages = busy_world()
    acknowledge(worker, messages[0].bookmark, opts="lease_extension=5s", a="stats", cid="9")
    assert stats(worker) == (0, 1)
    world.advance(10.0)
    assert world.states() == (2, 5)


def test_a_stored_acknowledgement_that_comes_again_is_a_duplicate() -> None:
    world, worker, messages = busy_world()
    fields: dict[str, str | int] = {"a": "processed,persisted,stats", "cid": "9", "s": 1}
    acknowledge(worker, messages[0].bookmark, **fields)
    answers = [message for message in worker.take() if message.kind == "ack"]
    assert [answer.ack_type for answer in answers] == ["processed", "persisted", "stats"]
    acknowledge(worker, messages[1].bookmark, **fields)
    world.advance(2.0)  # the acks of a connection are collected for a second
    answers = [message for message in worker.take() if message.kind == "ack"]
    assert [answer.ack_type for answer in answers] == ["processed", "stats", "persisted"]
    assert (answers[0].reason, answers[1].matches) == ("duplicate", 0)
    assert world.states() == (1, 5)


def test_browsing_shows_what_is_available_and_changes_nothing() -> None:
    world, _, _ = busy_world()
    reader = world.client("reader")
    reader.send(c="sow", cid="4", query_id="q", t="work", a="processed,completed,stats")
    inbox = reader.take()
    kinds = [message.kind for message in inbox]
    assert kinds == ["ack", "group_begin", "sow", "sow", "group_end", "ack", "ack"]
    first, second = (message for message in inbox if message.kind == "sow")
    assert (first.data, second.data) == (b'{"n": 6}', b'{"n": 7}')
    assert (first.topic, first.query_id, first.sow_key) == ("work", "q", "")
    assert first.bookmark.endswith("|6|")
    assert (inbox[-1].records_returned, inbox[-1].matches, inbox[-1].topic_matches) == (2, 2, 2)
    assert world.states() == (2, 5)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"top_n": 2}, [1, 2]),
        ({"opts": "top_n=2,skip_n=3"}, [4, 5]),
        ({"filter": "/n > 5"}, [6, 7, 8, 9]),
        ({"filter": "/n > 5", "top_n": 1, "batch_size": 10}, [6]),
        ({"batch_size": 4}, list(range(1, 10))),
        ({"top_n": 0}, []),
    ],
)
@pytest.mark.parametrize("step", [1, 3, 500])
def test_browsing_has_a_filter_and_a_limit(
    monkeypatch: pytest.MonkeyPatch, step: int, fields: dict[str, str | int], found: list[int]
) -> None:
    monkeypatch.setattr(commands, "STEP_MESSAGES", step)
    world = QueueWorld()
    world.publish_numbers(9)
    reader = world.client("reader")
    reader.send(**{"c": "sow", "cid": "4", "t": "work", "opts": "timestamp", **fields})
    messages = [message for message in reader.take() if message.kind == "sow"]
    assert [message.json() for message in messages] == [{"n": n} for n in found]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"bm": "0"}, "invalid options"),
        ({"orderby": "/n"}, "invalid options"),
        ({"sow_keys": "1"}, "invalid options"),
        ({"batch_size": 10_001}, "invalid batch size"),
        ({"filter": "/n ="}, "bad filter"),
        ({"opts": "oof"}, "invalid options"),
    ],
)
def test_browsing_refuses_what_a_queue_does_not_have(
    fields: dict[str, str | int], reason: str
) -> None:
    world = QueueWorld()
    reader = world.client("reader")
    reader.send(**{"c": "sow", "cid": "4", "t": "work", "a": "processed", **fields})
    (answer,) = reader.acks()
    assert (answer.status, answer.reason) == ("failure", reason)


def test_a_client_that_does_not_wait_for_answers_is_refused_more() -> None:
    world = QueueWorld()
    reader = world.client("reader")
    reader.stalled = True
    query = encode_frame({"c": "sow", "cid": "4", "t": "work", "a": "processed"})
    reader.send_all([query] * 17)
    *accepted, last = reader.acks()
    assert {answer.status for answer in accepted} == {"success"}
    assert (len(accepted), last.status, last.reason) == (16, "failure", "too many queries")


def test_a_query_of_large_messages_is_sent_in_several_steps() -> None:
    world = QueueWorld()
    large = [b'{"n": %d, "fill": "%s"}' % (n, b"x" * 700_000) for n in range(1, 6)]
    for body in large:
        world.publish(body)
    reader = world.client("reader")
    reader.stalled = True
    reader.send(c="sow", cid="4", t="work", batch_size=100)
    sizes: list[int] = []
    bodies: list[bytes] = []
    while world.engine.has_backlog(reader.number):
        world.apply(world.engine.pump(reader.number, world.now))
        data = reader.take_bytes()
        sizes.append(len(data))
        bodies += [message.data for message in decode(data) if message.kind == "sow"]
    assert bodies == large
    assert max(sizes) < 2_000_000


def test_messages_of_a_type_without_fields_match_as_in_every_filter() -> None:
    world = QueueWorld(QueueTopic(name="work", topics=("jobs",), message_type="xml"))
    publisher = world.client("xml", message_type="xml")
    for body in (b"n=1\x01", b"n=2\x01"):
        publisher.send(body, c="p", t="jobs")
    worker = world.client("worker", message_type="xml")
    consume(worker, filter="/n = 1")
    assert delivered(worker) == []
    consume(worker, "2", filter="/n IS NULL")
    (message,) = delivered(worker)
    assert message.data == b"n=1\x01"
    acknowledge(worker, message.bookmark)
    assert [message.data for message in delivered(worker)] == [b"n=2\x01"]
    acknowledge(worker, filter="/n IS NULL")
    assert len(world.queue(message_type="xml").table) == 0


def test_an_acknowledgement_by_filter_that_was_cut_is_carried_out_when_it_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = QueueWorld()
    monkeypatch.setattr(commands, "STEP_MESSAGES", 2)
    world.publish_numbers(5)
    fields: dict[str, str | int] = {"filter": "/n > 0", "s": 1, "a": "processed"}
    client = world.client("ops")
    client.stalled = True
    acknowledge(client, **fields)
    client.close()
    assert world.states() != (0, 0)
    acknowledge(world.client("ops"), **fields)
    assert world.states() == (0, 0)
