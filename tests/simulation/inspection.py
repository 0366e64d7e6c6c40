"""Looking into a system at rest: what its brokers have, and how much its parts hold."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import TYPE_CHECKING, Final

import trio

from haclient.client import Client
from haclient.protocol.messages import Message
from haclient.transport.links.memory_network import network
from haclient_stores.bookmark import EPOCH
from simulation.actors import message_of, uri
from simulation.checkers import LogRecord
from simulation.history import JOBS_TOPIC, Abandoned
from simulation.jobs import DEAD_TOPIC
from simulation.queue_checkers import DeadLetter

if TYPE_CHECKING:
    from simulation.simulator import Run

__all__ = ["dead_letters_of", "depths_of", "log_of", "sizes", "sow_of"]

_MESSAGES: Final = f"^(orders|state|{JOBS_TOPIC})$"
_STATISTICS: Final = "/HACLIENT/queues"


async def log_of(broker: str) -> list[LogRecord]:
    """All messages in a broker's log, in its order."""
    records = await _recorded(broker, _MESSAGES)
    return [(each.bookmark, message_of(each.data)) for each in records]


async def dead_letters_of(broker: str) -> list[DeadLetter]:
    """What queues have copied, in order."""
    found: list[DeadLetter] = []
    for each in await _recorded(broker, DEAD_TOPIC):
        context = json.loads(b64decode(each.correlation_id))
        found.append(DeadLetter(context["queue"], message_of(each.data), context["reason"]))
    return found


async def depths_of(broker: str) -> dict[str, int]:
    """How many messages each queue holds."""
    async with Client("inspector") as client:
        await client.connect(uri(broker))
        await client.logon()
        async with client.sow(_STATISTICS) as records:
            found = [json.loads(record.data) async for record in records]
    return {each["name"]: each["depth"] for one in found for each in one["queues"]}


async def _recorded(broker: str, topic: str) -> list[Message]:
    found: list[Message] = []
    async with Client("inspector") as client:
        await client.connect(uri(broker))
        await client.logon()
        messages = client.bookmark_stream(topic, sub_id="inspection", bookmark=EPOCH)
        async with messages, trio.open_nursery() as nursery:

            async def collect() -> None:
                async for batch in messages.batches():
                    found.extend(batch)

            nursery.start_soon(collect)
            await messages.wait_caught_up()
            nursery.cancel_scope.cancel()
    return found


async def sow_of(broker: str) -> dict[str, int]:
    """The state of the world: the last message of each key."""
    async with Client("inspector") as client:
        await client.connect(uri(broker))
        await client.logon()
        async with client.sow("state") as records:
            found = [message_of(record.data) async for record in records]
    return {message.publisher: message.number for message in found}


def sizes(run: Run) -> dict[str, int]:
    """What is held, by whom and of what; the last word is the kind."""
    found = {"all connections": len(network().connections)}
    abandoned = any(isinstance(fact, Abandoned) for fact in run.history.facts)
    for name, publisher in run.publishers.items():
        found[f"{name} segments"] = len(getattr(publisher.store, "_segments", ()))
    for name, subscriber in run.subscribers.items():
        store = subscriber.store
        forgot = subscriber.plan.store in {"memory", "adapter"}  # in the last restart
        if store is not None and run.plan.finishes and not subscriber.plan.keeps and not forgot:
            known = [store._known(each.sub_id) for each in subscriber.subscriptions]
            # An abandoned message may be on one broker only; who was given it waits for that one.
            trackers = [each for each in known if not (abandoned and each.undiscarded_count)]
            # What is discarded may wait for an ack that names it: condensed, so with a limit.
            found[f"{name} entries"] = sum(
                each.next_number - each.low_watermark for each in trackers
            )
            found[f"{name} waiting"] = sum(len(each.finished.waiting) for each in trackers)
    for name, broker in run.brokers.items():
        if broker.server is not None:
            found[f"{name} sessions"] = len(broker.server._entered()._sessions)
    return found
