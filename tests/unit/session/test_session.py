from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from haclient.errors import (
    DisconnectedError,
    HAClientError,
    NotEntitled,
    ProtocolError,
    StoreFull,
    UsageError,
)
from haclient.protocol.messages import Message
from haclient.session.acks import PendingCommand
from haclient.session.historical import HistoricalSubscription
from haclient.session.session import Received, Session
from haclient.session.subscriptions import Marker, SubscribeRequest, Subscription
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import SubscriptionLog
from support.requests import request_of
from support.sinks import NoQueue
from support.tracked_log import TrackedLog


def enter(  # noqa: PLR0913  # the parts of one entry
    session: Session,
    sub_id: str,
    *,
    command_id: str = "",
    query_id: str = "",
    log: SubscriptionLog | None = None,
    acks: tuple[str, ...] = (),
    ends: tuple[str, ...] = (),
    markers: bool = False,
) -> Subscription:
    kind = HistoricalSubscription if query_id and log is not None else Subscription
    request = request_of(sub_id, query_id=query_id, acks=frozenset(acks), ends=frozenset(ends))
    subscription = kind(request, NoQueue(), command_id=command_id, log=log, markers=markers)
    session.router.add(subscription)
    return subscription


def message(sids: str, body: bytes = b"", bookmark: str = "") -> Message:
    return Message(kind="p", topic="orders", sids=sids, data=body, bookmark=bookmark)


def ack(kind: str, **fields: str | int) -> Message:
    found = Message(kind="ack", ack_type=kind, status="success")
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def told(received: Received) -> list[tuple[str, list[bytes] | Marker | HAClientError]]:
    """Deliveries as sub ids with bodies or markers."""
    return [
        (one.sub_id, [each.data for each in what] if isinstance(what, list) else what)
        for one, what in received.deliveries
    ]


@pytest.fixture
def session() -> Session:
    return Session()


def test_command_ids_never_repeat(session: Session) -> None:
    ids = [session.next_command_id() for _ in range(100)]
    assert len(set(ids)) == 100


# -- messages -----------------------------------------------------------------------------


def test_neighbours_with_the_same_receivers_are_one_batch(session: Session) -> None:
    enter(session, "1")
    enter(session, "2")
    received = session.receive(
        [message(s, b) for s, b in zip("11212", [b"a", b"b", b"c", b"d", b"e"], strict=True)]
    )
    assert told(received) == [("1", [b"a", b"b"]), ("2", [b"c"]), ("1", [b"d"]), ("2", [b"e"])]


@pytest.mark.row("CC26")
def test_a_message_shows_the_id_of_the_subscription_that_got_it(session: Session) -> None:
    enter(session, "1")
    enter(session, "2")
    received = session.receive([message("1,2", b"a")])
    assert [
        (one.sub_id, each[0].sub_id) for one, each in received.deliveries if isinstance(each, list)
    ] == [
        ("2", "2"),
        ("1", "1"),
    ]


@pytest.mark.row("CC27")
def test_two_receivers_of_one_message_get_values_of_their_own(session: Session) -> None:
    one, two = MemoryBookmarkStore(), MemoryBookmarkStore()
    enter(session, "1", log=one.subscription("1"))
    enter(session, "2", log=two.subscription("2"))
    two.subscription("2").log("7|1|")
    received = session.receive([message("1,2", b"a", "7|2|")])
    first, second = (each[0] for _, each in received.deliveries if isinstance(each, list))
    assert first is not second
    assert {(m.sub_id, m.number) for m in (first, second)} == {("1", 1), ("2", 2)}


@pytest.mark.parametrize("field", ["query_id", "sub_id", "command_id"])
def test_without_sids_the_next_best_id_names_the_receiver(session: Session, field: str) -> None:
    enter(session, "1")
    record = Message(kind="sow", data=b"r")
    setattr(record, field, "1")
    assert told(session.receive([record, message("1", b"a")])) == [("1", [b"r", b"a"])]


def test_messages_for_nobody_are_kept_apart(session: Session) -> None:
    lone = Message(kind="p", topic="orders", data=b"x")
    received = session.receive([message("9", b"a"), message("9", b"b"), lone])
    assert [each.data for each in received.unrouted] == [b"a", b"b", b"x"]
    assert told(received) == []


@pytest.mark.row("BS2")
def test_every_message_is_logged_and_numbered_before_anybody_sees_it(session: Session) -> None:
    log = TrackedLog()
    enter(session, "1", log=log)
    received = session.receive([message("1", b"a", "7|1|"), message("1", b"b", "7|2|")])
    ((_, batch),) = received.deliveries
    assert isinstance(batch, list)
    assert [each.number for each in batch] == [1, 2]
    assert log.undiscarded_count == 2
    batch[0].discard()
    assert log.oldest_undiscarded == 2


@pytest.mark.row("CC37")
@pytest.mark.parametrize("ids", [{"command_id": "7"}, {"sub_id": "1"}], ids=["command", "sub id"])
def test_a_failure_ack_after_the_command_was_accepted_ends_the_subscription(
    session: Session, ids: dict[str, str]
) -> None:
    one = enter(session, "1", command_id="7")
    received = session.receive(
        [message("1", b"a"), ack("completed", status="failure", reason="not entitled", **ids)]
    )
    ((_, first), (ended, error)) = received.deliveries
    assert isinstance(first, list)
    assert ended is one
    assert isinstance(error, NotEntitled)
    assert received.ended == [(one, error)]
    assert session.router.all() == []


@pytest.mark.parametrize("status", ["success", "failure"])
def test_the_answer_to_a_command_about_a_subscription_is_not_the_subscriptions(
    session: Session, status: str
) -> None:
    one = enter(session, "1", command_id="7", acks=("processed",))
    pending = PendingCommand("8", "pause", awaited="processed", wake=lambda: None)
    session.pending.add(pending)
    received = session.receive([ack("processed", command_id="8", sub_id="1", status=status)])
    assert (received.deliveries, received.ended) == ([], [])
    assert session.router.all() == [one]
    assert (pending.error is None) == (status == "success")


def test_the_last_bookmark_and_the_end_of_a_replay_are_noted(session: Session) -> None:
    one = enter(session, "1", command_id="7", log=TrackedLog())
    place = one.position
    session.receive([message("1", b"a", "7|1|"), message("1", b"b", "7|2|")])
    assert (place.last_bookmark, place.is_complete) == ("7|2|", False)
    session.receive([message("1", b"a", "7|1|")])
    assert place.last_bookmark == "7|1|", "known or new: it is the order of this server"
    session.receive([ack("completed", command_id="7", status="success")])
    assert place.is_complete


@pytest.mark.row("BS11", "BS12")
def test_a_duplicate_goes_to_nobody_but_is_told(session: Session) -> None:
    enter(session, "1", log=TrackedLog())
    received = session.receive(
        [message("1", b"a", "7|1|"), message("1", b"a", "7|1|"), message("1", b"b", "7|2|")]
    )
    assert told(received) == [("1", [b"a", b"b"])]
    assert [each.data for each in received.duplicates] == [b"a"]
    again = session.receive([message("1", b"b", "7|2|")])
    assert (told(again), len(again.duplicates)) == ([], 1)


def test_a_message_without_a_bookmark_is_delivered_and_not_tracked(session: Session) -> None:
    log = TrackedLog()
    enter(session, "1", log=log)
    received = session.receive([message("1", b"a")])
    assert told(received) == [("1", [b"a"])]
    assert log.undiscarded_count == 0


def test_a_store_that_is_full_stops_the_delivery(session: Session) -> None:
    class Full(TrackedLog):
        @override
        def log_batch(self, bookmarks: list[str]) -> list[int] | range:
            raise StoreFull("no room")

    enter(session, "1", log=Full())
    with pytest.raises(StoreFull):
        session.receive([message("1", b"a", "7|1|")])


def test_a_store_that_cannot_read_a_bookmark_blames_the_server(session: Session) -> None:
    class Strict(TrackedLog):
        @override
        def log_batch(self, bookmarks: list[str]) -> list[int] | range:
            if "what" in bookmarks:
                raise UsageError("no bookmark")
            return super().log_batch(bookmarks)

    enter(session, "1", log=Strict())
    enter(session, "2", log=Strict())
    chunk = [message("2", b"a", "7|1|"), message("1", b"b", "what"), message("2", b"c", "7|2|")]
    received = session.receive(chunk)
    assert isinstance(received.fault, ProtocolError)
    assert "cannot be read" in str(received.fault)
    delivered = [one.data for _, batch in received.deliveries for one in batch]  # type: ignore[union-attr]  # no marker came
    assert delivered == [b"a"]  # what stood before is in the store, and counts


Step = tuple[str, bytes]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["1", "2", "3", "1,2", "2,3", "3,1,2", "9"]), st.binary(max_size=4)
        )
    ),
    st.data(),
)
def test_however_it_is_cut_nothing_is_lost_or_reordered(
    stream: list[Step], data: st.DataObject
) -> None:
    session = Session()
    for sub_id in "123":
        enter(session, sub_id)
    got: dict[str, list[bytes]] = {"1": [], "2": [], "3": []}
    rest = [message(ids, body) for ids, body in stream]
    while rest:
        count = data.draw(st.integers(1, len(rest)))
        for sub_id, batch in told(session.receive(rest[:count])):
            assert isinstance(batch, list)
            got[sub_id] += batch
        rest = rest[count:]
    assert got == {i: [body for ids, body in stream if i in ids] for i in "123"}


# -- groups, and the end of queries -------------------------------------------------------


@pytest.mark.row("MS1", "MS7")
@pytest.mark.parametrize("order", [("group_end", "completed"), ("completed", "group_end")])
def test_a_query_ends_with_its_last_sign_in_either_order(
    session: Session, order: Sequence[str]
) -> None:
    enter(session, "1", command_id="5", query_id="1", ends=("group_end", "completed"))
    signs = {
        "group_end": Message(kind="group_end", query_id="1"),
        "completed": ack("completed", command_id="5"),
    }
    record = Message(kind="sow", query_id="1", data=b"r")
    begin = Message(kind="group_begin", query_id="1")
    received = session.receive([begin, record, *(signs[each] for each in order), record.copy()])
    assert told(received)[0] == ("1", [b"r"])
    assert told(received)[-1] == ("1", Marker.ENDED)
    assert [each.data for each in received.unrouted] == [b"r"]
    assert session.router.all() == []


@pytest.mark.row("MS7")
def test_a_replay_that_is_complete_is_marked_between_its_messages(session: Session) -> None:
    enter(session, "1", command_id="5")
    received = session.receive(
        [
            message("1", b"old"),
            ack("completed", command_id="5", bookmark="7|9|"),
            message("1", b"new"),
        ]
    )
    assert told(received) == [("1", [b"old"]), ("1", Marker.CAUGHT_UP), ("1", [b"new"])]


@pytest.mark.row("CC22")
@pytest.mark.parametrize("status", ["success", "failure"])
def test_a_replaced_command_ends_where_the_server_says(session: Session, status: str) -> None:
    """After a lost connection the messages before that place are not redelivered."""
    one = enter(session, "1", command_id="5")
    pending = PendingCommand("8", "replace", awaited="processed", wake=lambda: None, replaces=one)
    session.pending.add(pending)
    answer = ack("processed", command_id="8", sub_id="1", status=status)
    received = session.receive([message("1", b"old"), answer, message("1", b"new")])
    marked = [("1", Marker.REPLACED)] if status == "success" else []
    assert told(received) == [("1", [b"old"]), *marked, ("1", [b"new"])]


def test_an_ended_subscription_is_not_replaced_by_a_late_answer(session: Session) -> None:
    one = enter(session, "1", command_id="5")
    pending = PendingCommand("8", "replace", awaited="processed", wake=lambda: None, replaces=one)
    session.pending.add(pending)
    session.router.remove(one)
    assert told(session.receive([ack("processed", command_id="8", sub_id="1")])) == []


@pytest.mark.row("CC15", "MS7")
def test_a_query_of_the_past_has_caught_up_with_its_replay_and_not_with_its_records(
    session: Session,
) -> None:
    log = TrackedLog()
    one = enter(session, "1", command_id="5", query_id="1", log=log)
    fields = {"c": "sow_and_subscribe", "t": "orders", "bm": "7|1|"}
    one.request = SubscribeRequest.complete(fields, b"", command_id="5", has_store=True)
    group = [Message(kind=kind, query_id="1") for kind in ("group_begin", "group_end")]
    record = Message(kind="sow", query_id="1", data=b"r", bookmark="7|2|")
    early = ack("completed", command_id="5")  # of a server that says it for the query
    late = ack("completed", command_id="5", bookmark="7|2|")
    received = session.receive([group[0], record, group[1], message("1", b"m", "7|2|"), late])
    assert told(received) == [("1", [b"r"]), ("1", [b"m"]), ("1", Marker.CAUGHT_UP)]
    assert (one.position.is_complete, one.position.last_bookmark) == (True, "7|2|")
    assert log.undiscarded_count == 1, "a record is no message, whichever message it was"
    assert told(session.receive([record.copy()])) == [("1", [b"r"])], "and no duplicate"
    assert one.position.last_bookmark == "7|2|"
    one.position.sending(1.0)
    session.receive([early])
    assert not one.position.is_complete
    session.receive([late])
    assert one.position.is_complete


@pytest.mark.row("CC15")
def test_a_dropped_record_takes_no_delivered_message_back(session: Session) -> None:
    """Of a server that says which message a record was last: that one was delivered before."""
    one = enter(session, "1", query_id="1", log=MemoryBookmarkStore().subscription("1"))
    session.receive([message("1", bookmark=f"7|{number}|") for number in (1, 2, 3)])
    record = Message(kind="sow", query_id="1", data=b"r", bookmark="7|2|")
    session.receive([record])
    assert one.covering(("7|1|",), [record]) == ("7|3|",)
    one.note_dropped([record])
    assert one.covering(("7|1|",)) == ("7|3|",)


@pytest.mark.row("CC15")
def test_records_and_messages_under_one_id_are_told_apart(session: Session) -> None:
    log = TrackedLog()
    enter(session, "1", query_id="1", log=log)
    record = Message(kind="sow", query_id="1", data=b"r")
    first, again = message("1", b"m", "7|2|"), message("1", b"m", "7|2|")
    received = session.receive([record, first, again])
    assert told(received) == [("1", [b"r"]), ("1", [b"m", b"m"])]
    assert log.undiscarded_count == 1
    # The records cannot have had what follows them, so the repetition is one that they lack.
    assert (first.command, again.command, again.number) == ("publish", "sow", 0)


def test_group_frames_are_delivered_only_where_they_are_wanted(session: Session) -> None:
    enter(session, "plain")
    enter(session, "all", markers=True)
    frames = [
        Message(kind=kind, query_id=query)
        for query in ("plain", "all")
        for kind in ("group_begin", "group_end")
    ]
    received = session.receive([*frames, Message(kind="group_begin", query_id="nobody")])
    assert told(received) == [
        ("plain", Marker.CAUGHT_UP),
        ("all", [b""]),
        ("all", [b""]),
        ("all", Marker.CAUGHT_UP),
    ]
    assert len(received.unrouted) == 1


@pytest.mark.row("MS7")
def test_acks_that_the_user_asked_for_are_messages_too(session: Session) -> None:
    enter(session, "1", command_id="5", acks=("stats",), ends=("stats",))
    received = session.receive(
        [ack("processed", command_id="5"), ack("stats", command_id="5", records_deleted=3)]
    )
    ((_, batch), (_, end)) = received.deliveries
    assert isinstance(batch, list)
    assert (batch[0].records_deleted, batch[0].sub_id, end) == (3, "1", Marker.ENDED)


# -- acks ---------------------------------------------------------------------------------


@pytest.mark.row("PS5")
def test_the_highest_persisted_ack_of_a_chunk_wins(session: Session) -> None:
    received = session.receive([ack("persisted", sequence=number) for number in (3, 9, 5)])
    assert received.persisted == 9


@pytest.mark.row("PS6")
def test_a_failed_publish_is_told_apart_from_the_run_around_it(session: Session) -> None:
    failure = ack("persisted", sequence=3, status="failure", reason="not entitled")
    received = session.receive(
        [ack("persisted", sequence=2), failure, ack("persisted", sequence=5)]
    )
    assert received.failed == [failure]
    assert received.persisted == 5


@pytest.mark.row("PS5")
def test_a_refusal_as_a_duplicate_is_a_success(session: Session) -> None:
    received = session.receive([ack("persisted", sequence=3, status="failure", reason="duplicate")])
    assert (received.failed, received.persisted) == ([], 3)


@pytest.mark.row("BS10")
def test_persisted_acks_of_a_subscription_go_to_its_bookmark_store(session: Session) -> None:
    log = TrackedLog()
    log.begin(acked=True, start=None)
    enter(session, "1", command_id="5", log=log)
    session.receive([message("1", b"", "7|1|"), message("1", b"", "7|2|")])
    log.discard_up_to(2)
    assert str(log.recovery_point()) == "0"
    received = session.receive([ack("persisted", sub_id="1", bookmark="7|1|")])
    assert str(log.recovery_point()) == "7|1|"
    assert received.persisted == 0


def test_a_refused_ack_moves_no_recovery_point(session: Session) -> None:
    log = TrackedLog()
    enter(session, "1", command_id="5", log=log)
    session.receive([ack("completed", command_id="5", bookmark="7|9|", status="failure")])
    assert str(log.recovery_point()) == "0"


def test_a_confirmed_command_is_woken(session: Session) -> None:
    woken: list[str] = []
    session.pending.add(
        PendingCommand("5", "flush", awaited="processed", wake=lambda: woken.append("5"))
    )
    session.receive([ack("processed", command_id="5")])
    assert woken == ["5"]


def test_a_heartbeat_wants_an_answer(session: Session) -> None:
    assert session.receive([Message(kind="heartbeat")]).heartbeat
    assert not session.receive([]).heartbeat


@pytest.mark.row("ID7")
def test_a_failure_for_no_command_is_a_farewell(session: Session) -> None:
    goodbye = ack("processed", status="failure", reason="name in use")
    assert session.receive([goodbye]).disconnect_reason == "name in use"
    late = ack("completed", status="failure", reason="name in use", query_id="q")
    assert not session.receive([late]).disconnect_reason


def test_a_message_before_the_ack_proves_that_the_command_was_accepted(session: Session) -> None:
    """A store that begins anew does so before it logs, or it would forget what has come."""
    log = MemoryBookmarkStore().subscription("s")
    subscription = enter(session, "s", command_id="1", log=log)
    subscription.accepted = partial(log.begin, acked=True, start="7|0|")
    session.receive([message("s", b"a", "7|1|")])
    session.receive([ack("processed", command_id="1")])
    assert log.oldest_undiscarded == 1


@pytest.mark.row("ID7")
def test_a_refused_publish_without_sequence_and_ids_is_no_disconnect_reason(
    session: Session,
) -> None:
    refused = ack("persisted", status="failure", reason="not entitled")
    received = session.receive([refused])
    assert not received.disconnect_reason
    assert received.failed == [refused]


@pytest.mark.row("ID7")
def test_a_failure_for_no_command_that_more_follows_is_no_disconnect_reason(
    session: Session,
) -> None:
    refused = ack("processed", status="failure", reason="not entitled")
    assert not session.receive([refused, Message(kind="heartbeat")]).disconnect_reason


@pytest.mark.row("PS5", "BS10")
def test_a_persisted_ack_of_a_subscription_trims_no_publish_store(session: Session) -> None:
    fields: dict[str, str | int] = {"c": "subscribe", "t": "orders", "bm": "0", "sub_id": "s"}
    subscription = enter(session, "s", command_id="c")
    subscription.request = SubscribeRequest.complete(fields, b"", command_id="c", has_store=True)
    for name, value in (("sub_id", "s"), ("command_id", "c")):
        found = ack("persisted", sequence=999, bookmark="7|9|")
        setattr(found, name, value)
        assert session.receive([found]).persisted == 0
    assert session.receive([ack("persisted", sequence=999)]).persisted == 999


def test_no_reason_of_a_server_reaches_a_terminal_as_it_is(session: Session) -> None:
    waiting = PendingCommand("5", "flush", awaited="processed", wake=lambda: None)
    session.pending.add(waiting)
    session.receive([ack("processed", command_id="5", status="failure", reason="no\n\x1b[2Jway")])
    assert str(waiting.error) == r"flush: no \x1b[2Jway"
    last = session.receive([ack("processed", status="failure", reason="name\x1b]0;in use")])
    assert last.disconnect_reason == r"name\x1b]0;in use"


# -- the end ------------------------------------------------------------------------------


@pytest.mark.row("MS1")
def test_a_lost_connection_fails_commands_and_ends_subscriptions(session: Session) -> None:
    one, two = enter(session, "1"), enter(session, "2")
    waiting = PendingCommand("5", "flush", awaited="processed", wake=lambda: None)
    session.pending.add(waiting)
    assert session.lost(DisconnectedError("lost")) == [one, two]
    assert isinstance(waiting.error, DisconnectedError)
    assert session.router.all() == []
    assert told(session.receive([message("1", b"late")])) == []
