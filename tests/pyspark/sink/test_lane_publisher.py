"""Publishing a task's rows, without a session and with real brokers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import pytest
import trio.testing

from haclient.client import Client
from haclient.errors import DisconnectedError, PublishFailed, TimedOut, UsageError
from haclient.protocol.commands import Command
from haclient.pyspark.sink.lane_publisher import (
    Rows,
    RowsNotLogged,
    Target,
    claim_lanes,
    publish_at_least_once,
    publish_exactly_once,
)
from haclient.pyspark.sink.lanes import ChangedContent, Fenced, digest_of, sequence_before
from haclient_fake_server.config import BrokerConfig, parse_log_topic, parse_sow_topic
from haclient_fake_server.server import BrokerServer
from haclient_stores.bookmark import EPOCH
from support.broker import running_broker
from support.peer import Peer, Server, listening, together

NAME = "lane-0"
CONFIG = BrokerConfig(ack_interval_s=0.05)
SOW_CONFIG = replace(CONFIG, sow_topics=(parse_sow_topic("orders:/id"),))


def target(broker: BrokerServer, *, verifies: bool | None = None) -> Target:
    return Target((f"{broker.uris[0]}/amps/json",), verifies=verifies)


def rows(count: int, *, changed: int | None = None) -> Rows:
    bodies = [b"%d" % number for number in range(count)]
    if changed is not None:
        bodies[changed] = b"changed"
    return Rows("orders", bodies)


def rows_with_keys(count: int) -> Rows:
    return Rows("orders", [b'{"id":%d}' % number for number in range(count)])


def with_a_row_without_key(count: int) -> Rows:
    """The second one is refused by a topic with records."""
    made = rows_with_keys(count)
    return Rows("orders", [made.bodies[0], b'{"no":1}', *made.bodies[2:]])


def digest(made: Rows) -> str:
    return digest_of(made.topics, made.bodies)


async def logged(broker: BrokerServer, topic: str = "orders") -> list[bytes]:
    found: list[bytes] = []
    async with Client("reader") as client:
        await client.connect(f"{broker.uris[0]}/amps/json")
        await client.logon()
        command = Command("subscribe", topic=topic, bookmark=EPOCH, ack_type="completed")
        async for message in await client.execute(command):
            if message.kind == "ack":
                break
            found.append(message.data)
    return found


async def publish_some(broker: BrokerServer, made: Rows, count: int, batch: int = 0) -> None:
    """What an attempt leaves that ends after some rows."""
    part = made.slice(0, count)
    await publish_exactly_once(NAME, batch, part, target(broker), digest=digest(made))


@pytest.mark.row("SK4")
async def test_an_attempt_continues_above_what_is_persisted() -> None:
    async with running_broker(CONFIG) as broker:
        made = rows(100)
        await publish_some(broker, made, 40)
        for expected in (40, 100):
            done = await publish_exactly_once(NAME, 0, made, target(broker), digest=digest(made))
            assert done == expected
        assert await logged(broker) == made.bodies


@pytest.mark.row("SK4")
@pytest.mark.parametrize("changed", [0, 20, 39, 60])
async def test_a_row_that_has_changed_is_noticed_wherever_it_is(changed: int) -> None:
    async with running_broker(CONFIG) as broker:
        await publish_some(broker, rows(100), 40)
        again = rows(100, changed=changed)
        with pytest.raises(ChangedContent, match="their digest is another one"):
            await publish_exactly_once(NAME, 0, again, target(broker), digest=digest(again))
        assert await logged(broker) == rows(40).bodies


@pytest.mark.row("SK4")
async def test_a_digest_is_on_the_first_message_of_each_thousand_and_is_found_behind_others() -> (
    None
):
    async with running_broker(CONFIG) as broker:
        made = rows(3000)
        await publish_some(broker, made, 2000)
        async with Client("reader") as client:
            await client.connect(f"{broker.uris[0]}/amps/json")
            await client.logon()
            async with client.bookmark_stream("orders", sub_id="r", bookmark=EPOCH) as stream:
                found = [(await anext(stream)).correlation_id for _ in range(2000)]
        assert [number for number, each in enumerate(found) if each] == [0, 1024]
        again = rows(3000, changed=1500)
        with pytest.raises(ChangedContent):
            await publish_exactly_once(NAME, 0, again, target(broker), digest=digest(again))
        assert (
            await publish_exactly_once(NAME, 0, made, target(broker), digest=digest(made)) == 2000
        )


@pytest.mark.row("SK4")
async def test_a_delta_has_no_digest_of_the_record_that_it_is_merged_into() -> None:
    async with running_broker(SOW_CONFIG) as broker:
        where = replace(target(broker), command="delta_publish")
        made = Rows("orders", [b'{"id":1,"n":%d}' % number for number in range(10)])
        for batch, done in ((0, 0), (1, 5)):
            if done:
                part = made.slice(0, done)
                await publish_exactly_once(NAME, batch, part, where, digest=digest(made))
            found = await publish_exactly_once(NAME, batch, made, where, digest=digest(made))
            assert found == done
            made = Rows("orders", [b'{"id":1,"m":%d}' % number for number in range(10)])


async def test_without_digests_only_the_number_of_rows_is_compared() -> None:
    async with running_broker(CONFIG) as broker:
        where = target(broker, verifies=False)
        await publish_exactly_once(NAME, 0, rows(40), where)
        again = rows(40, changed=3)
        assert await publish_exactly_once(NAME, 0, again, where) == 40
        with pytest.raises(ChangedContent, match="there were 40 rows, and there are 39 now"):
            await publish_exactly_once(NAME, 0, rows(39), where)


@pytest.mark.row("SK4")
async def test_what_was_published_without_digests_is_no_changed_row() -> None:
    async with running_broker(CONFIG) as broker:
        made = rows(10)
        where = target(broker, verifies=False)
        await publish_exactly_once(NAME, 0, made.slice(0, 5), where)
        done = await publish_exactly_once(NAME, 0, made, target(broker), digest=digest(made))
        assert done == 5
        assert await logged(broker) == made.bodies


async def test_rows_that_a_server_has_only_seen_are_waited_for() -> None:
    async with listening() as server:
        where = Target((server.uri,), verifies=False)

        async def publish() -> None:
            assert await publish_exactly_once(NAME, 0, rows(2), where) == 2

        async def answer() -> None:
            peer = await server.accept()
            await peer.ack(await peer.expect("logon"), s=2)  # and no bookmark
            for topic in ("status", "publisher"):
                query = await peer.expect("sow", topic=f"/HACLIENT/{topic}")
                await peer.refuse(query, "invalid topic")
            await peer.ack(await peer.expect("flush", ack_type="persisted"), "persisted")

        await together(publish, answer)


@pytest.mark.row("SK5")
async def test_a_later_batch_fences_an_earlier_one() -> None:
    async with running_broker(CONFIG) as broker:
        await publish_some(broker, rows(10), 10, batch=2)
        with pytest.raises(Fenced, match="has published batch 2 already"):
            await publish_some(broker, rows(10), 10, batch=1)
        await publish_some(broker, rows(10), 10, batch=3)
        assert len(await logged(broker)) == 20


@pytest.mark.row("SK2")
async def test_refused_rows_are_named() -> None:
    async with running_broker(SOW_CONFIG) as broker:
        made = with_a_row_without_key(3)
        with pytest.raises(PublishFailed, match=r"refused 1 of 3 rows \(row 2: bad sow key"):
            await publish_exactly_once(NAME, 0, made, target(broker), digest=digest(made))


@pytest.mark.row("SK2")
@pytest.mark.parametrize("count", [2, 3, 5])
async def test_a_row_that_an_earlier_attempt_was_refused_is_missed_by_each_later_one(
    count: int,
) -> None:
    async with running_broker(SOW_CONFIG) as broker:
        await publish_some(broker, rows_with_keys(4), 4, batch=0)
        made = with_a_row_without_key(5)
        part = made.slice(0, count)
        with pytest.raises(PublishFailed, match="bad sow key"):
            await publish_exactly_once(NAME, 1, part, target(broker), digest=digest(made))
        for _ in range(2):
            wanted = rf"1 of the {count} rows of .* \(row 2\): it has refused them$"
            with pytest.raises(RowsNotLogged, match=wanted) as caught:
                await publish_exactly_once(NAME, 1, made, target(broker), digest=digest(made))
            assert caught.value.rows == ((2, 2),)
        assert len(await logged(broker)) == 4 + count - 1


@pytest.mark.row("SK2", "SK8")
async def test_rows_that_are_resolved_are_left_out_and_every_other_row_is_once_in_the_log() -> None:
    async with running_broker(SOW_CONFIG) as broker:
        made = rows_with_keys(9)
        for place in (1, 4, 5):
            made.bodies[place] = b'{"no":1}'  # type: ignore[index]  # a list
        expected = [each for each in made.bodies if each != b'{"no":1}']
        publish = partial(publish_exactly_once, NAME, 0, digest=digest(made))
        with pytest.raises(RowsNotLogged) as caught:
            await publish(made.slice(0, 2), target(broker))  # what an attempt leaves that ends
        assert caught.value.rows == ((2, 2),)
        resolved = replace(made, resolved=[(2, 2)])
        with pytest.raises(RowsNotLogged) as caught:
            await publish(resolved, target(broker))
        assert caught.value.rows == ((5, 6),), "only those that are new"
        with pytest.raises(RowsNotLogged) as caught:  # an attempt that was not told
            await publish(resolved, target(broker))
        assert caught.value.rows == ((5, 6),)
        resolved = replace(made, resolved=[(2, 2), (5, 6)])
        assert await publish(resolved, target(broker)) == 9
        assert await logged(broker) == expected
    async with running_broker(CONFIG) as broker:  # it knows the publisher not, and takes any row
        assert await publish(resolved, target(broker)) == 0
        assert await logged(broker) == expected


@pytest.mark.row("SK2")
async def test_rows_that_were_refused_or_removed_are_called_neither_refused_nor_published() -> None:
    async with running_broker(SOW_CONFIG) as broker:
        made = Rows("orders", [b'{"no":1}', *rows_with_keys(2).bodies])
        wanted = r"\(row 1\): it has refused them, or has removed them with its oldest segments$"
        publish = partial(publish_exactly_once, NAME, 0, made, target(broker), digest=digest(made))
        with pytest.raises(RowsNotLogged, match="bad sow key") as caught:
            await publish()
        copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  # as a worker sends it
        assert (str(copied), copied.rows) == (str(caught.value), caught.value.rows)
        with pytest.raises(RowsNotLogged, match=wanted):
            await publish()


async def published_two(server: Server) -> Peer:
    """Accept a publisher that publishes two rows."""
    peer = await server.accept()
    await peer.log_on()
    await peer.refuse(await peer.expect("sow", topic="/HACLIENT/status"), "invalid topic")
    for number in (1, 2):
        await peer.expect("publish", sequence=number)
    return peer


async def test_a_refusal_is_kept_when_the_connection_is_lost_later() -> None:
    async with listening() as server:
        where = Target((server.uri,), verifies=False)

        async def publish() -> None:
            with pytest.raises(PublishFailed, match=r"refused 1 of 2 rows \(row 1: bad sow key"):
                await publish_exactly_once(NAME, 0, rows(2), where)

        async def answer() -> None:
            peer = await published_two(server)
            await peer.ack(None, "persisted", status="failure", reason="bad sow key", s=1)
            peer.link.close()

        await together(publish, answer)


@pytest.mark.row("SK2")
@pytest.mark.parametrize("topics", ["orders", ["more", "orders", "other"]])
async def test_a_topic_that_the_server_does_not_record_is_noticed_before_anything_is_published(
    topics: str | list[str],
) -> None:
    config = BrokerConfig(log_topics=(parse_log_topic("other"),))
    async with running_broker(config) as broker:
        made = Rows(topics, [b"a", b"b", b"c"])
        wanted = "orders is not in the server's transaction log"
        for _ in range(2):  # it is no matter of luck: another attempt fails, too
            with pytest.raises(UsageError, match=wanted):
                await publish_exactly_once(NAME, 0, made, target(broker), digest=digest(made))
        assert not await logged(broker, "other")


@pytest.mark.row("SK2")
async def test_deletes_of_records_that_do_not_exist_are_published_too() -> None:
    async with running_broker(SOW_CONFIG) as broker:
        where = replace(target(broker), command="sow_delete")
        await publish_some(broker, rows_with_keys(10), 10)
        made = Rows("orders", [b'{"id":%d}' % number for number in (1, 77)])
        for expected in (0, 2):
            done = await publish_exactly_once("del", 0, made, where, digest=digest(made))
            assert done == expected


@pytest.mark.row("SK4")
async def test_an_attempt_with_deletes_continues_where_the_last_one_got_to() -> None:
    async with running_broker(SOW_CONFIG) as broker:
        where = replace(target(broker), command="sow_delete")
        await publish_some(broker, rows_with_keys(10), 10)
        made = rows_with_keys(8)
        await publish_exactly_once("del", 0, made.slice(0, 5), where, digest=digest(made))
        assert await publish_exactly_once("del", 0, made, where, digest=digest(made)) == 5
        changed = Rows("orders", [b'{"id":9}', *made.bodies[1:]])
        with pytest.raises(ChangedContent):
            await publish_exactly_once("del", 0, changed, where, digest=digest(changed))
        async with Client("reader") as client:
            await client.connect(where.uris[0])
            await client.logon()
            async with client.sow("orders") as records:
                assert [each.data async for each in records] == rows_with_keys(10).bodies[8:]


async def test_a_job_of_deletes_goes_on_where_the_log_has_each_of_them() -> None:
    async with running_broker(SOW_CONFIG) as broker:
        where = replace(target(broker), command="sow_delete")
        await publish_some(broker, rows_with_keys(4), 4)
        again = partial(publish_exactly_once, keeps_refusals=False)
        for _ in range(2):
            await again("all", 0, Rows("orders", [b'{"id":0}', b'{"id":1}']), where)
        unknown = Rows("orders", [b'{"id":2}', b'{"id":77}', b'{"id":3}'])
        await again("some", 0, unknown, where)
        with pytest.raises(UsageError, match="set checkpointLocation to a directory"):
            await again("some", 0, unknown, where)


@pytest.mark.row("SK4")
async def test_the_number_of_lanes_of_a_job_stays_as_it_was_also_when_the_server_restarts(
    tmp_path: Path,
) -> None:
    config = replace(CONFIG, data_dir=tmp_path)
    for _ in range(2):
        async with running_broker(config) as broker:
            for _ in range(2):
                where = replace(target(broker), command="sow_delete", expiration=5)
                await claim_lanes("job-lanes", 4, where)
            for other in (3, 5):
                with pytest.raises(UsageError, match=f"with 4 lanes, and is to have {other}"):
                    await claim_lanes("job-lanes", other, target(broker))
            await claim_lanes("another-lanes", 5, target(broker))
            assert not await logged(broker, ".*")


async def test_the_lanes_of_a_job_are_not_recorded_at_a_server_that_answers_no_queries() -> None:
    async with listening() as server:

        async def answer() -> None:
            peer = await server.accept()
            await peer.log_on(seen=3)
            await peer.refuse(await peer.expect("sow", topic="/HACLIENT/status"), "invalid topic")
            await peer.expect_end()

        await together(partial(claim_lanes, "job-lanes", 4, Target((server.uri,))), answer)


async def test_each_server_that_does_not_take_the_connection_is_named() -> None:
    async with running_broker(CONFIG) as broker:
        nobody = "tcp://u:secret@127.0.0.1:1/amps/json"
        both = Target((nobody, *target(broker).uris))
        await publish_exactly_once(NAME, 0, rows(2), both)
        assert len(await logged(broker)) == 2
        with pytest.raises(DisconnectedError, match=r"no server takes lane-0: 127") as caught:
            await publish_exactly_once(NAME, 0, rows(2), Target((nobody,)))
        assert "secret" not in str(caught.value)


async def test_a_server_that_persists_nothing_is_not_waited_for(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001  # sets the clock
) -> None:
    async with listening() as server:
        where = Target((server.uri,), verifies=False, timeout_s=3)

        async def publish() -> None:
            with pytest.raises(TimedOut, match="did not answer within 3 s"):
                await publish_exactly_once(NAME, 0, rows(2), where)

        async def answer() -> None:
            peer = await published_two(server)
            await peer.expect("flush")
            await peer.persisted(1)  # progress: it waits once more
            await peer.expect("flush")

        await together(publish, answer)


@pytest.mark.row("SK9")
async def test_a_task_publishes_no_more_rows_in_a_second_than_it_may(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001  # sets the clock
) -> None:
    async with listening() as server:
        where = Target((server.uri,), verifies=False, timeout_s=3, rows_per_second=50.0)
        came_at: list[float] = []

        async def publish() -> None:
            batches = [rows(20), rows(30)]
            await publish_at_least_once(NAME, batches, where, keeps_refused=False)

        async def answer() -> None:
            peer = await server.accept()
            await peer.log_on()
            for number in range(1, 51):
                await peer.expect("publish", sequence=number)
                came_at.append(trio.current_time())
            await peer.ack(await peer.expect("flush", ack_type="persisted"), "persisted")

        began_at = trio.current_time()
        await together(publish, answer)
        took_s = trio.current_time() - began_at
        assert took_s == pytest.approx(1.0), "the last rows are waited for, too"
        for first, last in zip(came_at, came_at[26:], strict=False):
            assert last - first >= 0.5 - 1e-9, "26 rows are one more than half a second may have"


@pytest.mark.parametrize("verifies", [None, True])
async def test_a_server_that_answers_no_queries_is_trusted_unless_that_is_forbidden(
    verifies: bool | None,  # noqa: FBT001  # a parameter
) -> None:
    async with listening() as server:
        await trust(server, verifies=verifies)


async def trust(server: Server, *, verifies: bool | None) -> None:
    where = Target((server.uri,), verifies=verifies)

    async def publish() -> None:
        if verifies:
            with pytest.raises(UsageError, match="verifyResume=true needs a server that answers"):
                await publish_exactly_once(NAME, 1, rows(2), where, digest=digest(rows(2)))
        else:
            assert await publish_exactly_once(NAME, 1, rows(2), where, digest=digest(rows(2))) == 1

    async def answer() -> None:
        peer = await server.accept()
        await peer.log_on(seen=sequence_before(1) + 2, persisted=sequence_before(1) + 1)
        for topic in ("status", "publisher"):
            query = await peer.expect("sow", topic=f"/HACLIENT/{topic}")
            await peer.refuse(query, "invalid topic")
        if not verifies:
            await peer.expect("publish", sequence=sequence_before(1) + 2, data=b"1")
            await peer.ack(await peer.expect("flush", ack_type="persisted"), "persisted")

    await together(publish, answer)


async def test_without_a_place_for_refusals_a_server_has_to_know_them_to_continue() -> None:
    async with listening() as server:
        where = Target((server.uri,), verifies=False)

        async def publish() -> None:
            with pytest.raises(UsageError, match="set checkpointLocation to a directory"):
                await publish_exactly_once(NAME, 0, rows(2), where, keeps_refusals=False)

        async def answer() -> None:
            peer = await server.accept()
            await peer.log_on(seen=1)
            for topic in ("status", "publisher"):
                query = await peer.expect("sow", topic=f"/HACLIENT/{topic}")
                await peer.refuse(query, "invalid topic")
            await peer.expect_end()

        await together(publish, answer)


@pytest.mark.parametrize("at_least_once", [False, True])
async def test_a_server_that_takes_no_more_rows_is_given_up(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001  # sets the clock
    at_least_once: bool,  # noqa: FBT001  # a parameter
) -> None:
    many = Rows("orders", [b"x" * 1000] * 20_000)
    async with listening() as server:
        where = Target((server.uri,), verifies=False, timeout_s=3)

        async def publish() -> None:
            begin = trio.current_time()
            with pytest.raises(TimedOut, match="has taken no more rows for 3 s"):
                await (
                    publish_at_least_once(NAME, [many], where, keeps_refused=False)
                    if at_least_once
                    else publish_exactly_once(NAME, 0, many, where)
                )
            assert trio.current_time() - begin < 10

        async def answer() -> None:
            peer = await server.accept()
            await peer.log_on()
            if not at_least_once:
                await peer.refuse(await peer.expect("sow"), "invalid topic")
            await trio.sleep(100)

        await together(publish, answer)


async def test_a_server_that_does_not_answer_a_query_is_given_up(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001  # sets the clock
) -> None:
    async with listening() as server:
        where = Target((server.uri,), timeout_s=3)

        async def publish() -> None:
            begin = trio.current_time()
            with pytest.raises(TimedOut, match="has not answered a query to /HACLIENT/status"):
                await publish_exactly_once(NAME, 0, rows(2), where)
            assert trio.current_time() - begin < 4

        async def answer() -> None:
            peer = await server.accept()
            await peer.log_on()
            await peer.ack(await peer.expect("sow"))  # accepted, and never answered
            await trio.sleep(100)

        await together(publish, answer)


class Body(bytes):
    """A body that counts how many of its kind there are."""

    alive = 0

    def __new__(cls, data: bytes) -> Self:
        cls.alive += 1
        return super().__new__(cls, data)

    def __del__(self) -> None:
        Body.alive -= 1


@pytest.mark.row("SK8")
@pytest.mark.parametrize("keeps_refused", [False, True])
async def test_at_least_once_lets_go_of_what_is_persisted(
    keeps_refused: bool,  # noqa: FBT001  # a parameter
) -> None:
    async with running_broker(CONFIG) as broker:
        most = 0

        def made() -> Iterator[Rows]:
            nonlocal most
            for number in range(60):
                bodies = [Body(b"x" * 2000) for _ in range(1000)]
                topics = ["orders"] * 1000
                if keeps_refused and number % 20 == 0:
                    topics[7] = "/AMPS/x"
                yield Rows(topics, bodies)
                most = max(most, Body.alive)

        count, refused = await publish_at_least_once(
            NAME, made(), target(broker), keeps_refused=keeps_refused
        )
        assert (count, len(refused)) == (60_000, 3 if keeps_refused else 0)
        assert all(each.data == b"x" * 2000 for each in refused)
        assert most < 20_000


@pytest.mark.row("SK3")
async def test_at_least_once_drops_nothing_whatever_was_published_before() -> None:
    async with running_broker(CONFIG) as broker:
        for _ in range(2):
            batches = [rows(3), rows(2)]
            found = await publish_at_least_once(NAME, batches, target(broker), keeps_refused=False)
            assert found == (5, [])
        assert len(await logged(broker)) == 10


@pytest.mark.row("SK8")
async def test_at_least_once_returns_refused_rows_where_they_are_kept() -> None:
    async with running_broker(CONFIG) as broker:
        made = [rows(2), Rows(["orders", "/AMPS/x"], [b"a", b"b"])]
        count, refused = await publish_at_least_once(NAME, made, target(broker), keeps_refused=True)
        assert (count, [(each.topic, each.data) for each in refused]) == (4, [("/AMPS/x", b"b")])
        with pytest.raises(PublishFailed, match="has refused 1 rows, the first one: not entitled"):
            await publish_at_least_once(NAME, made, target(broker), keeps_refused=False)
