"""The broker's own topics, as clients of a pure engine see them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from haclient.errors import UsageError
from haclient.protocol.codec import encode_frame
from haclient.protocol.identity import publisher_id
from haclient_fake_server.engine import log_query, system_topics
from haclient_fake_server.engine.requests import MAX_PENDING_COMMANDS
from haclient_fake_server.engine.settings import LogTopic, ReplicateTo, SowTopic
from support.engine import START_US, Peer, World

PUBBER = publisher_id("pubber")
OTHER = publisher_id("other")
ACKS = "received,processed,completed,stats"


def ask(peer: Peer, topic: str, /, **parameters: object) -> dict[str, Any]:
    """The answer of a topic under `/HACLIENT/`."""
    body = json.dumps(parameters).encode()
    peer.send(body, c="sow", cid="q", t=f"/HACLIENT/{topic}", a="completed")
    begin, record, end, completed = peer.take()
    assert [begin.kind, record.kind, end.kind] == ["group_begin", "sow", "group_end"]
    assert (completed.ack_type, completed.status) == ("completed", "success")
    answer: dict[str, Any] = json.loads(record.data)
    return answer


def refusal(world: World, peer: Peer, topic: str, body: bytes, **fields: str | int) -> str:
    """The reason for which a query is refused; the broker's log has one line more."""
    lines = len(world.events)
    peer.send(body, **{"c": "sow", "cid": "q", "t": topic, "a": "processed", **fields})
    (answer,) = peer.acks()
    assert answer.status == "failure"
    assert len(world.events) == lines + 1
    return answer.reason


def two_publishers() -> tuple[World, Peer]:
    """Positions 1 to 6: pubber 1, other 1, pubber 2, other 2 and so on, of 10 bytes each."""
    world = World(start_id=0xABC)
    first, second = world.client("pubber"), world.client("other")
    for number in (1, 2, 3):
        first.publish(number, b'{"id":%4d}' % number)
        second.publish(number, b'{"id":%4d}' % number, t="trades")
    return world, world.client("reader")


class TestResult:
    def test_an_answer_is_a_query_result_of_one_record(self) -> None:
        world = World()
        peer = world.client()
        peer.send(c="sow", cid="q", query_id="id", t="/HACLIENT/status", a=ACKS)
        messages = peer.take()
        assert [message.ack_type or message.kind for message in messages] == [
            "received",
            "processed",
            "group_begin",
            "sow",
            "group_end",
            "completed",
            "stats",
        ]
        assert {message.query_id for message in messages} == {"id"}
        assert (messages[3].topic, messages[3].sow_key) == ("/HACLIENT/status", "status")
        assert messages[-1].records_returned == 1

    def test_a_connection_of_any_message_type_is_answered(self) -> None:
        peer = World().client("binary", mt="binary")
        assert ask(peer, "status")["instance"] == "broker"

    def test_a_query_sees_the_publishes_before_it_in_the_same_batch(self) -> None:
        world = World()
        peer = world.client("pubber")
        publish = encode_frame({"c": "p", "t": "orders", "s": 1}, b"{}")
        query = encode_frame(
            {"c": "sow", "cid": "q", "t": "/HACLIENT/publisher"}, b'{"id":%d}' % PUBBER
        )
        peer.send_all([publish, query])
        record = next(message for message in peer.take() if message.kind == "sow")
        assert json.loads(record.data)["position"] == 1

    def test_answers_come_in_the_order_of_the_queries(self) -> None:
        _, peer = two_publishers()
        queries = [("position", b'{"topic":"orders"}'), ("status", b"")]
        peer.send_all(
            [
                encode_frame({"c": "sow", "cid": topic, "t": f"/HACLIENT/{topic}"}, body)
                for topic, body in queries
            ]
        )
        ids = [message.query_id for message in peer.take() if message.kind == "group_begin"]
        assert ids == ["position", "status"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("topic", "body", "reason"),
        [
            ("/HACLIENT/nothing", b"", "invalid topic"),
            ("/HACLIENT/", b"", "invalid topic"),
            ("/HACLIENT/status", b'{"position":1}', "invalid options"),
            ("/HACLIENT/status", b"[]", "invalid options"),
            ("/HACLIENT/status", b"{", "invalid options"),
            ("/HACLIENT/position", b"", "invalid options"),
            ("/HACLIENT/position", b'{"topic":"orders","massages":1}', "invalid options"),
            ("/HACLIENT/position", b'{"topic":"orders","messages":0}', "invalid options"),
            ("/HACLIENT/position", b'{"topic":"orders","after":-1}', "invalid options"),
            ("/HACLIENT/position", b'{"topic":"orders","after":"1"}', "invalid options"),
            ("/HACLIENT/position", b'{"topic":"orders(.*"}', "bad regex topic"),
            ("/HACLIENT/position", b'{"topic":"orders","filter":"/a ="}', "bad filter"),
            ("/HACLIENT/position", b'{"topic":"orders","bookmarks":"x"}', "invalid bookmark"),
            (
                "/HACLIENT/position",
                b'{"topic":"orders","bookmarks":"20231114T221320"}',
                "invalid bookmark",
            ),
            ("/HACLIENT/position", b'{"topic":"orders","bookmark":"x"}', "invalid bookmark"),
            ("/HACLIENT/position", b'{"topic":"orders","bookmark":"1|1|"}', "bookmark not found"),
            (
                "/HACLIENT/position",
                b'{"topic":"orders","bookmark":"0","after":1}',
                "invalid options",
            ),
            ("/HACLIENT/publisher", b"", "invalid options"),
            ("/HACLIENT/publisher", b'{"id":1,"name":"pubber"}', "invalid options"),
            ("/HACLIENT/publisher", b'{"id":"one"}', "invalid options"),
            ("/HACLIENT/publisher", b'{"id":1,"first_counted":1}', "invalid options"),
            ("/HACLIENT/publisher", b'{"id":1,"last_counted":1}', "invalid options"),
            ("/HACLIENT/status", b'{"topics":"orders"}', "invalid options"),
            ("/HACLIENT/guards", b'{"after":1}', "invalid options"),
            ("/HACLIENT/guards", b'{"drop":true}', "invalid options"),
            ("/HACLIENT/guards", b'{"name":"a"}', "invalid options"),
            ("/HACLIENT/guards", b'{"name":"a","after":0,"drop":true}', "invalid options"),
            ("/HACLIENT/guards", b'{"name":"a","after":0,"ttl_s":0}', "invalid options"),
            ("/HACLIENT/guards", b'{"name":"a","after":0,"ttl_s":1e300}', "invalid options"),
            ("/HACLIENT/guards", b'{"name":"a","after":1}', "invalid bookmark"),
        ],
    )
    def test_a_query_that_makes_no_sense_is_refused(
        self, topic: str, body: bytes, reason: str
    ) -> None:
        world = World()
        assert refusal(world, world.client(), topic, body) == reason

    @pytest.mark.parametrize(
        "fields",
        [{"filter": "/a = 1"}, {"orderby": "/a"}, {"bm": "0"}, {"sow_keys": "1"}, {"top_n": 1}],
    )
    def test_parameters_outside_of_the_body_are_refused(self, fields: dict[str, str | int]) -> None:
        world = World()
        reason = refusal(world, world.client(), "/HACLIENT/status", b"", **fields)
        assert reason == "invalid options"

    def test_the_position_in_a_topic_without_a_log_is_refused(self) -> None:
        world = World(log_topics=(LogTopic("^orders$"),))
        body = b'{"topic":"trades"}'
        assert refusal(world, world.client(), "/HACLIENT/position", body) == "invalid topic"
        world = World(log_topics=())
        body = b'{"topic":".*"}'
        assert refusal(world, world.client(), "/HACLIENT/position", body) == "invalid topic"

    @pytest.mark.parametrize(
        "command", ["p", "delta_publish", "subscribe", "sow_and_subscribe", "sow_delete"]
    )
    @pytest.mark.parametrize("topic", ["/HACLIENT/status", "/HACLIENT/new"])
    def test_every_other_command_is_refused(self, command: str, topic: str) -> None:
        world = World()
        reason = refusal(world, world.client(), topic, b"{}", c=command, sub_id="s")
        assert reason == "not entitled"
        assert "the command sow alone" in world.events[-1]

    def test_a_refused_publish_is_no_message_of_the_log(self) -> None:
        world = World()
        peer = world.client()
        peer.publish(1, t="/HACLIENT/status")
        assert peer.acks()[0].reason == "not entitled"
        assert ask(peer, "position", topic=".*")["messages"] == 0

    def test_no_pattern_matches_them(self) -> None:
        world = World(sow_topics=(SowTopic("orders", ("/id",)),))
        peer = world.client()
        peer.publish(1, b'{"id":1}')
        peer.take()
        peer.send(c="sow", cid="1", t=".*", a="completed")
        assert [each.topic for each in peer.take() if each.kind == "sow"] == ["orders"]
        peer.send(c="sow", cid="1", t="^/HACLIENT/.*", a="processed")
        assert peer.acks()[0].reason == "invalid topic"

    def test_a_state_of_the_world_cannot_have_such_a_name(self) -> None:
        with pytest.raises(UsageError, match="/HACLIENT/ are the broker's own"):
            World(sow_topics=(SowTopic("/HACLIENT/status", ("/id",)),))

    def test_too_many_unanswered_queries_are_refused(self) -> None:
        world = World()
        peer = world.client()
        peer.stalled = True
        for _ in range(MAX_PENDING_COMMANDS):
            peer.send(c="sow", cid="q", t="/HACLIENT/status", a="processed")
            assert peer.acks()[0].status == "success"
        assert refusal(world, peer, "/HACLIENT/status", b"") == "too many queries"
        peer.stalled = False
        world.replay_backlog(peer)
        assert len([m for m in peer.take() if m.kind == "sow"]) == MAX_PENDING_COMMANDS

    def test_a_client_that_leaves_with_an_open_query_leaves_nothing_behind(self) -> None:
        world, peer = two_publishers()
        peer.stalled = True
        peer.send(b'{"topic":".*"}', c="sow", cid="q", t="/HACLIENT/position")
        peer.close()
        assert ask(world.client("next"), "status")["last_position"] == 6


class TestStatus:
    def test_it_names_the_log_and_its_positions(self) -> None:
        _, peer = two_publishers()
        assert ask(peer, "status") == {
            "instance": "broker",
            "starts": [["0000000000000abc", 1]],
            "oldest_position": 1,
            "last_position": 6,
            "confirmed_position": 6,
            "durable_position": 0,  # a journal in memory
            "publishers": 2,
            "guards": 0,
            "connections": 3,
            "ended_connections": {},
            "faults": 0,
        }

    def test_an_empty_log_has_no_last_position(self) -> None:
        status = ask(World().client(), "status")
        assert (status["oldest_position"], status["last_position"]) == (1, 0)
        assert status["publishers"] == 0

    def test_it_says_which_topics_are_not_recorded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(system_topics, "_STEP_TOPICS", 2)
        world = World(log_topics=(LogTopic("^orders$"), LogTopic("^trades", "binary")))
        topics = ["orders", "trades", "orders-2", "orders"]
        json_peer, binary_peer = world.client("a"), world.client("b", mt="binary")
        assert ask(json_peer, "status", topics=topics)["unlogged_topics"] == ["trades", "orders-2"]
        assert ask(binary_peer, "status", topics=topics)["unlogged_topics"] == ["orders-2"]
        assert "unlogged_topics" not in ask(json_peer, "status")
        no_log = World(log_topics=())
        assert ask(no_log.client(), "status", topics=["orders"])["unlogged_topics"] == ["orders"]

    def test_confirmed_is_what_every_synchronous_destination_has(self) -> None:
        world = World(replicate_to=(ReplicateTo("tcp://west:9008"),))
        peer = world.client()
        peer.publish(1)
        peer.take()
        status = ask(peer, "status")
        assert (status["last_position"], status["confirmed_position"]) == (1, 0)


class TestPosition:
    def test_it_says_where_a_reader_is_after_some_messages(self) -> None:
        _, peer = two_publishers()
        assert ask(peer, "position", topic=".*", after=1, messages=3) == {
            "instance": "broker",
            "starts": [["0000000000000abc", 1]],
            "oldest_position": 1,
            "last_position": 6,
            "position": 4,
            "until": 6,
            "messages": 3,
            "bytes": 33,
            "publishers": {str(PUBBER): 2, str(OTHER): 2},
            "timestamp": "20231114T221500.000000Z",
            "begins": 2,
            "first": f"{OTHER}|1|",
            "last": f"{OTHER}|2|",
            "ended_by": "messages",
        }
        assert START_US == 1_700_000_000_000_000  # and the clock of a world begins at 100 s

    def test_only_messages_of_the_topic_count(self) -> None:
        _, peer = two_publishers()
        found = ask(peer, "position", topic="trades", messages=2)
        assert (found["position"], found["publishers"]) == (4, {str(OTHER): 2})
        assert found["begins"] == 2
        found = ask(peer, "position", topic="^t", after=4)
        assert (found["position"], found["messages"], found["ended_by"]) == (6, 1, "end")

    def test_only_messages_of_the_connections_type_count(self) -> None:
        world, _ = two_publishers()
        found = ask(world.client("binary", mt="binary"), "position", topic=".*")
        assert (found["position"], found["messages"]) == (6, 0)

    def test_deletes_and_marks_are_passed_and_not_counted(self) -> None:
        world = World(sow_topics=(SowTopic("orders", ("/id",)),))
        peer = world.client("pubber")
        peer.publish(1, b'{"id":1}')
        peer.send(c="sow_delete", t="orders", filter="1=1", s=2)
        peer.publish(3, b'{"no":1}')  # refused: a mark
        peer.publish(4, b'{"id":2}')
        peer.take()
        found = ask(peer, "position", topic=".*")
        assert (found["position"], found["messages"]) == (4, 2)
        assert found["publishers"] == {str(PUBBER): 4}

    def test_at_most_so_many_bytes_but_at_least_one_message(self) -> None:
        _, peer = two_publishers()
        found = ask(peer, "position", topic=".*", bytes=25)
        assert (found["position"], found["bytes"], found["ended_by"]) == (2, 22, "bytes")
        found = ask(peer, "position", topic=".*", bytes=1)
        assert (found["position"], found["bytes"]) == (1, 11)

    def test_a_filter_selects_what_counts(self) -> None:
        _, peer = two_publishers()
        found = ask(peer, "position", topic=".*", filter="/id > 1", messages=1)
        assert (found["position"], found["begins"]) == (3, 3)

    def test_counting_ends_at_a_given_position(self) -> None:
        _, peer = two_publishers()
        found = ask(peer, "position", topic="orders", until=4)
        assert (found["position"], found["messages"], found["ended_by"]) == (4, 2, "until")
        found = ask(peer, "position", topic="orders", after=5, until=3)
        assert (found["position"], found["messages"]) == (5, 0)

    def test_after_the_end_there_is_nothing_and_the_position_stays(self) -> None:
        _, peer = two_publishers()
        for after in (6, 7, 2**70):
            found = ask(peer, "position", topic=".*", after=after)
            assert (found["position"], found["messages"]) == (after, 0)
            assert (found["ended_by"], "timestamp" in found) == ("end", False)

    def test_counting_begins_where_a_subscription_with_that_bookmark_would(self) -> None:
        world, peer = two_publishers()
        found = ask(peer, "position", topic=".*", bookmark=f"{OTHER}|1|")
        assert (found["begins"], found["messages"]) == (3, 4)
        found = ask(peer, "position", topic=".*", bookmark="0|1|")
        assert (found["begins"], found["messages"], found["position"]) == (7, 0, 6)
        world.advance(10)
        world.client("late").publish(1)
        found = ask(peer, "position", topic=".*", bookmark="20231114T221505Z")
        assert (found["begins"], found["messages"]) == (7, 1)
        found = ask(peer, "position", topic=".*", bookmark="(0:20231114T221505Z)")
        assert (found["begins"], found["position"], found["ended_by"]) == (1, 6, "until")
        found = ask(peer, "position", topic="orders", bookmark=f"({PUBBER}|1|:{PUBBER}|2|]")
        assert (found["first"], found["position"], found["messages"]) == (f"{PUBBER}|2|", 3, 1)

    def test_fully_durable_ends_before_what_a_destination_lacks(self) -> None:
        world = World(replicate_to=(ReplicateTo("tcp://west:9008"),))
        peer = world.client()
        peer.publish(1)
        peer.take()
        assert ask(peer, "position", topic="orders")["position"] == 1
        found = ask(peer, "position", topic="orders", fully_durable=True)
        assert (found["position"], found["messages"]) == (0, 0)


class TestVector:
    def test_it_says_where_what_a_vector_does_not_cover_begins(self) -> None:
        _, peer = two_publishers()
        vector = f"{PUBBER}|2|,{OTHER}|1|"
        found = ask(peer, "position", topic=".*", bookmarks=vector)
        assert (found["begins"], found["messages"], found["position"]) == (4, 3, 6)
        assert found["publishers"] == {str(PUBBER): 3, str(OTHER): 3}

    def test_a_covered_message_after_the_begin_does_not_count(self) -> None:
        _, peer = two_publishers()
        found = ask(peer, "position", topic=".*", bookmarks=f"{PUBBER}|3|,{OTHER}|1|", messages=2)
        assert (found["begins"], found["messages"], found["position"]) == (4, 2, 6)
        assert found["publishers"] == {str(OTHER): 3}

    def test_a_publisher_that_the_vector_lacks_is_covered_by_nothing(self) -> None:
        _, peer = two_publishers()
        found = ask(peer, "position", topic=".*", bookmarks=f"{PUBBER}|3|", messages=1)
        assert (found["begins"], found["position"]) == (2, 2)

    def test_an_empty_vector_covers_nothing(self) -> None:
        _, peer = two_publishers()
        found = ask(peer, "position", topic=".*", bookmarks="0")
        assert (found["begins"], found["messages"]) == (1, 6)

    def test_publishers_of_other_topics_do_not_matter(self) -> None:
        _, peer = two_publishers()
        found = ask(peer, "position", topic="orders", bookmarks=f"{PUBBER}|2|")
        assert (found["begins"], found["messages"]) == (5, 1)

    def test_a_vector_that_covers_all_begins_at_the_end(self) -> None:
        _, peer = two_publishers()
        found = ask(peer, "position", topic=".*", bookmarks=f"{PUBBER}|3|,{OTHER}|9|")
        assert (found["begins"], found["position"], found["messages"]) == (7, 6, 0)

    def test_with_a_position_counting_begins_after_it(self) -> None:
        _, peer = two_publishers()
        found = ask(peer, "position", topic=".*", bookmarks=f"{PUBBER}|1|", after=2)
        assert (found["begins"], found["messages"]) == (3, 4)


class TestPublisher:
    def test_it_has_the_last_sequence_and_the_last_message(self) -> None:
        world = World()
        peer = world.client("pubber")
        peer.publish(1, x="YQ==")
        peer.publish(5, b"{}", t="trades", x="Yg==")
        peer.take()
        expected = {
            "id": str(PUBBER),
            "last_sequence": 5,
            "persisted": 5,
            "sequence": 5,
            "command": "publish",
            "topic": "trades",
            "position": 2,
            "timestamp": "20231114T221500.000000Z",
            "correlation_id": "Yg==",
        }
        assert ask(peer, "publisher", name="pubber") == expected
        assert ask(peer, "publisher", id=str(PUBBER)) == expected
        assert ask(peer, "publisher", id=PUBBER) == expected
        world.restart()
        assert ask(world.client("next"), "publisher", name="pubber") == expected

    def test_it_has_the_last_message_with_a_correlation_id_from_a_sequence_on(self) -> None:
        peer = World().client("pubber")
        for number in range(1, 6):
            peer.publish(number, **({"x": "YQ=="} if number in {1, 3} else {}))
        peer.take()
        for first, sequence in ((1, 3), (3, 3)):
            found = ask(peer, "publisher", name="pubber", identified_from=first)
            assert (found["sequence"], found["correlation_id"]) == (5, "")
            expected = {"sequence": sequence, "correlation_id": "YQ==", "topic": "orders"}
            assert expected.items() <= found["identified"].items()
        assert "identified" not in ask(peer, "publisher", name="pubber", identified_from=4)

    def test_one_that_never_published_has_sequence_0(self) -> None:
        world = World()
        peer = world.client("pubber")
        for name in ("pubber", "nobody"):
            assert ask(peer, "publisher", name=name) == {
                "id": str(publisher_id(name)),
                "last_sequence": 0,
                "persisted": 0,
            }
        assert ask(peer, "status")["publishers"] == 0

    def test_a_refused_message_is_the_last_sequence_and_not_the_last_message(self) -> None:
        world = World()
        peer = world.client("pubber")
        peer.publish(1)
        peer.publish(2, t="/AMPS/x")
        peer.take()
        found = ask(peer, "publisher", name="pubber")
        assert (found["last_sequence"], found["sequence"], found["position"]) == (2, 1, 1)

    def test_what_is_in_no_log_is_absent(self) -> None:
        world = World(log_topics=(LogTopic("^orders$"),))
        peer = world.client("pubber")
        peer.publish(1, t="trades")
        peer.take()
        found = ask(peer, "publisher", name="pubber")
        assert found == {"id": str(PUBBER), "last_sequence": 1, "persisted": 1}

    def test_a_delete_is_a_message_of_its_publisher(self) -> None:
        world = World(sow_topics=(SowTopic("orders", ("/id",)),))
        peer = world.client("pubber")
        peer.publish(1, b'{"id":1}')
        peer.send(c="sow_delete", t="orders", filter="1=1", s=2)
        found = ask(peer, "publisher", name="pubber")
        assert (found["sequence"], found["command"]) == (2, "sow_delete")

    def test_a_delete_keeps_its_correlation_id(self) -> None:
        world = World(sow_topics=(SowTopic("orders", ("/id",)),))
        peer = world.client("pubber")
        peer.publish(1, b'{"id":1}')
        peer.send(b'{"id":1}', c="sow_delete", t="orders", s=2, x="Yg==")
        found = ask(peer, "publisher", name="pubber")
        assert (found["command"], found["correlation_id"]) == ("sow_delete", "Yg==")

    def test_what_the_log_has_of_a_range_of_sequences_is_counted(self) -> None:
        world = World()
        peer, other = world.client("pubber"), world.client("other")
        for number in (1, 2, 4, 5, 6):
            peer.publish(number, t="/AMPS/x" if number == 4 else "orders")
            other.publish(number)
        peer.take()
        for first, last, messages in ((1, 6, 4), (2, 5, 2), (3, 4, 0), (6, 9, 1), (7, 9, 0)):
            found = ask(peer, "publisher", name="pubber", first_counted=first, last_counted=last)
            assert (found["messages"], found["counted_to"]) == (messages, last)
        found = ask(peer, "publisher", name="nobody", first_counted=1, last_counted=9)
        assert (found["messages"], found["last_sequence"]) == (0, 0)

    def test_persisted_waits_for_synchronous_destinations(self) -> None:
        world = World(replicate_to=(ReplicateTo("tcp://west:9008"),))
        peer = world.client("pubber")
        peer.publish(1)
        peer.take()
        found = ask(peer, "publisher", name="pubber")
        assert (found["last_sequence"], found["persisted"], found["sequence"]) == (1, 0, 1)


class TestGuards:
    def test_a_consumer_sets_renews_and_drops_its_guard(self) -> None:
        world, peer = two_publishers()
        found = ask(peer, "guards", name="query", after=3, ttl_s=60)
        assert found == {
            "instance": "broker",
            "starts": [["0000000000000abc", 1]],
            "oldest_position": 1,
            "last_position": 6,
            "guards": [
                {
                    "name": "query",
                    "after": 3,
                    "set": "20231114T221500.000000Z",
                    "expires": "20231114T221600.000000Z",
                }
            ],
            "oldest_needed_position": 4,
        }
        world.advance(30)
        ask(peer, "guards", name="query", after=5, ttl_s=60)
        world.advance(59)
        status = ask(peer, "status")
        assert (status["guards"], status["oldest_needed_position"]) == (1, 6)
        found = ask(peer, "guards", name="query", drop=True)
        assert (found["guards"], "oldest_needed_position" in found) == ([], False)
        status = ask(peer, "status")
        assert (status["guards"], "oldest_needed_position" in status) == (0, False)

    def test_one_that_is_not_renewed_ends(self) -> None:
        world, peer = two_publishers()
        ask(peer, "guards", name="query", after=3, ttl_s=60)
        world.advance(60)
        assert ask(peer, "guards")["guards"] == []

    def test_they_are_kept_over_a_restart(self) -> None:
        world, peer = two_publishers()
        before = ask(peer, "guards", name="query", after=3)["guards"]
        world.restart()
        assert ask(world.client("next"), "guards")["guards"] == before

    def test_the_shell_writes_them_before_the_consumer_is_answered(self) -> None:
        world, peer = two_publishers()
        peer.stalled = True
        peer.send(b'{"name":"query","after":3}', c="sow", cid="q", t="/HACLIENT/guards")
        assert [guard.name for guard in world.guards] == ["query"]
        assert [message for message in peer.take() if message.kind == "sow"] == []

    def test_a_broker_that_starts_without_what_a_guard_needs_says_so(self) -> None:
        world, peer = two_publishers()
        ask(peer, "guards", name="query", after=1)
        manifest = world.journal.live.manifest
        manifest.first_position = 4  # as after the oldest segments were removed
        world.restart()
        world.client("next")
        lost = "positions 2 to 3: removed although guard 'query' needs it"
        assert lost in world.events

    def test_a_broker_that_starts_without_what_a_guard_knows_says_so(self) -> None:
        world, peer = two_publishers()
        ask(peer, "guards", name="query", after=5)
        ask(peer, "guards", name="behind", after=3)
        world.journal.live.manifest.next_position = 5  # as after the last segment was lost
        world.restart()
        peer = world.client("next")
        lost = "positions 5 to 5: lost, and given again to what is published next: guard 'query'"
        assert [lost in event for event in world.events] == [True]
        assert [each["after"] for each in ask(peer, "guards")["guards"]] == [3, 4]


class TestSteps:
    def filled(self) -> tuple[World, Peer, Peer]:
        """A log of 2 MiB; its reader takes one step only when it is told to."""
        world = World()
        writer, reader = world.client("pubber"), world.client("reader")
        for number in range(1, 65):
            writer.publish(number, b"x" * 32 * 1024)
        writer.take()
        reader.stalled = True
        return world, writer, reader

    def pump(self, world: World, reader: Peer) -> None:
        world.apply(world.engine.pump(reader.number, world.now))

    def test_other_clients_are_served_between_the_steps_of_a_long_answer(self) -> None:
        world, writer, reader = self.filled()
        reader.send(b'{"topic":".*"}', c="sow", cid="q", t="/HACLIENT/position")
        steps = 0
        while world.engine.has_backlog(reader.number):
            self.pump(world, reader)
            steps += 1
            writer.publish(100 + steps)
        assert steps >= 2 * 2**20 // log_query.STEP_BYTES
        (record,) = [each for each in reader.take() if each.kind == "sow"]
        # The answer is that of the first step, whatever was published since.
        assert json.loads(record.data)["position"] == 64

    def test_a_limit_of_work_ends_an_answer_and_the_next_query_goes_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_query, "MAX_SCANNED_BYTES", 512 * 1024)
        _, _, reader = self.filled()
        reader.stalled = False
        after, messages, answers = 0, 0, 0
        while True:
            found = ask(reader, "position", topic=".*", after=after)
            messages, answers = messages + found["messages"], answers + 1
            if found["ended_by"] == "end":
                break
            assert found["ended_by"] == "scanned"
            assert found["position"] > after
            after = found["position"]
        assert (found["position"], messages) == (64, 64)
        assert answers >= 4

    def test_what_a_vector_covers_is_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_query, "MAX_SCANNED_BYTES", 512 * 1024)
        _, _, reader = self.filled()
        reader.stalled = False
        found = ask(reader, "position", topic=".*", bookmarks=f"{PUBBER}|63|")
        assert (found["begins"], found["messages"], found["ended_by"]) == (64, 1, "end")

    def test_skipping_what_a_vector_covers_makes_progress_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_query, "MAX_SCANNED_BYTES", 1)
        _, _, reader = self.filled()
        reader.stalled = False
        found = ask(reader, "position", topic=".*", bookmarks=f"{PUBBER}|64|")
        assert (found["messages"], found["ended_by"]) == (0, "scanned")
        assert 0 < found["position"] < 64

    def test_the_last_message_of_a_publisher_is_found_without_reading_the_log(self) -> None:
        world, writer, reader = self.filled()
        reader.send(b'{"name":"pubber"}', c="sow", cid="q", t="/HACLIENT/publisher")
        steps = 0
        while world.engine.has_backlog(reader.number):
            self.pump(world, reader)
            steps += 1
        assert steps <= 5
        del writer
