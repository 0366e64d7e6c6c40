"""A pure engine with queues, its publisher and its consumers."""

from __future__ import annotations

import re
from typing import Any

from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message
from haclient_fake_server.engine.queues.queue import Queue
from haclient_fake_server.engine.settings import QueueTopic
from support.engine import Peer, World

__all__ = ["QueueWorld", "acknowledge", "consume", "delivered", "number", "numbers"]


class QueueWorld(World):
    """A world with queues; by default with one, `work`, over the topic `jobs`.

    Args:
        queues: Their configurations.
        options: Of the one queue, where `queues` is empty.
    """

    def __init__(self, *queues: QueueTopic, **options: Any) -> None:  # noqa: ANN401  # of `QueueTopic`
        chosen = queues or (QueueTopic(name="work", topics=("jobs",), **options),)
        super().__init__(queues=chosen)
        self.publisher = self.client("pubber")
        self._sequence = 0

    def queue(self, name: str = "work", message_type: str = "json") -> Queue:
        """A queue of the engine."""
        found = self.engine._routes.queues.get(name, message_type)
        assert found is not None, name
        return found

    def states(self, name: str = "work") -> tuple[int, int]:
        """How many messages of a queue are available, and how many consumers have."""
        queue = self.queue(name)
        return queue.table.available, queue.unacknowledged

    def publish(self, *bodies: bytes, topic: str = "jobs", **fields: str | int) -> None:
        """Publish some messages with sequences in one batch."""
        frames: list[bytes] = []
        for body in bodies:
            self._sequence += 1
            frames.append(encode_frame({"c": "p", "t": topic, "s": self._sequence, **fields}, body))
        self.publisher.send_all(frames)

    def publish_numbers(self, count: int, *, first: int = 1) -> None:
        """Publish `{"n": 1}`, `{"n": 2}` and so on in one batch."""
        self.publish(*(b'{"n": %d}' % number for number in range(first, first + count)))

    def consumer(self, name: str = "worker", /, **fields: str | int) -> Peer:
        """A client with a subscription to `work`; the ack of that is swallowed."""
        peer = self.client(name)
        consume(peer, **fields)
        return peer


def consume(peer: Peer, sub_id: str = "1", /, **fields: str | int) -> str:
    """Subscribe to `work`, without a look at what comes; the options of the ack."""
    plain: dict[str, str | int] = {"t": "work", "a": "processed", "cid": sub_id, "sub_id": sub_id}
    peer.send(**{"c": "subscribe", **plain, **fields})
    inbox = peer.take()
    (answer,) = [message for message in inbox if message.kind == "ack"]
    assert answer.status == "success", answer
    peer.put_back([message for message in inbox if message.kind != "ack"])
    return answer.options


def acknowledge(peer: Peer, *marks: str, **fields: str | int) -> None:
    """Acknowledge messages of `work` by their bookmarks."""
    plain: dict[str, str | int] = {"c": "sow_delete", "t": "work"}
    if marks:
        plain["bm"] = ",".join(marks)
    peer.send(**{**plain, **fields})


def delivered(peer: Peer) -> list[Message]:
    """The deliveries that came since the last look."""
    return [message for message in peer.take() if message.kind == "p"]


def numbers(peer: Peer) -> list[int]:
    """The numbers in the bodies of the deliveries that came since the last look."""
    return [number(message) for message in delivered(peer)]


def number(message: Message) -> int:
    """The number in a body of `publish_numbers`."""
    found = re.search(rb'"n": (\d+)', message.data)
    assert found is not None, message
    return int(found[1])
