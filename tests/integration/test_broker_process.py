"""A broker as a process: killed, stopped and started again on the same directory."""

from __future__ import annotations

import contextlib
import shlex
import socket
import sys
from pathlib import Path

import pytest
import trio

from haclient.cli.app import run
from haclient.protocol.codec import encode_frame
from haclient_fake_server.engine.journal import Block
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.format import Record, encode_record
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_stores.disk.files import RealDisk
from support.broker import RawClient


def frames(first: int, last: int) -> bytes:
    return b"".join(
        encode_frame({"c": "p", "t": "orders", "a": "persisted", "s": number}, b"%d" % number)
        for number in range(first, last + 1)
    )


async def bodies(client: RawClient, count: int) -> list[int]:
    await client.send(c="subscribe", cid="r", t="orders", bm="0")
    return [int(message.data) for message in await client.publishes(count)]


@pytest.mark.row("TL1", "TL7", "TL16", "ID2")
async def test_sigkill_in_mid_stream_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    acknowledged, last = 0, 0
    for _ in range(3):
        with BrokerProcess(data_dir=tmp_path) as broker:
            async with RawClient.connect(broker.uri) as client:
                logon = await client.logon("pubber", opts="ack_conflation=1ms")
                seen = logon.sequence or 0
                assert acknowledged <= seen <= last
                last = seen + 5_000
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_send_until_broken, client, frames(seen + 1, last))
                    acknowledged = (await client.ack("persisted")).sequence or 0
                    broker.kill()
                    nursery.cancel_scope.cancel()
    with BrokerProcess(data_dir=tmp_path) as broker:
        async with RawClient.connect(broker.uri) as client:
            seen = (await client.logon("pubber")).sequence or 0
            assert acknowledged <= seen <= last
            await client.send_bytes(frames(1, seen))
            await client.send(b"%d" % (seen + 1), c="p", t="orders", s=seen + 1)
            assert await bodies(client, seen + 1) == list(range(1, seen + 2))
        assert broker.stop() == 0


async def _send_until_broken(client: RawClient, data: bytes) -> None:
    with contextlib.suppress(trio.BrokenResourceError):  # killed while we were sending
        await client.send_bytes(data)


@pytest.mark.row("TL1", "ID1", "RB3")
async def test_sigterm_stops_cleanly_and_a_restart_goes_on(tmp_path: Path) -> None:
    with BrokerProcess("--name", "east", "--sow", "prices:/id", data_dir=tmp_path) as broker:
        async with RawClient.connect(broker.uri) as client:
            await client.logon("pubber")
            await client.send_bytes(frames(1, 10))
            await client.send(b'{"id":1}', c="p", t="prices", s=11)
            await client.send(c="flush", cid="f", a="persisted")
            await client.ack("persisted", "f")
        assert broker.stop() == 0
        broker.start()
        async with RawClient.connect(broker.uri) as client:
            assert (await client.logon("pubber")).sequence == 11
            assert await bodies(client, 10) == list(range(1, 11))
            await client.send(c="sow", cid="q", t="prices")
            record = await client.until(lambda message: message.kind == "sow")
            assert record.data == b'{"id":1}'


@pytest.mark.row("TL12")
def test_a_journal_with_a_hole_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = JournalFiles(tmp_path, RealDisk(), segment_bytes=4096, instance_id=1)
    for position in range(1, 50):
        record = Record(position, 7, position, 1000, 1, payload=bytes(200))
        data, sequences = encode_record(record), {7: (position, position)}
        journal.append(Block(data, 1, position, position + 1, 1000, 1000, sequences))
    journal.close()
    (tmp_path / "journal.00000002").unlink()
    assert run(["broker", "run", "--data", str(tmp_path), "--listen", "tcp://127.0.0.1:0"]) == 1
    told = capsys.readouterr().err
    assert "journal.00000002: corrupt at byte 0: this segment is missing" in told
    assert told.count("\n") == 1


def test_a_journal_that_is_none_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "journal.00000001").write_bytes(b"not a journal")
    assert run(["broker", "run", "--data", str(tmp_path), "--listen", "tcp://127.0.0.1:0"]) == 1
    assert "journal.00000001: corrupt at byte 0" in capsys.readouterr().err


def test_an_address_in_use_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["broker", "run", "--listen", "nonsense"]) == 2
    assert "wanted tcp://HOST:PORT" in capsys.readouterr().err


def test_an_address_of_the_admin_interface_in_use_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ["--listen", "tcp://127.0.0.1:0", "--admin", address]
        assert run(["broker", "run", *options]) == 1
    told = capsys.readouterr().err
    assert f"http://{address}: cannot listen: Address already in use" in told


async def test_only_chosen_topics_are_logged() -> None:
    with BrokerProcess("--log-topic", "^logged") as broker:
        async with RawClient.connect(broker.uri) as client:
            await client.logon("pubber")
            await client.send(c="subscribe", cid="1", t="orders", bm="0", a="processed")
            assert (await client.ack("processed")).reason.startswith("invalid topic")


async def test_idle_connections_never_take_the_journals_descriptors(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "haclient", "broker", "run", "--segment-bytes", "16384"]
    limited = ["/bin/sh", "-c", f'ulimit -n 64; exec {shlex.join(command)} "$@"', "broker"]
    with BrokerProcess(data_dir=tmp_path / "data", command=limited) as broker:
        async with RawClient.connect(broker.uri) as client:
            await client.logon("pubber")
            _, _, port = broker.address.rpartition(":")
            idle = [await trio.open_tcp_stream("127.0.0.1", int(port)) for _ in range(100)]
            for number in range(1, 40):  # each a batch: several segments
                await client.send(bytes(2000), c="p", t="orders", s=number)
                await client.send(c="flush", cid=str(number), a="persisted")
                await client.ack("persisted", str(number))
            for stream in idle:
                await stream.aclose()
        assert "connections are refused" in broker.err
        assert broker.stop() == 0
        # A thread seals segments while messages come; at the end all full ones are sealed.
        assert len(list((tmp_path / "data").glob("*.manifest.json"))) > 2
