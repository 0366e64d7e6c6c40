"""Consuming a queue, as the server sees it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.lowlevel
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.errors import (
    DisconnectedError,
    InvalidOptions,
    InvalidTopic,
    NotEntitled,
    TimedOut,
    UsageError,
)
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.session.dead_letter import DeadLetter
from haclient.streams import MessageStream
from haclient.transport.message_queue import HandlerErrorPolicy, ShuttingDown
from haclient.transport.tasks import open_nursery
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import Peer, Server, answering, together

pytestmark = in_virtual_time

LEASE = "20240321T221052.535075Z"


@pytest.fixture
async def client() -> AsyncGenerator[Client]:
    async with Client("consumer", ack_timeout=1.0) as found:
        yield found


@pytest.fixture
async def peer(server: Server, client: Client) -> Peer:
    return await server.log_on(client)


async def leased(peer: Peer, *numbers: int, topic: str = "work", lp: str = LEASE) -> None:
    """Deliver messages; the body of each is its number."""
    for number in numbers:
        fields = {"t": topic, "sids": "s", "bm": f"7|{number}|", **({"lp": lp} if lp else {})}
        await peer.say("p", b"%d" % number, **fields)


async def accept(peer: Peer, opts: str = "max_backlog=9") -> Message:
    """Expect a subscribe and grant what is given."""
    message = await peer.expect("subscribe", topic="work", bookmark="")
    await peer.ack(message, **({"opts": opts} if opts else {}))
    return message


async def subscribed(
    client: Client,
    peer: Peer,
    handler: Callable[[Message], Awaitable[None] | None],
    opts: str = "max_backlog=9",
    **options: object,
) -> Message:
    """Subscribe with a handler; the command that the server has accepted."""
    _, message = await together(
        lambda: client.queue_subscribe(
            "work",
            handler=handler,
            sub_id="s",
            **options,  # type: ignore[arg-type]  # as each test gives them
        ),
        lambda: accept(peer, opts),
    )
    return message


async def received_acks(peer: Peer) -> list[tuple[str, str]]:
    """The bookmarks and options of the acknowledgements that have arrived."""
    await wait_all_tasks_blocked()
    found: list[tuple[str, str]] = []
    with trio.move_on_after(0):
        while True:
            message = await peer.hear()
            assert message.command == "sow_delete", message
            assert (message.topic, message.sequence) == ("work", None)
            found.append((message.bookmark, message.options))
            await peer.ack(message)
    return found


@asynccontextmanager
async def opened_queue(
    client: Client, peer: Peer, opts: str = "max_backlog=9", *, auto_ack: bool = False
) -> AsyncGenerator[MessageStream]:
    """A stream that the scripted server accepts; it is closed without an answer."""
    stream = client.queue_stream("work", sub_id="s", auto_ack=auto_ack)
    await together(stream.open, lambda: accept(peer, opts))
    yield stream
    await stream.aclose()


@asynccontextmanager
async def failing_consumer(server: Server, *, with_store: bool) -> AsyncGenerator[Peer]:
    """A message was delivered to a handler that raises, with dead letters to `dead`."""
    store = MemoryPublishStore() if with_store else None
    async with Client("consumer", publish_store=store) as client:
        peer = await server.log_on(client)
        policy = DeadLetter("dead")
        await subscribed(client, peer, failing, "max_backlog=1", on_handler_error=policy)
        await leased(peer, 1)
        yield peer


# -- subscribing -------------------------------------------------------------------------------


@pytest.mark.row("QC1", "QC3", "QC4", "QC5", "QC6", "QC10")
async def test_a_third_of_the_granted_backlog_is_acknowledged_together(
    client: Client, peer: Peer
) -> None:
    seen: list[bytes] = []
    message = await subscribed(client, peer, lambda m: seen.append(m.data), max_backlog=30)
    assert message.options == "max_backlog=30"
    await leased(peer, 1, 2, 3, 4, 5)
    assert await received_acks(peer) == [("7|1|,7|2|,7|3|", "")]
    assert seen == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.row("QC5")
async def test_an_acknowledgement_waits_no_longer_than_the_timeout(
    client: Client, peer: Peer
) -> None:
    await subscribed(client, peer, lambda _: None)
    await leased(peer, 1)
    assert await received_acks(peer) == []
    await trio.sleep(0.5)
    await leased(peer, 2)
    assert await received_acks(peer) == []
    await trio.sleep(0.5)
    assert await received_acks(peer) == [("7|1|,7|2|", "")]
    await leased(peer, 3)
    await trio.sleep(1)
    assert await received_acks(peer) == [("7|3|", "")]


@pytest.mark.row("QC6")
@pytest.mark.parametrize("opts", ["max_backlog=2", ""])
async def test_a_batch_fits_into_a_small_or_unknown_backlog(
    client: Client, peer: Peer, opts: str
) -> None:
    await subscribed(client, peer, lambda _: None, opts=opts)
    await leased(peer, 1, 2)
    assert await received_acks(peer) == [("7|1|", ""), ("7|2|", "")]


@pytest.mark.row("QC5", "QC6")
async def test_a_wanted_batch_size_is_lowered_to_the_backlog(server: Server) -> None:
    async with Client("consumer", ack_batch_size=100, ack_timeout=60) as client:
        peer = await server.log_on(client)
        await subscribed(client, peer, lambda _: None, opts="max_backlog=4")
        await leased(peer, 1, 2, 3)
        assert await received_acks(peer) == []
        await leased(peer, 4)
        assert await received_acks(peer) == [("7|1|,7|2|,7|3|,7|4|", "")]


@pytest.mark.row("QC2")
async def test_a_backlog_of_1_is_warned_about_once(
    client: Client, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    await subscribed(client, peer, lambda _: None, opts="max_backlog=1")
    assert [r.getMessage() for r in caplog.records if "backlog 1" in r.getMessage()] == [
        (
            "the queue work sends one message at a time (backlog 1): its consumer waits for the "
            "server after each one; ask for max_backlog=2 or more, and allow it at the server"
        )
    ]
    await together(
        lambda: client.replace("s", filter="/a = 1"),
        lambda: peer.answer("subscribe", opts="max_backlog=1"),
    )
    assert len(caplog.records) == 1


@pytest.mark.row("QC1", "QC6")
async def test_a_replace_may_change_the_backlog(client: Client, peer: Peer) -> None:
    await subscribed(client, peer, lambda _: None, opts="max_backlog=1")
    await together(
        lambda: client.replace("s", options="max_backlog=6"),
        lambda: peer.answer("subscribe", opts="max_backlog=6"),
    )
    await leased(peer, 1, 2, 3)
    assert await received_acks(peer) == [("7|1|,7|2|", "")]


async def test_a_refused_queue_has_no_handler(client: Client, peer: Peer) -> None:
    async def refuse() -> None:
        await peer.refuse(await peer.expect("subscribe"), "invalid topic")

    with pytest.raises(InvalidTopic):
        await together(lambda: client.queue_subscribe("work", handler=print), refuse)


async def test_a_server_that_knows_no_such_queue_is_asked_for_its_name(
    client: Client, peer: Peer
) -> None:
    async def refuse() -> None:
        await peer.refuse(await peer.expect("subscribe"), "invalid options")

    for consume in (
        lambda: client.queue_subscribe("no-queue", handler=print),
        lambda: client.queue_stream("no-queue").open(),
    ):
        with pytest.raises(
            InvalidOptions, match="invalid options: is 'no-queue' a queue"
        ) as refused:
            await together(consume, refuse)
        assert refused.value.reason == "invalid options"
    # Another kind of subscription has no backlog that could be the cause.
    with pytest.raises(InvalidOptions, match=r"invalid options$"):
        await together(lambda: client.subscribe("no-queue", handler=print), refuse)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"options": "max_backlog=3"}, "max_backlog=3"),
        ({"max_backlog": 0}, "max_backlog is a whole number of at least 1"),
        ({"workers": 0}, "workers is a whole number of at least 1"),
        ({"expire_after": 0}, "expire_after is a whole number of at least 1"),
        ({"on_handler_error": "ignore"}, "not 'ignore'"),
        ({"on_handler_error": 7}, "not 7"),
        ({"extend_lease": 0}, "a number of seconds, above 0"),
        ({"handler": None}, "handler is a function, not None"),
    ],
)
async def test_what_can_never_work_is_refused(
    client: Client, peer: Peer, options: dict[str, object], wanted: str
) -> None:
    with pytest.raises(UsageError, match=wanted):
        await client.queue_subscribe("work", **{"handler": print, **options})  # type: ignore[arg-type]  # on purpose
    assert peer.heard[1:] == []


@pytest.mark.parametrize("options", [{"ack_batch_size": 0}, {"ack_timeout": -1}])
def test_what_can_never_work_makes_no_client(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        Client("c", **options)  # type: ignore[arg-type]  # on purpose


# -- message.ack() -----------------------------------------------------------------------------


@pytest.mark.row("QC7")
async def test_cancel_and_expire_are_sent_at_once_after_what_was_collected(
    client: Client, peer: Peer
) -> None:
    async def handler(message: Message) -> None:
        match message.data:
            case b"2":
                message.ack(cancel=True)
            case b"4":
                message.ack(expire=True)
            case _:
                message.ack()

    await subscribed(client, peer, handler, opts="max_backlog=30", auto_ack=False)
    await leased(peer, 1, 2, 3, 4, 5)
    assert await received_acks(peer) == [
        ("7|1|", ""),
        ("7|2|", "cancel"),
        ("7|3|", ""),
        ("7|4|", "expire"),
    ]


@pytest.mark.row("QC3", "QC7")
async def test_a_second_acknowledgement_does_nothing(client: Client, peer: Peer) -> None:
    async with opened_queue(client, peer) as stream:
        await leased(peer, 1, 2)
        for message in (await anext(stream), await anext(stream)):
            message.ack(cancel=True)
            message.ack(cancel=True)
            message.ack()
            message.ack(expire=True)
            assert message.lease is None
            assert message.lease_deadline is None
            message.extend_lease(5)
        with pytest.raises(UsageError, match="not both"):
            message.ack(cancel=True, expire=True)
        assert await received_acks(peer) == [("7|1|", "cancel"), ("7|2|", "cancel")]


@pytest.mark.row("QC3", "QC10")
async def test_a_block_acknowledges_a_message_only_when_it_succeeds(
    client: Client, peer: Peer
) -> None:
    async with opened_queue(client, peer, "max_backlog=2") as stream:
        await leased(peer, 1, 2)
        with pytest.raises(ZeroDivisionError), await anext(stream) as message:
            raise ZeroDivisionError
        assert message.lease is not None
        with await anext(stream):
            pass
        assert await received_acks(peer) == [("7|2|", "")]


@pytest.mark.row("QC10")
async def test_a_stream_acknowledges_a_message_when_the_next_one_is_asked_for(
    client: Client, peer: Peer
) -> None:
    async with opened_queue(client, peer, "max_backlog=2", auto_ack=True) as stream:
        await leased(peer, 1, 2)
        await anext(stream)
        assert await received_acks(peer) == []
        await anext(stream)
        assert await received_acks(peer) == [("7|1|", "")]
        with trio.move_on_after(1):
            await anext(stream)
        assert await received_acks(peer) == [("7|2|", "")]
        await leased(peer, 3)
        await anext(stream)
    assert (await peer.hear()).command == "unsubscribe", "the last one is not acknowledged"


@pytest.mark.row("QC10")
async def test_each_task_acknowledges_what_it_has_taken_itself(client: Client, peer: Peer) -> None:
    async with opened_queue(client, peer, "max_backlog=1", auto_ack=True) as stream:
        await leased(peer, 1, 2, 3)
        slow, goes_on = await anext(stream), trio.Event()

        async def other() -> None:
            await anext(stream)
            await anext(stream)
            assert await received_acks(peer) == [("7|2|", "")]
            goes_on.set()
            await trio.sleep_forever()

        async with open_nursery() as nursery:
            nursery.start_soon(other)
            await goes_on.wait()
            assert slow.lease is not None
            with trio.move_on_after(1):
                await anext(stream)
            assert await received_acks(peer) == [("7|1|", "")]
            nursery.cancel_scope.cancel()


async def test_a_task_that_takes_one_message_only_is_reported_once(
    client: Client, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_queue(client, peer, "max_backlog=3", auto_ack=True) as stream:
        await leased(peer, 1, 2, 3)

        async def take_one() -> None:
            await anext(stream)

        for _ in range(3):
            async with open_nursery() as nursery:
                nursery.start_soon(take_one)
        assert await received_acks(peer) == []
    warnings = [text for text in caplog.messages if "auto_ack" in text]
    assert len(warnings) == 1
    assert "call message.ack(), or take all messages in one task" in warnings[0]


@pytest.mark.row("QC10", "MS9")
async def test_a_list_of_messages_is_acknowledged_when_the_next_is_asked_for(
    client: Client, peer: Peer
) -> None:
    async with opened_queue(client, peer, "max_backlog=9", auto_ack=True) as stream:
        batches = stream.batches()
        await leased(peer, 1, 2, 3)
        await wait_all_tasks_blocked()
        taken = await anext(batches)
        while len(taken) < 3:
            taken += await anext(batches)
        assert [m.data for m in taken] == [b"1", b"2", b"3"]
        with trio.move_on_after(5):
            await anext(batches)
        assert [b for each, _ in await received_acks(peer) for b in each.split(",")] == [
            "7|1|",
            "7|2|",
            "7|3|",
        ]


@pytest.mark.row("QC3")
async def test_what_was_collected_leaves_before_the_unsubscribe(client: Client, peer: Peer) -> None:
    async with opened_queue(client, peer) as stream:
        await leased(peer, 1)
        message = await anext(stream)
        message.ack()
    await peer.expect("sow_delete", bookmark="7|1|")
    await peer.expect("unsubscribe")


@pytest.mark.row("QC3")
async def test_a_message_of_no_queue_has_nothing_to_acknowledge(client: Client, peer: Peer) -> None:
    Message(topic="work", bookmark="7|1|", lease_period=LEASE).ack()
    async with answering(peer), client.stream("orders", sub_id="o") as stream:
        await peer.publish("o", b"a", bm="7|1|")
        message = await anext(stream)
        message.ack()
        message.extend_lease(3)
        assert message.lease_deadline is None
    assert "sow_delete" not in [m.command for m in peer.heard]


@pytest.mark.row("QC1", "QC3")
async def test_an_ordinary_subscription_to_a_queue_acknowledges_too(
    client: Client, peer: Peer
) -> None:
    await together(
        lambda: client.subscribe("work", handler=lambda m: m.ack(), sub_id="s"),
        lambda: accept(peer, "max_backlog=2"),
    )
    await leased(peer, 1)
    assert await received_acks(peer) == [("7|1|", "")]


@pytest.mark.row("QC11")
@pytest.mark.parametrize(("policy", "option"), [("continue", "cancel"), ("discard", "expire")])
async def test_an_ordinary_subscription_returns_what_its_handler_could_not_process(
    server: Server, policy: HandlerErrorPolicy, option: str
) -> None:
    async with Client("consumer", on_handler_error=policy) as client:
        peer = await server.log_on(client)
        await together(
            lambda: client.subscribe("work", handler=failing, sub_id="s"),
            lambda: accept(peer, "max_backlog=2"),
        )
        await leased(peer, 1)
        with trio.move_on_after(0.2):
            await trio.sleep_forever()
        assert await received_acks(peer) == [("7|1|", option)]


@pytest.mark.row("QC9")
async def test_an_at_most_once_message_is_acknowledged_without_a_lease(
    client: Client, peer: Peer
) -> None:
    deadlines: list[float | None] = []
    await subscribed(client, peer, lambda m: deadlines.append(m.lease_deadline), "max_backlog=1")
    await leased(peer, 1, lp="")
    assert await received_acks(peer) == [("7|1|", "")]
    assert deadlines == [None]


@pytest.mark.row("QC7")
async def test_a_refused_acknowledgement_is_logged(
    client: Client, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    await subscribed(client, peer, lambda _: None, "max_backlog=1")
    await leased(peer, 1)
    await peer.refuse(await peer.expect("sow_delete"), "not entitled")
    await wait_all_tasks_blocked()
    assert (
        "the acknowledgement on 'work': not entitled: the messages may be redelivered"
        in caplog.text
    )
    assert client._core.queue_acks.is_idle


@pytest.mark.row("QC3", "MS10")
async def test_a_regular_expression_acknowledges_each_message_on_its_own_queue(
    client: Client, peer: Peer
) -> None:
    await subscribed(client, peer, lambda _: None, "max_backlog=6")
    await leased(peer, 1, topic="a")
    await leased(peer, 2, topic="b")
    first, second = await peer.expect("sow_delete"), await peer.expect("sow_delete")
    assert (first.topic, first.bookmark) == ("a", "7|1|")
    assert (second.topic, second.bookmark) == ("b", "7|2|")


# -- handlers that raise -----------------------------------------------------------------------


def failing(message: Message) -> None:
    raise ValueError(message.text)


@pytest.mark.row("QC11")
@pytest.mark.parametrize("word", ["cancel", "continue"])
async def test_a_failed_message_is_given_back_later_and_later(
    client: Client, peer: Peer, word: str
) -> None:
    await subscribed(client, peer, failing, "max_backlog=1", on_handler_error=word)
    for delay in (0.1, 0.2, 0.4, 0.8):
        await leased(peer, 1, lp="1h")
        began = trio.current_time()
        await peer.ack(await peer.expect("sow_delete", bookmark="7|1|", options="cancel"))
        assert trio.current_time() - began == pytest.approx(delay)


@pytest.mark.row("QC11")
async def test_the_message_of_a_handler_that_was_cut_short_is_given_back(
    client: Client, peer: Peer
) -> None:
    """The application has cancelled the handler's task; the client and its leases go on."""

    def cut_short(_: Message) -> None:
        raise ShuttingDown("the task of the callback was cancelled")

    await subscribed(client, peer, cut_short, "max_backlog=1", on_handler_error="expire")
    await leased(peer, 1, lp="1h")
    await peer.ack(await peer.expect("sow_delete", bookmark="7|1|", options="cancel"))


@pytest.mark.row("QC11")
async def test_a_failed_message_delays_no_other(client: Client, peer: Peer) -> None:
    def handler(message: Message) -> None:
        if message.data == b"1":
            failing(message)

    await subscribed(client, peer, handler, "max_backlog=2")
    await leased(peer, 1, 2)
    assert await received_acks(peer) == [("7|2|", "")]
    await trio.sleep(0.1)
    assert await received_acks(peer) == [("7|1|", "cancel")]


@pytest.mark.row("QC11")
async def test_a_message_that_has_failed_often_enough_is_expired(
    client: Client, peer: Peer
) -> None:
    await subscribed(client, peer, failing, "max_backlog=1", expire_after=3)
    for option in ("cancel", "cancel", "expire", "cancel"):
        await leased(peer, 1)
        await peer.ack(await peer.expect("sow_delete", options=option))


@pytest.mark.row("QC11")
@pytest.mark.parametrize("word", ["expire", "discard"])
async def test_a_failed_message_may_be_expired_at_once(
    client: Client, peer: Peer, word: str
) -> None:
    await subscribed(client, peer, failing, on_handler_error=word)
    await leased(peer, 1)
    assert await received_acks(peer) == [("7|1|", "expire")]


@pytest.mark.row("QC11")
async def test_an_error_may_leave_the_block_and_acknowledges_nothing(server: Server) -> None:
    def handler(message: Message) -> None:
        if message.data == b"2":
            failing(message)

    async def consume() -> None:
        async with Client("consumer", ack_timeout=60) as client:
            peer = await server.log_on(client)
            await subscribed(client, peer, handler, on_handler_error="raise")
            await leased(peer, 1, 2)
            await trio.sleep(10)

    with pytest.raises(ValueError, match="2"):
        await consume()
    await server.peers[0].expect("sow_delete", bookmark="7|1|", options="")
    await server.peers[0].expect_end()


@pytest.mark.row("QC11")
async def test_a_callable_decides_and_what_it_leaves_is_given_back(
    client: Client, peer: Peer
) -> None:
    async def policy(message: Message, error: Exception) -> None:
        assert str(error) == message.text
        if message.data == b"1":
            message.ack()
        elif message.data == b"2":
            message.ack(expire=True)

    await subscribed(client, peer, failing, "max_backlog=1", on_handler_error=policy)
    await leased(peer, 1, 2, 3)
    assert await received_acks(peer) == [("7|1|", ""), ("7|2|", "expire")]
    await trio.sleep(0.1)
    assert await received_acks(peer) == [("7|3|", "cancel")]


@pytest.mark.row("QC11")
@pytest.mark.parametrize("with_store", [True, False])
async def test_a_dead_letter_is_persisted_before_its_message_is_acknowledged(
    server: Server, *, with_store: bool
) -> None:
    async with failing_consumer(server, with_store=with_store) as peer:
        copy = await peer.expect("publish", topic="dead", data=b"1")
        context = DeadLetter.context(copy)
        assert (context["queue"], context["bookmark"], context["failures"]) == ("work", "7|1|", 1)
        assert (context["error"], context["error_text"]) == ("ValueError", "1")
        await trio.sleep(1)
        await peer.persisted(copy.sequence or 0)
        await peer.ack(await peer.expect("sow_delete", bookmark="7|1|", options=""))


@pytest.mark.row("QC11")
@pytest.mark.parametrize("with_store", [True, False])
async def test_a_refused_dead_letter_leaves_its_message_in_the_queue(
    server: Server, *, with_store: bool
) -> None:
    async with failing_consumer(server, with_store=with_store) as peer:
        copy = await peer.expect("publish", topic="dead")
        sequence = copy.sequence or 0
        await peer.ack(None, "persisted", s=sequence, status="failure", reason="not entitled")
        await peer.ack(await peer.expect("sow_delete", bookmark="7|1|", options="cancel"))


@pytest.mark.row("QC11")
async def test_a_dead_letter_that_is_not_persisted_in_time_says_so(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with failing_consumer(server, with_store=True) as peer:
        copy = await peer.expect("publish", topic="dead")
        await peer.ack(await peer.expect("sow_delete", bookmark="7|1|", options="cancel"))
        assert (
            f"is given back: the publish to 'dead': {copy.sequence} is not persisted after 10 s"
            in caplog.text
        )
        await peer.persisted(copy.sequence or 0)


# -- leases ------------------------------------------------------------------------------------


@pytest.mark.row("QC12")
@pytest.mark.parametrize(("opts", "lp"), [("max_backlog=9,lease=30.0", LEASE), ("", "30s")])
async def test_the_end_of_a_lease_is_told_on_the_programs_clock(
    client: Client, peer: Peer, opts: str, lp: str
) -> None:
    async with opened_queue(client, peer, opts) as stream:
        await leased(peer, 1, lp=lp)
        await wait_all_tasks_blocked()
        received = trio.current_time()
        await trio.sleep(10)
        message = await anext(stream)
        assert message.lease_deadline == pytest.approx(received + 30)


@pytest.mark.row("QC12")
async def test_a_time_that_cannot_be_right_is_warned_about_once_and_not_enforced(
    client: Client, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    deadlines: list[float | None] = []
    await subscribed(
        client,
        peer,
        lambda m: deadlines.append(m.lease_deadline),
        "max_backlog=1",
        cancel_at_lease_end=True,
    )
    caplog.clear()
    await leased(peer, 1, 2)  # by the clock of this machine it ended years ago
    assert await received_acks(peer) == [("7|1|", ""), ("7|2|", "")]
    assert deadlines == [None, None]
    assert [record.getMessage() for record in caplog.records] == [
        (
            "the leases of the queue work end at times that cannot be right: compare the clocks of "
            "this machine and of the server; lease deadlines are not enforced"
        )
    ]


@pytest.mark.row("QC12")
async def test_a_handler_may_be_cancelled_when_its_lease_ends(
    client: Client, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(message: Message) -> None:
        await trio.sleep(float(message.text))

    await subscribed(client, peer, handler, "max_backlog=3", cancel_at_lease_end=True)
    await leased(peer, 5, 15, 1, lp="10s")
    began = trio.current_time()
    await trio.lowlevel.checkpoint()
    await peer.expect("sow_delete", bookmark="7|5|")
    await trio.sleep(60)
    assert await received_acks(peer) == [], "the others were given to another consumer meanwhile"
    assert caplog.text.count("ended before it was processed") == 2
    assert trio.current_time() - began == pytest.approx(65)


@pytest.mark.row("QC12")
async def test_a_call_that_is_cut_by_the_end_of_a_lease_is_no_failure_of_its_handler(
    client: Client, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler in a thread cannot be cancelled: its call of the client raises."""

    async def handler(message: Message) -> None:
        if message.text == "2":
            raise DisconnectedError("nobody answers")
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise DisconnectedError("iterating was cancelled") from None

    await subscribed(client, peer, handler, cancel_at_lease_end=True, expire_after=1)
    await leased(peer, 1, lp="10s")
    await trio.sleep(11)
    assert await received_acks(peer) == [], "it was given to another consumer"
    assert "ended before it was processed" in caplog.text
    await leased(peer, 2, lp="10s")
    assert await received_acks(peer) == [("7|2|", "expire")]


@pytest.mark.row("QC13")
async def test_a_lease_may_be_extended(client: Client, peer: Peer) -> None:
    async with opened_queue(client, peer, "max_backlog=30") as stream:
        await leased(peer, 1, 2, lp="10s")
        first, second = await anext(stream), await anext(stream)
        second.ack()
        with pytest.raises(UsageError, match="a number of seconds, above 0"):
            first.extend_lease(0)
        first.extend_lease(60)
        assert await received_acks(peer) == [("7|2|", ""), ("7|1|", "lease_extension=60s")]
        now = trio.current_time()
        assert first.lease_deadline == pytest.approx(now + 60)
        first.extend_lease(1)
        assert first.lease_deadline == pytest.approx(now + 60), "never shortened"


@pytest.mark.row("QC12", "QC13")
async def test_a_message_that_comes_again_has_a_lease_of_its_own(
    client: Client, peer: Peer
) -> None:
    calls: list[float] = []

    async def handler(message: Message) -> None:
        calls.append(trio.current_time())
        if len(calls) == 1:
            message.extend_lease(12)
            await trio.sleep_forever()

    await subscribed(client, peer, handler, "max_backlog=1", cancel_at_lease_end=True)
    await leased(peer, 1, lp="10s")
    assert (await peer.hear()).options == "lease_extension=12s"
    await trio.sleep(12)
    await leased(peer, 1, lp="10s")
    await peer.expect("sow_delete", bookmark="7|1|", options="")
    assert calls[1] - calls[0] == pytest.approx(12, abs=0.1)


@pytest.mark.row("QC12", "QC13")
async def test_the_lease_is_extended_while_a_handler_works(client: Client, peer: Peer) -> None:
    async def handler(_: Message) -> None:
        await trio.sleep(35)

    await subscribed(
        client, peer, handler, "max_backlog=1", cancel_at_lease_end=True, extend_lease=20
    )
    await leased(peer, 1, lp="10s")
    began = trio.current_time()
    times: list[float] = []
    while (message := await peer.hear()).options:
        assert message.options == "lease_extension=20s"
        times.append(trio.current_time() - began)
        await peer.ack(message)
    assert times == pytest.approx([5, 15, 25, 35], abs=0.01) or times == pytest.approx([5, 15, 25])
    assert message.bookmark == "7|1|"
    assert trio.current_time() - began == pytest.approx(35)
    await trio.sleep(60)
    assert await received_acks(peer) == []


# -- workers -----------------------------------------------------------------------------------


@pytest.mark.row("QC19")
async def test_workers_share_the_messages_and_keep_the_order_of_each_key(
    client: Client, peer: Peer
) -> None:
    running: list[str] = []
    most: list[int] = []
    done: list[bytes] = []

    async def handler(message: Message) -> None:
        key = message.text[-1]
        assert key not in running, "one message of a key at a time"
        running.append(key)
        most.append(len(running))
        await trio.sleep(float(message.text[0]))
        running.remove(key)
        done.append(message.data)

    await subscribed(
        client, peer, handler, "max_backlog=9", workers=3, key=lambda m: m.text[-1], max_backlog=9
    )
    await leased(peer, 51, 12, 11, 13, 31, 22)
    await trio.sleep(20)
    assert max(most) == 3
    assert [b for b in done if b.endswith(b"1")] == [b"51", b"11", b"31"]
    assert [b for b in done if b.endswith(b"2")] == [b"12", b"22"]
    assert sorted(done) == [b"11", b"12", b"13", b"22", b"31", b"51"]


@pytest.mark.row("QC10", "CC22")
@pytest.mark.parametrize("workers", [1, 3])
async def test_a_replace_gives_the_messages_to_another_handler(
    client: Client, peer: Peer, workers: int
) -> None:
    first, second = list[str](), list[str]()
    await subscribed(client, peer, lambda m: first.append(m.text), workers=workers)
    await leased(peer, 1)
    await wait_all_tasks_blocked()
    await together(
        lambda: client.subscribe(
            "work",
            handler=lambda m: second.append(m.text),
            options=Options(replace=True),
            sub_id="s",
        ),
        lambda: accept(peer),
    )
    await leased(peer, 2)
    await wait_all_tasks_blocked()
    assert (first, second) == (["1"], ["2"])
    with trio.move_on_after(2):
        await trio.sleep_forever()
    assert await received_acks(peer) == [("7|1|,7|2|", "")]


@pytest.mark.row("QC19")
async def test_workers_without_a_key_take_what_comes(client: Client, peer: Peer) -> None:
    done: list[tuple[bytes, float]] = []
    began = trio.current_time()

    async def handler(message: Message) -> None:
        await trio.sleep(1)
        done.append((message.data, trio.current_time() - began))

    await subscribed(client, peer, handler, "max_backlog=4", workers=2)
    await leased(peer, 1, 2, 3, 4)
    await trio.sleep(10)
    assert [round(at) for _, at in done] == [1, 1, 2, 2]


@pytest.mark.row("QC19")
async def test_more_workers_than_the_backlog_are_warned_about(
    client: Client, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    await subscribed(client, peer, lambda _: None, "max_backlog=3", workers=4)
    await wait_all_tasks_blocked()
    assert "the queue work grants a backlog smaller than the number of workers" in caplog.text


@pytest.mark.row("QC11", "QC19")
async def test_a_key_that_fails_counts_as_a_failure(client: Client, peer: Peer) -> None:
    def key(message: Message) -> object:
        return {} if message.data == b"1" else message.json()

    await subscribed(
        client, peer, lambda _: None, "max_backlog=1", workers=2, key=key, on_handler_error="expire"
    )
    await leased(peer, 1, 2)
    assert sorted(await received_acks(peer)) == [("7|1|", "expire"), ("7|2|", "")]


@pytest.mark.row("QC19")
async def test_workers_finish_what_they_have_begun(client: Client, peer: Peer) -> None:
    done: list[bytes] = []

    async def handler(message: Message) -> None:
        await trio.sleep(1)
        done.append(message.data)

    await subscribed(client, peer, handler, "max_backlog=4", workers=2)
    await leased(peer, 1, 2)
    await wait_all_tasks_blocked()
    await together(lambda: client.unsubscribe("s"), lambda: peer.answer("unsubscribe"))
    await trio.sleep(2)
    assert sorted(done) == [b"1", b"2"]


@pytest.mark.row("QC10")
@pytest.mark.parametrize("workers", [1, 2])
async def test_what_an_unsubscribe_has_given_back_is_not_handled(
    client: Client, peer: Peer, workers: int
) -> None:
    done: list[bytes] = []

    async def handler(message: Message) -> None:
        await trio.sleep(1)
        done.append(message.data)
        if message.data == b"2":
            raise ValueError

    await subscribed(client, peer, handler, workers=workers)
    await leased(peer, *range(2, 7))
    await wait_all_tasks_blocked()
    await together(lambda: client.unsubscribe("s"), lambda: peer.answer("unsubscribe"))
    await trio.sleep(60)
    assert sorted(done) == [b"2", b"3"][:workers], "the others come to another consumer"
    assert await received_acks(peer) == [("7|3|", "")][: workers - 1], (
        "nor is anything given back twice"
    )


# -- explicit acknowledgements -----------------------------------------------------------------


@pytest.mark.row("QC4", "QC7")
async def test_messages_are_acknowledged_by_their_bookmarks(client: Client, peer: Peer) -> None:
    async def script() -> None:
        await peer.ack(await peer.expect("sow_delete", bookmark="7|1|,7|2|", options=""))
        await peer.ack(await peer.expect("sow_delete", bookmark="7|3|", options="cancel"))

    async def acknowledge() -> None:
        await client.ack("work", [])
        await client.ack("work", ["7|1|", "7|2|"])
        await client.ack("work", "7|3|", cancel=True)

    await together(acknowledge, script)
    for nonsense in ("", "nonsense", "7|1|,now", "20240321T221052Z"):
        with pytest.raises(UsageError):
            await client.ack("work", [nonsense])
    with pytest.raises(UsageError, match="exclude"):
        await client.ack("work", "7|1|", cancel=True, expire=True)


@pytest.mark.row("QC8")
async def test_messages_are_acknowledged_by_a_filter_and_counted(
    client: Client, peer: Peer
) -> None:
    async def script() -> None:
        message = await peer.expect("sow_delete", filter="/id > 3", options="expire", bookmark="")
        assert message.ack_type == "processed,stats"
        await peer.ack(message)
        await peer.ack(message, "stats", records_deleted=4)

    count, _ = await together(lambda: client.ack_matching("work", "/id > 3", expire=True), script)
    assert count == 4
    with pytest.raises(UsageError, match="needs a filter"):
        await client.ack_matching("work", "")

    async def refuse() -> None:
        await peer.refuse(await peer.expect("sow_delete"), "not entitled")

    with pytest.raises(NotEntitled):
        await together(lambda: client.ack_matching("work", "1=1"), refuse)


@pytest.mark.row("QC3", "QC14")
async def test_no_acknowledgement_is_in_the_publish_store(server: Server) -> None:
    store = MemoryPublishStore()
    async with Client("consumer", publish_store=store) as client:
        peer = await server.log_on(client)
        await subscribed(client, peer, lambda _: None, "max_backlog=1")
        await leased(peer, 1)
        assert await received_acks(peer) == [("7|1|", "")]
        async with answering(peer):
            await client.ack("work", "7|2|")
            command = Command("sow_delete", topic="work", bookmark="7|3|", options="cancel")
            assert await client.execute_async(command) == ""
        assert [m.sequence for m in peer.heard if m.command == "sow_delete"] == [None] * 3
        assert client.unpersisted_count == 0


@pytest.mark.row("QC5")
async def test_flush_acks_waits_for_the_server(client: Client, peer: Peer) -> None:
    await client.flush_acks()  # nothing to wait for
    async with opened_queue(client, peer) as stream:
        await leased(peer, 1)
        (await anext(stream)).ack()

        async def script() -> None:
            ack = await peer.expect("sow_delete", bookmark="7|1|")
            flush = await peer.expect("flush")
            await trio.sleep(1)
            await peer.ack(ack)
            await peer.ack(flush)

        began = trio.current_time()
        await together(client.flush_acks, script)
        assert trio.current_time() - began == pytest.approx(1)
        await leased(peer, 2)
        (await anext(stream)).ack()
        with pytest.raises(TimedOut):
            await client.flush_acks(timeout=1)
        peer.link.close()
        with pytest.raises(DisconnectedError):
            await client.flush_acks()


@pytest.mark.row("QC5")
async def test_leaving_the_block_sends_what_was_collected_and_waits_for_it(server: Server) -> None:
    async with open_nursery() as nursery, Client("consumer", ack_timeout=60) as client:
        peer = await server.log_on(client)
        await subscribed(client, peer, lambda _: None)
        await leased(peer, 1)
        await wait_all_tasks_blocked()
        nursery.start_soon(_answer_all, peer)
    assert [(m.command, m.bookmark) for m in peer.heard[2:]] == [
        ("sow_delete", "7|1|"),
        ("flush", ""),
    ]


async def _answer_all(peer: Peer) -> None:
    while (message := await peer.hear_or_end()) is not None:
        await peer.ack(message)


@pytest.mark.row("QC5")
async def test_leaving_warns_of_what_the_server_does_not_take(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client("consumer", ack_timeout=60, exit_timeout=3) as client:
        peer = await server.log_on(client)
        await subscribed(client, peer, lambda _: None)
        await leased(peer, 1)
        await wait_all_tasks_blocked()
        began = trio.current_time()
    assert trio.current_time() - began == pytest.approx(3)
    assert "leaves with unacknowledged messages" in caplog.text


# -- queues and bookmarks ----------------------------------------------------------------------


@pytest.mark.row("QC16")
async def test_a_bookmark_store_logs_nothing_of_a_queue(server: Server) -> None:
    store = MemoryBookmarkStore()
    async with Client("consumer", bookmark_store=store) as client:
        peer = await server.log_on(client)
        message = await subscribed(client, peer, lambda _: None, "max_backlog=1")
        assert "persisted" not in message.ack_type
        await leased(peer, 1, 1)
        assert await received_acks(peer) == [("7|1|", ""), ("7|1|", "")], (
            "a redelivery is no duplicate"
        )
        assert not store.is_discarded("s", "7|1|")


@pytest.mark.row("QC16")
async def test_a_bookmark_on_a_queue_is_warned_about_once_where_it_can_be_known(
    client: Client, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    await subscribed(client, peer, lambda _: None)
    async with answering(peer):
        for sub_id, topic, options in (
            ("b1", "work", ""),
            ("b2", "work", ""),
            ("b3", "other", "max_backlog=3"),
            ("b4", "plain", ""),
        ):
            await client.bookmark_subscribe(
                topic, sub_id=sub_id, handler=print, bookmark=EPOCH, options=options
            )
    warned = [r.getMessage() for r in caplog.records if "replays the log" in r.getMessage()]
    assert [text.split(" on ")[0] for text in warned] == ["subscription b1", "subscription b3"]


@pytest.mark.row("QC18")
async def test_a_query_of_a_queue_browses_it(client: Client, peer: Peer) -> None:
    async def script() -> None:
        query = await peer.expect("sow", topic="work")
        await peer.ack(query)
        await peer.say("group_begin", query_id=query.query_id)
        for number in (1, 2):
            fields = {"t": "work", "query_id": query.query_id, "bm": f"7|{number}|"}
            await peer.say("sow", b"%d" % number, **fields)
        await peer.say("group_end", query_id=query.query_id)
        await peer.ack(query, "completed")
        await peer.ack(await peer.expect("sow_delete", bookmark="7|1|"))

    async def browse() -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        async with client.sow("work") as stream:
            async for message in stream:
                message.ack()  # nothing is leased
                found.append((message.bookmark, message.data))
        await client.ack("work", found[0][0])
        return found

    found, _ = await together(browse, script)
    assert found == [("7|1|", b"1"), ("7|2|", b"2")]


# -- a lost link -------------------------------------------------------------------------------


@pytest.mark.row("QC14")
async def test_a_stream_ends_with_its_link_and_drops_what_comes_again(
    server: Server, client: Client, peer: Peer
) -> None:
    async with opened_queue(client, peer) as stream:
        await leased(peer, 1, 2, 3)
        await wait_all_tasks_blocked()
        first = await anext(stream)
        first.ack()
        peer.link.close()
        await wait_all_tasks_blocked()
        assert [m.data async for m in stream] == []
        assert isinstance(stream.end_reason, DisconnectedError)
    peer = await server.log_on(client)
    await wait_all_tasks_blocked()
    async with opened_queue(client, peer) as stream:  # now its acknowledgement is sent again
        await leased(peer, 1, 2)
        assert (await anext(stream)).data == b"2", "the first one was processed"
        assert await received_acks(peer) == [("7|1|", "")]
        await trio.sleep(1)
        assert await received_acks(peer) == [("7|1|", "")], "the copy has a lease of its own"
