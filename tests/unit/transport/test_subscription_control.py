"""Pauses, resumes and replaces of the application and of the client, in any interleaving."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.client import Client, HAClient
from haclient.errors import CommandError, TimedOut, UsageError
from haclient.options import TIMEOUT_S
from haclient.protocol.codec import encode_frame
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.session.pauses import MAX_UNANSWERED
from haclient.subscription_manager import Entry, MemorySubscriptionManager
from haclient.transport.subscription_control import timeout_of
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.errors import StoreError
from support.clock import in_virtual_time
from support.lengths import length
from support.peer import Peer, Server, answering, listening, together
from support.recovery import entered, live, lose

pytestmark = [in_virtual_time, pytest.mark.row("CC22", "CC23", "BS9")]

CAP = 10_000
BODY = bytes(1_000)


class Manager(MemorySubscriptionManager):
    """A subscription manager that may be on a full disk."""

    is_full = False

    @override
    def add(self, entry: Entry) -> None:
        if self.is_full:
            raise StoreError("no space left on the device")
        super().add(entry)


@dataclass
class World:
    """A client, and a server that answers when it is told to; `s` is fed, `u` is silent.

    The application pauses and resumes both by one command, the client only what is full.
    """

    client: HAClient
    peer: Peer
    store: MemoryBookmarkStore
    manager: Manager
    chance: random.Random
    is_paused: bool = False  # at the server
    is_wanted: bool = False  # by the application
    filter: str = ""  # at the server
    count: int = 0
    answers: list[bytes] = field(default_factory=list[bytes])
    may_take: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(0))

    async def take(self, message: Message) -> None:
        await self.may_take.acquire()
        message.discard()

    async def listen(self) -> None:
        while (heard := await self.peer.hear_or_end()) is not None:
            self.hears(heard)

    def hears(self, heard: Message) -> None:
        options = Options.parse(heard.options)
        is_own = heard.sub_id == "s" and not options.replace
        is_refused = self.chance.random() < (0.05 if is_own else 0.3)
        is_refused &= not (is_own and options.resume)  # else the connection would end
        header = {"c": "ack", "a": "processed", "cid": heard.command_id}
        result = {"status": "failure", "reason": "bad"} if is_refused else {"status": "success"}
        self.answers.append(encode_frame({**header, **result}))
        if not is_refused and (options.pause or options.resume):
            self.is_paused = bool(options.pause)
            self.is_wanted = self.is_wanted if is_own else self.is_paused
        if not is_refused and options.replace:
            self.filter = heard.filter

    async def answer(self, count: int) -> None:
        """Send so many answers in one piece."""
        now, self.answers = self.answers[:count], self.answers[count:]
        await self.peer.send(b"".join(now))

    async def fill_queue(self) -> None:
        """Fill the queue, as far as the server is allowed to send."""
        for _ in range(0 if self.is_paused else 12):
            self.count += 1
            await self.peer.publish("s", BODY, bm=f"7|{self.count}|")
            await wait_all_tasks_blocked()  # what is read at once is taken at once

    def release(self, count: int) -> None:
        for _ in range(count):
            self.may_take.release()

    def commands(self) -> list[Callable[[], Awaitable[object]]]:
        """What the application may do."""
        client, limit_s = self.client, 1e5
        return [
            partial(client.pause, ["s", "u"], timeout=limit_s),
            partial(client.resume, ["s", "u"], timeout=limit_s),
            partial(client.replace, "s", filter="/a = 1", timeout=limit_s),
            partial(client.replace, "s", filter="/a = 2", timeout=limit_s),
            partial(client.replace, "s", options="timestamp,pause", timeout=limit_s),
        ]

    async def until_at_rest(self) -> None:
        """Answer everything, and let the handler take everything."""
        self.release(self.count)
        await wait_all_tasks_blocked()
        while self.answers:
            await self.answer(len(self.answers))
            await wait_all_tasks_blocked()


@asynccontextmanager
async def world(server: Server, seed: int) -> AsyncGenerator[World]:
    store, manager = MemoryBookmarkStore(), Manager()
    client = HAClient(
        "ha",
        servers=[server.uri],
        bookmark_store=store,
        subscription_manager=manager,
        max_queued_bytes=CAP,
        heartbeat=None,
        exit_timeout=0,
    )
    async with entered(client, partial(live, server)) as peer:
        made = World(client, peer, store, manager, random.Random(seed))
        async with answering(peer):
            await client.bookmark_subscribe(
                "orders", sub_id="s", bookmark=EPOCH, handler=made.take, options="timestamp"
            )
            await client.bookmark_subscribe(
                "orders", sub_id="u", bookmark=EPOCH, handler=lambda _: None
            )
        yield made
        await client.disconnect()


async def attempt(command: Callable[[], Awaitable[object]], scope: trio.CancelScope) -> None:
    with scope, suppress(CommandError):
        await command()


@pytest.mark.parametrize("seed", range(length(60)))
async def test_at_rest_the_server_holds_back_what_the_application_wants_and_nothing_else(
    server: Server, seed: int
) -> None:
    async with world(server, seed) as made, trio.open_nursery() as nursery:
        chance, scopes = made.chance, list[trio.CancelScope]()
        nursery.start_soon(made.listen)
        for _ in range(40):
            match chance.randrange(6):
                case 0 | 1:
                    scopes.append(trio.CancelScope())
                    nursery.start_soon(attempt, chance.choice(made.commands()), scopes[-1])
                case 5 if scopes:  # its answer comes later, if it was sent
                    chance.choice(scopes).cancel()
                case 2:
                    await made.fill_queue()
                case 3:
                    made.release(chance.randrange(20))
                case _:
                    await made.answer(chance.randrange(1, 4))
            if chance.random() < 0.7:
                await wait_all_tasks_blocked()
        await made.until_at_rest()
        assert made.is_paused == made.is_wanted
        assert made.store.subscription("s").paused == made.is_paused
        kept = {each.sub_id: each.fields for each in made.manager.entries()}
        assert Options.parse(str(kept["s"].get("opts", ""))).pause == made.is_wanted
        assert kept["s"].get("filter", "") == made.filter
        assert made.store.subscription("s").undiscarded_count == 0
        nursery.cancel_scope.cancel()


async def test_a_pause_that_is_refused_after_its_wait_has_ended_is_taken_back(
    server: Server,
) -> None:
    """Nobody waits for the answer any more, but the client's own pause would last for ever."""
    async with world(server, 0) as made:
        peer, client = made.peer, made.client
        await made.fill_queue()
        await peer.ack(await peer.expect("subscribe", options="pause", sub_id="s"))
        await wait_all_tasks_blocked()
        with pytest.raises(TimedOut):
            await client.pause("s", timeout=1.0)
        late = await peer.expect("subscribe", options="pause", sub_id="s")
        made.release(12)
        await wait_all_tasks_blocked()
        assert made.store.subscription("s").paused, "the application may have paused it"
        await peer.refuse(late, "not entitled")
        await peer.answer("subscribe", options="resume")
        await wait_all_tasks_blocked()
        assert not made.store.subscription("s").paused


async def test_a_server_that_does_not_pause_is_not_taken_for_the_next_one(server: Server) -> None:
    async with listening() as other:
        store = MemoryBookmarkStore()
        client = HAClient(
            "ha",
            servers=[server.uri, other.uri],
            bookmark_store=store,
            max_queued_bytes=CAP,
            heartbeat=None,
            exit_timeout=0,
        )
        async with entered(client, partial(live, server)) as peer:
            gate = trio.Event()

            async def take(message: Message) -> None:
                await gate.wait()
                message.discard()

            async with answering(peer):
                await client.bookmark_subscribe("orders", sub_id="s", bookmark=EPOCH, handler=take)
            for number in range(1, 13):
                await peer.publish("s", BODY, bm=f"7|{number}|")
                await wait_all_tasks_blocked()  # what is read at once is taken at once
            await peer.refuse(await peer.expect("subscribe", options="pause"), "bad options")
            gate.set()
            await wait_all_tasks_blocked()
            gate = trio.Event()
            peer.link.close()  # not live for long: the next server follows
            there = await live(other)
            await there.answer("subscribe")
            for number in range(13, 25):
                await there.publish("s", BODY, bm=f"7|{number}|")
                await wait_all_tasks_blocked()  # what is read at once is taken at once
            await there.expect("subscribe", options="pause")
            gate.set()
            await client.disconnect()


async def test_a_replace_is_sent_as_the_subscription_is_when_there_is_a_connection(
    server: Server,
) -> None:
    """What was paused may have been resumed during the wait."""
    async with world(server, 0) as made, trio.open_nursery() as nursery:
        peer, client = made.peer, made.client
        await together(lambda: client.pause("s"), lambda: peer.answer("subscribe"))
        await lose(peer)
        async with trio.open_nursery() as waiting:
            waiting.start_soon(partial(client.resume, "s", timeout=60.0))
            await wait_all_tasks_blocked()
            waiting.start_soon(partial(client.replace, "s", filter="/a = 1", timeout=60.0))
            again = await live(server)
            async with answering(again):
                await wait_all_tasks_blocked()
        told = [Options.parse(each.options) for each in again.heard if each.sub_id == "s"]
        assert [each.pause for each in told if each.replace] == [False]
        assert not made.store.subscription("s").paused
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ends_with", ["a cancellation", "its timeout"])
async def test_what_a_server_accepts_late_is_sent_again_after_a_lost_connection(
    server: Server, ends_with: str
) -> None:
    """It is in force at the server, and delivers accordingly, whoever has stopped waiting."""
    async with world(server, 0) as made:
        peer, client = made.peer, made.client
        await together(lambda: client.pause(["s", "u"]), lambda: peer.answer("subscribe"))
        for command in (
            partial(client.resume, ["s", "u"], timeout=1.0),
            partial(client.replace, "s", filter="/a = 1", timeout=1.0),
            partial(client.pause, "u", timeout=1.0),
        ):
            if ends_with == "its timeout":
                with pytest.raises(TimedOut):
                    await command()
            else:
                with trio.move_on_after(0.5):
                    await command()
            await peer.ack(await peer.expect("subscribe"))
            await wait_all_tasks_blocked()
        await lose(peer)
        again = await live(server)
        async with answering(again):
            await wait_all_tasks_blocked()
        first = {each.sub_id: each for each in reversed(again.heard) if each.kind == "subscribe"}
        paused = {sub_id: bool(Options.parse(each.options).pause) for sub_id, each in first.items()}
        assert paused == {"s": False, "u": True}
        assert (first["s"].filter, first["u"].filter) == ("/a = 1", "")


async def test_a_replace_that_is_accepted_after_the_subscription_has_ended_is_forgotten(
    server: Server,
) -> None:
    async with world(server, 0) as made:
        peer, client = made.peer, made.client
        with pytest.raises(TimedOut):
            await client.replace("s", filter="/a = 1", timeout=1.0)
        late = await peer.expect("subscribe", filter="/a = 1")
        with trio.move_on_after(1.0):
            await client.unsubscribe("s")
        await peer.ack(late)
        await wait_all_tasks_blocked()
        assert [each.sub_id for each in made.manager.entries()] == ["u"]


async def test_changes_that_a_server_never_answers_are_remembered_up_to_a_limit(
    server: Server,
) -> None:
    async with world(server, 0) as made:
        peer, client = made.peer, made.client
        one, client._core.changes._max_unanswered = client._core.kept.find("s"), 80
        assert one is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.listen_until_end)
            for _ in range(4):
                with trio.move_on_after(0.001):
                    async with trio.open_nursery() as callers:
                        for number in range(100):
                            callers.start_soon(made.commands()[number % 4])
            nursery.cancel_scope.cancel()
        assert len(peer.heard) > 200
        assert len(client._core.session.pending) == 80
        assert len(one.pauses._changes) == MAX_UNANSWERED
        forgotten, last = peer.heard[3], peer.heard[-1]
        await peer.ack(forgotten, "processed")
        async with answering(peer):  # the client works on
            await client.resume("s")
            assert not one.is_paused
            await client.replace("s", filter="/a = 3")
            await client.pause("s")
            assert one.is_paused
            await peer.ack(last, "processed")  # overruled
            await wait_all_tasks_blocked()
        kept = {each.sub_id: each.fields for each in made.manager.entries()}
        assert (kept["s"]["filter"], kept["s"]["opts"]) == ("/a = 3", "pause,timestamp")
        await lose(peer)
        async with answering(await live(server)):
            await wait_all_tasks_blocked()
            assert len(client._core.session.pending) == 0


async def test_a_change_that_is_accepted_late_and_cannot_be_remembered_is_a_warning(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(server, 0) as made:
        peer, client = made.peer, made.client
        made.manager.is_full = True
        with pytest.raises(TimedOut):
            await client.replace("s", filter="/a = 1", timeout=1.0)
        await peer.ack(await peer.expect("subscribe", filter="/a = 1"))
        await wait_all_tasks_blocked()
        assert "is not sent again after a lost connection" in caplog.text
        with pytest.raises(StoreError):  # whoever waits gets it
            await together(
                lambda: client.replace("s", filter="/a = 2"), lambda: peer.answer("subscribe")
            )


async def test_what_is_accepted_while_its_caller_is_being_cancelled_is_sent_again(
    server: Server,
) -> None:
    """The answer is read before the cancelled task runs, or after it."""
    async with world(server, 0) as made:
        peer, client = made.peer, made.client
        for number in range(12):
            async with trio.open_nursery() as nursery:
                change = partial(client.replace, "s", filter=f"/a = {number}", timeout=1.0)
                nursery.start_soon(change)
                await peer.ack(await peer.expect("subscribe"))
                nursery.cancel_scope.cancel()
            await wait_all_tasks_blocked()
            kept = {each.sub_id: each.fields for each in made.manager.entries()}
            assert kept["s"]["filter"] == f"/a = {number}"


@pytest.mark.parametrize("is_refused", [True, False])
async def test_only_a_conflation_that_the_server_accepts_ends_recovery_points_by_acks(
    server: Server, *, is_refused: bool
) -> None:
    async with world(server, 0) as made:
        tracker = made.store.subscription("s").tracker
        async with trio.open_nursery() as nursery:
            replace = partial(made.client.replace, "s", options="conflation=1s")
            nursery.start_soon(attempt, replace, trio.CancelScope())
            asked = await made.peer.expect("subscribe")
            assert not tracker.conflated
            await (made.peer.refuse(asked, "bad") if is_refused else made.peer.ack(asked))
        assert tracker.conflated is not is_refused


async def test_answers_in_another_order_leave_the_replace_that_was_sent_last(
    server: Server,
) -> None:
    async with world(server, 0) as made:
        peer, client = made.peer, made.client
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(0.5):  # the answer is late for its caller
                await client.replace("s", filter="/a = 0", timeout=1.0)
            nursery.start_soon(partial(client.replace, "s", filter="/a = 1", timeout=1.0))
            first, second = await peer.expect("subscribe"), await peer.expect("subscribe")
            await peer.ack(second)
            await wait_all_tasks_blocked()
            await peer.ack(first)
        kept = {each.sub_id: each.fields for each in made.manager.entries()}
        assert kept["s"]["filter"] == second.filter


async def test_a_command_without_an_answer_delays_no_resume_once_a_later_one_was_accepted(
    server: Server,
) -> None:
    async with world(server, 0) as made:
        peer, client = made.peer, made.client
        with pytest.raises(TimedOut):
            await client.pause("s", timeout=1.0)
        await peer.expect("subscribe", options="pause")
        await together(lambda: client.resume("s"), lambda: peer.answer("subscribe"))
        began = trio.current_time()
        for _ in range(3):
            await made.fill_queue()
            await peer.answer("subscribe", options="pause")
            made.release(12)
            await peer.answer("subscribe", options="resume")
            await wait_all_tasks_blocked()
        assert trio.current_time() == began


async def test_answers_to_others_do_not_put_off_a_resume(server: Server) -> None:
    async with world(server, 0) as made:
        peer, client = made.peer, made.client
        with pytest.raises(TimedOut):
            await client.resume("s", timeout=1.0)
        await peer.expect("subscribe", options="resume")
        await made.fill_queue()
        await peer.answer("subscribe", options="pause", sub_id="s")
        made.release(12)
        resumed: list[str] = []

        async def answer_all() -> None:
            while (heard := await peer.hear_or_end()) is not None:
                await peer.ack(heard)
                if heard.options == "resume":
                    resumed.append(heard.sub_id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_all)
            for _ in range(40):
                await trio.sleep(1.0)
                await client.pause("u")
            nursery.cancel_scope.cancel()
        assert resumed == ["s"]


async def test_a_common_resume_whose_answer_comes_after_that_to_a_later_pause_is_overruled(
    server: Server,
) -> None:
    async with world(server, 0) as made:
        peer, client = made.peer, made.client
        await together(lambda: client.pause(["s", "u"]), lambda: peer.answer("subscribe"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.resume, ["s", "u"], timeout=1.0))
            resume = await peer.expect("subscribe", options="resume")
            nursery.start_soon(partial(client.pause, "s", timeout=1.0))
            await peer.ack(await peer.expect("subscribe", options="pause"))
            await wait_all_tasks_blocked()
            await peer.ack(resume)
        await lose(peer)
        again = await live(server)
        async with answering(again):
            await wait_all_tasks_blocked()
        assert [each.sub_id for each in again.heard if Options.parse(each.options).resume] == []
        assert [Options.parse(each.options).pause for each in again.heard if each.sub_id] == [
            True,
            False,
        ]


@pytest.mark.row("CC22", "CC23")
async def test_what_is_not_active_is_not_changed(server: Server) -> None:
    async with Client("c") as client:
        await server.log_on(client)
        with pytest.raises(UsageError, match="no active subscription 's' to replace"):
            await client.replace("s", filter="/a = 1")
        with pytest.raises(
            UsageError, match="takes active bookmark subscriptions, and 's' is none"
        ):
            await client.pause("s")
        with pytest.raises(UsageError, match="resume needs the id of a subscription"):
            await client.resume([])


async def test_a_command_without_a_timeout_has_that_of_every_call() -> None:
    assert timeout_of(Command("flush")) == TIMEOUT_S
    assert timeout_of(Command("flush", timeout=0)) == 0
    assert timeout_of(Command("flush", timeout=inf)) == inf
