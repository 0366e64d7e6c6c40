"""What a client reports of itself: events for programs, log records with fields for people."""

from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import haclient
import haclient.events
from haclient.client import Client, HAClient
from haclient.errors import UsageError
from haclient.events import (
    AttemptFailed,
    ConnectionLost,
    ConnectionMade,
    DuplicatesDropped,
    Event,
    LogonAccepted,
    MessagesReceived,
    PublishesPersisted,
    PublishesReplayed,
    PublishRefused,
    RecoveryPointMoved,
    Resubscribed,
    StateChanged,
    SubscriptionGap,
)
from haclient.servers.chooser import DefaultServerChooser
from haclient.session.connection_state import ConnectionState
from haclient.transport.reporter import Reporter
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import Server, answering, together
from support.recovery import drop, entered, live
from support.sources import tree

BODY = b"the-payload"
PASSWORD = "the-password"  # noqa: S105  # nobody's


async def fail_over(server: Server, events: list[Event]) -> str:
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
    events: list[Event] = []
    await fail_over(server, events)
    apart = (StateChanged, RecoveryPointMoved)
    kinds = [type(each) for each in events if not isinstance(each, apart)]
    read_together = slice(7, 9)  # or one after the other
    kinds[read_together] = sorted(kinds[read_together], key=str)
    assert kinds == [
        ConnectionMade,
        LogonAccepted,
        ConnectionLost,
        ConnectionMade,
        LogonAccepted,
        PublishesReplayed,
        Resubscribed,
        DuplicatesDropped,
        PublishesPersisted,
        ConnectionLost,
    ]
    found: dict[str, object] = {}
    for event in events:
        match event:
            case PublishesReplayed(count=count, sequence=sequence):
                found |= {"replayed": count, "sequence": sequence}
            case PublishesPersisted(sequence=sequence):
                found["persisted"] = sequence
            case Resubscribed(sub_id=sub_id):
                found["resubscribed"] = sub_id
            case DuplicatesDropped(messages=messages):
                found["dropped"] = [each.data for each in messages]
            case RecoveryPointMoved(sub_id=sub_id, bookmark=bookmark):
                found["moved"] = (sub_id, bookmark)
            case _:
                pass
    published = found.pop("sequence")
    assert found == {
        "replayed": 1,
        "persisted": published,
        "resubscribed": "s",
        "dropped": [BODY],
        "moved": ("s", "7|1|"),
    }
    assert {each.client for each in events} == {"ha"}
    assert all(each.uri.startswith("unix://") for each in events if type(each) not in apart)
    assert PASSWORD not in str(events)
    assert BODY.decode() not in str(events)
    times = [each.at_us for each in events]
    assert times == sorted(times)


@in_virtual_time
async def test_what_the_logon_says_is_persisted_is_an_event_if_it_was_not_known(
    server: Server,
) -> None:
    events: list[Event] = []
    client = HAClient.memory_backed("ha", servers=[server.uri], heartbeat=None)
    client.add_event_listener(events.append, PublishesPersisted)
    async with entered(client, lambda: live(server)) as peer:
        sequence = await client.publish("orders", BODY)
        await peer.expect("publish")
        await drop(peer)
        assert sequence is not None
        again = await live(server, seen=sequence, persisted=sequence)
        await wait_all_tasks_blocked()
        await drop(again)
        await live(server, seen=sequence, persisted=sequence)
        await wait_all_tasks_blocked()
        await client.disconnect()
    assert [each.sequence for each in events if isinstance(each, PublishesPersisted)] == [sequence]


@in_virtual_time
@pytest.mark.row("OB1")
async def test_a_failed_attempt_has_its_number_and_its_error(server: Server) -> None:
    events: list[Event] = []
    nowhere = "unix://localhost:0/amps/json?path=/nowhere/haclient.sock"
    client = HAClient("ha", servers=[nowhere, server.uri], heartbeat=None, on_event=events.append)
    async with entered(client, lambda: live(server)):
        await wait_all_tasks_blocked()
        await client.disconnect()
    (failed,) = [each for each in events if isinstance(each, AttemptFailed)]
    assert failed.attempt == 1
    assert "nowhere" in failed.uri
    assert "cannot connect" in str(failed.error)


@in_virtual_time
@pytest.mark.row("OB1")
async def test_a_publish_that_is_refused_is_an_event_and_a_listener_can_be_removed(
    server: Server,
) -> None:
    events: list[Event] = []
    async with Client("c", publish_store=MemoryPublishStore(), exit_timeout=0) as client:
        client.add_event_listener(events.append, ConnectionMade, PublishRefused)
        peer = await server.log_on(client)
        sequence = await client.publish("orders", BODY) or 0
        await peer.ack(None, "persisted", s=sequence, status="failure", reason="not entitled")
        await wait_all_tasks_blocked()
        client.remove_event_listener(events.append)
        await client.disconnect()
    (made, failed) = events
    assert isinstance(made, ConnectionMade)
    assert isinstance(failed, PublishRefused)
    assert "not entitled" in str(failed.error)
    assert failed.message.data == BODY


@in_virtual_time
async def test_leaving_limits_also_a_listener_that_was_woken_at_that_moment() -> None:
    async def post(_event: Event) -> None:
        await trio.sleep(60)

    reporter = Reporter("c", lambda: 0, on_event=post)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reporter.run)
        await wait_all_tasks_blocked()
        reporter.emit(ConnectionMade)  # the task that calls has not run yet
        reporter.closing(5)
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == 5


def test_without_a_listener_of_its_kind_no_event_is_made() -> None:
    def clock_us() -> int:
        raise AssertionError("nobody asks for the time")

    reporter = Reporter("c", clock_us)
    reporter.emit(ConnectionMade)
    reporter.add(print, (PublishRefused,))
    reporter.emit(ConnectionMade)
    assert reporter.calls.backlog == 0


@pytest.mark.row("OB1")
def test_each_kind_of_event_is_documented_in_the_order_of_the_module() -> None:
    text = (Path(__file__).parents[3] / "docs" / "observability.md").read_text("utf-8")
    _, section = text.split("## Events\n")
    documented = re.findall(r"^\| `([A-Z]\w+)` \|", section.split("\n## ")[0], re.MULTILINE)
    kinds = [each for each in vars(haclient.events).values() if isinstance(each, type)]
    assert documented == [
        each.__name__ for each in kinds if issubclass(each, Event) and each is not Event
    ]


@pytest.mark.row("OB1")
def test_each_kind_of_event_is_emitted_somewhere() -> None:
    emitted = {
        ast.unparse(call.args[0]).removeprefix("events.")
        for path in Path(haclient.__file__).parent.rglob("*.py")
        if ".emit(" in path.read_text(encoding="utf-8")  # parsing all of them takes seconds
        for call in ast.walk(tree(path))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".emit") and call.args
    }
    kinds = {each for each in haclient.events.__all__ if each not in {"Event", "EventListener"}}
    assert kinds - emitted == set()


# -- listeners of what arrives ------------------------------------------------------------


@in_virtual_time
@pytest.mark.row("CC28")
async def test_a_listener_that_asks_for_them_sees_the_messages_of_every_command(
    server: Server,
) -> None:
    seen: list[str] = []

    async def note(event: Event) -> None:
        assert isinstance(event, MessagesReceived)
        for message in event.messages:
            message.discard()  # a copy: it has no owner
            seen.append(f"{message.command} {message.text}")

    everything: list[Event] = []
    async with Client("c", on_event=everything.append) as client:
        peer = await server.log_on(client)
        client.add_event_listener(note, MessagesReceived)
        with pytest.raises(UsageError, match="added already"):
            client.add_event_listener(note)
        await peer.publish("nobody", b"a")
        await peer.say("heartbeat")
        await wait_all_tasks_blocked()
        client.remove_event_listener(note)
        await peer.publish("nobody", b"b")
        await wait_all_tasks_blocked()
        assert seen == ["publish a", "heartbeat "]
        assert client._core.session.tap is None  # looking at each message takes time
    assert not any(isinstance(each, MessagesReceived) for each in everything)


@in_virtual_time
async def test_a_client_that_a_listener_disconnects_after_a_failed_attempt_reconnects_no_more(
    server: Server,
) -> None:
    states: list[ConnectionState] = []

    async def note(event: Event) -> None:
        if isinstance(event, AttemptFailed):
            await client.disconnect()
        elif isinstance(event, StateChanged):
            states.append(event.state)

    client = HAClient.memory_backed("ha", servers=[server.uri], heartbeat=None, on_event=note)
    async with entered(client, lambda: live(server)) as peer:
        await drop(peer)
        again = await server.accept()
        await again.refuse(await again.expect("logon"), "not licensed")
        await trio.sleep(1)
        assert client.state is ConnectionState.DISCONNECTED
    assert states[-2:] == [ConnectionState.DISCONNECTED, ConnectionState.SHUTDOWN]


@in_virtual_time
async def test_a_gap_of_a_plain_subscription_is_an_event(server: Server) -> None:
    events: list[Event] = []
    client = HAClient("ha", servers=[server.uri], heartbeat=None, exit_timeout=0)
    async with entered(client, lambda: live(server)) as peer:
        client.add_event_listener(events.append, SubscriptionGap)
        async with answering(peer):
            await client.subscribe("orders", handler=print, sub_id="s")
        await drop(peer)
        async with answering(await live(server)):
            await wait_all_tasks_blocked()
    assert [each.sub_id for each in events if isinstance(each, SubscriptionGap)] == ["s"]


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


@pytest.mark.parametrize("kind", ["StateChanged", int])
def test_a_listener_for_what_is_no_kind_of_event_is_refused(kind: object) -> None:
    with pytest.raises(UsageError, match=r"a class of haclient.events"):
        Reporter("c", lambda: 0).add(print, (kind,))  # type: ignore[arg-type]  # wrong on purpose
