"""A consumer of a queue keeps its backlog when its options are replaced."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from haclient import FileSubscriptionManager, HAClient, Message
from haclient_fake_server.config import BrokerConfig, QueueTopic
from support.broker import running_broker


def _note(sent: list[str], direction: str, header: str) -> None:
    sent.append(direction + header)


async def test_a_consumer_with_replaced_options_keeps_its_backlog_and_can_be_restored(
    tmp_path: Path,
) -> None:
    queue = QueueTopic(name="q", max_per_subscription_backlog=50)

    def handler(_: Message) -> None:
        pass

    async with running_broker(BrokerConfig(queues=(queue,))) as server:
        for is_restored in (False, True):
            sent: list[str] = []
            async with HAClient(
                "consumer",
                servers=[f"{server.uris[0]}/amps/json"],
                subscription_manager=FileSubscriptionManager(tmp_path / "subscriptions"),
                wire_tap=partial(_note, sent),
            ) as client:
                if is_restored:
                    await client.restore_subscriptions({"s": handler}, queues={"s": {}})
                else:
                    await client.queue_subscribe("q", sub_id="s", handler=handler, max_backlog=10)
                    await client.replace("s", options="select=[-/,+/id]")
            last = [each for each in sent if each.startswith('>{"c":"subscribe"')][-1]
            assert "max_backlog=10" in last
            assert "select=[-/,+/id]" in last
