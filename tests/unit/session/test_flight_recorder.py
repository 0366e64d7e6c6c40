"""Every client keeps its last frames, within limits and without secrets, and logs them."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client, HAClient
from haclient.errors import AuthenticationError, ConnectionRefused, DisconnectedError
from haclient.session.flight_recorder import (
    MAX_ENTRIES,
    MAX_HEADERS,
    MAX_TEXT,
    FlightRecorder,
)
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import listening
from support.recovery import drop, entered, live

pytestmark = in_virtual_time

AT = "2023-11-14T22:13:20.000001Z"


def recorder() -> FlightRecorder:
    return FlightRecorder("c", lambda: 1_700_000_000_000_001)


def texts(lines: list[str]) -> list[str]:
    return [line.partition(" ")[2] for line in lines]


def test_an_entry_is_a_line_with_its_time_in_utc() -> None:
    flight = recorder()
    flight.reached("connected")
    flight.ended(DisconnectedError("lost"))
    assert flight.lines() == [f"{AT} = connected", f"{AT} ! DisconnectedError: lost"]


def test_the_newest_entries_are_kept() -> None:
    flight = recorder()
    for number in range(MAX_ENTRIES + 5):
        flight.reached(str(number))
    assert texts(flight.lines()) == [f"= {number}" for number in range(5, MAX_ENTRIES + 5)]


def test_of_one_read_the_last_headers_are_kept_and_the_others_counted() -> None:
    flight = recorder()
    flight.connected(100.0)
    flight.received([b'{"c":"%d"}' % number for number in range(1_000)], 101.5)
    more, *headers = flight.lines()
    assert more == f"2023-11-14T22:13:21.500001Z < {1_000 - MAX_HEADERS} more frames, then"
    assert texts(headers) == ['< {"c":"997"}', '< {"c":"998"}', '< {"c":"999"}']


def test_publishes_between_two_entries_are_counted_in_bytes() -> None:
    flight = recorder()
    flight.reached("logged_on")
    flight.published_bytes += 500
    flight.published_bytes += 12
    flight.received([b'{"c":"ack"}'], 1.0)
    assert texts(flight.lines()) == ["= logged_on", "> 512 bytes of publishes", '< {"c":"ack"}']


def test_neither_a_body_nor_a_password_is_shown_and_a_long_header_is_cut() -> None:
    flight = recorder()
    flight.sent(b'\0\0\0\0{"c":"logon","pw":"secret"}')
    flight.sent(b'\0\0\0\0{"c":"sow_delete"}{"a":"body"}')
    flight.sent(b'\0\0\0\0{"filter":"' + b"x" * 2_000 + b'"}body')
    logon, delete, long = texts(flight.lines())
    assert logon == '> {"c":"logon","pw":"***"}'
    assert delete == '> {"c":"sow_delete"}'
    assert len(long) <= MAX_TEXT + 2


@pytest.mark.row("B20")
async def test_frames_states_and_errors_are_recorded_in_order_without_secrets() -> None:
    async with (
        listening() as server,
        Client("c", publish_store=MemoryPublishStore(), exit_timeout=0) as client,
    ):
        peer = await server.log_on(client)
        await client.publish("orders", b"a body")
        await peer.expect("publish")
        await drop(peer)
        await wait_all_tasks_blocked()
        _, _, shown = client.report().partition("\nwhat was sent")
    lines = texts([line.strip() for line in shown.splitlines()[1:]])
    assert [line[:13] for line in lines] == [
        "= connected",
        '> {"c":"logon',
        '< {"c":"ack",',
        "= logged_on",
        "> 69 bytes of",
        "! Disconnecte",
        "= disconnecte",
    ]
    assert '"pw":"***"' in shown
    assert not any(word in shown for word in ("secret", "a body"))


@pytest.mark.row("B20")
async def test_a_refused_logon_is_logged_with_the_frames_before_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "haclient.flight_recorder"):
        async with listening() as server, Client("c") as client:
            peer = await server.connect(client)

            async def refuse() -> None:
                await peer.refuse(await peer.expect("logon"), "auth failure")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(refuse)
                with pytest.raises(AuthenticationError):
                    await client.logon()
            (record,) = [each for each in caplog.records if "client c: before" in each.message]
            first, *lines = record.message.splitlines()
            assert "auth failure" in first
            assert any('< {"c":"ack"' in line for line in lines)
            caplog.clear()
    assert "before" not in caplog.text  # it was left on purpose


@pytest.mark.row("B20")
async def test_a_client_that_reconnects_logs_what_came_before_each_loss_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "haclient.flight_recorder"):
        async with listening() as server:
            client = HAClient("ha", servers=[server.uri], heartbeat=None)
            async with entered(client, partial(live, server)) as peer:
                await drop(peer)
                again = await live(server)
                await wait_all_tasks_blocked()
                await drop(again)
                await live(server)
    reports = [each.message for each in caplog.records if "client ha: before" in each.message]
    assert len(reports) == 2
    lines = [line for report in reports for line in report.splitlines()[1:]]
    assert len(lines) == len(set(lines)) > 6
    assert [text.count(" > ") for text in reports] == [1, 1]  # the logon of each connection


async def test_an_attempt_that_reaches_no_server_is_recorded_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening() as server:
        uri = server.uri
    async with Client("c") as client:
        with pytest.raises(ConnectionRefused) as refused:
            await client.connect(uri)
        assert f"! ConnectionRefused: {refused.value}" in client.report()
    assert "client c: before" not in caplog.text
