"""Queries of the past that are followed by a replay, step by step."""

from __future__ import annotations

import pytest

from haclient.protocol.messages import Message
from haclient_fake_server.engine.settings import LogTopic, SowTopic
from haclient_fake_server.engine.sow import history
from support.engine import World

pytestmark = pytest.mark.row("CC15", "SW1")

SOW = (SowTopic("orders", ("/id",), history=True), SowTopic("forgetful", ("/id",)))


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block of the log is a step of its own."""
    monkeypatch.setattr(history, "STEP_BYTES", 1)


class Past:
    """A broker with ten messages, `{"id": 1 to 5, "n": 1 to 10}`, and who asks for their past."""

    def __init__(self) -> None:
        self.world = World(sow_topics=SOW)
        self.publisher = self.world.client()
        self.marks: list[str] = []
        reader = self.world.client("reader")
        reader.subscribe(bm="0")
        for number in range(1, 11):
            self.publish(number)
        self.marks = [each.bookmark for each in reader.take() if each.kind == "p"]
        self.peer = self.world.client("asker")

    def publish(self, number: int) -> None:
        self.publisher.publish(None, body(number))

    def ask(self, bookmark: str, **fields: str | int) -> None:
        command: dict[str, str | int] = {"c": "sow_and_subscribe", "cid": "1", "sub_id": "1"}
        command |= {"t": "orders", "bs": 10, "a": "processed,completed", "bm": bookmark}
        self.peer.send(**{**command, **fields})

    def step(self) -> None:
        """Carry out one step of what waits."""
        self.world.apply(self.world.engine.pump(self.peer.number, self.world.now))

    def begin(self, bookmark: str, **fields: str | int) -> None:
        """Ask, and read some of the log, but not all."""
        self.peer.stalled = True
        self.ask(bookmark, **fields)
        self.step()
        self.step()

    def go_on(self) -> list[str]:
        self.peer.stalled = False
        self.world.replay_backlog(self.peer)
        return shown(self.peer.take())


def body(number: int) -> bytes:
    return b'{"id":%d,"n":%d}' % ((number - 1) % 5 + 1, number)


def shown(messages: list[Message]) -> list[str]:
    """The messages in short: kinds, and the number of each record and publish."""
    return [
        f"{each.kind} {each.data.decode().rpartition(':')[2][:-1]}"
        if each.kind in {"sow", "p"}
        else each.reason or each.ack_type or each.kind
        for each in messages
    ]


def group(*numbers: int) -> list[str]:
    return ["group_begin", *(f"sow {number}" for number in numbers), "group_end"]


def replayed(*numbers: int) -> list[str]:
    return [f"p {number}" for number in numbers]


def test_the_records_of_then_come_before_the_replay_and_completed_after_it() -> None:
    past = Past()
    past.ask(past.marks[6], a="processed,completed,persisted,stats", filter="/id > 1")
    messages = past.peer.take()
    past.publish(13)
    messages += past.peer.take()
    assert shown(messages) == [
        "processed",
        *group(7, 3, 4, 5),
        "stats",
        *replayed(8, 9, 10),
        "completed",
        *replayed(13),
    ]
    publishes = [each for each in messages if each.kind == "p"]
    assert [each.bookmark for each in publishes[:3]] == past.marks[7:]
    assert publishes[-1].bookmark
    (completed,) = [each for each in messages if each.ack_type == "completed"]
    assert (completed.bookmark, completed.sub_id) == (past.marks[-1], "1")


@pytest.mark.parametrize(
    ("bookmark", "expected"),
    [
        ("0", [*group(), *replayed(*range(1, 11)), "completed"]),
        ("0|1|", [*group(6, 7, 8, 9, 10), "completed"]),
        ("{9}", [*group(6, 7, 8, 9, 10), "completed"]),
        ("[{1}:{3}]", [*group(1), *replayed(2, 3, 4), "completed"]),
        ("({1}:{3})", [*group(1, 2), *replayed(3), "completed"]),
        ("20300101T000000Z", [*group(6, 7, 8, 9, 10), "completed"]),
        ("{4},20231114T000000Z", [*group(1, 2, 3, 4, 5), *replayed(*range(6, 11)), "completed"]),
    ],
)
def test_every_start_of_a_replay_may_begin_with_the_records(
    bookmark: str, expected: list[str]
) -> None:
    past = Past()
    past.ask(bookmark.format(*past.marks))
    assert shown(past.peer.take()) == ["processed", *expected]


def test_what_a_list_of_bookmarks_covers_is_among_the_records() -> None:
    world = World(sow_topics=SOW)
    one, other, peer = world.client("one"), world.client("other"), world.client("asker")
    reader = world.client("reader")
    reader.subscribe(bm="0")
    for number, publisher in enumerate((one, other, one, one, other, one), 1):
        publisher.publish(None, body(number))
        publisher.publish(None, b'{"id":1}', t="forgetful")  # not asked for, so not in the way
    marks = [each.bookmark for each in reader.take() if each.kind == "p"]
    # The second message is the last one of `other` that is done with, the fourth one of `one`.
    peer.send(
        c="sow_and_subscribe",
        cid="1",
        t="orders",
        bm=f"{marks[1]},{marks[3]}",
        bs=10,
        a="completed",
    )
    assert shown(peer.take()) == [*group(1, 2, 3, 4), *replayed(5, 6), "completed"]
    everything = f"{marks[4]},{marks[5]}"
    peer.send(c="sow_and_subscribe", cid="2", t="orders", bm=everything, bs=10, a="completed")
    assert shown(peer.take()) == [*group(6, 2, 3, 4, 5), "completed"]


def test_what_is_published_during_the_query_follows_the_group() -> None:
    past = Past()
    past.begin(past.marks[7])
    past.publish(11)
    assert shown(past.peer.take()) == ["processed"]
    past.publisher.send(c="sow_delete", t="orders", filter="/id = 2")
    past.publish(12)
    expected = [*group(6, 7, 8, 4, 5), *replayed(9, 10, 11, 12), "completed"]
    assert past.go_on() == expected


def test_who_unsubscribes_during_the_query_gets_no_answer_and_the_id_is_free() -> None:
    past = Past()
    past.begin(past.marks[7])
    past.peer.send(c="unsubscribe", cid="2", sub_id="1", a="processed")
    past.ask(past.marks[8], cid="3")
    past.publish(11)
    answer = [*group(6, 7, 8, 9, 5), *replayed(10, 11), "completed"]
    assert past.go_on() == ["processed", "processed", "processed", *answer]
    past.peer.send(c="unsubscribe", cid="4", sub_id="1", a="processed")
    past.publish(12)
    assert past.go_on() == ["processed"]


def test_a_pause_during_the_query_holds_the_replay_and_not_the_records() -> None:
    past = Past()
    past.begin(past.marks[8])
    past.peer.send(c="subscribe", cid="2", sub_id="1", opts="pause", a="processed")
    past.publish(11)
    assert past.go_on() == ["processed", "processed", *group(6, 7, 8, 9, 5)]
    past.peer.send(c="subscribe", cid="3", sub_id="1", opts="resume", a="processed")
    assert past.go_on() == ["processed", *replayed(10, 11), "completed"]


def test_a_resume_during_the_query_does_not_begin_the_replay() -> None:
    past = Past()
    past.begin(past.marks[8], opts="pause")
    past.peer.send(c="subscribe", cid="3", sub_id="1", opts="resume", a="processed")
    past.step()
    assert shown(past.peer.take()) == ["processed", "processed"]
    assert past.go_on() == [*group(6, 7, 8, 9, 5), *replayed(10), "completed"]


def test_a_rate_is_that_of_the_replay() -> None:
    past = Past()
    past.ask(past.marks[7], opts="rate=1")
    assert past.go_on() == ["processed", *group(6, 7, 8, 4, 5), *replayed(9)]
    past.world.advance(1.5)
    assert past.go_on() == [*replayed(10), "completed"]


def test_another_filter_during_the_query_is_that_of_the_replay() -> None:
    past = Past()
    past.begin(past.marks[7])
    fields = {"opts": "replace", "filter": "/n = 10", "t": "orders"}
    past.peer.send(c="subscribe", cid="2", sub_id="1", a="processed", **fields)
    assert past.go_on() == [
        "processed",
        "processed",
        *group(6, 7, 8, 4, 5),
        *replayed(10),
        "completed",
    ]


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_replaced_query_is_answered_as_of_the_place_that_is_reached(
    is_answered: bool,  # noqa: FBT001  # a parameter of pytest
) -> None:
    past = Past()
    if is_answered:
        past.ask(past.marks[7], opts="rate=1")
        assert past.go_on()[-1] == "p 9"
    else:
        past.begin(past.marks[8])
    past.ask("", cid="2", opts="replace", filter="/id IN (4, 5)")
    expected = [*group(9, 5), *replayed(10), "completed"]
    assert past.go_on()[-len(expected) :] == expected
    past.publish(14)
    past.publish(13)
    assert past.go_on() == replayed(14)


def test_a_paused_replay_that_is_replaced_stays_paused_and_keeps_what_its_list_covers() -> None:
    past = Past()
    past.begin(f"{past.marks[4]},20231114T000000Z", opts="pause")
    past.ask("", cid="2", opts="replace", filter="/id > 2")
    assert past.go_on() == ["processed", "processed", *group(3, 4, 5)]
    past.peer.send(c="subscribe", cid="3", sub_id="1", opts="resume", a="processed")
    assert past.go_on() == ["processed", *replayed(8, 9, 10), "completed"]


def test_a_connection_that_ends_during_the_query_leaves_nothing() -> None:
    past = Past()
    past.begin(past.marks[7])
    past.peer.close()
    past.publish(11)
    assert not past.world.engine.has_backlog(past.peer.number)
    assert not past.world.events


def test_many_queries_are_answered_in_the_order_in_which_they_came() -> None:
    past = Past()
    past.peer.stalled = True
    for number in range(30):
        past.ask(past.marks[8], cid=str(number), sub_id=str(number), a="")
    past.peer.send(c="sow", cid="30", t="orders", bm=past.marks[8])
    past.peer.stalled = False
    past.world.replay_backlog(past.peer)
    messages = past.peer.take()
    ends = [each.query_id for each in messages if each.kind == "group_end"]
    assert ends == [str(number) for number in range(31)]
    assert len([each for each in messages if each.kind == "p"]) == 30


def test_it_goes_live_and_back_to_the_log() -> None:
    past = Past()
    past.ask(past.marks[8])
    past.go_on()
    past.peer.stalled = True
    past.world.engine.over_high_water(past.peer.number)
    past.publish(11)
    past.publish(12)
    assert past.go_on() == replayed(11, 12)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"t": "forgetful"}, "invalid bookmark"),
        ({"t": "elsewhere"}, "invalid bookmark"),
        ({"t": ".*"}, "invalid bookmark"),
        ({"bm": "recent"}, "invalid bookmark"),
        ({"bm": "77|1|"}, "bookmark not found"),
        ({"bm": "77|1|", "opts": "bookmark_not_found=fail"}, "bookmark not found"),
        ({"opts": "top_n=2,skip_n=1"}, "invalid options"),
        ({"opts": "oof"}, "invalid options"),
        ({"opts": "fully_durable"}, "invalid options"),
        ({"c": "sow_and_delta_subscribe"}, "invalid bookmark"),
    ],
)
def test_what_has_no_past_is_refused(fields: dict[str, str], reason: str) -> None:
    past = Past()
    past.ask("0", **fields)
    assert shown(past.peer.take()) == [reason]
    past.publish(11)
    assert shown(past.peer.take()) == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"t": "forgetful"}, "invalid bookmark"),
        ({"opts": "replace,oof"}, "invalid options"),
        ({"opts": "replace,top_n=2,skip_n=1"}, "invalid options"),
        ({"c": "sow_and_delta_subscribe"}, "invalid options"),
    ],
)
def test_a_replay_that_cannot_be_replaced_goes_on(fields: dict[str, str], reason: str) -> None:
    past = Past()
    past.ask(past.marks[-1])
    past.go_on()
    past.ask("", **{"cid": "2", "opts": "replace", **fields})
    assert shown(past.peer.take()) == [reason]
    past.publish(11)
    assert shown(past.peer.take()) == replayed(11)


def test_an_unknown_bookmark_may_begin_at_the_start_or_now() -> None:
    past = Past()
    past.ask("77|1|", opts="bookmark_not_found=epoch", filter="/n > 9")
    assert past.go_on() == ["processed", *group(), *replayed(10), "completed"]
    past.ask("77|1|", opts="bookmark_not_found=now", sub_id="2", cid="2", filter="/n > 9")
    assert past.go_on() == ["processed", *group(10), "completed"]


def test_an_option_for_a_replay_needs_one() -> None:
    past = Past()
    past.ask("0|1|", t="forgetful", opts="pause")
    assert shown(past.peer.take()) == ["invalid options"]
    past.ask("0|1|", opts="pause")
    past.publish(11)
    assert shown(past.peer.take()) == ["processed", *group(6, 7, 8, 9, 10)]
    past.peer.send(c="subscribe", cid="2", sub_id="1", opts="resume", a="processed")
    assert past.go_on() == ["processed", "completed", *replayed(11)]


def test_a_pattern_takes_the_topics_that_keep_their_history() -> None:
    topics = (SowTopic("a/1", ("/id",), history=True), SowTopic("a/2", ("/id",), history=True))
    world = World(sow_topics=topics, log_topics=(LogTopic("^a/"),))
    publisher, peer = world.client(), world.client("asker")
    for number in range(1, 5):
        publisher.publish(None, body(number), t=f"a/{number % 2 + 1}")
    peer.send(c="sow_and_subscribe", cid="1", t="^a/", bm="0|1|", bs=10, a="completed")
    peer.send(c="sow_and_subscribe", cid="2", t="^a/", bm="0", bs=10, a="completed")
    assert shown(peer.take()) == [
        *group(2, 4, 1, 3),
        "completed",
        *group(),
        *replayed(1, 2, 3, 4),
        "completed",
    ]


def test_conflated_messages_follow_the_records() -> None:
    past = Past()
    past.ask(past.marks[5], opts="conflation=1s")
    assert past.go_on()[-2:] == [*replayed(10), "completed"]


def test_the_query_and_the_subscription_may_have_ids_of_their_own() -> None:
    past = Past()
    past.ask(past.marks[8], sub_id="s", query_id="q")
    messages = past.peer.take()
    assert {each.query_id for each in messages if each.kind in {"sow", "group_end"}} == {"q"}
    assert {each.sids for each in messages if each.kind == "p"} == {"s"}


def test_a_log_without_its_beginning_has_the_present_records_alone() -> None:
    past = Past()
    past.world.journal.live.manifest.first_position = 4  # as after its first segments were removed
    past.ask(past.marks[5])
    assert shown(past.peer.take()) == ["bookmark not found"]
    past.ask("77|1|", opts="bookmark_not_found=epoch")
    assert shown(past.peer.take()) == ["bookmark not found"]
    past.ask(past.marks[-1])
    past.publish(11)
    expected = ["processed", *group(6, 7, 8, 9, 10), "completed", *replayed(11)]
    assert past.go_on() == expected
