"""A flight recorder keeps the last protocol events, within its limits and without secrets."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.errors import AuthenticationError, ConnectionRefused, UsageError
from haclient.ha import HAClient
from haclient.transport.flight_recorder import (
    ClientFlight,
    EventKind,
    FlightEvent,
    FlightRecorder,
)
from support.clock import in_virtual_time
from support.peer import Peer, Server, listening
from support.recovery import drop, entered, live

pytestmark = in_virtual_time

DOCS = Path(__file__).parents[3] / "docs" / "observability.md"


def event(number: int, text: str = "{}") -> FlightEvent:
    return FlightEvent(number, "c", "<", text)


def test_the_newest_events_are_kept_and_the_others_counted() -> None:
    recorder = FlightRecorder(max_events=3)
    for number in range(5):
        recorder.record(event(number))
    assert [each.at_us for each in recorder.events] == [2, 3, 4]
    assert recorder.dropped == 2
    recorder.clear()
    assert (recorder.events, recorder.dropped, str(recorder)) == ((), 0, "")


def test_events_of_many_bytes_displace_more_of_the_others() -> None:
    recorder = FlightRecorder(max_bytes=2_000)
    for number in range(100):
        recorder.record(event(number))
    small = len(recorder.events)
    assert 5 < small < 20
    for number in range(100):
        recorder.record(event(number, "x" * 700))
    assert [each.at_us for each in recorder.events] == [98, 99]
    recorder.record(event(100, "x" * 5_000))  # the newest is kept, however large
    assert [each.at_us for each in recorder.events] == [100]
    for number in range(100):
        recorder.record(event(number))
    assert len(recorder.events) == small


@pytest.mark.parametrize("limit", ["max_events", "max_bytes"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_below_one_is_refused(limit: str, value: int) -> None:
    with pytest.raises(
        UsageError, match=rf"^{limit} is a whole number of at least 1, not {value}$"
    ):
        FlightRecorder(**{limit: value})


def test_an_option_that_is_no_recorder_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"^flight_recorder is a FlightRecorder, such as .*, or None, not int"
    ):
        Client("c", flight_recorder=1000)  # type: ignore[arg-type]  # what is tested


def test_an_event_is_a_line_with_its_time_in_utc() -> None:
    assert str(FlightEvent(1_700_000_000_000_001, "c", "=", "connected")) == (
        "2023-11-14T22:13:20.000001Z c = connected"
    )


def test_a_long_text_is_cut() -> None:
    recorder = FlightRecorder()
    flight = ClientFlight(recorder, "c", lambda: 1)
    flight.note("<", "a" * 1_000)
    flight.note("<", "b" * 1_001)
    kept, cut = recorder.events
    assert kept.text == "a" * 1_000
    assert cut.text == "b" * 1_000 + "..."


def test_without_a_recorder_no_frame_is_looked_at() -> None:
    flight = ClientFlight(None, "c", lambda: pytest.fail("no event needs a time"))
    assert flight.tap(None) is None
    flight.note("=", "connected")


@pytest.mark.row("B20")
async def test_frames_states_and_errors_are_recorded_in_order_without_secrets() -> None:
    recorder, seen = FlightRecorder(), list[str]()
    async with (
        listening() as server,
        Client(
            "c", flight_recorder=recorder, wire_tap=lambda _, header: seen.append(header)
        ) as client,
    ):
        peer = await server.log_on(client)
        await client.publish("orders", b"a body")
        await peer.expect("publish")
        await drop(peer)
        await wait_all_tasks_blocked()
    kinds = [(each.kind, each.text[:10]) for each in recorder.events]
    assert kinds == [
        ("=", "connected"),
        (">", '{"c":"logo'),
        ("<", '{"c":"ack"'),
        ("=", "logged_on"),
        (">", '{"c":"p","'),
        ("!", "Disconnect"),
        ("=", "disconnect"),
        ("=", "shutdown"),
    ]
    assert {each.client for each in recorder.events} == {"c"}
    shown = str(recorder)
    assert '"pw":"***"' in shown
    assert not any(word in shown for word in ("secret", "body"))
    assert seen == [each.text for each in recorder.events if each.kind in {"<", ">"}]


@pytest.mark.row("B20")
async def test_a_refused_logon_is_logged_with_the_events_before_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = FlightRecorder()
    with caplog.at_level(logging.WARNING, "haclient"):
        async with listening() as server, Client("c", flight_recorder=recorder) as client:
            peer = await server.connect(client)

            async def refuse() -> None:
                await peer.refuse(await peer.expect("logon"), "auth failure")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(refuse)
                with pytest.raises(AuthenticationError):
                    await client.logon()
            (record,) = [each for each in caplog.records if "the last events" in each.message]
            first, *lines = record.message.splitlines()
            assert first.startswith("client c: the last events before: ")
            assert "auth failure" in first
            assert lines == str(recorder).splitlines()
            caplog.clear()
    assert "the last events" not in caplog.text  # it was left on purpose


@pytest.mark.row("B20")
async def test_a_client_that_reconnects_logs_what_came_before_each_loss_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = FlightRecorder()

    async def run(server: Server) -> None:
        async with entered(client, partial(live, server)) as peer:
            await drop(peer)
            await drop(await live_again(server))
            await live_again(server)

    with caplog.at_level(logging.WARNING, "haclient"):
        async with listening() as server:
            client = HAClient("ha", servers=[server.uri], heartbeat=None, flight_recorder=recorder)
            await run(server)
    reports = [each.message for each in caplog.records if "the last events" in each.message]
    assert len(reports) == 2
    lines = [line for report in reports for line in report.splitlines()[1:]]
    assert len(lines) == len(set(lines)) > 6
    assert set(lines) <= set(str(recorder).splitlines())
    assert [text.count(" > ") for text in reports] == [1, 1]  # the logon of each connection


async def live_again(server: Server) -> Peer:
    peer = await live(server)
    await wait_all_tasks_blocked()
    return peer


async def test_an_attempt_that_reaches_no_server_is_recorded() -> None:
    recorder = FlightRecorder()
    async with listening() as server:
        uri = server.uri
    async with Client("c", flight_recorder=recorder) as client:
        with pytest.raises(ConnectionRefused) as refused:
            await client.connect(uri)
    first = recorder.events[0]
    assert (first.kind, first.text) == ("!", f"ConnectionRefused: {refused.value}")


async def test_two_clients_may_share_one_and_are_told_apart() -> None:
    recorder = FlightRecorder()
    async with (
        listening() as server,
        Client("a", flight_recorder=recorder) as a,
        Client("b", flight_recorder=recorder) as b,
    ):
        await server.log_on(a)
        await server.log_on(b)
    for name in ("a", "b"):
        states = [e.text for e in recorder.events if e.client == name and e.kind == "="]
        assert states[:2] == ["connected", "logged_on"]


async def test_it_may_be_read_in_another_thread_while_it_records() -> None:
    recorder = FlightRecorder(max_events=50)
    finished = False

    def read() -> int:
        rounds = 0
        while not finished:
            events = recorder.events
            numbers = [each.at_us for each in events]
            assert numbers == sorted(numbers)
            assert len(numbers) <= 50
            rounds += 1
        return rounds

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, read)
        for number in range(20_000):
            recorder.record(event(number))
            if number % 1_000 == 0:
                await trio.lowlevel.checkpoint()
        finished = True


def test_the_page_has_a_row_for_each_kind() -> None:
    _, section = DOCS.read_text(encoding="utf-8").split("## The last events before a failure")
    rows = section.split("\n## ")[0].splitlines()
    documented = [line[3] for line in rows if line.startswith("| `")]
    assert documented == list(get_args(EventKind))
