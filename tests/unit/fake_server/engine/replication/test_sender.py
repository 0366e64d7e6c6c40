"""Replication as publishers, subscribers and operators see it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from haclient.errors import UsageError
from haclient.protocol.codec import encode_frame
from haclient.protocol.identity import publisher_id
from haclient_fake_server.engine.journal import MemoryJournal, records_of
from haclient_fake_server.engine.replication import receiver, wire
from haclient_fake_server.engine.replication.durability import MAX_HELD
from haclient_fake_server.engine.settings import LogTopic, ReplicateTo, SowTopic
from haclient_fake_server.journal.format import RecordCommand
from support.engine import Peer, World
from support.replicas import Group, address

ONE_WAY: Mapping[str, tuple[str, ...]] = {"a": ("b",), "b": ()}
PAIR: Mapping[str, tuple[str, ...]] = {"a": ("b",), "b": ("a",)}
ASYNCHRONOUS: Mapping[str, tuple[str, ...]] = {"a": ("~b",), "b": ()}


def linked(links: Mapping[str, tuple[str, ...]], downgrade_after_s: float | None = None) -> Group:
    logged = (LogTopic("^orders"),)
    group = Group(links, downgrade_after_s=downgrade_after_s, log_topics=logged)
    group.settle()
    return group


def at_logon(world: World, name: str) -> tuple[int | None, int]:
    """The sequences that a logon ack calls seen and persisted."""
    peer = world.connect()
    peer.send(c="logon", client_name=name, a="processed")
    (answer,) = peer.take()
    peer.close()
    assert answer.position is not None
    return answer.sequence, answer.position.sequence


def sequences(peer: Peer) -> list[int | None]:
    return [ack.sequence for ack in peer.acks()]


@pytest.mark.row("RE4", "AK6")
def test_a_persisted_ack_waits_for_every_synchronous_destination_and_for_no_other() -> None:
    group = linked({"a": ("b", "c", "~d"), "b": (), "c": (), "d": ()})
    group.cut("a", "c")
    group.cut("a", "d")
    publisher = group["a"].client("p")
    publisher.publish(1)
    group.settle()
    assert (publisher.take(), group.messages("b")) == ([], group.messages("a"))
    group.cut_off.remove(("a", "c"))
    group.settle()
    (ack,) = publisher.take()
    assert (ack.sequence, ack.status) == (1, "success")
    assert group.messages("d") == []


@pytest.mark.row("RE4", "AK3", "AK6")
def test_acks_of_every_kind_wait_and_keep_their_order() -> None:
    group = linked(ONE_WAY)
    publisher = group["a"].client("p")
    publisher.publish(1, a="received,processed,persisted")
    publisher.publish(2, t="")
    publisher.publish(None, a="persisted", cid="c")
    publisher.send(c="flush", cid="f", a="persisted,completed")
    publisher.publish(2)
    early = publisher.take()
    assert [ack.ack_type for ack in early] == ["received", "processed", "completed"]
    assert early[-1].command_id == "f"
    group.settle()
    late = publisher.take()
    assert [(ack.sequence, ack.status, ack.command_id) for ack in late] == [
        (1, "success", ""),
        (2, "failure", ""),
        (None, "success", "c"),
        (None, "success", "f"),
        (2, "success", ""),
    ]


@pytest.mark.row("RE4")
def test_a_sow_delete_waits_as_well() -> None:
    group = Group(ONE_WAY, sow_topics=(SowTopic("orders", ("/id",)),))
    group.settle()
    publisher = group["a"].client("p")
    publisher.publish(1, b'{"id":1}')
    group.settle()
    publisher.take()
    publisher.send(c="sow_delete", t="orders", filter="/id = 1", s=2, a="processed,persisted")
    assert [ack.ack_type for ack in publisher.acks()] == ["processed"]
    group.settle()
    assert [(ack.ack_type, ack.status, ack.sequence) for ack in publisher.acks()] == [
        ("persisted", "success", 2)
    ]
    assert [each.sequence for each in group.log("b")] == [1, 2]


@pytest.mark.row("RE4")
def test_delivery_does_not_wait() -> None:
    group = Group(ONE_WAY)
    reader = group["a"].client("reader")
    reader.subscribe(bm="0|1|", a="")
    group["a"].client("p").publish(1, b"now")
    assert reader.bodies() == [b"now"]


def test_two_that_are_synchronous_to_each_other_do_not_wait_for_ever() -> None:
    group = linked(PAIR)
    publishers = [group["a"].client("p"), group["b"].client("q")]
    for publisher in publishers:
        publisher.publish(1)
    group.settle()
    assert [sequences(publisher) for publisher in publishers] == [[1], [1]]
    assert sorted(group.messages("a")) == sorted(group.messages("b"))


@pytest.mark.row("ID8", "RE11")
def test_a_logon_tells_what_was_seen_and_what_is_safe_everywhere() -> None:
    group = linked(ONE_WAY)
    group["a"].client("p").publish(1)
    group.settle()
    group.cut("a", "b")
    group["a"].client("p").publish(2)
    for _ in range(2):
        peer = group["a"].connect()
        peer.send(c="logon", client_name="p", a="processed")
        (answer,) = peer.take()
        assert answer.position is not None
        assert (answer.sequence, answer.position.sequence) == (2, 1)
        group.restart("a")
    group["a"].progress = None
    group.restart("a")
    assert group["a"].engine.progress.confirmed == 2, "what was never waited for is taken as it is"


@pytest.mark.row("ID8", "PS9")
@pytest.mark.parametrize("safe", [[], [7]])
def test_a_logon_calls_safe_what_is_below_a_gap_of_numbers(safe: list[int]) -> None:
    group = linked(ONE_WAY)
    for sequence in safe:
        group["a"].client("p").publish(sequence)
    group.settle()
    group.cut("a", "b")
    group["a"].client("p").publish(1_700_000_000)
    for _ in range(2):
        assert at_logon(group["a"], "p") == (1_700_000_000, sum(safe))
        group.restart("a")


@pytest.mark.row("ID8", "PS9")
@pytest.mark.parametrize("restarted", ["", "a"])
@pytest.mark.parametrize("topic", ["", "unlogged"], ids=["refused", "unlogged"])
def test_a_logon_calls_safe_what_is_below_a_refusal(topic: str, restarted: str) -> None:
    group = linked(ONE_WAY)
    publisher = group["a"].client("p")
    publisher.publish(1)
    publisher.publish(2, t=topic)
    group.settle()
    assert sequences(publisher) == [1, 2]
    group.cut("a", "b")
    publisher.publish(3)
    if restarted:
        group.restart(restarted)
    assert at_logon(group["a"], "p") == (3, 2)


@pytest.mark.row("ID8", "RE4")
def test_no_part_of_several_refusals_is_safe_while_a_destination_lacks_the_last() -> None:
    group = linked(ONE_WAY)
    publisher = group["a"].client("p")
    publisher.publish(1)
    group.settle()
    group.cut("a", "b")
    publisher.send_all(
        [encode_frame({"c": "p", "t": "", "s": n, "a": "persisted"}) for n in (2, 3, 4)]
    )
    assert sequences(publisher) == [1]
    for _ in range(2):
        assert at_logon(group["a"], "p") == (4, 1), "b would lack 3"
        group.restart("a")
    group.heal()
    assert at_logon(group["a"], "p") == at_logon(group["b"], "p") == (4, 4)


@pytest.mark.row("ID8", "RE4", "AK3")
@pytest.mark.parametrize("restarted", ["", "a", "b"])
@pytest.mark.parametrize("topic", ["", "unlogged"], ids=["refused", "unlogged"])
def test_a_refusal_is_told_once_every_synchronous_destination_knows_of_it(
    topic: str, restarted: str
) -> None:
    group = linked(ONE_WAY)
    publisher = group["a"].client("p")
    publisher.publish(1)
    group.settle()
    group.cut("a", "b")
    publisher.take()
    publisher.publish(2, t=topic)
    assert publisher.take() == []
    assert at_logon(group["b"], "p") == (1, 1)
    if restarted:
        group.restart(restarted)
    group.heal()
    if restarted != "a":
        assert sequences(publisher) == [2]
    group.restart("b")
    assert at_logon(group["b"], "p") == (2, 2)
    assert group.messages("b") == group.messages("a")
    group.heal()
    status = group.status("a", "b")
    assert (status.behind, status.missing) == (0, 0)


@pytest.mark.row("RE5", "AK3")
def test_a_refusal_does_not_wait_for_a_destination_that_was_downgraded() -> None:
    group = linked(ONE_WAY, downgrade_after_s=5.0)
    group.cut("a", "b")
    publisher = group["a"].client("p")
    publisher.publish(1, t="")
    assert publisher.take() == []
    group["a"].advance(5.1)
    assert sequences(publisher) == [1]
    publisher.publish(2, t="")
    assert sequences(publisher) == [2]
    assert at_logon(group["a"], "p") == (2, 2)
    group.heal()
    assert group.status("a", "b").is_sync
    assert at_logon(group["b"], "p") == (2, 2)


@pytest.mark.row("RE4", "RE1")
@pytest.mark.parametrize(
    "links",
    [{"a": ("b",), "b": ("c",), "c": ()}, {"a": ("b",), "b": ("c",), "c": ("a",)}],
    ids=["chain", "ring"],
)
def test_a_refusal_is_known_after_several_hops_and_goes_round_once(
    links: Mapping[str, tuple[str, ...]],
) -> None:
    group = linked(links)
    publisher = group["a"].client("p")
    publisher.publish(1)
    publisher.publish(2, t="")
    group.settle()
    ends = [group[name].engine.next_position for name in "abc"]
    assert ends == [3, 3, 3]
    assert [at_logon(group[name], "p") for name in "abc"] == [(2, 2)] * 3
    for name in "abc":
        group.restart(name)
    group.settle()
    assert [group[name].engine.next_position for name in "abc"] == ends


@pytest.mark.row("RE4")
def test_a_refusal_here_and_messages_there_are_no_difference_of_the_logs() -> None:
    group = linked(PAIR)
    group["a"].client("p").publish(1)
    group.settle()
    for link in group.links:
        group.cut(*link)
    group["a"].client("p").publish(2, t="")
    there = group["b"].client("p")
    there.publish(2, t="")
    there.publish(3, b"taken")
    group.heal()
    assert errors(group["a"]) == errors(group["b"]) == []
    assert [group.status(*link).behind for link in group.links] == [0, 0]
    assert at_logon(group["a"], "p") == at_logon(group["b"], "p") == (3, 3)
    assert group.sequences("a", "p") == group.sequences("b", "p") == {1, 3}


@pytest.mark.row("RE4", "ID8")
def test_a_refusal_that_came_from_an_instance_that_died_is_safe_on_both() -> None:
    group = linked(PAIR)
    publisher = group["a"].client("p")
    publisher.publish(1, t="")
    group.settle()
    assert sequences(publisher) == [1]
    group.cut("a", "b")
    group.cut("b", "a")
    for _ in range(2):
        assert at_logon(group["b"], "p") == (1, 1)
        group.restart("b")


@pytest.mark.row("RE4", "ID8")
def test_what_came_from_an_instance_that_died_is_safe_on_both() -> None:
    group = linked(PAIR)
    publisher = group["a"].client("p")
    publisher.publish(1)
    group.settle()
    assert sequences(publisher) == [1]
    group.cut("a", "b")
    group.cut("b", "a")
    group.restart("b")
    peer = group["b"].connect()
    peer.send(c="logon", client_name="p", a="processed")
    (answer,) = peer.take()
    assert answer.position is not None
    assert (answer.sequence, answer.position.sequence) == (1, 1)


@pytest.mark.row("OP12")
def test_fully_durable_delivers_what_is_safe_everywhere() -> None:
    group = linked(ONE_WAY)
    world = group["a"]
    publisher, reader = world.client("p"), world.client("reader")
    publisher.publish(1, b"1")
    reader.subscribe("all", bm="0", opts="fully_durable")
    reader.subscribe("new", bm="0|1|", opts="fully_durable", filter="/x IS NULL")
    reader.subscribe("range", bm="[0:0|1|]", opts="fully_durable")
    taken = reader.take()
    assert [(each.ack_type, each.sub_id) for each in taken] == [
        ("processed", "all"),
        ("processed", "new"),
        ("completed", "new"),
        ("processed", "range"),
    ]
    group.settle()
    taken = reader.take()
    assert [each.sids for each in taken if each.kind == "p"] == ["all", "range"]
    assert [each.sub_id for each in taken if each.ack_type == "completed"] == ["all", "range"]
    for sequence in (2, 3):
        publisher.publish(sequence, b"%d" % sequence)
    assert reader.take() == []
    group.settle()
    pairs = [(each.sids, each.data) for each in reader.take() if each.kind == "p"]
    assert sorted(pairs) == [("all", b"2"), ("all", b"3"), ("new", b"2"), ("new", b"3")]


@pytest.mark.row("OP12", "RE5")
def test_fully_durable_stalls_while_a_destination_is_down_until_it_is_downgraded() -> None:
    group = Group(ONE_WAY)
    world = group["a"]
    reader = world.client("reader")
    reader.subscribe(bm="0", opts="fully_durable", a="")
    world.client("p").publish(1, b"1")
    assert reader.take() == []
    world.apply(world.engine.downgrade(address("b"), world.now))
    assert reader.bodies() == [b"1"]


def test_fully_durable_without_destinations_needs_the_local_log_only() -> None:
    world = World()
    reader = world.client("reader")
    reader.subscribe(bm="0", opts="fully_durable", a="")
    world.client("p").publish(1, b"1")
    assert reader.bodies() == [b"1"]


@pytest.mark.row("RB16")
def test_subscribers_are_told_what_is_safe_everywhere_and_never_less_than_their_start() -> None:
    group = linked(ONE_WAY)
    world = group["a"]
    publisher, reader = world.client("p"), world.client("reader")
    publisher.publish(1)
    group.settle()
    publisher.publish(2)
    for sub_id, bookmark in (("old", "0"), ("new", "0|1|")):
        reader.subscribe(sub_id, bm=bookmark, a="persisted")
    world.advance(0.0)
    publisher.publish(3)
    world.advance(0.0)
    bookmark = f"{group.log('a')[0].publisher_id}|%d|"
    assert [(ack.sub_id, ack.bookmark) for ack in reader.acks()] == [("old", bookmark % 1)]
    group.settle()
    acks = {ack.sub_id: ack.bookmark for ack in reader.acks()}
    assert acks == {"old": bookmark % 3, "new": bookmark % 3}


@pytest.mark.row("OP13")
def test_live_hears_of_a_message_before_the_journal_does() -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("p")
    reader.subscribe("live", bm="0", opts="live", a="processed,completed")
    reader.subscribe("safe", bm="0", a="")
    reader.take()
    world.die_before_writing(publisher, [encode_frame({"c": "p", "t": "orders", "s": 1}, b"1")])
    assert [(each.sids, each.data) for each in reader.take()] == [("live", b"1")]
    late = world.client("late")
    late.subscribe(bm="0", a="")
    assert late.take() == [], "it was delivered and is in no log"


@pytest.mark.row("OP13")
def test_live_keeps_its_order_with_what_its_connection_is_told() -> None:
    world = World()
    peer = world.client("both")
    subscribe = encode_frame(
        {"c": "subscribe", "cid": "1", "t": "orders", "bm": "0", "opts": "live", "a": "processed"}
    )
    peer.send_all([subscribe, encode_frame({"c": "p", "t": "orders", "s": 1}, b"1")])
    peer.publish(2)
    peer.publish(3, x="rare", s=3)
    assert [each.ack_type or each.kind for each in peer.take()] == ["processed", "p", "p", "p"]
    peer.subscribe("2", bm="0", opts="live,fully_durable")
    assert peer.acks()[0].reason == "invalid options"


@pytest.mark.row("RE10")
def test_live_and_a_failover_show_a_late_message_after_later_ones() -> None:
    group = linked(PAIR)
    publisher, reader = group["a"].client("p"), group["a"].client("reader")
    reader.subscribe(bm="0", opts="live", a="")
    publisher.publish(998, b"998")
    group.settle()
    group.cut("a", "b")
    group.cut("b", "a")
    for sequence in (999, 1000, 1002):
        publisher.publish(sequence, b"%d" % sequence)
    seen = [int(body) for body in reader.bodies()]
    reader, publisher = group["b"].client("reader"), group["b"].client("p")
    last = group.log("a")[-1].bookmark
    reader.subscribe(bm=last, opts="live", a="")
    for sequence in (999, 1000, 1002):
        publisher.publish(sequence, b"%d" % sequence)
    seen += [int(body) for body in reader.bodies()]
    assert seen[:5] == [998, 999, 1000, 1002, 999]
    group.heal()
    assert group.messages("a") == group.messages("b")


@pytest.mark.row("RE5")
def test_a_destination_that_has_all_is_not_looked_at_for_ever_while_another_has_not() -> None:
    prompt, slow = (ReplicateTo(address("b"), downgrade_after_s=5.0), ReplicateTo(address("c")))
    world = World(replicate_to=(prompt, slow))
    there = {}
    for number, each in enumerate((prompt, slow), start=1000):
        peer = there[each.address] = world.peers[number] = Peer(world, number)
        world.apply(world.engine.dialled(number, each.address, world.now))
        peer.send_all([wire.welcome(each.address, {})])
    world.client().publish(1)
    there[prompt.address].send_all([wire.written(1)])
    for _ in range(50):
        if world.engine.next_due >= 106.0:
            break
        world.now = world.engine.next_due
        world.apply(world.engine.tick(world.now))
    assert world.engine.next_due >= 106.0
    assert [each.is_sync for each in world.engine.destinations] == [True, True]


@pytest.mark.row("RE5")
def test_a_record_that_waits_too_long_makes_its_destination_asynchronous() -> None:
    group = linked(ONE_WAY, downgrade_after_s=5.0)
    world = group["a"]
    publisher = world.client("p")
    publisher.publish(1)
    group.settle()
    publisher.take()
    group.cut("a", "b")
    world.advance(60.0)
    publisher.publish(2)
    world.advance(4.9)
    assert (publisher.take(), group.status("a", "b").is_sync) == ([], True)
    world.advance(0.2)
    assert sequences(publisher) == [2]
    assert not group.status("a", "b").is_sync
    publisher.publish(3)
    world.advance(0.0)
    assert sequences(publisher) == [3]
    assert group.status("a", "b").behind == 2
    group.heal()
    assert group.status("a", "b").is_sync
    assert [each for each in world.events if "synchronous" in each][1:] == [
        "replication to tcp://b:9007: asynchronous, since a record has waited for 5 s",
        "replication to tcp://b:9007: connected to b, asynchronous replication",
        "replication to tcp://b:9007: synchronous again",
    ]
    group.cut("a", "b")
    publisher.publish(4)
    assert publisher.take() == []


@pytest.mark.row("RE5")
def test_modes_are_changed_by_hand() -> None:
    group = Group({"a": ("b", "~c"), "b": (), "c": ()})
    world = group["a"]
    publisher = world.client("p")
    publisher.publish(1)
    for _ in range(2):
        world.apply(world.engine.downgrade(address("b"), world.now))
    assert sequences(publisher) == [1]
    group.heal()
    assert not group.status("a", "b").is_sync
    world.apply(world.engine.upgrade(address("b"), world.now))
    assert group.status("a", "b").is_sync
    for wrong in (address("c"), "nonsense"):
        with pytest.raises(UsageError, match="no synchronous destination; there is: tcp://b:9007"):
            world.engine.downgrade(wrong, world.now)


def test_collected_acks_that_cannot_be_sent_do_not_pile_up() -> None:
    group = Group(ONE_WAY)
    world = group["a"]
    publisher = world.client("p")
    for sequence in range(1, 100):
        publisher.publish(sequence)
        world.advance(0.0)
    group.heal()
    acks = sequences(publisher)
    assert len(acks) == MAX_HELD + 1
    assert acks[-1] == 99


@pytest.mark.row("RE4", "AK6")
def test_a_refusal_follows_its_predecessors_however_many_acks_wait() -> None:
    group = linked(ONE_WAY)
    group.cut("a", "b")
    publisher = group["a"].client("p")
    for number in range(1, MAX_HELD + 5):
        publisher.publish(number)
    publisher.publish(MAX_HELD + 5, t="")
    publisher.publish(MAX_HELD + 6)
    publisher.send(c="flush", cid="f", a="persisted")
    group.heal()
    acks = [(ack.sequence, ack.status) for ack in publisher.acks()]
    assert acks[MAX_HELD:] == [
        (MAX_HELD + 4, "success"),
        (MAX_HELD + 5, "failure"),
        (MAX_HELD + 6, "success"),
        (None, "success"),
    ]


@pytest.mark.row("RE1")
def test_topics_that_are_not_logged_stay_here() -> None:
    group = Group(ONE_WAY, log_topics=(LogTopic("^orders"),))
    group.settle()
    publisher = group["a"].client("p")
    publisher.publish(1)
    publisher.publish(2, t="other")
    publisher.publish(3, t="")
    publisher.publish(4)
    group.settle()
    assert group.sequences("b", "p") == {1, 4}
    assert sequences(publisher) == [1, 2, 3, 4]


def test_a_silent_destination_is_given_up() -> None:
    group = linked(ONE_WAY)
    world = group["a"]
    number = next(iter(world.peers))
    peer = world.peers[number]
    world.advance(3.0)
    assert [each.kind for each in peer.take()] == ["heartbeat"]
    world.advance(4.6)
    assert peer.closed == "heartbeat"
    assert not group.status("a", "b").is_connected
    assert world.events[-1] == "replication to tcp://b:9007: disconnected"


def test_a_healthy_link_stays() -> None:
    group = linked(PAIR)
    for _ in range(20):
        for name in group.worlds:
            group[name].advance(1.0)
        group.settle()
    assert group.status("a", "b").links == 1


def dialled(world: World) -> Peer:
    number = world.next_number()
    peer = world.peers[number] = Peer(world, number)
    world.apply(world.engine.dialled(number, "tcp://west:1", world.now))
    (logon,) = peer.take()
    assert logon.kind == wire.LOGON
    return peer


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([wire.refusal("no such thing")], "refused: no such thing"),
        ([encode_frame({"c": "ack", "status": "success"}, b"odd")], "vector of 3 bytes"),
        ([wire.welcome("west", {}), wire.written(7)], "position 7 was acknowledged"),
    ],
)
def test_an_answer_that_makes_no_sense_ends_the_connection(answers: list[bytes], told: str) -> None:
    world = World(replicate_to=(ReplicateTo("tcp://west:1"),))
    peer = dialled(world)
    peer.send_all(answers)
    assert peer.closed
    assert any(told in each for each in world.events)
    other = dialled(world)
    other.send(c="publish", t="x")
    assert other.closed == "unknown command"


def test_credentials_of_the_address_are_sent_and_never_shown() -> None:
    world = World(replicate_to=(ReplicateTo("tcp://me:secret@west:1"),))
    number = world.next_number()
    peer = world.peers[number] = Peer(world, number)
    world.apply(world.engine.dialled(number, "tcp://west:1", world.now))
    (logon,) = peer.take()
    assert (logon.user_id, logon.password) == ("me", "secret")
    assert world.engine.destinations[0].address == "tcp://west:1"


def errors(world: World) -> list[str]:
    return [event for event in world.events if "differ for good" in event]


def gone_on(group: Group, first: str, second: str, *, numbers: range) -> None:
    """A publisher leaves records at one instance, loses its store and goes on at another."""
    publisher = group[first].client("p")
    for number in numbers:
        publisher.publish(number, b"lost", a="")
    publisher.close()
    group[second].client("p").publish(100, b"later")


@pytest.mark.row("RE4")
@pytest.mark.parametrize("restarted", ["", "a", "b"])
@pytest.mark.parametrize("links", [ONE_WAY, PAIR], ids=["one way", "pair"])
def test_records_that_one_side_has_gone_on_without_are_told_and_counted(
    links: Mapping[str, tuple[str, ...]], restarted: str
) -> None:
    group = linked(links)
    group["a"].client("p").publish(4, b"both")
    group.settle()
    for link in group.links:
        group.cut(*link)
    gone_on(group, "a", "b", numbers=range(5, 9))
    if restarted:
        group.restart(restarted)
    group.heal()
    wanted = f"4 records of publisher {publisher_id('p')} with sequences from 5 to 8 "
    for name in "ab":
        (told,) = errors(group[name])
        assert wanted in told
    assert group["b"].engine.missing == group.status("a", "b").missing == 4
    assert 5 not in group.sequences("b", "p")
    group["a"].client("q").publish(1, b"next")
    group.settle()
    assert group.sequences("b", "q") == {1}, "the link goes on"
    assert group.status("a", "b").behind == 0
    for name in restarted or "a":
        group.restart(name)
        group.settle()
        assert len(errors(group["a"])) == len(errors(group["b"])) == 1, "told once"


@pytest.mark.row("RE4")
@pytest.mark.parametrize("restarted", ["", "a", "b"])
@pytest.mark.parametrize(
    ("links", "mode"),
    [
        (ONE_WAY, "synchronous"),
        (ONE_WAY, "downgraded"),
        (PAIR, "synchronous"),
        (PAIR, "downgraded"),
        (ASYNCHRONOUS, "asynchronous"),
    ],
    ids=["one way", "one way, downgraded", "pair", "pair, downgraded", "asynchronous"],
)
def test_a_difference_from_before_the_first_contact_is_found(
    links: Mapping[str, tuple[str, ...]], mode: str, restarted: str
) -> None:
    group = Group(links)
    if mode == "downgraded":
        world = group["a"]
        world.apply(world.engine.downgrade(address("b"), world.now))
    group["b"].client("q").publish(1, b"of b")
    gone_on(group, "a", "b", numbers=range(5, 9))
    if restarted:
        group.restart(restarted)
    group.heal()
    for name in "ab":
        (told,) = errors(group[name])
        assert "with sequences from 5 to 8 " in told
    assert group["b"].engine.missing == group.status("a", "b").missing == 4
    assert group["a"].engine.missing == 0
    assert group.status("a", "b").behind == 0
    group.restart("a")
    group.settle()
    assert group["b"].engine.missing == 4, "told once"


@pytest.mark.row("RE4")
def test_a_log_from_before_replication_was_configured_is_compared() -> None:
    """None of it is waited for, since its publishers were told that it is persisted."""
    group = Group({"a": (), "b": ()})
    gone_on(group, "a", "b", numbers=range(5, 9))
    settings = dataclasses.replace(
        group["a"].settings, replicate_to=(ReplicateTo(address("b"), "sync"),)
    )
    group["a"].settings = settings
    group.links.append(("a", "b"))
    for _ in range(2):
        group.restart("a")
        assert persisted_at_logon(group["a"], "p") == 8
    group.settle()
    assert group.status("a", "b").missing == group["b"].engine.missing == 4


@pytest.mark.row("RE4")
def test_what_a_destination_has_lost_with_its_disk_is_found_where_a_publisher_went_on() -> None:
    group = linked(ONE_WAY)
    group["a"].client("q").publish(1)
    publisher = group["a"].client("p")
    for number in range(5, 9):
        publisher.publish(number, a="")
    group.settle()
    publisher.close()
    group.cut("a", "b")
    group["b"].journal = MemoryJournal(1)
    group.restart("b")
    group["b"].client("p").publish(100, b"later")
    group.heal()
    assert group.sequences("b", "q") == {1}
    assert group["b"].engine.missing == group.status("a", "b").missing == 4


@pytest.mark.row("RE4")
def test_records_on_the_way_may_come_too_late() -> None:
    group = linked(PAIR)
    publisher = group["a"].client("p")
    publisher.publish(5, b"on the way", a="")
    publisher.close()
    group["b"].client("p").publish(100, b"first")
    group.settle()
    assert group.status("a", "b").missing == 1
    assert "with the sequence 5 " in errors(group["a"])[0]
    assert group.sequences("a", "p") == {5, 100}
    assert group.sequences("b", "p") == {100}


@pytest.mark.row("RE4", "ID2")
def test_what_a_publisher_sent_again_elsewhere_is_no_difference() -> None:
    group = linked(PAIR)
    for link in group.links:
        group.cut(*link)
    for name in "ab":
        publisher = group[name].client("p")
        for number in range(1, 6):
            publisher.publish(number, b"%d" % number, a="")
        publisher.close()
    group.restart("a")
    group.heal()
    assert errors(group["a"]) == errors(group["b"]) == []
    assert group.status("a", "b").missing == group["b"].engine.missing == 0
    assert group.messages("a") == group.messages("b")


def persisted_at_logon(world: World, name: str) -> int:
    """The sequence up to which a logon ack says that all is persisted."""
    return at_logon(world, name)[1]


@pytest.mark.row("RE4", "RE11", "ID8")
def test_an_instance_that_starts_again_knows_what_its_destination_has_before_reaching_it() -> None:
    """Otherwise a publisher that fails over takes the lower number for a publish gap."""
    group = linked(PAIR)
    group.cut("b", "a")
    group.restart("b")
    group.settle()
    publisher = group["a"].client("p")
    publisher.publish(1)
    group.settle()
    assert sequences(publisher) == [1], "a has been told that b has it"
    group.cut("a", "b")
    assert persisted_at_logon(group["b"], "p") == 1
    group.restart("b")
    assert persisted_at_logon(group["b"], "p") == 1


@pytest.mark.row("RE4", "RE11", "ID8")
def test_what_came_from_the_destination_is_still_known_to_be_there_after_a_restart() -> None:
    group = linked(PAIR)
    group.cut("b", "a")
    group["b"].client("q").publish(1)
    publisher = group["a"].client("p")
    publisher.publish(1)
    group.settle()
    assert sequences(publisher) == [1]
    group.cut("a", "b")
    for _ in range(2):
        assert persisted_at_logon(group["b"], "p") == 1
        assert persisted_at_logon(group["b"], "q") == 0, "this one waits for a"
        group.restart("b")


@pytest.mark.row("RE4", "RE5")
@pytest.mark.parametrize("to", ["b", "~b"], ids=["downgraded", "asynchronous"])
def test_a_difference_is_found_where_nobody_waited_for_the_destination(to: str) -> None:
    group = linked({"a": (to,), "b": ()})
    group["a"].client("p").publish(4, b"both")
    group.settle()
    group.cut("a", "b")
    if to == "b":
        world = group["a"]
        world.apply(world.engine.downgrade(address("b"), world.now))
    gone_on(group, "a", "b", numbers=range(5, 9))
    group.restart("a")
    group.heal()
    assert group.status("a", "b").missing == group["b"].engine.missing == 4
    for name in "ab":
        (told,) = errors(group[name])
        assert "with sequences from 5 to 8 " in told


@pytest.mark.row("RE1")
def test_records_and_a_delete_of_many_keys_go_in_frames_that_the_other_side_reads() -> None:
    group = Group(ONE_WAY, sow_topics=(SowTopic("orders", ("/id",)),), max_frame_bytes=1000)
    client = group["a"].client("app")
    for sequence in range(1, 101):
        client.publish(sequence, b'{"id":%d}' % sequence)
    client.send(c="sow_delete", t="orders", filter="/id > 1", s=101, a="persisted")
    client.publish(102, b'{"id":102}')
    group.settle()
    assert group.messages("b") == group.messages("a")
    chunk, _ = group["b"].journal.read(group["b"].journal.seek(101), 2**20)
    (delete,) = [e for e in records_of(chunk) if e.command == RecordCommand.SOW_DELETE]
    assert len(delete.payload) > 1000


@pytest.mark.row("RE1")
def test_a_body_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "MAX_BODY_BYTES", 10)
    group = Group(ONE_WAY)
    group.settle()
    peer = group["b"].connect()
    peer.send_all([wire.logon("other", user="", password="", beat_interval_s=5.0)])
    peer.send_all([wire.records([bytes(11)], 1, max_frame_bytes=129)])
    assert peer.take()[-1].reason == "records of more than 10 bytes in a piece"
