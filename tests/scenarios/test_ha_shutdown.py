"""`haclient.run` ends a service with work in every part of it, in virtual time.

A handler is at work, acknowledgements of queue messages wait to be sent together, and the server
has not yet said that the publishes are persisted.
"""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from typing_extensions import override

import haclient
from haclient.client import HAClient
from haclient.errors import GraceExpired
from haclient.protocol.messages import Message
from haclient.stores import MemoryPublishStore
from haclient_fake_server.config import BrokerConfig, QueueTopic, ReplicateTo
from support.instances import Instance, address, instances

WORK = QueueTopic(name="work", topics=("orders",), lease_s=86400.0, max_per_subscription_backlog=10)


def config(path: Path, *replicas: ReplicateTo) -> BrokerConfig:
    return BrokerConfig(data_dir=path, segment_bytes=1 << 20, queues=(WORK,), replicate_to=replicas)


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    monkeypatch.setattr(trio, "run", partial(trio.run, clock=clock))


class NotedStore(MemoryPublishStore):
    """Notes when the client closes it."""

    def __init__(self, steps: list[str]) -> None:
        super().__init__()
        self._steps = steps

    @override
    def close(self) -> None:
        self._steps.append("stores closed")
        super().close()


class Service:
    """Consumes `work`, takes `seconds` for each message, and publishes a result of each.

    Attributes:
        steps: What has happened, in order.
        finished_at: When a handler has returned, the last time.
        acked_at: When acknowledgements were sent, the last time.
    """

    def __init__(self, seconds: float) -> None:
        self.steps: list[str] = []
        self.finished_at = self.acked_at = 0.0
        self.seconds = seconds

    def client(self, broker: Instance, **times: float) -> HAClient:
        return HAClient(
            "service",
            servers=[broker.uri],
            publish_store=NotedStore(self.steps),
            logon_options="ack_conflation=1h",  # no publish is persisted unless it is asked for
            ack_timeout=3600.0,  # no acknowledgement is sent by itself
            ack_batch_size=10,
            wire_tap=self._frame,
            **times,  # type: ignore[arg-type]  # as each test gives them
        )

    async def handle(self, message: Message, client: HAClient) -> None:
        self.steps.append(f"begun {message.text}")
        await trio.sleep(self.seconds)
        await client.publish("results", message.data)
        self.steps.append(f"finished {message.text}")
        self.finished_at = trio.current_time()

    def _frame(self, direction: str, header: str) -> None:
        fields = json.loads(header)
        kind, acks = fields["c"], fields.get("a", "")
        if direction == ">" and kind == "sow_delete":
            self.steps.append(f"{fields['bm'].count(',') + 1} acks sent")
            self.acked_at = trio.current_time()
        elif direction == "<" and kind == "ack" and acks == "persisted" and "s" in fields:
            self.steps.append("publishes persisted")

    async def end_in_the_middle(self, client: HAClient, broker: Instance) -> None:
        """Three messages; the signal comes while the second is handled."""
        async with client:
            await client.queue_subscribe(
                "work", handler=partial(self.handle, client=client), max_backlog=10
            )
            async with HAClient("other", servers=[broker.uri], exit_timeout=0) as other:
                for body in (b"1", b"2", b"3"):
                    await other.publish("orders", body)
            await trio.sleep(1.5 * self.seconds)
            assert self.steps == ["begun 1", "finished 1", "begun 2"]
            assert client.unpersisted_count == 1
            signal.raise_signal(signal.SIGTERM)
            try:
                await trio.sleep_forever()
            finally:
                self.steps.append("main cancelled")


async def browsed(path: Path) -> list[bytes]:
    """What is in the queue when the broker runs again."""
    async with (
        instances("east", config=config(path)) as (east,),
        HAClient("browser", servers=[east.uri]) as client,
        client.sow("work") as messages,
    ):
        return [each.data async for each in messages]


@pytest.mark.row("HA24")
def test_handlers_end_then_acks_and_publishes_are_flushed_then_everything_is_closed(
    tmp_path: Path,
) -> None:
    service = Service(seconds=4.0)
    left: list[int] = []

    async def main() -> None:
        async with instances("east", config=config(tmp_path)) as (east,):
            client = service.client(east)
            try:
                await service.end_in_the_middle(client, east)
            finally:
                left.append(client.unpersisted_count)

    assert haclient.run(main, grace=25.0) is None
    assert service.steps == [
        "begun 1",
        "finished 1",
        "begun 2",
        "finished 2",
        "2 acks sent",
        "publishes persisted",
        "main cancelled",
        "stores closed",
    ]
    assert left == [0]
    assert trio.run(browsed, tmp_path) == [b"3"]  # it was delivered, and left to the next one


@pytest.mark.row("HA24")
def test_at_the_end_of_the_grace_a_handler_is_cancelled_and_what_is_left_is_told(
    tmp_path: Path,
) -> None:
    service = Service(seconds=100.0)
    took: list[float] = []
    left: list[int] = []

    async def main() -> None:
        async with instances("east", config=config(tmp_path)) as (east,):
            client = service.client(east)
            began = trio.current_time() + 150.0
            try:
                await service.end_in_the_middle(client, east)
            finally:
                took.append(trio.current_time() - began)
                left.append(client.unpersisted_count)

    with pytest.raises(GraceExpired) as expired:
        haclient.run(main, grace=25.0)
    assert took == [pytest.approx(25.0, abs=0.1)]  # virtual
    assert service.steps == [
        "begun 1",
        "finished 1",
        "begun 2",
        "main cancelled",
        "1 acks sent",
        "stores closed",
    ]
    assert left == [1]  # kept in the store
    told = str(expired.value)
    assert "client 'service': at work: " in told
    assert "1 publishes not persisted" in told
    assert "acknowledgements of queue messages not sent" in told
    found = trio.run(browsed, tmp_path)
    assert found[-2:] == [b"2", b"3"]  # what was begun and not finished is not acknowledged


@pytest.mark.row("HA24", "HA25")
def test_acknowledgements_do_not_wait_for_publishes_that_a_replica_does_not_persist(
    tmp_path: Path,
) -> None:
    service = Service(seconds=4.0)
    replicated = config(tmp_path, ReplicateTo(address("down")))
    left: list[int] = []

    async def main() -> None:
        async with instances("east", config=replicated) as (east,):
            client = service.client(east, exit_timeout=5.0)
            try:
                await service.end_in_the_middle(client, east)
            finally:
                left.append(client.unpersisted_count)

    assert haclient.run(main, grace=25.0) is None
    assert "publishes persisted" not in service.steps
    assert left == [2]
    assert service.acked_at - service.finished_at < 1.0  # virtual; their leases go on meanwhile
    assert trio.run(browsed, tmp_path) == [b"3"]
