"""Publishing: records, deliveries and acks."""

from __future__ import annotations

import pytest

from haclient.protocol.codec import encode_frame
from haclient_fake_server.engine.journal import records_of
from haclient_fake_server.engine.settings import TOPIC_BYTES, LogTopic, QueueTopic, SowTopic
from haclient_fake_server.journal.format import Record, RecordCommand, RecordFlag
from support.engine import World

PUBBER = 7094790850998930143


def records(world: World) -> list[Record]:
    data, _ = world.journal.read(world.journal.seek(1), 1 << 20)
    return list(records_of(data))


def publish_frame(sequence: int, topic: str = "orders") -> bytes:
    return encode_frame({"c": "p", "t": topic, "s": sequence, "a": "persisted"}, b"{}")


@pytest.mark.row("TL1", "TL3")
def test_a_publish_becomes_a_record_behind_its_topics_definition() -> None:
    world = World()
    world.client("pubber").publish(3, b'{"id":1}', e=60, x="abc")
    definition, record = records(world)
    assert (definition.command, definition.topic_id, definition.position) == (0, 1, 0)
    assert (definition.key, definition.payload) == (b"json", b"orders")
    assert record == Record(
        position=1,
        publisher_id=PUBBER,
        sequence=3,
        timestamp_us=record.timestamp_us,
        topic_id=1,
        command=RecordCommand.PUBLISH,
        correlation_id=b"abc",
        expiration_s=60,
        payload=b'{"id":1}',
    )


@pytest.mark.row("QB1")
def test_the_first_publish_to_a_queue_with_the_name_of_its_topic_is_taken() -> None:
    world = World(queues=(QueueTopic(name="work"),))
    consumer = world.client("consumer")
    consumer.send(c="subscribe", cid="1", sub_id="1", t="work")
    consumer.take()
    world.client("pubber").publish(3, b'{"id":1}', t="work")
    (message,) = consumer.take()
    assert (message.topic, message.data) == ("work", b'{"id":1}')


@pytest.mark.parametrize("sequence", [5, None])
def test_later_publishes_with_a_correlation_id_are_as_the_first(sequence: int | None) -> None:
    world = World()
    reader, peer = world.client("reader"), world.client("pubber")
    reader.subscribe("live")
    reader.take()
    peer.publish(None if sequence is None else sequence - 1, b"{}", x='a"b')  # the careful way
    peer.publish(sequence, b"{}", x='a"b')
    _, first, second = records(world)
    assert second == first._replace(position=2, sequence=first.sequence + 1)
    assert (second.correlation_id, second.payload) == (b'a"b', b"{}")
    assert [message.correlation_id for message in reader.take()] == ['a"b', 'a"b']
    reader.subscribe("replay", bm="0")
    replayed = [message for message in reader.take() if message.kind == "p"]
    assert [message.correlation_id for message in replayed] == ['a"b', 'a"b']


def test_a_repeated_publish_with_a_correlation_id_is_a_duplicate() -> None:
    world = World()
    peer = world.client("pubber")
    for _ in range(3):
        peer.publish(1, x="abc", a="processed")
    assert [ack.reason for ack in peer.acks()] == ["", "duplicate", "duplicate"]
    assert len(records(world)) == 2


def test_a_publish_with_a_correlation_id_to_a_topic_without_a_log_leaves_a_mark() -> None:
    world = World(log_topics=(LogTopic("^orders$"),))
    peer = world.client("pubber")
    for number in (1, 2):
        peer.publish(number, t="other", x="abc")
    assert [record.command for record in records(world)] == [RecordCommand.MARK] * 2


@pytest.mark.row("TL2")
def test_only_topics_that_are_to_be_recorded_are() -> None:
    world = World(log_topics=(LogTopic("orders"), LogTopic("^trades/", "json")))
    peer = world.client()
    for topic in ("orders", "orders2", "trades/x", "other/trades/x"):
        peer.send(c="p", t=topic)
    other_type = world.client("other", mt="nvfix")
    other_type.send(c="p", t="trades/x")
    assert [r.payload for r in records(world) if r.command == RecordCommand.TOPIC] == [
        b"orders",
        b"trades/x",
    ]


@pytest.mark.row("TL2")
def test_nothing_is_recorded_without_a_log() -> None:
    world = World(log_topics=())
    world.client().publish(1)
    assert records(world) == []


@pytest.mark.row("ID3")
def test_a_record_says_when_its_sequence_is_this_instances_own() -> None:
    world = World()
    world.client().publish(None)
    assert records(world)[1].flags == RecordFlag.ASSIGNED
    world.client().send(c="p", t="orders", x="abc")
    assert records(world)[2].flags == RecordFlag.ASSIGNED


def test_every_subscriber_gets_a_live_message_once() -> None:
    world = World()
    one, two = world.client("one"), world.client("two")
    one.subscribe("1")
    one.subscribe("2")
    two.subscribe("1")
    one.take()
    two.take()
    world.client().publish(1, b"x")
    assert one.take_bytes()[4:] == b'{"c":"p","t":"orders","sids":"1,2"}x'
    assert two.take_bytes()[4:] == b'{"c":"p","t":"orders","sids":"1"}x'


def test_a_publisher_hears_itself_when_it_subscribes() -> None:
    peer = World().client()
    peer.subscribe()
    peer.publish(1, b"x")
    assert peer.bodies() == [b"x"]


@pytest.mark.row("RB11")
def test_headers_are_sent_only_to_those_who_asked_for_them() -> None:
    world = World()
    peer = world.client("reader")
    peer.subscribe("plain")
    peer.subscribe("bm", opts="bookmark")
    peer.subscribe("ts", opts="timestamp")
    peer.take()
    world.client().publish(1, b"x", x="abc")
    by_sids = {message.sids: message for message in peer.take()}
    assert set(by_sids) == {"plain", "bm", "ts"}
    assert by_sids["plain"].bookmark == by_sids["plain"].timestamp == ""
    assert by_sids["bm"].bookmark == f"{PUBBER}|1|"
    assert by_sids["ts"].timestamp == "20231114T221500.000000Z"
    assert {message.correlation_id for message in by_sids.values()} == {"abc"}


def test_filters_decide_message_by_message() -> None:
    world = World()
    peer = world.client("reader")
    peer.subscribe("big", filter="/px > 10")
    peer.subscribe("all")
    publisher = world.client()
    peer.take()
    publisher.publish(1, b'{"px":5}')
    publisher.publish(2, b'{"px":50}')
    assert [(message.sids, message.data) for message in peer.take()] == [
        ("all", b'{"px":5}'),
        ("big,all", b'{"px":50}'),
    ]


def test_topics_of_another_message_type_are_other_topics() -> None:
    world = World()
    peer = world.client("reader", mt="nvfix")
    peer.subscribe()
    world.client().publish(1)
    assert peer.bodies() == []


@pytest.mark.row("AK2")
def test_persisted_acks_are_collected_for_a_second_and_carry_no_command_id() -> None:
    world = World()
    peer = world.client()
    for sequence in (1, 2, 3):
        peer.publish(sequence, cid=str(sequence))
    assert peer.take() == []
    world.advance(0.99)
    assert peer.take() == []
    world.advance(0.01)
    start = world.journal.log_starts[-1]
    assert peer.take_bytes()[4:] == (
        b'{"c":"ack","s":3,"bm":"7094790850998930143|3|","log_starts":"%016x@3","a":"persisted",'
        b'"status":"success"}' % start.id
    )
    world.advance(10)
    assert peer.take() == []


@pytest.mark.row("AK2", "AK4")
def test_the_logon_says_how_long_acks_are_collected() -> None:
    world = World()
    slow = world.client("slow", opts="ack_conflation=3s")
    eager = world.client("eager", opts="ack_conflation=0ms")
    slow.publish(1)
    eager.publish(1)
    assert [ack.sequence for ack in eager.take()] == [1]
    world.advance(2.9)
    assert slow.take() == []
    world.advance(0.2)
    assert [ack.sequence for ack in slow.take()] == [1]


@pytest.mark.row("AK1")
def test_a_publish_that_asks_for_no_ack_gets_none() -> None:
    world = World()
    peer = world.client()
    peer.publish(1, a="none")
    peer.publish(2, a="")
    world.advance(5)
    assert peer.take() == []


@pytest.mark.row("AK1")
def test_each_ack_type_that_was_asked_for_is_one_message() -> None:
    world = World()
    peer = world.client()
    peer.publish(1, cid="5", a="persisted, processed,,completed,received")
    assert [(ack.ack_type, ack.command_id) for ack in peer.take()] == [
        ("received", "5"),
        ("processed", "5"),
        ("completed", "5"),
    ]
    world.advance(1)
    assert [(ack.ack_type, ack.command_id) for ack in peer.take()] == [("persisted", "")]


@pytest.mark.row("AK3")
def test_a_failure_comes_at_once_between_two_successes() -> None:
    world = World()
    peer = world.client()
    peer.send_all(
        [
            publish_frame(1),
            publish_frame(2),
            encode_frame({"c": "p", "cid": "9", "s": 3, "a": "persisted"}),
            publish_frame(4),
            publish_frame(5),
        ]
    )
    world.advance(1)
    assert [(ack.status, ack.sequence, ack.reason, ack.command_id) for ack in peer.take()] == [
        ("success", 2, "", ""),
        ("failure", 3, "invalid topic", "9"),
        ("success", 5, "", ""),
    ]


@pytest.mark.row("AK3", "ID2")
def test_what_was_refused_counts_as_seen_also_after_a_restart() -> None:
    world = World()
    world.client().publish(4, t="/AMPS/secret")
    world.restart()
    peer = world.connect()
    peer.send(c="logon", client_name="pubber", a="processed")
    (ack,) = peer.take()
    assert ack.sequence == 4


@pytest.mark.row("AK7")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"t": ""}, "invalid topic"),
        ({"t": "/AMPS/anything"}, "not entitled"),
        ({"x": "A" * 70_000}, "invalid correlation id"),
        ({"k": "1" * 70_000}, "bad sow key"),
        ({"e": 2**33}, "invalid expiration"),
    ],
)
def test_a_publish_that_cannot_be_carried_out_is_refused(
    fields: dict[str, str | int], reason: str
) -> None:
    world = World()
    peer = world.client()
    peer.publish(1, **fields)
    (ack,) = peer.take()
    assert (ack.ack_type, ack.status, ack.reason) == ("persisted", "failure", reason)
    peer.publish(None, **{"a": "processed", **fields})
    (ack,) = peer.take()
    assert (ack.ack_type, ack.status, ack.sequence) == ("processed", "failure", None)
    assert world.journal.last_before(world.engine.next_position) is None, "no message"


def test_new_topics_are_refused_when_all_take_too_much() -> None:
    world = World(max_topic_bytes=4 * (TOPIC_BYTES + 9) + TOPIC_BYTES + 4)
    peer = world.client()
    topics = [f"{number}\u00e9\u00e9\u00e9\u00e9" for number in range(4)]  # nine bytes each
    for topic in (*topics, "orders", topics[0]):
        peer.send(c="p", t=topic, a="processed")
    reasons = [message.reason for message in peer.take()]
    assert reasons == ["", "", "", "", "invalid topic", ""]
    assert "all together may take 5040 bytes" in world.events[-1]
    peer.send(c="p", t="new", a="processed")
    assert [message.status for message in peer.take()] == ["success"]


def test_a_refused_publish_without_an_ack_is_refused_in_silence() -> None:
    world = World()
    peer = world.client()
    peer.send(c="p", t="")
    assert peer.take() == []


DEAR = LogTopic("orders", filter="/px > 10")


@pytest.mark.row("TL2", "TL3")
def test_messages_that_the_filter_of_the_log_leaves_out_are_delivered_and_not_recorded() -> None:
    world = World(log_topics=(DEAR, LogTopic("other")))
    publisher, live, replay = (world.client(name) for name in ("pubber", "live", "replay"))
    live.subscribe()
    replay.subscribe(bm="0")
    bodies = [b'{"px": 11}', b'{"px": 10}', b"no json", b'{"px": 12}']
    for sequence, body in enumerate(bodies, 1):
        publisher.publish(sequence, body)
        publisher.publish(None, body)
    assert live.bodies() == [body for body in bodies for _ in range(2)]
    recorded = [bodies[0], bodies[0], bodies[3], bodies[3]]
    assert replay.bodies() == recorded
    late = world.client("late")
    late.subscribe()  # the plans are made anew
    publisher.publish(5, bodies[1])
    assert (late.bodies(), live.bodies(), replay.bodies()) == ([bodies[1]], [bodies[1]], [])
    world.advance(2)
    assert publisher.acks()[-1].sequence == 5
    world.restart()
    replay, publisher = world.client("replay"), world.connect()
    replay.subscribe(bm="0")
    assert replay.bodies() == recorded
    publisher.send(c="logon", client_name="pubber", a="processed")
    assert publisher.take()[0].sequence == 5


@pytest.mark.row("TL2")
def test_a_topic_is_recorded_by_any_of_the_topics_of_the_log_that_name_it() -> None:
    world = World(log_topics=(DEAR, LogTopic("^ord", filter="/px < 5"), LogTopic("x", "json")))
    peer = world.client()
    for price in (3, 7, 12):
        peer.publish(None, b'{"px": %d}' % price)
    peer.subscribe(bm="0")
    assert peer.bodies() == [b'{"px": 3}', b'{"px": 12}']
    whole = World(log_topics=(DEAR, LogTopic(".*")))
    whole.client().publish(None, b'{"px": 7}')
    assert whole.engine.next_position == 2


def test_messages_to_devnull_are_accepted_and_not_kept() -> None:
    world = World()
    peer = world.client()
    peer.publish(1, t="/AMPS/devnull", cid="1", a="processed")
    (ack,) = peer.take()
    assert ack.status == "success"
    peer.subscribe(t="/AMPS", bm="0")
    assert not peer.bodies()


@pytest.mark.row("AK5")
def test_without_a_log_each_publish_is_acknowledged_alone() -> None:
    world = World(log_topics=())
    peer = world.client()
    peer.publish(1, cid="1")
    peer.publish(2)
    assert [(ack.ack_type, ack.sequence, ack.command_id) for ack in peer.take()] == [
        ("persisted", 1, "1"),
        ("persisted", 2, ""),
    ]


@pytest.mark.row("AK5")
def test_unlogged_topics_beside_a_log_are_acknowledged_alone_too() -> None:
    world = World(log_topics=(LogTopic("logged"),))
    peer = world.client()
    peer.publish(1)
    assert [(ack.sequence, ack.bookmark) for ack in peer.take()] == [(1, "")]


@pytest.mark.row("ID2")
def test_the_sequence_of_an_unlogged_publish_survives_a_restart() -> None:
    world = World(log_topics=(LogTopic("logged"),))
    world.client().publish(9)
    world.restart()
    peer = world.connect()
    peer.send(c="logon", client_name="pubber", a="processed")
    (ack,) = peer.take()
    assert ack.sequence == 9


def test_a_connection_that_is_being_closed_gets_nothing_more() -> None:
    world = World()
    reader = world.client("reader")
    reader.subscribe()
    reader.take()
    world.client("reader")
    world.client("other").publish(1)
    assert [message.kind for message in reader.take()] == ["ack"]


@pytest.mark.row("AK3", "ID2")
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("kind", ["p", "delta_publish", "sow_delete"])
def test_what_was_refused_for_its_key_is_refused_again_when_it_is_sent_again(
    kind: str, *, restarted: bool
) -> None:
    """Its publisher has not read the first answer, and must not take it for persisted."""
    world = World(sow_topics=(SowTopic("orders", ("/id",)),))
    for _ in range(2):
        peer = world.client()
        peer.publish(1, b"no json", c=kind)
        (ack,) = peer.acks()
        assert (ack.sequence, ack.status, ack.reason) == (1, "failure", "bad message")
        if restarted:
            world.restart()


@pytest.mark.row("AK3")
def test_a_delta_that_would_make_a_record_too_large_is_refused_and_changes_nothing() -> None:
    world = World(sow_topics=(SowTopic("orders", ("/id",)),), max_message_bytes=40)
    peer = world.client()
    peer.publish(1, b'{"id":1,"a":"0123456789"}')
    for again in range(2):
        peer.publish(2, b'{"id":1,"b":"0123456789"}', c="delta_publish")
        ack = peer.acks()[-1]
        assert (ack.sequence, ack.status, ack.reason) == (2, "failure", "bad message"), again
        world.restart()
        peer = world.client()
    peer.publish(3, b'{"id":1,"b":"01"}', c="delta_publish")
    peer.send(c="sow", cid="1", t="orders")
    bodies = [message.data for message in peer.take() if message.kind == "sow"]
    assert bodies == [b'{"id":1,"a":"0123456789","b":"01"}']


@pytest.mark.row("AK3")
def test_no_success_that_covers_a_refusal_comes_before_it_when_it_is_sent_again() -> None:
    """Its publisher would forget the message, and could not say which one was refused."""
    world = World(sow_topics=(SowTopic("orders", ("/id",)),))
    for _ in range(2):
        peer = world.client()
        for sequence, body in ((1, b'{"id": 1}'), (2, b"no json"), (3, b'{"id": 3}')):
            peer.publish(sequence, body)
        world.advance(1)
        assert [(ack.sequence, ack.status) for ack in peer.acks()] == [
            (1, "success"),
            (2, "failure"),
            (3, "success"),
        ]
