"""A subscription that servers do not take back: never silently dead, never tried for ever (SM8)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.client import HAClient
from haclient.errors import (
    AuthenticationError,
    BadFilter,
    CommandError,
    DisconnectedError,
    HAClientError,
    InvalidTopic,
    NotEntitled,
    ReconnectGaveUp,
    StoreFull,
    TimedOut,
    UsageError,
)
from haclient.events import Event, SubscriptionEnded
from haclient.options import OnResubscribeFailure
from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message
from haclient.servers.delay import FixedDelayStrategy
from haclient.session.custom_stores import StoreSubscription
from haclient.session.subscriptions import Subscription
from haclient.transport.tasks import open_nursery
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore
from support.peer import Peer, Server, answering
from support.recovery import Recorder, drop, entered, live, lose

pytestmark = in_virtual_time


def client_of(
    *servers: Server,
    policy: OnResubscribeFailure = "fail",
    seen: list[str] | None = None,
    give_up_after: float | None = None,
) -> HAClient:
    uris = {name: each.uri for name, each in zip("AB", servers, strict=False)}
    return HAClient(
        "ha",
        server_chooser=Recorder(uris, [] if seen is None else seen),
        delay_strategy=FixedDelayStrategy(0.5, give_up_after=give_up_after),
        bookmark_store=MemoryBookmarkStore(),
        heartbeat=None,
        on_resubscribe_failure=policy,
    )


async def refuse_next(server: Server, reason: str) -> Peer:
    """Accept the client and refuse what it enters again first."""
    peer = await live(server)
    await peer.refuse(await peer.expect("subscribe"), reason)
    await wait_all_tasks_blocked()
    return peer


@pytest.mark.row("SM8")
async def test_another_server_may_take_it(server: Server, other: Server) -> None:
    seen: list[str] = []
    client = client_of(server, other, seen=seen)
    async with entered(client, partial(live, server)) as peer:
        stream = client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH)
        async with answering(peer):
            await stream.open()
        await lose(peer)
        seen.clear()
        refusing = await refuse_next(server, "invalid topic")
        await refusing.expect_end()
        taking = await live(other)
        async with answering(taking):
            await wait_all_tasks_blocked()
            await taking.publish("s", b"1", bm="7|1|")
            assert (await anext(stream)).data == b"1"
            await stream.aclose()
            await client.flush(timeout=1)
        told = [each for each in seen if each.startswith(("failure", "success"))]
        assert told == ["success A", "failure A: InvalidTopic", "success B"]


@pytest.mark.row("SM8")
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("bad filter", BadFilter),
        ("not entitled", NotEntitled),
        ("invalid topic", InvalidTopic),
        ("auth failure", AuthenticationError),
        ("for no reason at all", CommandError),
    ],
)
async def test_by_default_the_error_leaves_the_block_once_all_have_refused(
    server: Server, other: Server, reason: str, kind: type[HAClientError]
) -> None:
    client, ends = client_of(server, other), list[HAClientError]()
    told: list[Event] = []
    client.add_event_listener(told.append, SubscriptionEnded)
    started = 0.0
    with pytest.raises(kind, match=reason):  # noqa: PT012  # the error leaves the block itself
        async with entered(client, partial(live, server)) as peer:
            stream = client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH)
            async with answering(peer):
                await stream.open()
            await lose(peer)
            started = trio.current_time()

            async def read() -> None:
                try:
                    await anext(stream)
                except HAClientError as error:
                    ends.append(error)
                    raise

            async with open_nursery() as nursery:
                nursery.start_soon(read)
                for each in (server, other, server):
                    await refuse_next(each, reason)
    assert [type(each) for each in ends] == [kind]
    assert [each.sub_id for each in told if isinstance(each, SubscriptionEnded)] == ["s"]
    assert trio.current_time() - started == 0.5  # one wait: the second attempt at A


@pytest.mark.row("SM8")
@pytest.mark.parametrize("attempt", range(12))  # tasks run in any order
async def test_another_server_may_take_both_of_two(
    server: Server, other: Server, attempt: int
) -> None:
    client, events = client_of(server, other), list[Event]()
    client.add_event_listener(events.append, SubscriptionEnded)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            for sub_id in ("s", "t"):
                await client.bookmark_subscribe("orders", sub_id=sub_id, handler=lambda _: None)
        await lose(peer)
        refusing = await live(server)
        first, second = [await refusing.expect("subscribe") for _ in range(2)]
        await refusing.refuse(first, "not entitled")
        for _ in range(2 + attempt % 3):  # a moment later
            await trio.lowlevel.checkpoint()
        with suppress(OSError):  # the client has closed the connection
            await refusing.refuse(second, "not entitled")
        await refusing.expect_end()
        async with answering(await live(other)):
            await client.flush(timeout=1)
    assert not events


async def refuse_three(server: Server) -> Peer:
    """Accept the client, refuse three of its subscriptions, and accept the fourth."""
    peer = await live(server)
    for _ in "abc":
        await peer.refuse(await peer.expect("subscribe"), "not entitled")
    assert (await peer.answer("subscribe")).sub_id == "d"
    await wait_all_tasks_blocked()
    return peer


@pytest.mark.row("SM8")
async def test_all_that_a_server_refuses_are_asked_for_on_one_connection(server: Server) -> None:
    client, ended = client_of(server, policy="drop"), list[Event]()
    client.add_event_listener(ended.append, SubscriptionEnded)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            for sub_id in "abcd":
                await client.subscribe("prices", sub_id=sub_id, handler=lambda _: None)
        await lose(peer)
        refusing = await refuse_three(server)
        await refusing.expect_end()
        async with answering(await refuse_three(server)):
            await client.flush(timeout=1)
    assert [each.sub_id for each in ended if isinstance(each, SubscriptionEnded)] == list("abc")


@pytest.mark.row("SM8")
async def test_it_is_dropped_where_the_application_says_so(server: Server) -> None:
    asked: list[tuple[str, HAClientError]] = []

    def decide(sub_id: str, error: HAClientError) -> str:
        asked.append((sub_id, error))
        return "drop"

    client = client_of(server, policy=decide)
    async with entered(client, partial(live, server)) as peer:
        stream = client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH)
        async with answering(peer):
            await stream.open()
            await client.subscribe("prices", sub_id="p", handler=lambda _: None)
        await lose(peer)
        await refuse_next(server, "not entitled")
        last = await refuse_next(server, "not entitled")
        assert (await last.answer("subscribe")).sub_id == "p"  # the other one goes on
        with pytest.raises(NotEntitled):
            await anext(stream)
        assert isinstance(stream.end_reason, NotEntitled)
        assert [(sub_id, type(error)) for sub_id, error in asked] == [("s", NotEntitled)]
        await lose(last)
        again = await live(server)
        assert (await again.answer("subscribe")).sub_id == "p"  # and s is not tried again
        async with answering(again):
            await stream.aclose()
            await client.flush(timeout=1)


@pytest.mark.row("SM8", "OB1")
async def test_a_handler_that_was_dropped_ends_and_its_id_is_free_again(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    client, events = client_of(server, policy="drop"), list[Event]()
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.subscribe("prices", sub_id="p", handler=lambda _: None)
        client.add_event_listener(events.append)
        await lose(peer)
        await refuse_next(server, "bad filter")
        last = await refuse_next(server, "bad filter")
        assert "drops subscription p" in caplog.text
        ends = [each for each in events if isinstance(each, SubscriptionEnded)]
        assert [(each.sub_id, type(each.error)) for each in ends] == [("p", BadFilter)]
        async with answering(last):
            await client.subscribe("prices", sub_id="p", handler=lambda _: None)


@pytest.mark.row("SM8")
async def test_retrying_ends_with_the_patience_of_the_delay_strategy(server: Server) -> None:
    client = client_of(server, policy="retry", give_up_after=3.0)
    started = 0.0
    with pytest.raises(ReconnectGaveUp, match="bad filter"):  # noqa: PT012  # leaves the block
        async with entered(client, partial(live, server)) as peer:
            async with answering(peer):
                await client.subscribe("prices", sub_id="p", handler=lambda _: None)
            await lose(peer)
            started = trio.current_time()
            while True:
                await refuse_next(server, "bad filter")
    assert trio.current_time() - started == pytest.approx(3.0, abs=0.5)


@pytest.mark.row("SM8")
async def test_a_server_that_was_fine_in_between_is_asked_anew(server: Server) -> None:
    client = client_of(server)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.subscribe("prices", sub_id="p", handler=lambda _: None)
        lost = peer
        for _ in range(3):
            await lose(lost)
            await refuse_next(server, "not entitled")  # once each time
            lost = await live(server)
            await lost.answer("subscribe")
            await wait_all_tasks_blocked()
        async with answering(lost):
            await client.flush(timeout=1)


@pytest.mark.row("SM7", "SM8")
async def test_what_is_ended_while_it_is_refused_is_simply_over(server: Server) -> None:
    client = client_of(server)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.subscribe("prices", sub_id="p", handler=lambda _: None)
        await lose(peer)
        again = await live(server)
        command = await again.expect("subscribe")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.unsubscribe, "p")
            await wait_all_tasks_blocked()
            await again.refuse(command, "not entitled")
            await again.answer("unsubscribe")
        async with answering(again):
            await client.flush(timeout=1)
        assert len(server.peers) == 2


@pytest.mark.row("CC17", "SM7")
async def test_what_is_ended_while_its_connection_is_lost_is_simply_over(server: Server) -> None:
    client = client_of(server)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.subscribe("prices", sub_id="p", handler=lambda _: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.unsubscribe, "p")
            await peer.expect("unsubscribe")
            await lose(peer)
        again = await live(server)
        async with answering(again):
            await client.flush(timeout=1)
        assert "subscribe" not in {each.command for each in again.heard}


@pytest.mark.row("CC17", "SM7")
@pytest.mark.parametrize("how", ["unsubscribe", "aclose", "server"])
async def test_what_is_ended_before_its_answer_came_is_not_entered_again(
    server: Server, how: str
) -> None:
    client = client_of(server)
    async with entered(client, partial(live, server)) as peer:
        stream = client.bookmark_stream("prices", sub_id="p", bookmark=EPOCH)
        async with open_nursery() as nursery:
            nursery.start_soon(stream.open)
            subscribe = await peer.expect("subscribe")
            accepted = {"c": "ack", "a": "processed", "cid": subscribe.command_id}
            frames = encode_frame({**accepted, "status": "success"})
            if how == "server":
                frames += encode_frame({**accepted, "status": "failure", "reason": "bad filter"})
            elif how == "aclose":
                await stream.aclose()
            else:
                nursery.start_soon(client.unsubscribe, "p")
                await wait_all_tasks_blocked()
            await peer.send(frames)
            if how != "server":
                await peer.answer("unsubscribe")
        await wait_all_tasks_blocked()
        assert client._core.session.router.all() == []
        await lose(peer)
        again = await live(server)
        async with answering(again):
            await client.flush(timeout=1)
        assert "subscribe" not in {each.command for each in again.heard}


@pytest.mark.row("SM7", "SM8")
async def test_what_is_ended_while_its_time_anchor_is_refused_is_not_entered_again(
    server: Server, other: Server
) -> None:
    client = client_of(server, other)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            take: Callable[[Message], None] = lambda message: message.discard()  # noqa: E731  # one line
            await client.bookmark_subscribe("orders", sub_id="p", handler=take)
            await peer.ack(None, "completed", sub_id="p")
            await peer.publish("p", b"1", bm="7|1|")
            await peer.ack(None, "persisted", sub_id="p", bm="7|1|")
            await client.flush(timeout=1)
        await lose(peer)
        await lose(await live(server))
        again = await live(other)
        command = await again.expect("subscribe")
        assert command.bookmark.startswith("7|1|,20")  # a list with a time
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.unsubscribe, "p")
            await wait_all_tasks_blocked()
            await again.refuse(command, "invalid bookmark")
            await again.answer("unsubscribe")
        async with answering(again):
            await client.flush(timeout=1)
        assert [each.command for each in again.heard].count("subscribe") == 1


@pytest.mark.row("SM8")
@pytest.mark.parametrize("answer", ["maybe", None])
async def test_an_answer_that_means_nothing_is_not_guessed(server: Server, answer: str) -> None:
    decide: Callable[[str, HAClientError], str] = lambda _, __: answer  # noqa: E731  # one line
    client = client_of(server, policy=decide)
    with pytest.raises(UsageError, match="has to answer"):  # noqa: PT012  # leaves the block
        async with entered(client, partial(live, server)) as peer:
            async with answering(peer):
                await client.subscribe("prices", sub_id="p", handler=lambda _: None)
            await lose(peer)
            await refuse_next(server, "bad filter")
            await refuse_next(server, "bad filter")
            await trio.sleep_forever()


def test_a_word_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="on_resubscribe_failure is"):
        HAClient("ha", servers=["tcp://a:1/amps"], on_resubscribe_failure="perhaps")  # type: ignore[arg-type]  # wrong on purpose


class FailingHandle(StoreSubscription):
    """One subscription of a store whose disk is full when a link is lost with messages queued."""

    @override
    def dropped(self, numbers: Collection[int]) -> None:
        raise StoreFull("no space left on device")


class FailingStore(DictBookmarkStore):
    def subscription(self, sub_id: str) -> FailingHandle:
        return FailingHandle(self, sub_id)


async def test_a_store_that_fails_while_a_connection_is_abandoned_ends_the_client(
    server: Server,
) -> None:
    """An abandoned connection is closed in a shield: an event that is never set would hang."""
    client = HAClient(
        "ha", servers=[server.uri], bookmark_store=FailingStore(), heartbeat=None, exit_timeout=0
    )
    with pytest.raises(StoreFull):  # noqa: PT012  # the error leaves the block itself
        async with entered(client, partial(live, server)) as peer:
            first = client.bookmark_stream("orders", sub_id="a", bookmark=EPOCH)
            second = client.bookmark_stream("orders", sub_id="b", bookmark=EPOCH)
            async with answering(peer):
                await first.open()
                await second.open()
            await lose(peer)
            again = await live(server)
            await again.answer("subscribe", sub_id="a")
            await again.publish("a", b"queued", bm="7|1|")
            await again.refuse(await again.expect("subscribe", sub_id="b"), "not entitled")
            await trio.sleep_forever()


@pytest.mark.row("CC24", "AT14")
async def test_a_query_whose_answer_cannot_be_read_ends_with_the_reason(server: Server) -> None:
    """Its command was accepted each time, in the same read as what ended the connection."""
    failed: list[HAClientError] = []

    async def query(client: HAClient) -> None:
        with pytest.raises(TimedOut) as caught:
            await client.sow("orders", timeout=5.0).open()
        failed.append(caught.value)

    client = HAClient(
        "ha", servers=[server.uri], delay_strategy=FixedDelayStrategy(0.5), heartbeat=None
    )
    async with entered(client, partial(live, server)) as peer, open_nursery() as nursery:
        nursery.start_soon(query, client)
        at = peer
        while not failed:
            sow = await at.expect("sow")
            accepted = encode_frame(
                {"c": "ack", "a": "processed", "status": "success", "cid": sow.command_id}
            )
            await at.send(
                accepted + encode_frame({"c": "sow", "query_id": "q", "bs": 1}, b'{"l":7')
            )
            await at.expect_end()
            with trio.move_on_after(2.0):
                at = await live(server)
                continue
            break
        await wait_all_tasks_blocked()
        await client.disconnect()
    assert "no server accepted it within 5 s; the last connection" in str(failed[0])
    assert "a header is malformed at its byte 5" in str(failed[0])
    assert isinstance(failed[0].__cause__, DisconnectedError)


@pytest.mark.row("CC17", "SM7")
@pytest.mark.parametrize("ids", ["s", "all", ["x", "s"]])
async def test_what_waits_for_a_connection_is_unsubscribed_before_it_is_sent(
    server: Server, ids: str | list[str]
) -> None:
    refused: list[UsageError] = []

    async def subscribe(client: HAClient) -> None:
        with pytest.raises(UsageError, match="'s' was unsubscribed before") as caught:
            await client.subscribe("orders", sub_id="s", handler=print)
        refused.append(caught.value)

    client = HAClient(
        "ha", servers=[server.uri], delay_strategy=FixedDelayStrategy(0.5), heartbeat=None
    )
    async with entered(client, partial(live, server)) as peer, open_nursery() as nursery:
        nursery.start_soon(subscribe, client)
        await peer.expect("subscribe")
        await drop(peer)  # before the answer: it waits for the next connection
        await client.unsubscribe(ids)
        await wait_all_tasks_blocked()
        assert refused
        again = await live(server)
        async with answering(again):
            await client.flush(timeout=1)
            await client.subscribe("orders", sub_id="s", handler=print)
        assert [each.command for each in again.heard[1:]] == ["flush", "subscribe"]
        await client.disconnect()


@pytest.mark.row("CC17", "SM7")
async def test_what_is_unsubscribed_before_its_answer_is_not_sent_again(server: Server) -> None:
    """Nobody would take its messages: those of a queue would be leased, and never processed."""
    refused: list[UsageError] = []

    async def consume(client: HAClient) -> None:
        with pytest.raises(UsageError, match="'s' was unsubscribed before") as caught:
            await client.queue_subscribe("orders", sub_id="s", handler=print)
        refused.append(caught.value)

    client = HAClient(
        "ha", servers=[server.uri], delay_strategy=FixedDelayStrategy(0.5), heartbeat=None
    )
    async with entered(client, partial(live, server)) as peer, open_nursery() as nursery:
        nursery.start_soon(consume, client)
        await peer.expect("subscribe")
        nursery.start_soon(client.unsubscribe, "s")
        await peer.expect("unsubscribe")
        await drop(peer)  # before the answers
        again = await live(server)
        async with answering(again):
            await client.flush(timeout=1)
        assert refused
        assert [each.command for each in again.heard[1:]] == ["flush"]
        await client.disconnect()


@pytest.mark.row("CC17")
async def test_the_end_of_one_subscription_looks_at_no_other_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = HAClient(
        "ha", servers=[server.uri], heartbeat=None, bookmark_store=MemoryBookmarkStore()
    )
    async with entered(client, partial(live, server)) as peer, answering(peer):
        for sub_id in ("a", "b", "c"):
            await client.bookmark_subscribe("orders", sub_id=sub_id, handler=lambda _: None)

        def scan_all_subscriptions() -> list[Subscription]:
            raise AssertionError("a cost that grows with what is idle")

        class Served(dict[str, set[Subscription]]):
            @override
            def __iter__(self) -> Iterator[str]:
                raise AssertionError("this one as well")

        served = Served(client._subscriber.logs._served.items())
        with monkeypatch.context() as patched:
            patched.setattr(client._core.kept, "all", scan_all_subscriptions)
            patched.setattr(client._subscriber.logs, "_served", served)
            await client.unsubscribe(["c", "a", "unknown"])
            await wait_all_tasks_blocked()
        assert [each.sub_id for each in client.metrics.subscriptions] == ["b"]
        assert peer.heard[-1].sub_ids == ["c", "a"]
