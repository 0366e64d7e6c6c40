from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from haclient.errors import UsageError
from haclient_fake_server.__main__ import _config, _parser
from haclient_fake_server.config import BrokerConfig, FsyncPolicy, LogTopic, ReplicateTo, SowTopic
from haclient_fake_server.testing.nodes import LocalBroker, ProcessBroker, arguments_of
from support.broker import RawClient


async def test_a_broker_in_this_process_ends_and_comes_back(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        broker = LocalBroker(BrokerConfig(data_dir=tmp_path, segment_bytes=1 << 20), nursery)
        assert (broker.is_running, broker.destinations) == (False, ())
        await broker.kill()
        for sequence in (0, 1):
            await broker.start()
            await broker.start()
            address = broker.address
            async with RawClient.connect(address) as client:
                assert (await client.logon("p")).sequence == sequence
                await client.send(b"{}", c="p", t="orders", s=sequence + 1)
                await client.send(c="flush", cid="f", a="persisted")
                await client.ack("persisted", "f")
            await broker.kill()
            assert (broker.is_running, broker.address) == (False, address)


async def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "journal.00000001").write_bytes(b"not a journal")
    broker = ProcessBroker(BrokerConfig(data_dir=tmp_path))
    with pytest.raises(Exception, match="corrupt at byte 0"):
        await broker.start()
    assert not broker.is_running
    with pytest.raises(UsageError, match="brokers of this process only"):
        _ = broker.destinations


FULL = BrokerConfig(
    name="east",
    listen=("tcp://127.0.0.1:9",),
    log_topics=(LogTopic("^a"), LogTopic("b")),
    sow_topics=(SowTopic("prices", ("/id", "/side")), SowTopic("keyed")),
    replicate_to=(ReplicateTo("tcp://127.0.0.1:8"), ReplicateTo("tcp://127.0.0.1:7", "async")),
    fsync=FsyncPolicy.BATCH,
    segment_bytes=2**20,
)


@pytest.mark.parametrize("config", [FULL, BrokerConfig(name="plain", listen=FULL.listen)])
def test_a_configuration_becomes_arguments_and_these_the_same_configuration(
    config: BrokerConfig,
) -> None:
    arguments = ["--listen", config.listen[0], *arguments_of(config)]
    assert _config(_parser().parse_args(arguments)) == config


@pytest.mark.parametrize(
    ("config", "mute"),
    [
        (
            replace(FULL, flush_interval_s=1.0, ack_interval_s=0.1),
            "ack_interval_s, flush_interval_s",
        ),
        (replace(FULL, log_topics=(), replicate_to=()), "log_topics"),
        (replace(FULL, log_topics=(LogTopic("a", "json"),)), "log_topics"),
        (replace(FULL, replicate_to=(ReplicateTo("tcp://h:1", heartbeat_s=1.0),)), "heartbeat_s"),
        (
            replace(
                FULL,
                version="9",
                replicate_to=(
                    ReplicateTo("tcp://h:1", "async", 5.0),
                    ReplicateTo("tcp://h:2", heartbeat_s=1.0),
                ),
            ),
            "version, downgrade_after_s, heartbeat_s",
        ),
    ],
)
def test_what_the_command_line_has_no_words_for_is_refused(config: BrokerConfig, mute: str) -> None:
    with pytest.raises(UsageError, match=f"cannot be told its {mute}$"):
        arguments_of(config)
