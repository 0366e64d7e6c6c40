"""Persisted acks of publishers and subscriptions."""

from __future__ import annotations

import pytest

from haclient_fake_server.engine import persisted_acks
from support.engine import World

PUBBER = 7094790850998930143


@pytest.mark.row("RB16")
def test_a_bookmark_subscription_hears_about_once_a_second_how_far_the_log_is_safe() -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("pubber")
    reader.subscribe(bm="0")
    reader.take()
    publisher.publish(1, t="elsewhere")
    world.advance(0.5)
    publisher.publish(2, t="elsewhere")
    assert reader.take() == []
    world.advance(0.5)
    (ack,) = reader.take()
    assert (ack.ack_type, ack.sub_id, ack.command_id) == ("persisted", "1", "1")
    assert ack.bookmark == f"{PUBBER}|2|"
    world.advance(10)
    assert reader.take() == []


@pytest.mark.row("RB16")
@pytest.mark.parametrize("bookmark", ["0", "0|1|"])
def test_a_subscription_to_a_quiet_log_hears_it_too(bookmark: str) -> None:
    world = World()
    world.client("pubber").publish(1)
    reader = world.client("reader")
    reader.subscribe(bm=bookmark)
    world.advance(1)
    assert reader.take()[-1].ack_type == "persisted"


@pytest.mark.row("RB16")
def test_a_long_replay_is_acknowledged_while_it_goes_on() -> None:
    world = World()
    publisher, reader = world.client("pubber"), world.client("reader")
    for number in range(1, 4):
        publisher.publish(number, b"x" * 200_000)
    reader.stalled = True
    reader.subscribe(bm="0")
    told: list[str] = []
    for _ in range(3):
        world.apply(world.engine.pump(reader.number, world.now))
        world.advance(1)
        told += [ack.bookmark for ack in reader.acks() if ack.ack_type == "persisted"]
    assert told == [f"{PUBBER}|{number}|" for number in (1, 2, 3)]


@pytest.mark.row("RB16")
def test_a_subscription_is_never_told_of_a_position_that_it_has_not_passed() -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("pubber")
    reader.subscribe(bm="0")
    publisher.publish(1)
    reader.stalled = True
    world.engine.over_high_water(reader.number)
    publisher.publish(2)
    world.advance(1)
    persisted = [ack for ack in reader.take() if ack.ack_type == "persisted"]
    assert [ack.bookmark for ack in persisted] == [f"{PUBBER}|1|"]


@pytest.mark.row("RB16", "AK1")
def test_a_subscription_that_did_not_ask_hears_nothing() -> None:
    world = World()
    reader = world.client("reader")
    reader.subscribe(bm="0", a="completed")
    reader.take()
    world.client("pubber").publish(1, t="elsewhere")
    world.advance(5)
    assert reader.take() == []


def test_an_ended_subscription_gets_no_more_acks() -> None:
    world = World()
    reader = world.client("reader")
    reader.subscribe(bm="0")
    reader.send(c="unsubscribe", sub_id="1")
    reader.take()
    world.client("pubber").publish(1)
    world.advance(5)
    assert reader.take() == []


ACKS_PER_TURN = 20


@pytest.fixture
def _few_acks_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persisted_acks, "MAX_ACKS_PER_TURN", ACKS_PER_TURN)


@pytest.mark.usefixtures("_few_acks_per_turn")
def test_many_acks_are_sent_in_turns() -> None:
    world = World()
    reader = world.client("reader")
    count = 2 * ACKS_PER_TURN + 5
    for number in range(count):
        reader.subscribe(str(number), bm="0|1|", a="persisted", t=f"t{number}")
    world.client("pubber").publish(1)
    world.now += 1.0
    turns = []
    while world.engine.next_due <= world.now:
        world.apply(world.engine.tick(world.now))
        turns.append(len(reader.take()))
    assert turns == [ACKS_PER_TURN, ACKS_PER_TURN, 5]


@pytest.mark.usefixtures("_few_acks_per_turn")
def test_the_more_subscriptions_there_are_the_less_often_all_of_them_are_acknowledged() -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("pubber")
    count = 8 * ACKS_PER_TURN
    for number in range(count):
        reader.subscribe(str(number), bm="0|1|", a="persisted", t=f"t{number}")
    publisher.publish(1, a="")
    world.advance(10)
    assert len(reader.acks()) == count
    publisher.publish(2, a="")
    world.advance(8 * persisted_acks.REST_S - 0.1)
    assert reader.acks() == []
    world.advance(0.1)
    assert [ack.bookmark for ack in reader.acks()] == [f"{PUBBER}|2|"] * count


@pytest.mark.usefixtures("_few_acks_per_turn")
def test_a_subscription_that_ends_during_a_turn_gets_no_ack() -> None:
    world = World()
    reader = world.client("reader")
    for number in range(ACKS_PER_TURN + 5):
        reader.subscribe(str(number), bm="0|1|", a="persisted", t=f"t{number}")
    world.client("pubber").publish(1)
    world.now += 1.0
    world.apply(world.engine.tick(world.now))
    reader.take()
    reader.send(c="unsubscribe", sub_id=str(ACKS_PER_TURN))
    world.apply(world.engine.tick(world.now))
    assert [ack.sub_id for ack in reader.take()] == [
        str(ACKS_PER_TURN + number) for number in range(1, 5)
    ]


def test_what_moves_while_acks_are_sent_is_acknowledged_after_another_interval() -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("pubber")
    reader.subscribe(bm="0|1|", a="persisted")
    publisher.publish(1, a="")
    world.advance(1.0)
    publisher.publish(2, a="")
    world.advance(0.5)
    told = [ack.bookmark for ack in reader.acks()]
    world.advance(0.5)
    assert (told, [ack.bookmark for ack in reader.acks()]) == ([f"{PUBBER}|1|"], [f"{PUBBER}|2|"])


def test_persisted_acks_tell_which_log_has_come_how_far() -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("pubber")
    reader.subscribe(bm="0|1|", a="persisted", t="elsewhere")
    publisher.publish(1)
    publisher.publish(2)
    world.advance(1.0)
    start = world.journal.log_starts[-1]
    for peer in (reader, publisher):
        assert [ack.log_starts for ack in peer.acks()] == [f"{start.id:016x}@2"]


@pytest.mark.row("RB16")
def test_a_subscription_that_begins_anew_is_told_again_how_far_the_log_is_safe() -> None:
    world = World()
    world.client("pubber").publish(1)
    reader = world.client("reader")
    for options in ("", "replace"):
        reader.subscribe(bm="0", opts=options)
        world.advance(1)
        (ack,) = [each for each in reader.acks() if each.ack_type == "persisted"]
        assert ack.bookmark == f"{PUBBER}|1|"
