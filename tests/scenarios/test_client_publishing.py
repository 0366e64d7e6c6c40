"""Publishing as the server sees it: log on, publish, ack, refuse, lose the link, replay."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.errors import DisconnectedError, PublishFailed, StoreError, TimedOut, UsageError
from haclient.protocol.messages import Message
from haclient_stores.interfaces import PublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import close_link, listening, together

pytestmark = in_virtual_time


@pytest.mark.row("CC2", "CC6", "PS4", "PS5", "PS14", "X8")
async def test_connect_log_on_publish_ack(store: PublishStore) -> None:
    async with listening() as server, Client("pub", publish_store=store) as client:
        peer = await server.log_on(client)
        for body in (b"a", "b\N{EURO SIGN}", memoryview(b"c")):
            await client.publish("orders", body)
        heard = [await peer.expect("publish", ack_type="persisted") for _ in range(3)]
        assert [each.data for each in heard] == [b"a", "b\N{EURO SIGN}".encode(), b"c"]
        first = heard[0].sequence or 0
        assert [each.sequence for each in heard] == [first, first + 1, first + 2]
        await peer.persisted(first + 1)
        await wait_all_tasks_blocked()
        assert client.unpersisted_count == 1
        await peer.persisted(first + 2)
        await client.publish_flush(timeout=1)
        assert client.unpersisted_count == 0


@pytest.mark.row("CC6", "PS4")
async def test_without_a_store_a_publish_has_a_number_and_asks_for_an_ack_as_well() -> None:
    async with listening() as server, Client("pub") as client:
        with pytest.raises(DisconnectedError, match="there is no publish store to keep it"):
            await client.publish("orders", b"early")
        with pytest.raises(DisconnectedError, match="there is no publish store to keep it"):
            client.publish_nowait("orders", b"early")
        peer = await server.log_on(client)
        first = await client.publish("orders", b"a")
        assert client.publish_nowait("orders", b"b") == first + 1
        await peer.expect("publish", sequence=first, ack_type="persisted", data=b"a")
        await peer.expect("publish", sequence=first + 1, ack_type="persisted", data=b"b")
        await peer.persisted(first + 1)
        await client.publish_flush(timeout=1)
        assert client.unpersisted_count == 0


@pytest.mark.row("CC7")
@pytest.mark.parametrize("with_store", [True, False])
async def test_delta_publish_and_the_other_header_fields(with_store: bool) -> None:  # noqa: FBT001  # a parameter
    made = MemoryPublishStore() if with_store else None
    async with listening() as server, Client("pub", publish_store=made) as client:
        peer = await server.log_on(client)
        await client.publish("orders", b"d", delta=True)
        await client.publish("orders", b"p", expiration=5, correlation_id="abc", sow_key="k")
        await peer.expect("delta_publish", topic="orders", data=b"d")
        await peer.expect("publish", expiration=5, correlation_id="abc", sow_key="k", data=b"p")


@pytest.mark.row("PS7", "PS8", "PS10")
async def test_after_a_lost_link_the_rest_is_replayed_in_order_before_anything_new(
    store: PublishStore,
) -> None:
    async with listening() as server, Client("pub", publish_store=store) as client:
        peer = await server.log_on(client)
        for number in range(6):
            await client.publish("orders", b"%d" % number)
        first, *_ = await peer.sequences(6)
        await close_link(client, peer)
        await client.publish("orders", b"meanwhile")
        again = await server.log_on(client, seen=first + 3, persisted=first + 1)
        await client.publish("orders", b"new")
        assert await again.sequences(6) == [first + n for n in (2, 3, 4, 5, 6, 7)]
        assert [message.data for message in again.heard[-6:]] == [
            b"2",
            b"3",
            b"4",
            b"5",
            b"meanwhile",
            b"new",
        ]
        assert all(message.ack_type == "persisted" for message in again.heard[1:])


@pytest.mark.row("PS8")
async def test_numbers_go_on_above_what_the_server_has_seen(store: PublishStore) -> None:
    async with listening() as server, Client("pub", publish_store=store) as client:
        far = 2**61
        peer = await server.log_on(client, seen=far)
        assert await client.publish("orders", b"a") == far + 1
        await peer.expect("publish", sequence=far + 1)


@pytest.mark.row("PS7")
async def test_a_frame_that_was_half_sent_is_sent_again_whole(store: PublishStore) -> None:
    async with listening() as server, Client("pub", publish_store=store) as client:
        peer = await server.log_on(client)
        bodies = [bytes([65 + number]) * 60_000 for number in range(5)]
        for body in bodies:
            await client.publish("orders", body)
        await wait_all_tasks_blocked()
        await close_link(client, peer)
        again = await server.log_on(client)
        await client.publish("orders", b"new")
        heard = [(await again.expect("publish")).data for _ in range(6)]
        assert heard == [*bodies, b"new"]


@pytest.mark.row("PS7")
async def test_an_ack_for_all_in_the_middle_of_the_replay_holds_no_command_up() -> None:
    made = MemoryPublishStore(segment_bytes=2**15)
    async with listening() as server, Client("pub", publish_store=made) as client:
        peer = await server.log_on(client)

        async def publish() -> None:
            for _ in range(30):
                await client.publish("orders", bytes(30_000))

        await together(publish, lambda: peer.sequences(30))
        await close_link(client, peer)
        again = await server.log_on(client, seen=made.last_sequence, persisted=0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.flush)
            await wait_all_tasks_blocked()
            await again.persisted(made.last_sequence)
            await wait_all_tasks_blocked()
            while (message := await again.hear()).command != "flush":
                pass
            await again.ack(message)


@pytest.mark.row("PS6", "CC37", "CC29")
async def test_a_refused_publish_is_told_and_the_run_around_it_goes_on(store: PublishStore) -> None:
    failed: list[tuple[bytes, str, str, int | None]] = []

    def on_failed_write(message: Message, reason: str) -> None:
        failed.append((message.data, message.topic, reason, message.sequence))

    async with (
        listening() as server,
        Client("pub", publish_store=store, on_failed_write=on_failed_write) as client,
    ):
        peer = await server.log_on(client)
        for number in range(1, 6):
            await client.publish("orders", b"%d" % number)
        first, *_ = await peer.sequences(5)
        await peer.persisted(first + 1)
        await peer.ack(None, "persisted", status="failure", reason="not entitled", s=first + 2)
        await wait_all_tasks_blocked()
        assert failed == [(b"3", "orders", "not entitled", first + 2)]
        assert store.lowest_unpersisted == first + 3
        await peer.persisted(first + 4)
        await client.publish_flush(timeout=1)


@pytest.mark.row("PS6")
@pytest.mark.parametrize("together_", [True, False])
async def test_a_refusal_is_the_last_word_even_when_acks_before_it_come_late(
    store: PublishStore,
    together_: bool,  # noqa: FBT001  # a parameter
) -> None:
    failed: list[int] = []
    async with (
        listening() as server,
        Client(
            "pub", publish_store=store, on_failed_write=lambda m, _: failed.append(m.sequence or 0)
        ) as client,
    ):
        peer = await server.log_on(client)
        for _ in range(3):
            await client.publish("orders", b"x")
        first, *_ = await peer.sequences(3)
        refused = {"status": "failure", "reason": "not entitled"}
        if together_:  # in one read: success up to the second, then the third is refused
            await peer.persisted(first + 1)
        await peer.ack(None, "persisted", **refused, s=first + 2)
        if not together_:
            await wait_all_tasks_blocked()
            await peer.persisted(first + 1)
        await client.publish_flush(timeout=1)
        await wait_all_tasks_blocked()
        assert failed == [first + 2]


@pytest.mark.row("PS6")
async def test_without_a_store_a_refusal_has_only_the_facts_of_its_ack() -> None:
    failed: list[tuple[int | None, str]] = []
    async with (
        listening() as server,
        Client("pub", on_failed_write=lambda m, why: failed.append((m.sequence, why))) as client,
    ):
        peer = await server.log_on(client)
        await peer.ack(None, "persisted", status="failure", reason="bad", s=3)
        await peer.ack(None, "persisted", status="failure", reason="worse")
        await wait_all_tasks_blocked()
        assert failed == [(3, "bad"), (None, "worse")]


async def test_waits_for_what_is_persisted_let_other_tasks_run(store: PublishStore) -> None:
    async with listening() as server, Client("p", publish_store=store) as client:
        peer = await server.log_on(client)
        sequence = await client.publish("orders", b"a")
        await peer.sequences(1)
        await peer.persisted(sequence)
        await client.wait_persisted(sequence)
        has_run = 0

        async def run() -> None:
            nonlocal has_run
            has_run += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await client.wait_persisted(sequence, timeout=0)
            await client.wait_persisted(sequence, timeout=0)
            assert has_run
        has_run = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await client.publish_flush(timeout=0)
            await client.publish_flush(timeout=0)
            assert has_run
        has_run = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await client.flush_acks(timeout=0)
            await client.flush_acks(timeout=0)
            assert has_run


@pytest.mark.row("PS6", "CC29")
async def test_a_refusal_that_comes_again_after_many_others_is_reported_once(
    store: PublishStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haclient.session.publishes._REMEMBERED_REFUSALS", 1_000)
    refused: list[bytes] = []
    async with (
        listening() as server,
        Client(
            "p", publish_store=store, on_failed_write=lambda m, _: refused.append(m.data)
        ) as client,
    ):
        peer = await server.log_on(client)
        count = 1_100  # more than are remembered
        for _ in range(count):
            await client.publish("orders", b"a")
        sequences = await peer.sequences(count)
        for sequence in (*sequences, *sequences[:100]):
            await peer.ack(None, "persisted", status="failure", s=sequence, reason="not entitled")
        await wait_all_tasks_blocked()
        assert refused == [b"a"] * count
        assert client.metrics.failed_writes == count


@pytest.mark.row("PS6")
async def test_each_of_many_tasks_is_told_that_its_publish_was_refused(store: PublishStore) -> None:
    count, refused = 1_500, list[int]()
    async with listening() as server, Client("p", publish_store=store) as client:
        peer = await server.log_on(client)

        async def publish(number: int) -> None:
            with pytest.raises(PublishFailed, match="not entitled"):
                await client.publish_persisted("orders", b"a", timeout=10)
            refused.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(publish, number)
            first, *others = await peer.sequences(count)
            for sequence in (*others, first):  # all are known only with the last one
                await peer.ack(
                    None, "persisted", status="failure", s=sequence, reason="not entitled"
                )
    assert len(refused) == count


@pytest.mark.row("PS6", "CC29")
async def test_without_a_store_a_refusal_that_comes_twice_is_reported_once_a_connection() -> None:
    failed: list[tuple[int | None, str]] = []
    async with (
        listening() as server,
        Client("pub", on_failed_write=lambda m, why: failed.append((m.sequence, why))) as client,
    ):
        peer = await server.log_on(client)
        for sequence in (3, 4):
            await client.publish("orders", b"a", sequence=sequence)
        for sequence in (3, 3, 4, 3):
            await peer.ack(None, "persisted", status="failure", reason="bad", s=sequence)
        await wait_all_tasks_blocked()
        assert failed == [(3, "bad"), (4, "bad")]
        assert client.metrics.failed_writes == 2
        await client.disconnect()
        peer = await server.log_on(client)  # where the same numbers may be published again
        await client.publish("orders", b"a", sequence=3)
        await peer.ack(None, "persisted", status="failure", reason="bad", s=3)
        await wait_all_tasks_blocked()
        assert failed == [(3, "bad"), (4, "bad"), (3, "bad")]


# -- waiting for the server ---------------------------------------------------------------


@pytest.mark.row("CC9", "PS15")
async def test_publish_flush_waits_for_what_was_published_before_it(store: PublishStore) -> None:
    async with listening() as server, Client("pub", publish_store=store) as client:
        peer = await server.log_on(client)
        await client.publish("orders", b"a")
        (first,) = await peer.sequences(1)

        async def script() -> None:
            await peer.expect("flush", ack_type="persisted")
            await client.publish("orders", b"later")
            await peer.persisted(first)

        await together(lambda: client.publish_flush(timeout=1), script)
        assert client.unpersisted_count == 1


@pytest.mark.row("CC9", "PS15")
async def test_publish_flush_gives_up_in_time_and_keeps_everything(store: PublishStore) -> None:
    async with listening() as server, Client("pub", publish_store=store) as client:
        await server.log_on(client)
        await client.publish("orders", b"a")
        start = trio.current_time()
        with pytest.raises(TimedOut, match=r"1 publishes are not persisted after 2\.5 s"):
            await client.publish_flush(timeout=2.5)
        assert trio.current_time() - start == pytest.approx(2.5)
        assert client.unpersisted_count == 1


@pytest.mark.row("CC9")
async def test_publish_flush_ends_with_the_connection(store: PublishStore) -> None:
    async with listening() as server, Client("pub", publish_store=store) as client:
        peer = await server.log_on(client)
        await client.publish("orders", b"a")

        async def script() -> None:
            await wait_all_tasks_blocked()
            peer.link.close()

        with pytest.raises(DisconnectedError, match="connect again"):
            await together(client.publish_flush, script)
        with pytest.raises(DisconnectedError, match="they stay in"):
            await client.publish_flush()


async def test_publish_flush_tells_of_what_was_lost_also_before_a_refused_publish() -> None:
    async with listening() as server, Client("pub", exit_timeout=0) as client:
        peer = await server.log_on(client)
        for body in (b"a", b"b", b"c"):
            await client.publish("orders", body)
        *_, last = await peer.sequences(3)
        await peer.ack(None, "persisted", status="failure", reason="no", s=last)

        async def flush() -> None:
            with pytest.raises(DisconnectedError, match="were not persisted and are lost"):
                await client.publish_flush(timeout=9)

        async def lose() -> None:
            await wait_all_tasks_blocked()
            peer.link.close()

        await together(flush, lose)
        with pytest.raises(PublishFailed):  # the last word about this one
            await client.wait_persisted(last)


@pytest.mark.row("CC9")
async def test_with_nothing_to_wait_for_there_is_no_wait() -> None:
    async with Client("pub", publish_store=MemoryPublishStore()) as client:
        await client.publish_flush()
        await client.publish_flush()


@pytest.mark.row("CC10")
async def test_flush_is_confirmed_by_the_server() -> None:
    async with listening() as server, Client("pub") as client:
        peer = await server.log_on(client)
        await together(client.flush, lambda: peer.answer("flush", bm="1|1|"))
        with pytest.raises(TimedOut, match=r"did not answer within 0\.5 s"):
            await client.flush(timeout=0.5)


@pytest.mark.row("PS6", "PS7")
async def test_a_publish_that_is_refused_again_after_a_reconnect_leaves_the_store(
    store: PublishStore,
) -> None:
    """The server refuses the second one before it acknowledges the first."""
    refused: list[int | None] = []
    async with (
        listening() as server,
        Client(
            "pub",
            publish_store=store,
            on_failed_write=lambda message, _: refused.append(message.sequence),
        ) as client,
    ):
        peer = await server.log_on(client)
        first, second = [await client.publish("orders", body) for body in (b"1", b"2")]
        await peer.ack(None, "persisted", status="failure", reason="not entitled", s=second)
        await wait_all_tasks_blocked()
        assert client.unpersisted_count == 2
        await close_link(client, peer)
        again = await server.log_on(client, seen=second, persisted=first)
        await again.ack(None, "persisted", status="failure", reason="not entitled", s=second)
        await client.publish_flush(timeout=1)
        with pytest.raises(PublishFailed, match="not entitled"):
            await client.wait_persisted(second, timeout=1)
        await wait_all_tasks_blocked()
        assert (client.unpersisted_count, refused) == (0, [second])


@pytest.mark.row("PS5")
@pytest.mark.parametrize("has_store", [False, True])
async def test_an_ack_above_what_was_published_reports_no_more_than_that(
    *, has_store: bool
) -> None:
    made = MemoryPublishStore() if has_store else None
    async with listening() as server, Client("pub", publish_store=made) as client:
        peer = await server.log_on(client)
        sequence = await client.publish("orders", b"a")
        await peer.persisted(sequence + 1000)
        await wait_all_tasks_blocked()
        assert client.persisted_sequence == sequence


@pytest.mark.row("CC8")
async def test_who_waits_for_one_publish_is_told_that_it_was_refused(store: PublishStore) -> None:
    async with listening() as server, Client("pub", publish_store=store) as client:
        peer = await server.log_on(client)
        good, bad = [await client.publish("orders", b"x") for _ in range(2)]
        assert good is not None
        assert bad is not None
        await peer.sequences(2)
        await peer.persisted(good)
        await peer.ack(None, "persisted", status="failure", reason="not entitled", s=bad)
        await client.wait_persisted(good, timeout=1)
        with pytest.raises(PublishFailed, match="not entitled") as refused:
            await client.wait_persisted(bad, timeout=1)
        assert refused.value.sequence == bad


@pytest.mark.row("CC8")
async def test_who_waits_for_one_publish_gives_up_in_time(store: PublishStore) -> None:
    async with listening() as server, Client("pub", publish_store=store) as client:
        peer = await server.log_on(client)
        sequence = await client.publish("orders", b"x")
        assert sequence is not None
        with pytest.raises(TimedOut, match="wait_persisted"):
            await client.wait_persisted(sequence, timeout=1)
        await peer.persisted(sequence)


@pytest.mark.row("PS8", "HA17")
async def test_what_is_published_before_the_first_logon_is_not_taken_for_a_duplicate() -> None:
    async with listening() as server, Client("pub", publish_store=MemoryPublishStore()) as client:
        early = await client.publish("orders", b"early")
        assert early is not None
        # A former run of this client, whose store was memory too, published up to here.
        peer = await server.log_on(client, seen=early - 1_000_000)
        heard = await peer.expect("publish")
        assert (heard.data, heard.sequence) == (b"early", early)
        await peer.persisted(early)


@pytest.mark.row("PS8")
async def test_what_the_server_would_take_for_a_duplicate_is_never_dropped_in_silence() -> None:
    made = MemoryPublishStore()
    async with listening() as server, Client("pub", publish_store=made) as client:
        early = await client.publish("orders", b"early")
        assert early is not None
        with pytest.raises(StoreError, match="log on before the first publish"):
            await server.log_on(client, seen=early + 1_000)  # our clock was set back
        assert made.unpersisted_count == 1


async def test_a_body_that_is_no_unicode_is_refused_before_anything_is_stored(
    store: PublishStore,
) -> None:
    async with listening() as server, Client("pub", publish_store=store, exit_timeout=0) as client:
        await server.log_on(client)
        with pytest.raises(UsageError, match="surrogate pair"):
            await client.publish("orders", "a\udc80")
        with pytest.raises(UsageError, match="surrogate pair"):
            client.publish_nowait("orders", "a\udc80")
        assert client.unpersisted_count == 0


@pytest.mark.row("PS6", "CC29")
async def test_a_refusal_that_comes_twice_is_reported_once(store: PublishStore) -> None:
    refused: list[tuple[bytes, str]] = []

    def note(message: Message, reason: str) -> None:
        refused.append((message.data, reason))

    async with (
        listening() as server,
        Client("pub", publish_store=store, on_failed_write=note) as client,
    ):
        peer = await server.log_on(client)
        await client.publish("orders", b"a")
        await client.publish("orders", b"b")
        first, second = await peer.sequences(2)
        for sequence in (first, first, second, first):
            await peer.ack(None, "persisted", status="failure", s=sequence, reason="not entitled")
        await wait_all_tasks_blocked()
        assert refused == [(b"a", "not entitled"), (b"b", "not entitled")]
        assert client.metrics.failed_writes == 2
        assert client.unpersisted_count == 0


async def test_a_batch_without_a_message_can_be_waited_for() -> None:
    async with listening() as server, Client("p") as client:
        await server.log_on(client)
        sequence = await client.publish_many("orders", [])
        assert sequence == 0
        await client.wait_persisted(sequence)
