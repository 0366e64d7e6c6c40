"""What a client reports of itself: events for programs, log records with fields for people."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.ha import HAClient
from haclient.servers.chooser import DefaultServerChooser
from haclient.transport.events import Events
from haclient.transport.reporter import EVENT_NAMES, ClientEvent, Reporter
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import Server, answering, together
from support.recovery import drop, entered, live

BODY = b"the-payload"
PASSWORD = "the-password"  # noqa: S105  # nobody's


async def fail_over(server: Server, events: list[ClientEvent]) -> str:
    """A publish and a subscription survive a lost connection; return the server's URI."""
    uri = server.uri.replace(":secret@", f":{PASSWORD}@")
    assert PASSWORD in uri
    client = HAClient(
        "ha",
        server_chooser=DefaultServerChooser([uri]),
        publish_store=MemoryPublishStore(),
        bookmark_store=MemoryBookmarkStore(),
        heartbeat=None,
        on_event=events.append,
    )
    async with entered(client, lambda: live(server)) as peer:
        async with answering(peer):
            await client.bookmark_subscribe(
                "orders", sub_id="s", bookmark=EPOCH, handler=lambda m: m.discard()
            )
            await peer.publish("s", BODY, bm="7|1|")
            await wait_all_tasks_blocked()
        sequence = await client.publish("orders", BODY)
        await peer.expect("publish")
        await drop(peer)
        again = await live(server)
        await again.expect("publish")
        await again.answer("subscribe")
        await wait_all_tasks_blocked()
        await again.publish("s", BODY, bm="7|1|")
        await again.ack(None, "persisted", sub_id="s", bm="7|1|")
        assert sequence is not None
        await again.persisted(sequence)
        await trio.sleep(3)
        await client.disconnect()
    return uri


@in_virtual_time
@pytest.mark.row("OB1")
async def test_a_fail_over_is_a_series_of_events(server: Server) -> None:
    events: list[ClientEvent] = []
    await fail_over(server, events)
    names = [each.name for each in events if each.name != "recovery_point_moved"]
    read_together = slice(7, 9)  # or one after the other
    names[read_together] = sorted(names[read_together])
    assert names == [
        "connected",
        "logged_on",
        "connection_lost",
        "connected",
        "logged_on",
        "publishes_replayed",
        "resubscribed",
        "duplicates_dropped",
        "publishes_persisted",
        "connection_lost",
    ]
    found = {each.name: each for each in events}
    assert found["publishes_replayed"].count == 1
    assert found["publishes_persisted"].sequence == found["publishes_replayed"].sequence > 0
    assert found["resubscribed"].sub_id == "s"
    assert found["duplicates_dropped"].count == 1
    assert found["recovery_point_moved"].bookmark == "7|1|"
    assert found["connection_lost"].error is not None
    assert {each.client for each in events} == {"ha"}
    assert all(each.uri.startswith("unix://") for each in events)
    assert PASSWORD not in str(events)
    times = [each.at_us for each in events]
    assert times == sorted(times)
    assert set(found) <= EVENT_NAMES


@in_virtual_time
@pytest.mark.row("OB1")
async def test_a_failed_attempt_has_its_number_and_its_error(server: Server) -> None:
    events: list[ClientEvent] = []
    nowhere = "unix://localhost:0/amps/json?path=/nowhere/haclient.sock"
    client = HAClient("ha", servers=[nowhere, server.uri], heartbeat=None, on_event=events.append)
    async with entered(client, lambda: live(server)):
        await wait_all_tasks_blocked()
        await client.disconnect()
    (failed,) = [each for each in events if each.name == "attempt_failed"]
    assert failed.attempt == 1
    assert "nowhere" in failed.uri
    assert "cannot connect" in str(failed.error)


@in_virtual_time
@pytest.mark.row("OB1")
async def test_a_publish_that_is_refused_is_an_event_and_a_listener_can_be_removed(
    server: Server,
) -> None:
    events: list[ClientEvent] = []
    async with Client("c", publish_store=MemoryPublishStore(), exit_timeout=0) as client:
        client.add_event_listener(events.append)
        peer = await server.log_on(client)
        await client.publish("orders", BODY)
        refused = await peer.expect("publish")
        await peer.refuse(refused, "not entitled", "persisted")
        await wait_all_tasks_blocked()
        client.remove_event_listener(events.append)
        await client.disconnect()
    assert [each.name for each in events] == ["connected", "logged_on", "publish_refused"]
    assert "not entitled" in str(events[-1].error)


def test_without_a_listener_no_event_is_made() -> None:
    def clock_us() -> int:
        raise AssertionError("nobody asks for the time")

    reporter = Reporter("c", clock_us, Events())
    reporter.event("connected")
    assert not reporter.has_listeners


@pytest.mark.row("OB1")
def test_each_event_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "observability.md").read_text("utf-8")
    missing = [name for name in sorted(EVENT_NAMES) if f"| `{name}` |" not in text]
    assert missing == []


# -- log records --------------------------------------------------------------------------


@in_virtual_time
@pytest.mark.row("OB2")
async def test_records_have_fields_and_no_body_or_password(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await fail_over(server, [])
    ours = [each for each in caplog.records if each.name.startswith("haclient.client")]
    assert ours
    for record in ours:
        fields = vars(record)
        assert fields["client"] == "ha"
        assert fields["uri"] == "" or fields["uri"].startswith("unix://user@")
        assert isinstance(fields["sub_id"], str)
    assert {1} <= {vars(each)["attempt"] for each in ours}
    assert {each.name.partition(".")[0] for each in caplog.records} <= {"haclient", "asyncio"}
    told = "\n".join([caplog.text, *(str(vars(each)) for each in caplog.records)])
    assert BODY.decode() not in told
    assert PASSWORD not in told


@pytest.mark.row("OB2")
def test_an_application_without_a_logging_configuration_sees_nothing() -> None:
    code = """
import logging, trio
from haclient import HAClient, FixedDelayStrategy, TimedOut, ReconnectGaveUp
async def main():
    delay = FixedDelayStrategy(0.01, give_up_after=0.1)
    try:
        async with HAClient("c", servers=["tcp://127.0.0.1:1/amps"], delay_strategy=delay):
            pass
    except ReconnectGaveUp:
        print("gave up")
trio.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout, done.stderr) == ("gave up\n", "")


@in_virtual_time
async def test_records_about_handlers_and_queues_have_the_fields_too(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "haclient")

    def fail(_: object) -> None:
        raise ValueError(BODY)

    async with Client("c", on_handler_error="continue", exit_timeout=0) as client:
        peer = await server.log_on(client)
        await together(
            lambda: client.subscribe("orders", handler=fail, sub_id="s"),
            lambda: peer.answer("subscribe"),
        )
        await together(
            lambda: client.queue_subscribe("work", handler=fail, sub_id="q"),
            lambda: peer.answer("subscribe", opts="max_backlog=1"),
        )
        await peer.publish("s", BODY)
        await peer.publish("q", BODY, topic="work", bm="7|1|")
        await wait_all_tasks_blocked()
        await client.disconnect()
    records = [each for each in caplog.records if each.name != "haclient.wire"]
    said = " ".join(each.getMessage() for each in records)
    for part in ("of subscription s on", "of the queue work (failure 1)", "backlog 1"):
        assert part in said
    assert {getattr(each, "client", None) for each in records} == {"c"}
    about = {each.sub_id for each in records if "a handler raised" in each.getMessage()}  # type: ignore[attr-defined]  # a field of the client's
    assert about == {"s", "q"}
