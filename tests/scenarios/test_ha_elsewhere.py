"""Where a subscription begins on a server with another order: nothing may stand before it (BS9).

A publisher of whom nothing is finished is named by no recovery point. Its messages may stand
anywhere in another server's log, so each entry has to begin before what may be missing of it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import HAClient
from haclient.options import wall_clock
from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message
from haclient_stores.bookmark import (
    EPOCH,
    MOST_RECENT,
    NOW,
    BookmarkList,
    StartPoint,
    Timestamp,
)
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.interfaces import BookmarkStore
from support.clock import in_virtual_time
from support.peer import Peer, Server, answering, together
from support.recovery import drop, entered, live, lose

pytestmark = [in_virtual_time, pytest.mark.row("BS9", "HA17")]

OVERLAP_US = 5_000_000


class Application:
    """A client whose handler is done with everything at once."""

    def __init__(self, *servers: Server, store: BookmarkStore | None = None) -> None:
        self.got: list[bytes] = []
        self.client = HAClient(
            "ha",
            servers=[each.uri for each in servers],
            bookmark_store=store or MemoryBookmarkStore(),
            heartbeat=None,
        )

    def handle(self, message: Message) -> None:
        self.got.append(message.data)
        message.discard()

    async def enter(self, peer: Peer, sub_id: str = "s", bookmark: StartPoint = EPOCH) -> list[str]:
        """Subscribe; what was asked for."""
        async with answering(peer):
            await self.client.bookmark_subscribe(
                "orders", sub_id=sub_id, bookmark=bookmark, handler=self.handle
            )
        return peer.heard[-1].bookmark.split(",")

    def now_us(self) -> int:
        return self.client._core.resume.now_us(trio.current_time())


async def send(peer: Peer, *bookmarks: str, complete: bool = False, sub_id: str = "s") -> None:
    """A server sends messages; all that it has if it is complete."""
    for bookmark in bookmarks:
        await peer.publish(sub_id, bookmark.encode(), bm=bookmark)
        await peer.ack(None, "persisted", sub_id=sub_id, bm=bookmark)
    if complete:
        await peer.ack(None, "completed", sub_id=sub_id)
    await wait_all_tasks_blocked()


async def asked(peer: Peer) -> list[str]:
    """What a client that comes back asks for; it is accepted."""
    return (await peer.answer("subscribe")).bookmark.split(",")


async def elsewhere(server: Server, other: Server) -> Peer:
    """The first server has failed for good."""
    await lose(await live(server))
    return await live(other)


async def test_an_overlap_that_was_cut_off_goes_on_behind_what_it_has_sent(
    server: Server, other: Server
) -> None:
    """7|1| 7|2| here; 7|1| 9|1| 7|2| there."""
    run = Application(server, other)
    async with entered(run.client, partial(live, server)) as peer:
        await run.enter(peer)
        await send(peer, "7|1|", "7|2|", complete=True)
        await lose(peer)
        there = await elsewhere(server, other)
        point, anchor = await asked(there)
        assert (point, anchor[:2]) == ("7|2|", "20")
        await send(there, "7|1|")
        await lose(there)
        again = await live(other)
        assert await asked(again) == ["7|1|"]
        await send(again, "9|1|", "7|2|", complete=True)
        assert run.got == [b"7|1|", b"7|2|", b"9|1|"]
        await run.client.disconnect()


async def test_an_overlap_of_which_nothing_came_is_asked_for_again(
    server: Server, other: Server
) -> None:
    run = Application(server, other)
    async with entered(run.client, partial(live, server)) as peer:
        await run.enter(peer)
        await send(peer, "7|1|", complete=True)
        await lose(peer)
        there = await elsewhere(server, other)
        first = await asked(there)
        assert len(first) == 2
        await lose(there)
        assert await asked(await live(other)) == first
        await run.client.disconnect()


async def test_a_loss_between_two_entries_counts_for_the_one_that_was_entered(
    server: Server, other: Server
) -> None:
    """What has come since is in the order there: here it is no place to begin without a time."""
    run = Application(server, other)
    async with entered(run.client, partial(live, server)) as peer:
        for sub_id in ("s", "t"):
            await run.enter(peer, sub_id)
            await send(peer, "7|1|", complete=True, sub_id=sub_id)
        await lose(peer)
        there = await elsewhere(server, other)
        _, anchor = await asked(there)
        await send(there, "7|1|", "7|2|")
        await there.expect("subscribe")  # the second one gets no answer
        await lose(there)
        assert await asked(await live(server)) == ["7|2|", anchor]
        await run.client.disconnect()


@pytest.mark.parametrize("bookmark", [EPOCH, NOW])
async def test_a_replay_that_was_cut_off_begins_again_elsewhere_and_goes_on_here(
    server: Server, other: Server, bookmark: StartPoint
) -> None:
    """No time tells where it had got to: what is old here may be older there."""
    run = Application(server, other)
    async with entered(run.client, partial(live, server)) as peer:
        before_us = run.now_us()
        await run.enter(peer, bookmark=bookmark)
        after_us = run.now_us()
        await send(peer, "7|1|")
        await lose(peer)
        again = await live(server)
        assert await asked(again) == ["7|1|"]
        await lose(again)
        there = await elsewhere(server, other)
        (start,) = await asked(there)
        if bookmark is EPOCH:
            assert start == "0"
        else:
            entered_us = Timestamp.parse(start).microseconds + OVERLAP_US
            assert before_us <= entered_us <= after_us, "clocks may differ by the overlap"
        await send(there, "9|1|", "7|1|", complete=True)
        assert run.got == [b"7|1|", b"9|1|"]
        await run.client.disconnect()


@pytest.mark.parametrize("resumed_for_s", [None, 1.0])
async def test_what_a_paused_server_has_not_sent_is_not_taken_for_received(
    server: Server, other: Server, resumed_for_s: float | None
) -> None:
    """What was published meanwhile, by a publisher nobody has heard of, is still to come."""
    wall_clock.set(lambda: int(trio.current_time() * 1_000_000) + 10**15)
    run = Application(server, other)
    async with entered(run.client, partial(live, server)) as peer:
        await run.enter(peer)
        await send(peer, "7|1|", complete=True)
        await run.enter(peer, "t")
        await trio.sleep(2)  # its caught-up time is known
        await send(peer, "8|1|", sub_id="t")
        paused_us = run.now_us()
        await together(lambda: run.client.pause("s"), lambda: peer.answer("subscribe"))
        await trio.sleep(600)
        if resumed_for_s is not None:  # by then the server has not sent all that it held back
            await together(lambda: run.client.resume("s"), lambda: peer.answer("subscribe"))
            await trio.sleep(resumed_for_s)
        await send(peer, "8|2|", sub_id="t")  # the connection itself is caught up
        await lose(peer)
        there = await elsewhere(server, other)
        point, anchor = await asked(there)
        assert point == "7|1|"
        assert Timestamp.parse(anchor).microseconds <= paused_us - OVERLAP_US + 10_000_000
        await run.client.disconnect()


def logged(folder: Path) -> BookmarkStore:
    return LoggedBookmarkStore(folder / "s.bm")


def ring(folder: Path) -> BookmarkStore:
    return RingBookmarkStore(folder / "s.bm")


@pytest.mark.parametrize("make", [logged, ring])
async def test_a_new_process_begins_elsewhere_before_the_old_one_was_heard_last(
    server: Server, other: Server, tmp_path: Path, make: type[LoggedBookmarkStore]
) -> None:
    run = Application(server, store=make(tmp_path))
    async with entered(run.client, partial(live, server)) as peer:
        await run.enter(peer)
        before_us = run.now_us()
        await send(peer, "7|1|", complete=True)
        await run.client.disconnect()
    run = Application(other, store=make(tmp_path))
    async with entered(run.client, partial(live, other)) as there:
        point, anchor = await run.enter(there, bookmark=MOST_RECENT)
        assert point == "7|1|"
        caught_up_us = Timestamp.parse(anchor).microseconds + OVERLAP_US
        assert before_us - 1_000_000 <= caught_up_us <= run.now_us()
        await send(there, "9|1|", "7|1|", complete=True)
        assert run.got == [b"9|1|"]
        await run.client.disconnect()
    run = Application(other, store=make(tmp_path))
    async with entered(run.client, partial(live, other)) as there:
        assert set(await run.enter(there, bookmark=MOST_RECENT)) == {"7|1|", "9|1|"}
        await run.client.disconnect()


@pytest.mark.parametrize("make", [logged, ring])
async def test_a_new_process_begins_a_replay_again_only_elsewhere(
    server: Server, other: Server, tmp_path: Path, make: type[LoggedBookmarkStore]
) -> None:
    run = Application(server, store=make(tmp_path))
    async with entered(run.client, partial(live, server)) as peer:
        await run.enter(peer)
        await send(peer, "7|1|")
        await run.client.disconnect()
    for place, expected in ((server, "7|1|"), (other, "0"), (server, "0")):
        run = Application(place, store=make(tmp_path))
        async with entered(run.client, partial(live, place)) as peer:
            assert await run.enter(peer, bookmark=MOST_RECENT) == [expected]
            await run.client.disconnect()


async def test_a_new_process_gets_the_list_alone_where_a_mixture_is_refused(
    server: Server, other: Server, tmp_path: Path
) -> None:
    run = Application(server, store=logged(tmp_path))
    async with entered(run.client, partial(live, server)) as peer:
        await run.enter(peer)
        await send(peer, "7|1|", complete=True)
        await run.client.disconnect()
    run = Application(other, store=logged(tmp_path))

    async def serve() -> Peer:
        return await live(other)

    async with entered(run.client, serve) as there:
        forms: list[str] = []

        async def refuse_one() -> None:
            command = await there.expect("subscribe")
            forms.append(command.bookmark)
            await there.refuse(command, "invalid bookmark")
            forms.append((await there.answer("subscribe")).bookmark)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refuse_one)
            await run.client.bookmark_subscribe(
                "orders", sub_id="s", bookmark=MOST_RECENT, handler=run.handle
            )
        assert [len(form.split(",")) for form in forms] == [2, 1]
        await run.client.disconnect()


async def test_each_subscription_has_a_history_of_its_own(server: Server, other: Server) -> None:
    """The second one was entered late, and its replay had only begun."""
    run = Application(server, other)
    async with entered(run.client, partial(live, server)) as peer:
        await run.enter(peer, "s")
        await send(peer, "7|1|", complete=True, sub_id="s")
        await run.enter(peer, "t")
        await send(peer, "7|1|", sub_id="t")
        await lose(peer)
        there = await elsewhere(server, other)
        assert len(await asked(there)) == 2
        assert await asked(there) == ["0"]
        await run.client.disconnect()


@pytest.mark.parametrize(
    ("again", "is_same"),
    [
        ("1@1,2@10,3@13", True),  # restarted
        ("9@1", False),  # its disk was lost
        ("1@1,2@10,3@11", False),  # restored from a backup that lacks position 12
    ],
)
async def test_a_server_that_comes_back_with_another_log_is_another_server(
    server: Server,
    again: str,
    is_same: bool,  # noqa: FBT001  # what is expected
    caplog: pytest.LogCaptureFixture,
) -> None:
    application = Application(server)

    async def first() -> Peer:
        peer = await server.accept()
        await peer.log_on(log_starts="1@1,2@10")
        return peer

    async with entered(application.client, first) as peer:
        await application.enter(peer)
        await send(peer, "7|1|", "7|2|", complete=True)
        await peer.ack(None, "persisted", sub_id="s", bm="7|2|", log_starts="2@12")
        await wait_all_tasks_blocked()
        await trio.sleep(30)
        until_us = application.now_us() - 30_000_000  # the wall clock does not follow trio's here
        await lose(peer)
        back = await server.accept()
        await back.log_on(log_starts=again)
        asked = (await back.answer("subscribe")).bookmark
        assert asked.split(",")[0] == "7|2|"
        assert ("another transaction log" in caplog.text) is not is_same
        times = [each for each in BookmarkList.parse(asked) if isinstance(each, Timestamp)]
        wanted = [] if is_same else [pytest.approx(until_us - OVERLAP_US, abs=2_000_000)]
        assert [each.microseconds for each in times] == wanted


async def test_a_restart_after_which_nothing_was_written_is_no_other_log(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The first position of a start is named by each logon ack, whether it was written or not."""
    application = Application(server)

    async def first() -> Peer:
        return await log_on(server, "1@1,2@10")

    async with entered(application.client, first) as peer:
        await application.enter(peer)
        await send(peer, "7|1|", "7|2|", complete=True)
        for starts in ("1@1,2@10", "1@1,2@10,3@10"):
            await lose(peer)
            peer = await log_on(server, starts)  # noqa: PLW2901  # the next connection
            assert await asked(peer) == ["7|2|"]
        assert "another transaction log" not in caplog.text


async def log_on(server: Server, starts: str) -> Peer:
    """Accept the logon of the next client; the starts of the log that the ack names."""
    peer = await server.accept()
    await peer.log_on(log_starts=starts)
    return peer


async def test_what_has_ended_is_not_caught_up_by_what_its_link_brings_later(
    server: Server, other: Server
) -> None:
    store = MemoryBookmarkStore()
    app = Application(server, other, store=store)
    async with entered(app.client, partial(live, server)) as peer:
        async with answering(peer):
            await app.client.subscribe("prices", sub_id="p", handler=lambda _: None)
        await app.enter(peer)
        await send(peer, "7|1|", complete=True)
        await trio.sleep(1.5)
        await send(peer, "7|2|")  # this time is noted
        noted = store.subscription("s").server_order.caught_up_us
        await trio.sleep(0.5)
        await send(peer, "7|3|")
        async with answering(peer):
            await app.client.unsubscribe("s")
        await trio.sleep(3600)
        await peer.publish("p", b"1")
        await wait_all_tasks_blocked()
        assert noted
        assert store.subscription("s").server_order.caught_up_us == noted


async def test_an_id_that_starts_over_begins_at_its_start_elsewhere_until_it_has_caught_up(
    server: Server, other: Server
) -> None:
    app = Application(server, other)
    async with entered(app.client, partial(live, server)) as peer:
        await app.enter(peer)
        await send(peer, "7|1|", "7|2|", complete=True)
        async with answering(peer):
            await app.client.unsubscribe("s")
        await app.enter(peer)  # at the start again
        await send(peer, "7|1|")
        await trio.sleep(1.5)
        await send(peer, "7|2|")
        await lose(peer)
        assert await asked(await elsewhere(server, other)) == ["0"]


async def test_a_message_that_arrives_slowly_was_not_received_before_its_end(
    server: Server, other: Server
) -> None:
    """What its server has is behind it, however often the link is empty meanwhile."""
    app = Application(server, other)
    large = encode_frame({"c": "p", "t": "orders", "sids": "s", "bm": "9|1|"}, bytes(2_000))
    async with entered(app.client, partial(live, server)) as peer:
        await app.enter(peer)
        await send(peer, "7|1|", complete=True)
        began_us = app.now_us()
        for start in range(0, 1_000, 50):
            await peer.send(large[start : start + 50])
            await trio.sleep(1.0)
        passed_us = 20_000_000
        await drop(peer)
        point, anchor = await asked(await elsewhere(server, other))
        assert point == "7|1|"
        # The wall clock stands still here, so what has passed is subtracted from its time.
        assert Timestamp.parse(anchor).microseconds <= began_us - passed_us
