"""Conflation by key of what waits in the client."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.session.back_pressure import (
    MESSAGE_OVERHEAD_BYTES,
    QueueConflation,
    sow_key,
    weight_of,
)
from haclient.session.subscriptions import Marker
from haclient.streams import MessageStream, QueueStream
from haclient.transport.message_queue import MessageQueue
from support.tracked_log import TrackedLog

pytestmark = pytest.mark.row("MS6")


class Bench:
    """A conflating queue whose messages a tracker logs."""

    def __init__(self, *, conflating: bool = True) -> None:
        self.delivery = MessageQueue()
        self.tracker = TrackedLog()
        self.tracker.begin(acked=False, start=None)
        self.stream = MessageStream(self.delivery, open_=self._open, close=self._close)
        self._sequence = 0
        if conflating:
            self.stream.conflate()

    async def _open(self) -> str:
        return "s"

    async def _close(self) -> None:
        self.delivery.end()

    def message(self, key: str, kind: str = "p") -> Message:
        self._sequence += 1
        (number,) = self.tracker.log_batch([f"1|{self._sequence}|"])
        return Message(
            kind=kind,
            topic="t",
            sow_key=key,
            data=b"%d" % self._sequence,
            number=number,
            owner=self.tracker,
        )

    def put(self, *keys: str) -> None:
        self.delivery.put([self.message(key) for key in keys], 1000)

    def waiting(self) -> list[tuple[str, int]]:
        return [(each.sow_key, each.number) for each in self.delivery.undelivered()]


STEPS = st.lists(
    st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=1, max_size=5) | st.just(1) | st.none(),
    max_size=30,
)


class Model:
    """What a conflating queue promises, beside one.

    Attributes:
        sent: The numbers of all messages by key.
        seen: Those that were delivered.
    """

    def __init__(self) -> None:
        self.bench = Bench()
        self.sent: dict[str, list[int]] = {}
        self.seen: dict[str, list[Message]] = {}
        self._waiting: list[list[tuple[str, int]]] = [[]]  # between markers
        self._number = 0

    def mark(self) -> None:
        self.bench.delivery.mark(Marker.CAUGHT_UP)
        self._waiting.append([])

    def put(self, key: str) -> None:
        self.bench.put(key)
        self._number += 1
        self.sent.setdefault(key, []).append(self._number)
        waiting = self._waiting[-1]
        keys = [each for each, _ in waiting]
        if key and key in keys:
            waiting[keys.index(key)] = (key, self._number)
        else:
            waiting.append((key, self._number))

    def deliver(self, message: Message) -> None:
        while not self._waiting[0]:
            self._waiting.pop(0)
        assert self._waiting[0].pop(0) == (message.sow_key, message.number)
        self.seen.setdefault(message.sow_key, []).append(message)

    async def run(self, steps: list[list[str] | int | None], *, in_lists: bool) -> None:
        stream, delivery = await self.bench.stream.open(), self.bench.delivery
        lists = stream.batches(max_messages=3)
        for step in steps:
            if step is None:
                self.mark()
            elif isinstance(step, list):
                for key in step:
                    self.put(key)
            elif delivery.queued_count:
                batch = await anext(lists) if in_lists else [await anext(stream)]
                assert len(batch) <= 3
                for message in batch:
                    self.deliver(message)
            assert delivery.queued_bytes == weight_of(delivery.undelivered())
        delivery.end()
        async for message in stream:
            self.deliver(message)


@given(steps=STEPS, in_lists=st.booleans())
def test_of_each_key_comes_a_subsequence_that_ends_with_the_last_message(
    steps: list[list[str] | int | None],
    in_lists: bool,  # noqa: FBT001  # Hypothesis calls it
) -> None:
    model = Model()
    trio.run(partial(model.run, steps, in_lists=in_lists))
    tracker = model.bench.tracker
    assert model.bench.delivery.queued_bytes == 0
    assert model.seen.keys() == model.sent.keys()
    for key, messages in model.seen.items():
        numbers = [message.number for message in messages]
        assert numbers == sorted(set(numbers))
        assert set(numbers) <= set(model.sent[key])
        assert numbers[-1] == model.sent[key][-1]
        assert key or numbers == model.sent[key]
    # All that was replaced is discarded, and nothing else.
    delivered = [message for messages in model.seen.values() for message in messages]
    assert tracker.undiscarded_count == len(delivered)
    for message in delivered:
        message.discard()
    assert tracker.undiscarded_count == 0


def test_the_resume_position_moves_behind_what_was_replaced() -> None:
    bench = Bench()
    bench.put("a", "a", "a")
    assert bench.waiting() == [("a", 3)]
    assert str(bench.tracker.recovery_point()) == "1|2|"
    (last,) = bench.delivery.undelivered()
    last.discard()
    assert str(bench.tracker.recovery_point()) == "1|3|"


def test_what_is_dropped_begins_with_the_earliest_message() -> None:
    bench = Bench()
    bench.put("a", "b", "c")
    bench.put("a")
    assert bench.waiting() == [("a", 4), ("b", 2), ("c", 3)]
    assert [each.number for each in bench.delivery.drop()] == [4, 2, 3]
    assert bench.delivery.queued_bytes == 0
    bench.put("a")
    assert bench.waiting() == [("a", 5)]


def test_what_was_taken_is_not_replaced() -> None:
    bench = Bench()
    bench.put("a", "b")
    assert [each.number for each in bench.delivery.take_waiting(1)] == [1]
    bench.put("a", "b")
    assert bench.waiting() == [("b", 4), ("a", 3)]
    assert [each.number for each in bench.delivery.take_waiting(None)] == [4, 3]


def test_the_end_of_a_query_is_not_crossed() -> None:
    bench = Bench()
    delivery = bench.delivery
    delivery.put([bench.message("a", "sow"), bench.message("", "group_end")], 10)
    delivery.put([bench.message("a"), bench.message("a", "oof")], 10)
    kinds = [each.kind for each in delivery.undelivered()]
    assert kinds == ["sow", "group_end", "oof"]


def test_a_queue_under_its_limit_again_lets_the_connection_read_on() -> None:
    delivery = MessageQueue(cap_bytes=4 * MESSAGE_OVERHEAD_BYTES)
    delivery.conflation = QueueConflation(sow_key)
    for key in "abcde" * 3:
        delivery.put([Message(kind="p", topic="t", sow_key=key)], 10**9)
    assert delivery.queued_bytes == 5 * MESSAGE_OVERHEAD_BYTES
    assert delivery.full
    delivery.put([Message(kind="p", topic="t", sow_key="a", data=b"x" * 100)], 1)
    assert delivery.queued_bytes == 5 * MESSAGE_OVERHEAD_BYTES + 100
    delivery.take_waiting(4)
    assert delivery.queued_bytes == MESSAGE_OVERHEAD_BYTES
    assert not delivery.full


def unhashable(_: Message) -> Hashable:
    return []  # type: ignore[return-value]  # what an application may do


def failing(message: Message) -> Hashable:
    raise KeyError(message.data)


@pytest.mark.parametrize(("key", "name"), [(unhashable, "TypeError"), (failing, "KeyError")])
async def test_a_key_function_that_fails_ends_the_stream_and_not_the_connection(
    key: object, name: str
) -> None:
    bench = Bench(conflating=False)
    bench.stream.conflate(key)  # type: ignore[arg-type]  # one of them is none
    await bench.stream.open()
    bench.put("a")
    with pytest.raises(UsageError, match=f"the key function of conflate raised {name}: it has"):
        await anext(bench.stream)


async def test_where_conflation_is_none_it_is_refused() -> None:
    bench = Bench(conflating=False)
    bench.delivery.carries_deltas = True
    with pytest.raises(UsageError, match="a stream of deltas"):
        bench.stream.conflate()
    bench.delivery.carries_deltas = False
    await bench.stream.open()
    with pytest.raises(UsageError, match="before it is opened"):
        bench.stream.conflate()
    queue = QueueStream(MessageQueue(), open_=bench.stream.aclose, close=bench.stream.aclose)  # type: ignore[arg-type]  # never opened
    with pytest.raises(UsageError, match="messages of a queue cannot be conflated"):
        queue.conflate()


async def test_messages_may_have_a_key_of_the_application() -> None:
    bench = Bench(conflating=False)
    await bench.stream.conflate(lambda message: len(message.sow_key)).open()
    bench.put("a", "bb", "c", "dd")
    found = [await anext(bench.stream.with_timeout(0)) for _ in range(3)]
    assert [each.sow_key if each else None for each in found] == ["c", "dd", None]


class LossyLink:
    """A server whose connections are lost, and an application that takes its messages."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.log: list[str] = []
        self.seen: dict[str, int] = {}
        self._held: list[Message] = []

    def publish(self, key: str) -> None:
        self.log.append(key)
        self._send(len(self.log))

    def _send(self, first: int) -> None:
        """Send the log from a position on; the store drops what it has."""
        positions = range(first, len(self.log) + 1)
        tracker = self.bench.tracker
        numbers = tracker.log_batch([f"1|{at}|" for at in positions])
        batch = [
            Message(
                kind="p",
                topic="t",
                sow_key=self.log[at - 1],
                data=b"%d" % at,
                number=number,
                owner=tracker,
            )
            for at, number in zip(positions, numbers, strict=True)
            if number > 0
        ]
        if batch:
            self.bench.delivery.put(batch, 1)

    def lose(self) -> None:
        if dropped := self.bench.delivery.drop():
            self.bench.tracker.link_lost(min(message.number for message in dropped))
        point = str(self.bench.tracker.recovery_point())
        if self.log:
            self._send(1 if point in {"", "0"} else int(point.split("|")[1]) + 1)

    def take(self, most: int | None = 1) -> None:
        for message in self.bench.delivery.take_waiting(most):
            self.seen[message.sow_key] = int(message.data)
            self._held.append(message)

    def discard(self) -> None:
        if self._held:
            self._held.pop(0).discard()


@given(steps=st.lists(st.sampled_from(["a", "b", "c", "take", "take", "discard", "lost"])))
def test_the_last_message_of_each_key_comes_also_where_connections_are_lost(
    steps: list[str],
) -> None:
    link = LossyLink()
    actions = {"take": link.take, "discard": link.discard, "lost": link.lose}
    for step in steps:
        action = actions.get(step)
        if action is None:
            link.publish(step)
        else:
            action()
    link.lose()
    link.take(None)
    assert link.seen == {key: at for at, key in enumerate(link.log, 1)}
