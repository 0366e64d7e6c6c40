"""Whatever happens at the server, the consumer's copy is that of the server in the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from haclient.codecs import Topic
from haclient.protocol.messages import Message
from haclient.session.record_view import JsonRecord, RecordView, apply_delta

KEYS = st.sampled_from("abcd")
FIELDS = st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3), max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), KEYS, FIELDS),
        st.tuples(st.just("delete"), KEYS, st.just({})),
        # What the server has changed while the connection was lost, and how the query ends.
        st.tuples(st.just("again"), st.sampled_from(["whole", "cut"]), FIELDS),
        st.tuples(st.just("consume"), st.sampled_from(["one", "all"]), st.just({})),
    ),
    max_size=30,
)


class World:
    """A server with a topic, the view of its records, and the copy of a consumer."""

    def __init__(self, *, deltas: bool) -> None:
        self.view = RecordView(Topic("t", JsonRecord), key=None, deltas=deltas)
        self.deltas = deltas
        self.server: dict[str, JsonRecord] = {}
        self.copy: dict[object, JsonRecord] = {}

    def send(self, kind: str, key: str = "", record: JsonRecord | None = None) -> None:
        body = Topic("t", JsonRecord).encode(record or {})
        self.view.apply(Message(kind=kind, topic="t", sow_key=key, data=body))

    def publish(self, key: str, fields: JsonRecord) -> None:
        if self.deltas:
            self.server[key] = apply_delta(self.server.get(key, {}), fields)
        else:
            self.server[key] = fields
        self.send("publish", key, fields)

    def delete(self, key: str) -> None:
        if self.server.pop(key, None) is not None:
            self.send("oof", key)

    def query(self, *, is_cut: bool = False) -> None:
        self.send("group_begin")
        for key, record in list(self.server.items())[: 1 if is_cut else None]:
            self.send("sow", key, record)
        if not is_cut:
            self.send("group_end")

    def again(self, how: str, fields: JsonRecord) -> None:
        for key in "ab":  # changed unseen
            self.server.pop(key, None)
        if fields:
            self.server["b"] = fields
        if how == "cut":
            self.query(is_cut=True)
        self.query()

    def consume(self, how: str) -> None:
        while (change := self.view.pop_change()) is not None:
            assert self.copy.get(change.key) == change.old
            assert (change.kind == "added") == (change.key not in self.copy)
            assert (change.kind == "removed") == (change.new is None)
            assert change.old != change.new
            if change.new is None:
                del self.copy[change.key]
            else:
                self.copy[change.key] = change.new
            if how == "one":
                return


@given(steps=STEPS, deltas=st.booleans(), first=st.dictionaries(KEYS, FIELDS))
def test_the_copy_of_a_consumer_follows_the_server(
    *, steps: list[tuple[str, str, JsonRecord]], deltas: bool, first: dict[str, JsonRecord]
) -> None:
    world = World(deltas=deltas)
    world.server = first.copy()
    world.query()
    world.copy = world.view.records.copy()
    for step, argument, fields in steps:
        match step:
            case "publish":
                world.publish(argument, fields)
            case "delete":
                world.delete(argument)
            case "again":
                world.again(argument, fields)
            case _:
                world.consume(argument)
        assert world.view.records == world.server
        assert len(world.view._pending) <= len(world.copy.keys() | world.server.keys()) + 4
    world.consume("all")
    assert world.copy == world.server
    assert not world.view.has_pending
