"""The event log: one line for each event, with the reason."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.engine.settings import Entitlement
from haclient_fake_server.event_log import event_log
from support.broker import RawClient, running_broker

LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z \[\d+\] (info|warning|error): broker: .+"
)
USERS = {"ann": "secret", "bob": "secret"}


@pytest.mark.row("AD11")
async def test_each_end_and_each_refusal_has_a_line_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    config = BrokerConfig(users=USERS, entitlements=(Entitlement("ann", "read", "mine"),))
    ann = {"user_id": "ann", "pw": "secret"}
    with event_log(path):
        async with (
            running_broker(config) as server,
            RawClient.connect(server.uris[0]) as one,
            RawClient.connect(server.uris[0]) as two,
            RawClient.connect(server.uris[0]) as three,
        ):
            await one.logon("same", **ann)
            await one.send(c="subscribe", cid="1", t="yours\n", a="processed")
            await one.send(c="subscribe", cid="2", t="yours", a="processed")
            await one.ack("processed", "2")
            await two.logon("same", user_id="bob", pw="secret")
            await three.logon("same", **ann)
            await one.closed()
            await three.send(c="heartbeat", opts="start,0.001")
            await three.closed()
            async with (
                RawClient.connect(server.uris[0]) as four,
                RawClient.connect(server.uris[0]) as one_more,
            ):
                await four.logon("four", user_id="bob", pw="wrong")
                await four.closed()
                await one_more.logon("one more", **ann)
        async with (
            running_broker(BrokerConfig(high_water_bytes=1, slow_client_bytes=1)) as server,
            RawClient.connect(server.uris[0]) as client,
        ):
            await client.logon("slow")
            await client.closed()
    lines = path.read_text().splitlines()
    assert all(LINE.fullmatch(line) for line in lines), lines
    for wanted in (
        r"warning: .*'yours' of connection 1 'same' refused: not entitled",
        r"warning: .*'same' refused: name in use",
        r"warning: .* ended: name in use",
        r"warning: .* ended: heartbeat",
        r"warning: .* ended: auth: logon of client 'four' refused: auth failure",
        r"warning: .* ended: slow client",
        r"info: .*one more.* ended: (connection closed|broker stopped)",
    ):
        assert any(re.search(wanted, line) for line in lines), (wanted, lines)
    assert "secret" not in path.read_text()


def test_after_the_block_nothing_more_is_written(tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    logger = logging.getLogger("haclient_fake_server")
    level = logger.level
    with event_log(path):
        logger.info("broker: one\nline")
    logger.warning("broker: later")
    assert [LINE.fullmatch(line) is not None for line in path.read_text().splitlines()] == [True]
    assert logger.level == level


async def test_a_file_that_cannot_be_begun_anew_ends_no_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "logs" / "events.log"
    path.parent.mkdir()
    with event_log(path):
        async with running_broker() as server:
            path.unlink()
            path.parent.rmdir()
            for name in ("one", "two"):
                async with RawClient.connect(server.uris[0]) as client:
                    await client.logon(name)
                    await client.send(c="subscribe", cid="1", t="", a="processed")
                    await client.ack("processed", "1")
            assert "events.log" in capsys.readouterr().err
            path.parent.mkdir()
            async with RawClient.connect(server.uris[0]) as client:
                await client.logon("three")
                await client.send(c="subscribe", cid="1", t="", a="processed")
                await client.ack("processed", "1")
    assert "'three' refused" in path.read_text()
