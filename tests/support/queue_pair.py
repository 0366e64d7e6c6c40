"""An engine with queues beside a model of each queue: the same steps for both, then compared.

Each step is one command or one piece of time. After it, every connection has to have got what the
models say, in their order; and the log has to have every removal once, with its reason.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections import defaultdict
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import NamedTuple

from haclient.protocol.codec import encode_frame
from haclient.protocol.identity import publisher_id
from haclient.protocol.messages import Message
from haclient_fake_server.engine.journal import Cursor, records_of
from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.engine.queues.snapshot import QueueSnapshot
from haclient_fake_server.engine.settings import QueueTopic
from haclient_fake_server.journal.format import (
    SEGMENT_HEADER_BYTES,
    RecordCommand,
    read_removals,
)
from support.engine import START_US, Peer, World
from support.queue_model import DeadLetter, QueueModel, Sent

REASONS = [
    "",
    "acknowledged",
    "delivered",
    "time_limit",
    "forced_expire",
    "max_cancels",
    "max_deliveries",
]
"""The reasons of the log by their numbers."""

PUBLISHER = "pubber"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Job(NamedTuple):
    """A message, and how long it may wait."""

    n: int = 0
    p: int = 0
    barrier: bool = False
    expiration_s: int | None = None


class QueuePair:
    """A broker with queues, a publisher, consumers by number, and the models.

    Args:
        queues: The queues; each has a topic `orders` below it.
    """

    def __init__(self, *queues: QueueTopic) -> None:
        self.world = World(queues=queues)
        self.models = {queue.name: QueueModel(queue) for queue in queues}
        self.bodies: dict[str, bytes] = {}
        self.consumers: dict[int, Peer] = {}
        self.points: list[tuple[QueuePoint, ...]] = [()]
        self.snapshots: list[tuple[QueueSnapshot, ...]] = [()]
        self.agrees = True
        self._sequences = count(1)
        self._command_ids = count(1)
        self._publisher = self.world.client(PUBLISHER)
        self._advance_models()

    # --- steps

    def connect(self, number: int) -> None:
        """A consumer connects, if it is not connected."""
        if number not in self.consumers:
            self.consumers[number] = self.world.client(f"worker-{number}")

    def disconnect(self, number: int) -> None:
        self.consumers.pop(number).close()
        for model in self.models.values():
            model.disconnect(number)
        self.compare()

    def publish(self, *jobs: Job, die: bool = False) -> None:
        """Publish to `orders`, all at once; with `die` the broker is killed before it writes."""
        frames: list[bytes] = []
        bodies: dict[str, bytes] = {}
        arrived: list[tuple[str, dict[str, int], int | None]] = []
        for n, p, barrier, expiration_s in jobs:
            sequence = next(self._sequences)
            fields = {"id": sequence, "n": n, "p": p, "barrier": int(barrier)}
            frame: dict[str, str | int] = {"c": "p", "t": "orders", "s": sequence}
            if expiration_s is not None:
                frame["e"] = expiration_s
            bookmark = f"{publisher_id(PUBLISHER)}|{sequence}|"
            bodies[bookmark] = body = json.dumps(fields).encode()
            frames.append(encode_frame(frame, body))
            arrived.append((bookmark, fields, expiration_s))
        if die:
            self.world.die_before_writing(self._publisher, frames)
            self._restarted()
            return
        self.bodies |= bodies
        self._publisher.send_all(frames)
        for model in self.models.values():
            model.publish(*arrived)
        self.compare()

    def subscribe(
        self,
        number: int,
        queue: str,
        *,
        backlog: int | None = None,
        content: str = "",
        sub: str = "a",
    ) -> None:
        """Subscribe, or replace a subscription that is there."""
        sub_id = f"{queue}.{sub}"
        model = self.models[queue]
        replaces = sub_id in self.subscriptions(number, queue)
        options = ["replace"] if replaces else []
        if backlog is not None:
            options.append(f"max_backlog={backlog}")
        frame: dict[str, str | int] = {"t": queue, "opts": ",".join(options)}
        if content:
            frame["filter"] = content
        peer = self.consumers[number]
        peer.send(**{**frame, "c": "subscribe", "cid": "x", "sub_id": sub_id, "a": "processed"})
        change = model.replace if replaces else model.subscribe
        granted = change(number, sub_id, backlog, content)
        ack = self.compare()[number, "ack"][0]
        assert ack.status == "success", ack
        assert ack.options.split(",")[0] == f"max_backlog={granted}", ack.options

    def unsubscribe(self, number: int, queue: str, sub_id: str) -> None:
        self.consumers[number].send(c="unsubscribe", cid="x", sub_id=sub_id)
        self.models[queue].unsubscribe(number, sub_id)
        self.compare()

    def acknowledge(
        self,
        number: int,
        queue: str,
        *bookmarks: str,
        content: str | None = None,
        option: str = "",
        extension_s: int = 0,
        die: bool = False,
    ) -> None:
        """Acknowledge messages by bookmark or, with `content`, by filter."""
        frame: dict[str, str | int] = {"c": "sow_delete", "cid": "x", "t": queue}
        if content is None:
            frame["bm"] = ",".join(bookmarks)
        else:
            frame["filter"] = content or "1 = 1"
        options = f"lease_extension={extension_s}s" if extension_s else option
        if options:
            frame["opts"] = options
        peer = self.consumers[number]
        if die:
            self.world.die_before_writing(peer, [encode_frame(frame)])
            self._restarted()
            return
        peer.send(**frame)
        self.models[queue].acknowledge(
            number, bookmarks=bookmarks, content=content, option=option, extension_s=extension_s
        )
        self.compare()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.world.advance(seconds)
        self._advance_models()
        self.compare()

    def restart(
        self,
        points: tuple[QueuePoint, ...] | None = None,
        snapshots: tuple[QueueSnapshot, ...] = (),
    ) -> None:
        """Start the broker again, with these points in its file, or with those that it had.

        Args:
            points: What `queues.ack` has.
            snapshots: What the files of file-backed queues have.
        """
        if points is not None:
            self.world.queue_points = points
        self.world.queue_snapshots = snapshots
        self.world.restart()
        self._restarted()

    # --- what is there

    @property
    def subscribed(self) -> list[tuple[int, str, str]]:
        """All consumers: connection, queue and subscription id."""
        return [
            (each.connection, queue, each.sub_id)
            for queue, model in self.models.items()
            for each in model.consumers
        ]

    def subscriptions(self, number: int, queue: str) -> list[str]:
        """The subscription ids of a consumer for a queue."""
        consumers = self.models[queue].consumers
        return [each.sub_id for each in consumers if each.connection == number]

    def browse(self, queue: str, content: str = "") -> list[str]:
        """The bookmarks of what is available."""
        reader = self.world.client("browser")
        frame: dict[str, str | int] = {"c": "sow", "cid": "q", "t": queue, "bs": 3}
        if content:
            frame["filter"] = content
        reader.send(**frame)
        found = reader.take()
        reader.close()
        assert [message.kind for message in found if message.kind != "sow"] == [
            "group_begin",
            "group_end",
        ]
        records = [message for message in found if message.kind == "sow"]
        assert all(self.bodies[each.bookmark] == each.data for each in records)
        return [message.bookmark for message in records]

    def statistics(self) -> dict[str, dict[str, object]]:
        """The broker's own record of the queues, by name."""
        reader = self.world.client("browser")
        reader.send(c="sow", cid="q", t="/HACLIENT/queues")
        (record,) = [message for message in reader.take() if message.kind == "sow"]
        reader.close()
        return {entry["name"]: entry for entry in json.loads(record.data)["queues"]}

    def removed(self, queue: str) -> list[tuple[str, str]]:
        """What the log says has left a queue: bookmark and reason."""
        found: list[tuple[str, str]] = []
        after = Cursor(1, SEGMENT_HEADER_BYTES)
        while True:
            data, after = self.world.journal.read(after, 1 << 20)
            if not data:
                return found
            for record in records_of(data):
                if record.command == RecordCommand.QUEUE_REMOVE:
                    removals = read_removals(record)
                    if removals.queue == queue.encode():
                        found += [
                            (f"{entry.publisher_id}|{entry.sequence}|", REASONS[entry.reason])
                            for entry in removals.entries
                        ]

    def dead_letters(self, topic: str) -> list[DeadLetter]:
        """What is in the log of a dead letter topic; each body has to be the message's own."""
        reader = self.world.client("reader")
        reader.subscribe(t=topic, bm="0")
        letters: list[DeadLetter] = []
        for message in reader.take():
            if message.kind == "p":
                context = json.loads(b64decode(message.correlation_id))
                assert message.data == self.bodies[context["bookmark"]]
                letters.append(DeadLetter(*(context[name] for name in DeadLetter._fields)))
        reader.close()
        return letters

    # --- comparing

    def compare(self) -> dict[tuple[int, str], list[Message]]:
        """What came in this step is what the models say; returns it by connection and kind."""
        found: dict[tuple[int, str], list[Message]] = defaultdict(list)
        self.agrees = False
        for number, peer in self.consumers.items():
            for message in peer.take():
                kind = f"p {message.topic}" if message.kind == "p" else message.kind
                found[number, kind].append(message)
            assert not peer.closed, peer.closed
        self._publisher.take()
        for queue, model in self.models.items():
            by_connection: dict[int, list[Sent]] = defaultdict(list)
            for sent in model.sent:
                by_connection[sent.connection].append(sent)
            model.sent.clear()
            for number in self.consumers:
                self._compare_deliveries(found[number, f"p {queue}"], by_connection[number])
        known = {"ack", *(f"p {queue}" for queue in self.models)}
        assert {kind for _, kind in found} <= known
        self.agrees = True
        self.points.append(self.world.engine.queue_points)
        return found

    def check(self) -> None:
        """Browsing, the statistics, the log and the dead letters say what the models say."""
        self.snapshots.append(tuple(deepcopy(self.world.engine.queue_snapshots())))
        statistics = self.statistics()
        for queue, model in self.models.items():
            available = [message.bookmark for message in model.messages if not message.holder]
            assert (found := self.browse(queue)) == available, (queue, found, available)
            figures = statistics[queue]
            assert figures["available"] == len(available)
            assert figures["consumers"] == len(model.consumers)
            if not model.at_most_once:
                assert figures["leased"] == len(model.leased)
                assert figures["depth"] == len(model.messages)
            removed = self.removed(queue)
            assert dict(removed) == model.gone
            assert len(removed) == len(model.gone), "a message left the queue twice"
            there = {message.bookmark for message in model.messages}
            assert there | set(model.gone) == set(self.bodies)
            if model.rules.dead_letter:
                assert sorted(self.dead_letters(model.rules.dead_letter)) == sorted(
                    model.dead_letters
                )

    def _compare_deliveries(self, messages: list[Message], expected: list[Sent]) -> None:
        found: list[tuple[str, str, int | None]] = []
        for message in messages:
            assert message.data == self.bodies[message.bookmark]
            lease_end = lease_us(message.lease_period) if message.lease_period else None
            found += [
                (sub_id, message.bookmark, lease_end)
                for sub_id in message.sub_ids or [message.sub_id]
            ]
        assert found == [sent[1:] for sent in expected]

    def _advance_models(self) -> None:
        for model in self.models.values():
            model.advance(self._now_us())

    def _restarted(self) -> None:
        self.consumers.clear()
        for model in self.models.values():
            model.restart(self._now_us())
        self._publisher = self.world.client(PUBLISHER)
        self.compare()

    def _now_us(self) -> int:
        return START_US + int(self.world.now * 1e6)


def lease_us(text: str) -> int:
    """Microseconds since 1970 of `20240321T221052.535075Z`."""
    moment = datetime.strptime(text, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(microseconds=1)
