"""The state of the world: queries, batches, deletes, out-of-focus messages, deltas, pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from conformance.wire import Frame, Json, Wire


class Records:
    """The records of one test in a topic that it shares with others."""

    def __init__(self, wire: Wire, topic: str, run: str) -> None:
        self.wire = wire
        self.topic = topic
        self.run = run
        self.filter = f"/run = '{run}'"

    def put(self, number: int, **more: Json) -> None:
        """Publish a record, and wait until it is there."""
        self.wire.store(self.topic, self.body(number, **more))

    def body(self, number: int, **more: Json) -> dict[str, Any]:
        return {"id": f"{self.run}-{number}", "run": self.run, "n": number} | more

    def numbers(self, **header: Json) -> list[int]:
        """The numbers of the records that a query finds."""
        found = self.wire.query(self.topic, **({"filter": self.filter} | header))
        return [each["n"] for each in found]

    def keys(self) -> dict[int, str]:
        """The keys by number."""
        found = self.wire.query_records(self.topic, filter=self.filter, bs=1)
        return {n: fields["k"] for n, (fields, _) in zip(self.numbers(), found, strict=True)}


@pytest.fixture
def records(wire: Wire, sow: str, run: str) -> Records:
    return Records(wire, sow, run)


def test_the_answer_to_a_query_is_framed(records: Records) -> None:
    """`received`, `processed`, `group_begin`, `sow`, `group_end`, `completed`, `stats`: also
    without any record (docs/protocol.md#decisions)."""
    wire = records.wire
    header: dict[str, Any] = {"a": "received,processed,completed,stats", "query_id": "q"}
    records.put(1)
    for count, filter_ in ((1, records.filter), (0, "/run = 'none'")):
        wire.send("sow", t=records.topic, cid="c", filter=filter_, **header)
        kinds = [
            each.get("a") or each.kind
            for each in wire.frames_until(lambda each: each.get("a") == "stats")
        ]
        assert kinds[0] == "received"
        middle = ["processed", "group_begin", *["sow"] * count, "group_end"]
        assert kinds[1:] == [*middle, "completed", "stats"]


def test_a_query_says_what_it_has_counted(records: Records) -> None:
    """`topic_matches` were examined, `matches` fit the filter, `records_returned` were sent;
    `top_n` 0 counts alone."""
    for number in range(5):
        records.put(number)
    header = {"t": records.topic, "filter": records.filter, "a": "completed,stats"}
    stats = records.wire.ask("sow", **header, top_n=2)
    assert (stats["records_returned"], stats["matches"]) == (2, 5)
    assert stats["topic_matches"] >= 5
    stats = records.wire.ask("sow", **header, top_n=0)
    assert (stats["records_returned"], stats["matches"]) == (0, 5)


def test_records_come_in_batches(records: Records) -> None:
    """`bs` asks for so many in a frame; each has a header of its own with its length, and the
    frame says how many there are: 25 by 10 are 10, 10 and 5."""
    for number in range(25):
        records.put(number)
    wire = records.wire
    wire.send("sow", t=records.topic, query_id="q", cid="q", filter=records.filter, bs=10)
    frames = wire.frames_until(lambda each: each.kind == "group_end")
    batches = [each for each in frames if each.kind == "sow"]
    assert [each["bs"] for each in batches] == [10, 10, 5]
    assert [len(each.records()) for each in batches] == [10, 10, 5]
    assert all((each["query_id"], each["t"]) == ("q", records.topic) for each in batches)


def test_a_batch_has_one_record_unless_more_are_asked_for(records: Records) -> None:
    """The server's own size is 1."""
    for number in range(2):
        records.put(number)
    wire = records.wire
    wire.send("sow", t=records.topic, query_id="q", cid="q", filter=records.filter)
    frames = wire.frames_until(lambda each: each.kind == "group_end")
    assert [each["bs"] for each in frames if each.kind == "sow"] == [1, 1]


def test_batches_above_ten_thousand_are_refused(records: Records) -> None:
    """The largest `bs` is 10 000."""
    assert records.wire.ask("sow", t=records.topic, bs=10_001)["status"] == "failure"


def test_a_topic_without_records_has_no_query(wire: Wire, plain: str) -> None:
    """`sow` fails there; a `sow_and_subscribe` has an empty group and goes on."""
    assert wire.ask("sow", t=plain)["status"] == "failure"
    wire.send("sow_and_subscribe", t=plain, cid="c", sub_id="s", query_id="s", a="completed")
    frames = wire.frames_until(lambda each: each.kind == "ack")
    assert [each.kind for each in frames] == ["group_begin", "group_end", "ack"]
    wire.publish(plain, b"1")
    assert wire.next_message().sids == {"s"}


def test_a_generated_key_is_a_number_of_64_bits(records: Records) -> None:
    """As decimal digits, the same for the same key fields."""
    records.put(1)
    before = records.keys()
    records.put(1, more=2)
    assert records.keys() == before
    assert 0 <= int(before[1]) < 2**64


def test_a_publisher_may_give_the_key(wire: Wire, keyed: str, run: str) -> None:
    """On a topic without key fields; it comes back as it was given."""
    wire.store(keyed, {"run": run}, k=f"{run}+/=")
    ((fields, _),) = wire.query_records(keyed, filter=f"/run = '{run}'")
    assert fields["k"] == f"{run}+/="


def test_keys_select_records(records: Records) -> None:
    """`sow_keys` of a query: these records, and no others."""
    for number in range(3):
        records.put(number)
    keys = records.keys()
    found = records.wire.query(records.topic, sow_keys=f"{keys[0]},{keys[2]}")
    assert sorted(each["n"] for each in found) == [0, 2]


@pytest.mark.parametrize(
    ("order", "numbers"),
    [("/n", [1, 2, 3]), ("/n DESC", [3, 2, 1]), ("/side ASC, /n DESC", [3, 1, 2])],
)
def test_records_come_in_the_order_that_is_asked_for(
    records: Records, order: str, numbers: list[int]
) -> None:
    """A list of fields, each ascending unless it says otherwise (docs/broker.md)."""
    for number, side in ((2, "sell"), (1, "buy"), (3, "buy")):
        records.put(number, side=side)
    assert records.numbers(orderby=order) == numbers


def test_top_n_and_skip_n_are_a_page_of_an_ordered_query(records: Records) -> None:
    """`skip_n` of a `sow` needs `top_n` and an order (docs/broker.md#pages)."""
    for number in range(6):
        records.put(number)
    assert records.numbers(orderby="/n", opts="top_n=2,skip_n=3") == [3, 4]
    header = {"t": records.topic, "filter": records.filter}
    assert records.wire.ask("sow", **header, opts="skip_n=1,top_n=1")["status"] == "failure"


def test_a_pattern_queries_several_topics(records: Records, keyed: str) -> None:
    """Each frame has the records of one topic, in the order of the configuration: neither that of
    their publishes nor that of the pattern."""
    wire = records.wire
    wire.store(keyed, records.body(2), k=records.run)
    records.put(1)
    wire.send(
        *("sow",), t=f"^({keyed}|{records.topic})$", query_id="q", cid="q", filter=records.filter
    )
    frames = wire.frames_until(lambda each: each.kind == "group_end")
    assert [each["t"] for each in frames if each.kind == "sow"] == [records.topic, keyed]


def test_a_query_and_its_subscription_are_one(records: Records) -> None:
    """The group, then what changes: records have the query's id, messages those of the
    subscriptions; nothing is lost in between or sent twice."""
    records.put(1)
    wire = records.wire
    wire.send(
        "sow_and_subscribe",
        t=records.topic,
        cid="c",
        sub_id="s",
        query_id="q",
        filter=records.filter,
        a="received,processed,completed,stats",
    )
    wire.publish(records.topic, records.body(2))
    frames = wire.frames_until(lambda each: each.kind == "publish")
    assert [each.get("a") or each.kind for each in frames] == [
        *("received", "processed", "group_begin", "sow", "group_end", "completed", "stats"),
        "publish",
    ]
    assert (frames[3]["query_id"], frames[-1].sids) == ("q", {"s"})
    assert frames[-1].json["n"] == 2


def test_a_bookmark_of_a_query_needs_a_history(records: Records) -> None:
    """Without one only now is accepted (docs/broker.md#history)."""
    wire, header = records.wire, {"t": records.topic, "sub_id": "s", "filter": records.filter}
    assert wire.ask("sow_and_subscribe", bm="0", **header)["status"] == "failure"
    assert wire.ask("sow_and_subscribe", bm="0|1|", **header)["status"] == "success"


def test_a_history_has_the_records_of_a_bookmark(wire: Wire, history: str, run: str) -> None:
    """The records as they were, then the log from there on (docs/broker.md#history)."""
    records = Records(wire, history, run)
    wire.subscribe(history, sub_id="s", opts="bookmark", filter=records.filter)
    wire.publish(history, records.body(1, v=1))
    mark = wire.next_message()["bm"]
    wire.publish(history, records.body(1, v=2))
    wire.next_message()
    wire.do("unsubscribe", sub_id="s")
    assert [each["v"] for each in wire.query(history, filter=records.filter, bm=mark)] == [1]
    wire.send(
        *("sow_and_subscribe",), t=history, bm=mark, cid="s", sub_id="s", filter=records.filter
    )
    frames = wire.frames_until(lambda each: each.kind == "publish")
    found = [record for each in frames if each.kind == "sow" for record in each.records()]
    assert len(found) == 1
    assert frames[-1].json["v"] == 2


@pytest.mark.parametrize("form", ["filter", "sow_keys", "body"])
def test_a_delete_is_by_filter_by_keys_or_by_content(records: Records, form: str) -> None:
    """Each form leaves the other records; `stats` counts."""
    for number in range(3):
        records.put(number)
    key = records.keys()[1]
    forms: dict[str, dict[str, Any]] = {
        "filter": {"filter": f"{records.filter} AND /n = 1"},
        "sow_keys": {"sow_keys": key},
        "body": {"body": f'{{"id":"{records.run}-1"}}'.encode()},
    }
    header = {"t": records.topic, "a": "processed,completed,stats"} | forms[form]
    stats = records.wire.ask("sow_delete", **header)
    assert (stats["records_deleted"], stats["status"]) == (1, "success")
    assert sorted(records.numbers()) == [0, 2]


def test_a_delete_may_have_a_pattern_of_topics(records: Records, keyed: str) -> None:
    """The filter holds for the records of all of them."""
    records.put(1)
    records.wire.store(keyed, records.body(2), k=records.run)
    pattern = f"^({records.topic}|{keyed})$"
    stats = records.wire.ask("sow_delete", t=pattern, filter=records.filter, a="stats")
    assert stats["records_deleted"] == 2


def test_a_delete_that_is_wrong_says_so(records: Records, plain: str) -> None:
    """In its `processed` ack: no such topic, or nothing that says what to delete."""
    nothing: dict[str, Any] = {}
    for topic, header in ((plain, {"filter": "1=1"}), (records.topic, nothing)):
        answer = records.wire.ask("sow_delete", t=topic, **header)
        assert (answer["status"], answer["a"]) == ("failure", "processed")


def test_a_delete_has_a_sequence_like_a_publish(
    connect: Callable[..., Wire], sow: str, run: str
) -> None:
    """It is persisted with the publishes of its client (docs/guarantees.md)."""
    wire = connect(opts="ack_conflation=20ms")
    records = Records(wire, sow, run)
    wire.publish(sow, records.body(1), s=1, a="persisted")
    wire.send("sow_delete", t=sow, filter=records.filter, s=2, a="persisted")
    wire.frames_until(lambda each: each.get("a") == "persisted" and each["s"] == 2)
    assert records.numbers() == []
    assert connect(name=wire.name).logon["s"] == 2


# --- out of focus --------------------------------------------------------------------------------


def watch(records: Records, **header: Json) -> Callable[[], Frame]:
    """Subscribe with out-of-focus messages to the records with `in` 1."""
    filter_ = f"{records.filter} AND /in = 1"
    records.wire.subscribe(records.topic, sub_id="s", filter=filter_, opts="oof", **header)
    return records.wire.next_message


def test_a_record_that_no_longer_matches_is_out_of_focus(records: Records) -> None:
    """Reason `match`, with the body that does not match any more (docs/live_records.md)."""
    following = watch(records)
    for value in (1, 0):
        records.wire.publish(records.topic, records.body(1, **{"in": value}))
    first, second = following(), following()
    assert (first.kind, second.kind, second["reason"]) == ("publish", "oof", "match")
    assert (second["k"], second.sids, second["t"]) == (first["k"], {"s"}, records.topic)
    assert second.json["in"] == 0


def test_a_deleted_record_is_out_of_focus(records: Records) -> None:
    """Reason `deleted`, with the body that it had (docs/live_records.md)."""
    following = watch(records)
    records.put(1, **{"in": 1}, v=7)
    following()
    records.wire.do("sow_delete", t=records.topic, filter=records.filter)
    frame = following()
    assert (frame.kind, frame["reason"], frame.json["v"]) == ("oof", "deleted", 7)


def test_an_expired_record_is_gone_and_out_of_focus(wire: Wire, expiring: str, run: str) -> None:
    """`e` in seconds counts for more than what the topic says, and an update begins anew
    (docs/broker.md#expiration)."""
    records = Records(wire, expiring, run)
    wire.subscribe(expiring, sub_id="s", filter=records.filter, opts="oof")
    for number, lifetimes in enumerate([(1,), (1, 0), (0, 1), ()]):
        for seconds in lifetimes:
            wire.store(expiring, records.body(number, v=seconds), e=seconds)
        if not lifetimes:
            records.put(number)
    gone = [each for _ in range(8) if (each := wire.next_message()).kind == "oof"]
    assert [each.json for each in gone] == [records.body(0, v=1), records.body(2, v=1)]
    assert {each["reason"] for each in gone} <= {"expire", "expired"}
    assert sorted(records.numbers()) == [1, 3]


def test_a_record_that_was_never_in_focus_does_not_leave_it(records: Records) -> None:
    """Only what a subscription has had can go (docs/live_records.md)."""
    following = watch(records)
    records.put(1, **{"in": 0})
    records.put(2, **{"in": 1})
    records.wire.do("sow_delete", t=records.topic, filter=records.filter)
    assert [(each.kind, each.json["n"]) for each in (following(), following())] == [
        ("publish", 2),
        ("oof", 2),
    ]


def test_replace_of_a_query_sends_what_is_new_and_what_has_gone(records: Records) -> None:
    """The query runs again: records not sent before, and out of focus those that are out."""
    for number in range(3):
        records.put(number)
    wire, header = records.wire, {"t": records.topic, "sub_id": "s", "query_id": "s"}
    wire.ask("sow_and_subscribe", **header, filter=f"{records.filter} AND /n < 2", a="completed")
    wire.frames_until(lambda each: each.kind == "group_end")
    filter_ = f"{records.filter} AND /n > 0"
    wire.ask("sow_and_subscribe", **header, filter=filter_, opts="replace,oof", a="completed")
    frames = wire.frames_until(lambda each: each.kind == "group_end")
    assert [each.json["n"] for each in frames if each.kind == "oof"] == [0]
    sent = [data for each in frames if each.kind == "sow" for _, data in each.records()]
    assert len(sent) == 1
    assert b'"n": 2' in sent[0]


def test_a_page_is_a_window_that_records_enter_and_leave(records: Records) -> None:
    """With `top_n` and `skip_n` only the window is visible (docs/broker.md#pages)."""
    for number in range(4):
        records.put(number * 10)
    wire = records.wire
    header = {"t": records.topic, "filter": records.filter, "orderby": "/n", "sub_id": "s"}
    wire.ask("sow_and_subscribe", **header, opts="top_n=2,skip_n=1,oof", a="completed", bs=10)
    group = wire.frames_until(lambda each: each.kind == "group_end")
    assert [data for each in group for _, data in (each.records() if each.kind == "sow" else [])]
    wire.publish(records.topic, records.body(15))  # 0 [10 15] 20 30
    moved = [wire.next_message() for _ in range(2)]
    assert {(each.kind, each.json["n"]) for each in moved} == {("publish", 15), ("oof", 20)}
    assert [each["reason"] for each in moved if each.kind == "oof"] == ["match"]


# --- deltas --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delta", "merged"),
    [
        ({"a": 2}, {"a": 2, "b": {"c": 1, "d": 1}, "list": [1, 2]}),
        ({"b": {"d": 5}}, {"a": 1, "b": {"c": 1, "d": 5}, "list": [1, 2]}),
        ({"list": [3]}, {"a": 1, "b": {"c": 1, "d": 1}, "list": [3]}),
        ({"a": None}, {"a": 1, "b": {"c": 1, "d": 1}, "list": [1, 2]}),
        ({"e": 1}, {"a": 1, "b": {"c": 1, "d": 1}, "list": [1, 2], "e": 1}),
    ],
    ids=["field", "path", "array", "null", "new"],
)
def test_a_delta_is_merged_into_its_record(
    records: Records, delta: dict[str, Any], merged: dict[str, Any]
) -> None:
    """Fields replace fields, arrays arrays; a null leaves the old value (docs/deltas.md)."""
    records.put(1, a=1, b={"c": 1, "d": 1}, list=[1, 2])
    wire = records.wire
    wire.subscribe(records.topic, sub_id="s", filter=records.filter)
    wire.send("delta_publish", t=records.topic, body=_json(records.body(1) | delta))
    assert wire.next_message().json == records.body(1) | merged
    ((found),) = wire.query(records.topic, filter=records.filter)
    assert found == records.body(1) | merged


def test_a_delta_publish_to_a_topic_without_records_is_a_publish(wire: Wire, plain: str) -> None:
    """There is nothing to merge it into (docs/deltas.md)."""
    wire.subscribe(plain)
    wire.send("delta_publish", t=plain, body=b'{"a":1}')
    assert wire.next_message().json == {"a": 1}


def test_a_delta_subscription_has_what_has_changed_and_the_keys(records: Records) -> None:
    """The first message of a record is whole (docs/deltas.md)."""
    wire = records.wire
    wire.subscribe(records.topic, c="delta_subscribe", sub_id="s", filter=records.filter)
    records.put(1, a=1, b=1)
    records.put(1, a=1, b=2)
    first, second = wire.next_message().json, wire.next_message().json
    assert first == records.body(1, a=1, b=1)
    assert second == {"id": first["id"], "b": 2}


def test_an_update_without_changes_is_sent_unless_it_is_not_wanted(
    connect: Callable[..., Wire], records: Records
) -> None:
    """`no_empties` suppresses it (docs/deltas.md)."""
    quiet, other = connect(), connect()
    header = {"c": "delta_subscribe", "sub_id": "s", "filter": records.filter}
    quiet.subscribe(records.topic, **header, opts="no_empties,send_keys")
    other.subscribe(records.topic, **header)
    for value in (1, 1, 2):
        records.put(1, a=value)
    key = records.body(1)["id"]
    quiet.next_message()
    assert quiet.next_message().json == {"id": key, "a": 2}
    other.next_message()
    assert [other.next_message().json for _ in range(2)] == [{"id": key}, {"id": key, "a": 2}]


def test_whole_messages_for_one_subscription_are_whole_for_all(records: Records) -> None:
    """A connection with a plain subscription to the same messages gets each once, whole, or the
    delta in a frame of its own; the plain subscription has every field (docs/deltas.md)."""
    wire = records.wire
    wire.subscribe(records.topic, c="delta_subscribe", sub_id="d", filter=records.filter)
    wire.subscribe(records.topic, sub_id="p", filter=records.filter)
    for value in (1, 2):
        records.put(1, a=value)
    found: dict[str, list[Any]] = {"d": [], "p": []}
    while min(map(len, found.values())) < 2:
        frame = wire.next_message()
        for sub_id in frame.sids:
            found[sub_id].append(frame.json)
    assert found["p"] == found["d"] == [records.body(1, a=1), records.body(1, a=2)]


def test_a_query_of_deltas_begins_with_whole_records(records: Records) -> None:
    """`sow_and_delta_subscribe`: the records, then their changes (docs/deltas.md)."""
    records.put(1, a=1)
    wire = records.wire
    header = {"t": records.topic, "filter": records.filter, "sub_id": "s", "a": "completed"}
    wire.ask("sow_and_delta_subscribe", **header)
    group = wire.frames_until(lambda each: each.kind == "group_end")
    (record,) = [data for each in group if each.kind == "sow" for _, data in each.records()]
    assert b'"a": 1' in record
    records.put(1, a=2)
    assert wire.next_message().json == {"id": records.body(1)["id"], "a": 2}


@pytest.mark.parametrize("delta_id", ["new", ""])
def test_a_merged_message_has_the_correlation_id_of_the_delta_or_the_record(
    records: Records, delta_id: str
) -> None:
    """That of the delta if it has one, else that of the record."""
    wire = records.wire
    wire.store(records.topic, records.body(1), x="old")
    wire.subscribe(records.topic, filter=records.filter)
    more = {"x": delta_id} if delta_id else {}
    wire.send("delta_publish", t=records.topic, body=_json(records.body(1, a=1)), **more)
    assert wire.next_message()["x"] == (delta_id or "old")


def test_a_projection_aggregates_or_is_refused(records: Records) -> None:
    """Servers that have aggregation answer by groups; the bundled broker refuses it
    (fake_server/README.md)."""
    for number in (1, 2):
        records.put(number)
    opts = "projection=[/run,SUM(/n) AS /sum],grouping=[/run]"
    header = {"t": records.topic, "filter": records.filter, "opts": opts}
    answer = records.wire.ask("sow", **header)
    if answer["status"] != "success":
        assert answer["reason"] == "invalid options"
        pytest.skip("not applicable: the server has no aggregation")
    ((body),) = records.wire.query(records.topic, filter=records.filter, opts=opts)
    assert body["sum"] == 3


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()
