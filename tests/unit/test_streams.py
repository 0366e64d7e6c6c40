from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.errors import DisconnectedError, UsageError
from haclient.protocol.messages import Message
from haclient.session.subscriptions import Marker
from haclient.streams import MessageStream
from haclient.transport.message_queue import Delivery
from support.clock import in_virtual_time

pytestmark = in_virtual_time


class Bench:
    """A stream and the two calls that it makes."""

    def __init__(self, *, refuse: Exception | None = None) -> None:
        self.delivery = Delivery()
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


@pytest.mark.row("MS1")
async def test_a_stream_tells_why_it_ended() -> None:
    bench = await Bench().opened()
    bench.put(b"a")
    bench.delivery.end(DisconnectedError("lost"))
    assert await bench.rest() == [b"a"]
    assert str(bench.stream.end_reason) == "lost"
