"""The broker's own topics over real sockets: what a client learns of the log, after whatever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from haclient import Client, Command, InvalidOptions, NotEntitled
from haclient.protocol.codec import encode_frame
from haclient.protocol.identity import publisher_id
from haclient_fake_server.config import BrokerConfig, FsyncPolicy, ReplicateTo
from haclient_fake_server.journal.format import segment_name, segment_number
from haclient_fake_server.server import BrokerServer
from support.broker import RawClient, running_broker
from support.process import LIMIT_S

PUBBER = publisher_id("pubber")


async def ask(client: Client, topic: str, /, **parameters: object) -> dict[str, Any]:
    """The answer of a topic under `/HACLIENT/`, through the client's public interface."""
    command = Command("sow", topic=f"/HACLIENT/{topic}", data=json.dumps(parameters))
    async with await client.execute(command) as stream:
        records = [message.data async for message in stream if message.kind == "sow"]
    (answer,) = map(json.loads, records)
    assert isinstance(answer, dict)
    return answer


async def publish(uri: str, sequences: range, *, name: str = "pubber", size: int = 10) -> None:
    """Publish as a client of a name, with a correlation id per message, until all is persisted."""
    async with RawClient.connect(uri) as client:
        await client.logon(name, opts="ack_conflation=10ms")
        header: dict[str, str | int] = {"c": "p", "t": "orders", "a": "persisted"}
        frames = [
            encode_frame(
                {**header, "s": number, "x": f"x{number}"},
                b'{"id":%d,"x":"%b"}' % (number, b"x" * size),
            )
            for number in sequences
        ]
        for first in range(0, len(frames), 10):  # few at a time: what is read at once is one block
            await client.send_bytes(b"".join(frames[first : first + 10]))
        await client.persisted(sequences[-1])


def address(server: BrokerServer) -> str:
    return server.uris[0] + "/amps/json"


def remove_oldest(directory: Path, count: int | None = None) -> None:
    """Remove segments of a broker that does not run, as an operator would; all but the last."""
    numbers = sorted(filter(None, (segment_number(each.name) for each in directory.iterdir())))
    for number in numbers[: -1 if count is None else count]:
        (directory / segment_name(number)).unlink()


def remove_last(directory: Path, *, with_manifest: bool) -> None:
    """Remove the last segment of a broker that does not run."""
    last = max(filter(None, (segment_number(each.name) for each in directory.iterdir())))
    (directory / segment_name(last)).unlink()
    if with_manifest:
        (directory / f"{segment_name(last)}.manifest.json").unlink()


async def test_a_client_learns_the_positions_and_the_identity_of_the_log(tmp_path: Path) -> None:
    config = BrokerConfig(name="east", data_dir=tmp_path, fsync=FsyncPolicy.BATCH)
    async with running_broker(config) as server, Client("reader") as client:
        await publish(server.uris[0], range(1, 101))
        await client.connect(address(server))
        await client.logon()
        status = await ask(client, "status")
        ((start, first),) = status.pop("starts")
        assert (len(start), first) == (16, 1)
        assert status == {
            "instance": "east",
            "oldest_position": 1,
            "last_position": 100,
            "confirmed_position": 100,
            "durable_position": 100,
            "publishers": 1,
            "guards": 0,
            "faults": 0,
            "connections": status["connections"],  # the publisher's may not have ended yet
            "ended_connections": status["ended_connections"],
        }


async def test_durable_is_what_was_synced_and_no_more(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, fsync=FsyncPolicy.NONE)
    async with running_broker(config) as server, Client("reader") as client:
        await publish(server.uris[0], range(1, 11))
        await client.connect(address(server))
        await client.logon()
        status = await ask(client, "status")
        assert (status["last_position"], status["durable_position"]) == (10, 0)
    async with running_broker(config) as server, Client("reader") as client:
        await client.connect(address(server))
        await client.logon()
        # A broker that starts syncs what it has found.
        assert (await ask(client, "status"))["durable_position"] == 10
        assert len((await ask(client, "status"))["starts"]) == 2


async def test_the_interval_policy_makes_the_durable_position_follow(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, fsync=FsyncPolicy.INTERVAL, flush_interval_s=0.01)
    async with running_broker(config) as server, Client("reader") as client:
        await publish(server.uris[0], range(1, 11))
        await client.connect(address(server))
        await client.logon()
        with trio.fail_after(LIMIT_S):
            while (await ask(client, "status"))["durable_position"] < 10:
                pass


async def test_the_last_message_of_a_publisher_is_known_after_a_restart(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path)
    async with running_broker(config) as server:
        await publish(server.uris[0], range(1, 6))
    async with running_broker(config) as server, Client("reader") as client:
        await client.connect(address(server))
        await client.logon()
        found = await ask(client, "publisher", name="pubber")
        assert (found["last_sequence"], found["persisted"], found["sequence"]) == (5, 5, 5)
        assert (found["position"], found["correlation_id"]) == (5, "x5")


async def test_the_last_message_of_a_publisher_is_known_at_a_replica() -> None:
    async with running_broker(BrokerConfig(name="west")) as west, Client("reader") as client:
        to = ReplicateTo(west.uris[0])
        async with running_broker(BrokerConfig(name="east", replicate_to=(to,))) as east:
            await publish(east.uris[0], range(1, 6))  # persisted: west has it
        await client.connect(address(west))
        await client.logon()
        found = await ask(client, "publisher", id=str(PUBBER))
        assert (found["last_sequence"], found["correlation_id"]) == (5, "x5")


async def test_what_was_removed_with_the_oldest_segments_is_absent(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, segment_bytes=4096)
    async with running_broker(config) as server:
        await publish(server.uris[0], range(1, 6), name="early")
        await publish(server.uris[0], range(1, 101), size=100)
    remove_oldest(tmp_path, 2)
    async with running_broker(config) as server, Client("reader") as client:
        await client.connect(address(server))
        await client.logon()
        oldest = (await ask(client, "status"))["oldest_position"]
        assert oldest > 6
        assert await ask(client, "publisher", name="early") == {
            "id": str(publisher_id("early")),
            "last_sequence": 5,
            "persisted": 5,
        }
        found = await ask(client, "publisher", name="pubber")
        assert (found["sequence"], found["correlation_id"]) == (100, "x100")
        position = await ask(client, "position", topic="orders", after=0, messages=10)
        # A reader that was after 0 sees that it has lost something.
        assert (position["oldest_position"], position["begins"]) == (oldest, oldest)


async def test_a_guard_is_kept_and_what_is_removed_in_spite_of_it_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig(name="east", data_dir=tmp_path, segment_bytes=4096)
    async with running_broker(config) as server, Client("reader") as client:
        await publish(server.uris[0], range(1, 101), size=100)
        await client.connect(address(server))
        await client.logon()
        found = await ask(client, "guards", name="query", after=50)
        assert found["oldest_needed_position"] == 51
    async with running_broker(config) as server, Client("reader") as client:
        await client.connect(address(server))
        await client.logon()
        assert (await ask(client, "status"))["oldest_needed_position"] == 51
        assert "although guard" not in caplog.text
    remove_oldest(tmp_path)
    async with running_broker(config) as server, Client("reader") as client:
        await client.connect(address(server))
        await client.logon()
        status = await ask(client, "status")
        assert status["oldest_needed_position"] == 51 < status["oldest_position"]
        gone = status["oldest_position"] - 1
        lost = f"east: positions 51 to {gone}: removed although guard 'query' needs it"
        assert lost in caplog.text


@pytest.mark.parametrize("with_manifest", [False, True])
async def test_a_last_segment_that_is_missing_is_reported_where_a_guard_knows_what_it_had(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, with_manifest: bool
) -> None:
    config = BrokerConfig(name="east", data_dir=tmp_path, segment_bytes=4096)
    async with running_broker(config) as server, Client("reader") as client:
        await publish(server.uris[0], range(1, 101), size=100)
        await client.connect(address(server))
        await client.logon()
        await ask(client, "guards", name="query", after=100)
    remove_last(tmp_path, with_manifest=with_manifest)
    async with running_broker(config) as server, Client("reader") as client:
        await client.connect(address(server))
        await client.logon()
        end = (await ask(client, "status"))["last_position"]
        assert end < 100
        assert f"east: positions {end + 1} to 100: lost, and given again" in caplog.text
        (guard,) = (await ask(client, "guards"))["guards"]
        assert guard["after"] == end


async def test_the_client_gets_one_error_for_a_bad_query_and_goes_on() -> None:
    async with running_broker() as server, Client("reader") as client:
        await client.connect(address(server))
        await client.logon()
        with pytest.raises(InvalidOptions, match="invalid options"):
            await ask(client, "position", topic="orders", massages=1)
        with pytest.raises(NotEntitled, match="not entitled"):
            await client.execute(Command("subscribe", topic="/HACLIENT/status"))
        assert (await ask(client, "status"))["last_position"] == 0


async def test_a_long_answer_leaves_other_clients_their_turn(tmp_path: Path) -> None:
    """The whole log is asked for again and again while a publisher gets its acks in time."""
    config = BrokerConfig(data_dir=tmp_path, ack_interval_s=0.0)
    async with running_broker(config) as server, Client("reader") as client:
        await publish(server.uris[0], range(1, 2_001), name="filler", size=4_000)
        await client.connect(address(server))
        await client.logon()
        answers: list[dict[str, Any]] = []
        acks = 0

        async def count() -> None:
            found = await ask(client, "position", topic=".*", filter="/id >= 0")
            answers.append(found)

        async with trio.open_nursery() as nursery, RawClient.connect(server.uris[0]) as writer:
            await writer.logon("pubber")
            nursery.start_soon(count)
            while not answers:
                await writer.send(b"{}", c="p", t="other", s=acks + 1, a="persisted")
                await writer.ack("persisted")
                acks += 1
        assert answers[0]["messages"] >= 2_000
        assert acks >= 10  # 8 MB in steps of 128 KiB: some 60 turns
