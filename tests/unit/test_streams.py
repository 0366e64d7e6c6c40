from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked
from typing_extensions import override

from haclient.errors import DisconnectedError, UsageError
from haclient.protocol.messages import Message, MessageLease
from haclient.session.subscriptions import Marker
from haclient.streams import MessageStream, QueueStream
from haclient.transport.message_queue import MessageQueue
from haclient.transport.tasks import call_handlers, open_nursery
from support.clock import in_virtual_time

pytestmark = in_virtual_time


class Bench:
    """A stream and the two calls that it makes."""

    def __init__(self, *, refuse: Exception | None = None) -> None:
        self.delivery = MessageQueue()
        self.calls: list[str] = []
        self._refuse = refuse
        self.stream = MessageStream(self.delivery, open_=self._open, close=self._close)

    async def _open(self) -> str:
        self.calls.append("open")
        if self._refuse is not None:
            raise self._refuse
        return "s"

    async def _close(self) -> None:
        self.calls.append("close")
        self.delivery.drop()
        self.delivery.end()

    async def opened(self) -> Bench:
        await self.stream.open()
        return self

    def put(self, *bodies: bytes) -> None:
        self.delivery.put([Message(data=body) for body in bodies], sum(map(len, bodies)))

    async def rest(self) -> list[bytes]:
        return [message.data async for message in self.stream]


@pytest.mark.row("MS8")
async def test_a_block_opens_and_closes() -> None:
    bench = Bench()
    async with bench.stream as stream:
        assert stream.sub_id == "s"
        assert bench.calls == ["open"]
    assert bench.calls == ["open", "close"]


async def test_a_stream_that_is_open_may_be_given_to_a_block() -> None:
    bench = Bench()
    async with await bench.stream.open():
        pass
    assert bench.calls == ["open", "close"]


@pytest.mark.row("MS2")
async def test_a_stream_is_opened_once() -> None:
    bench = Bench(refuse=DisconnectedError("no"))
    with pytest.raises(DisconnectedError):
        await bench.stream.open()
    with pytest.raises(UsageError, match="opened before"):
        await bench.stream.open()


async def test_a_closed_stream_is_not_entered_as_if_it_were_empty() -> None:
    bench = Bench()
    async with bench.stream:
        pass
    with pytest.raises(UsageError, match="opened before"):
        async with bench.stream:
            pass
    bench = Bench()
    await bench.stream.aclose()
    with pytest.raises(UsageError, match="closed before"):
        async with bench.stream:
            pass
    assert bench.calls == ["close"]


@pytest.mark.row("MS8")
async def test_a_stream_that_nobody_opened_is_refused_instead_of_waiting_for_ever() -> None:
    bench = Bench()
    with pytest.raises(UsageError, match=r"enter the stream first: async with .* as messages"):
        await anext(bench.stream)
    with pytest.raises(UsageError, match="enter the stream first"):
        await anext(bench.stream.batches())
    await bench.stream.aclose()
    assert await bench.rest() == []


@pytest.mark.row("MS2")
async def test_a_stream_whose_command_was_refused_has_ended() -> None:
    bench = Bench(refuse=DisconnectedError("no"))
    with pytest.raises(DisconnectedError):
        await bench.stream.open()
    assert await bench.rest() == []


@pytest.mark.row("MS1", "MS9")
async def test_messages_one_by_one_and_in_lists_are_the_same_messages() -> None:
    bench = await Bench().opened()
    bench.put(b"a", b"b", b"c")
    bench.put(b"d")
    bench.put(b"e")
    bench.delivery.mark(Marker.ENDED)
    assert (await anext(bench.stream)).data == b"a"
    lists = [[m.data for m in each] async for each in bench.stream.batches()]
    assert lists == [[b"b", b"c"], [b"d"], [b"e"]]
    assert await bench.rest() == []


async def test_short_lists_do_not_go_through_the_rest_of_what_has_arrived() -> None:
    bench, examined = await Bench().opened(), list[int]()

    class Counting(MessageStream):
        @override
        def _deliverable(self, batch: list[Message]) -> list[Message]:
            examined.append(len(batch))
            return batch

    stream = Counting(bench.delivery, open_=bench._open, close=bench._close)
    await stream.open()
    count = 1000
    bench.put(*(b"%d" % number for number in range(count)))
    bench.delivery.mark(Marker.ENDED)
    found = [m.data async for each in stream.batches(2) for m in each]
    assert found == [b"%d" % number for number in range(count)]
    assert sum(examined) <= 4 * count


@pytest.mark.row("MS1", "MS8")
async def test_closing_from_another_task_ends_the_iteration_and_drops_what_is_queued() -> None:
    bench = await Bench().opened()
    found: list[bytes] = []

    async def consume() -> None:
        async for message in bench.stream:
            found.append(message.data)
            await trio.sleep(1)

    bench.put(b"a", b"b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        await trio.sleep(0.5)
        await bench.stream.aclose()
    assert found == [b"a"]
    assert bench.stream.ended
    assert bench.stream.end_reason is None


@pytest.mark.row("MS7")
async def test_the_end_of_a_replay_can_be_waited_for() -> None:
    bench = await Bench().opened()
    bench.put(b"old")
    bench.delivery.mark(Marker.CAUGHT_UP)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.rest)
        await bench.stream.wait_caught_up()
        assert bench.stream.caught_up
        await wait_all_tasks_blocked()
        await bench.stream.aclose()


@pytest.mark.row("MS7")
@pytest.mark.parametrize("was_caught_up", [False, True])
async def test_a_stream_that_ends_early_is_not_caught_up_and_nobody_waits_for_it(
    *, was_caught_up: bool
) -> None:
    bench = await Bench().opened()
    bench.put(b"old")
    if was_caught_up:
        bench.delivery.mark(Marker.CAUGHT_UP)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.rest)
        await wait_all_tasks_blocked()
        assert bench.stream.caught_up == was_caught_up
        bench.delivery.end(DisconnectedError("gone"))
        await bench.stream.wait_caught_up()
    assert bench.stream.ended
    assert not bench.stream.caught_up


@pytest.mark.parametrize("is_complete", [False, True])
async def test_a_stream_that_was_closed_stays_as_caught_up_as_it_was(*, is_complete: bool) -> None:
    bench = await Bench().opened()
    bench.put(b"old")
    if is_complete:
        bench.delivery.mark(Marker.CAUGHT_UP)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.rest)
        await wait_all_tasks_blocked()
        await bench.stream.aclose()
    assert bench.stream.caught_up == is_complete


@pytest.mark.row("MS1")
async def test_a_stream_tells_why_it_ended() -> None:
    bench = await Bench().opened()
    bench.put(b"a")
    bench.delivery.end(DisconnectedError("lost"))
    assert await bench.rest() == [b"a"]
    assert str(bench.stream.end_reason) == "lost"


# -- collected lists -------------------------------------------------------------------------------


def bodies(batch: list[Message]) -> list[bytes]:
    return [message.data for message in batch]


@pytest.mark.row("MS9")
async def test_a_list_has_at_most_so_many_messages_and_nothing_is_waited_for() -> None:
    bench = await Bench().opened()
    bench.put(b"a", b"b", b"c")
    batches = bench.stream.batches(2)
    assert bodies(await anext(batches)) == [b"a", b"b"]
    bench.put(b"d")
    assert bodies(await anext(batches)) == [b"c"]
    assert (await anext(bench.stream)).data == b"d"


async def test_lists_that_take_long_let_others_run_and_lose_nothing_when_cancelled(
    autojump_clock: MockClock,
) -> None:
    bench = await Bench().opened()
    sent = [b"%d" % number for number in range(100)]
    bench.put(*sent)
    batches, found = bench.stream.batches(1), list[bytes]()
    with trio.move_on_after(0.02):
        while len(found) < len(sent):
            found += bodies(await anext(batches))
            autojump_clock.jump(0.01)  # the work of the application
    assert 0 < len(found) < 10
    while len(found) < len(sent):
        found += bodies(await anext(batches))
    assert found == sent


@pytest.mark.row("MS9")
async def test_a_list_is_complete_when_it_is_full_or_late_or_at_the_end() -> None:
    bench = await Bench().opened()
    batches, found = bench.stream.batches(3, 2.0), list[tuple[float, list[bytes]]]()
    began = trio.current_time()

    async def collect() -> None:
        async for batch in batches:
            found.append((trio.current_time() - began, bodies(batch)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect)
        for when, each in [(5, b"ab"), (6, b"cd"), (7.5, b"e"), (9, b"f"), (10, b"g")]:
            await trio.sleep_until(began + when)
            bench.put(*[bytes([one]) for one in each])
        bench.delivery.mark(Marker.ENDED)
    assert found == [
        (6.0, [b"a", b"b", b"c"]),  # full
        (8.0, [b"d", b"e"]),  # two seconds after the first one
        (10.0, [b"f", b"g"]),  # the end
    ]


@pytest.mark.row("MS9")
async def test_a_cancelled_wait_loses_no_message_and_keeps_their_order() -> None:
    bench = await Bench().opened()
    batches = bench.stream.batches(10, 100.0)
    bench.put(b"a")
    with trio.move_on_after(1):
        await anext(batches)
        pytest.fail("not complete")
    bench.put(b"b")
    with trio.move_on_after(1):
        await anext(batches)
        pytest.fail("not complete")
    assert (await anext(bench.stream)).data == b"a"
    bench.put(b"c")
    bench.delivery.end(DisconnectedError("lost"), raises=True)
    assert bodies(await anext(batches)) == [b"b", b"c"]
    with pytest.raises(DisconnectedError, match="lost"):
        await anext(batches)


@pytest.mark.row("MS9")
async def test_a_client_that_ends_waits_for_a_list_that_was_collected_or_drops_it() -> None:
    for keeps in (True, False):
        bench = await Bench().opened()
        found: list[bytes] = []

        async def work(bench: Bench = bench, found: list[bytes] = found) -> None:
            async for batch in bench.stream.batches(10, 100.0):
                await trio.sleep(3)
                found += bodies(batch)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await wait_all_tasks_blocked()
            bench.put(b"a", b"b")
            await wait_all_tasks_blocked()
            assert not bench.delivery.is_idle
            bench.delivery.stop(keeps=keeps)
            await bench.delivery.wait_idle()
            assert found == ([b"a", b"b"] if keeps else [])


@pytest.mark.row("MS9")
@pytest.mark.parametrize(
    ("most", "seconds", "why"),
    [
        (0, 0.0, "max_messages is a whole number of at least 1 or None, not 0"),
        (1, -1.0, "max_seconds is a number of seconds, zero or above, not -1.0"),
        (1, float("nan"), "not nan"),
        (None, 1.0, "max_seconds needs max_messages"),
    ],
)
async def test_lists_that_cannot_be_are_refused(most: int | None, seconds: float, why: str) -> None:
    bench = await Bench().opened()
    with pytest.raises(UsageError, match=why):
        bench.stream.batches(most, seconds)


class Lease(MessageLease):
    """A lease that the test ends."""

    def __init__(self) -> None:
        self.ended = False
        self.acked: list[bytes] = []

    @override
    def is_deliverable(self, message: Message, /) -> bool:
        return not (self.ended and message.data == b"a")

    @override
    def acknowledge(self, message: Message, option: str, /) -> None:
        self.acked.append(message.data)

    @override
    def extend(self, message: Message, seconds: float, /) -> None:
        raise NotImplementedError

    @override
    def deadline(self, message: Message, /) -> float | None:
        raise NotImplementedError


@pytest.mark.row("MS9", "QC1")
async def test_of_a_queue_only_what_is_still_leased_is_given_and_acknowledged_afterwards() -> None:
    delivery, lease = MessageQueue(), Lease()

    async def open_() -> str:
        return "s"

    async def close() -> None:
        delivery.end()

    stream = QueueStream(delivery, open_=open_, close=close, auto_ack=True)

    def put(*each: bytes) -> None:
        delivery.put([Message(data=body, lease=lease) for body in each], len(each))

    async with stream:
        batches = stream.batches(4, 2.0)
        put(b"a", b"b")
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                await trio.sleep(1)
                lease.ended = True
                put(b"c")

            nursery.start_soon(end)
            assert bodies(await anext(batches)) == [b"b", b"c"]
        assert lease.acked == []
        put(b"d")
        assert bodies(await anext(batches)) == [b"d"]
        assert lease.acked == [b"b", b"c"]


# -- silence ---------------------------------------------------------------------------------------


@pytest.mark.row("MS4")
async def test_none_stands_for_each_time_without_a_message() -> None:
    bench = await Bench().opened()
    began, found = trio.current_time(), list[tuple[float, bytes | None]]()

    async def follow() -> None:
        async for message in bench.stream.with_timeout(2.0):
            body = None if message is None else message.data
            found.append((trio.current_time() - began, body))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        for when, each in [(1, b"ab"), (5.5, b"c"), (7, b"")]:
            await trio.sleep_until(began + when)
            if each:
                bench.put(*[bytes([one]) for one in each])
        bench.delivery.mark(Marker.ENDED)
    assert found == [(1.0, b"a"), (1.0, b"b"), (3.0, None), (5.0, None), (5.5, b"c")]


@pytest.mark.row("MS4")
async def test_without_a_wait_what_is_there_is_given_and_then_none() -> None:
    bench = await Bench().opened()
    bench.put(b"a", b"b")
    messages = bench.stream.with_timeout(0)
    found = [await anext(messages) for _ in range(4)]
    assert [each and each.data for each in found] == [b"a", b"b", None, None]
    bench.delivery.end(DisconnectedError("lost"), raises=True)
    with pytest.raises(DisconnectedError, match="lost"):
        await anext(messages)


@pytest.mark.row("MS4")
async def test_without_a_wait_there_is_no_none_before_the_last_message() -> None:
    bench = await Bench().opened()
    for _ in range(3000):  # a consumer that never has to wait still meets a checkpoint
        bench.put(b"a")
    messages = bench.stream.with_timeout(0)
    found = [await anext(messages) for _ in range(3001)]
    assert found.index(None) == 3000


@pytest.mark.row("MS4")
@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
async def test_a_timeout_that_cannot_be_is_refused(seconds: float) -> None:
    bench = await Bench().opened()
    with pytest.raises(UsageError, match="seconds is a number of seconds, zero or above"):
        bench.stream.with_timeout(seconds)


@pytest.mark.parametrize("is_of_queue", [False, True])
async def test_who_takes_long_for_messages_of_one_batch_lets_others_run(
    autojump_clock: MockClock, *, is_of_queue: bool
) -> None:
    queue = MessageQueue()

    async def call() -> str:
        return "s"

    kind = QueueStream if is_of_queue else MessageStream
    stream = await kind(queue, open_=call, close=trio.lowlevel.checkpoint).open()
    queue.put([Message() for _ in range(1_000)], 0)
    taken = last = longest = 0

    async def count_turns() -> None:
        nonlocal last, longest
        while True:
            longest, last = max(longest, taken - last), taken
            await trio.lowlevel.checkpoint()

    async with open_nursery() as nursery:
        nursery.start_soon(count_turns)
        for _ in range(1_000):
            await anext(stream)
            taken += 1
            autojump_clock.jump(0.002)
        nursery.cancel_scope.cancel()
    assert longest <= 16


async def test_without_a_wait_there_is_no_none_in_the_midst_of_a_batch_that_takes_long(
    autojump_clock: MockClock,
) -> None:
    bench = await Bench().opened()
    bench.put(*[b"%d" % number for number in range(20)])
    messages = bench.stream.with_timeout(0)
    for number in range(20):
        message = await anext(messages)
        assert message is not None
        assert message.data == b"%d" % number
        autojump_clock.jump(1)
    assert await anext(messages) is None


@pytest.mark.parametrize("is_of_queue", [False, True])
async def test_two_tasks_that_take_batches_at_the_same_time_lose_no_message(
    autojump_clock: MockClock, *, is_of_queue: bool
) -> None:
    queue = MessageQueue()

    async def call() -> str:
        return "s"

    kind = QueueStream if is_of_queue else MessageStream
    stream = await kind(queue, open_=call, close=trio.lowlevel.checkpoint).open()
    queue.put([Message(data=b"0")], 0)
    got = [(await anext(stream)).data]
    for first in (1, 4):
        queue.put([Message(data=b"%d" % (first + number)) for number in range(3)], 0)
    autojump_clock.jump(1)  # the turn is over

    async def take() -> None:
        for _ in range(3):
            message = await anext(stream)
            got.append(message.data)
            await trio.lowlevel.checkpoint()

    with trio.move_on_after(1):
        async with open_nursery() as nursery:
            nursery.start_soon(take)
            nursery.start_soon(take)
    assert sorted(got) == [b"%d" % number for number in range(7)]


async def test_a_handler_that_waits_for_all_records_hears_of_an_early_end() -> None:
    bench = Bench()
    async with bench.stream:
        bench.delivery.end(DisconnectedError("left"))
        await bench.stream.wait_caught_up()  # elsewhere `end_reason` says it
        call_handlers()
        with pytest.raises(DisconnectedError, match="left"):
            await bench.stream.wait_caught_up()
