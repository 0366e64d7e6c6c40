"""The answer of a query: its records between two marks, and the acks that follow them.

Queries of records, of queues and of the broker's own topics all answer by this writer. It may be
fed in several steps, between which the connection is sent other messages: the query id says what
belongs together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from haclient.protocol.codec import encode_frame, sow_batch
from haclient.protocol.messages import Message
from haclient_fake_server.engine.acks import Reason, Refused, ack, requested
from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.outbox import Outbox

MAX_BATCH_SIZE: Final = 10_000
"""Records in one frame."""

MAX_BATCH_BYTES: Final = 16 * 2**20
"""Bytes of records in one frame, unless a single one has more: a reader buffers whole frames."""


class Answer:
    """Writes the answer of one query, which begins now.

    Args:
        outbox: Where it goes.
        connection: The client.
        message: The query.
        ids: The ids that its acks carry, `query_id` among them.
    """

    __slots__ = (
        "_batch",
        "_batch_bytes",
        "_connection",
        "_ids",
        "_message",
        "_outbox",
        "_topic",
        "returned",
    )

    def __init__(
        self, outbox: Outbox, connection: Connection, message: Message, ids: Mapping[str, str | int]
    ) -> None:
        self._outbox = outbox
        self._connection = connection
        self._message = message
        self._ids = ids
        self._topic = ""
        self._batch: list[tuple[dict[str, str | int], bytes]] = []
        self._batch_bytes = 0
        self.returned = 0
        self._mark("group_begin")

    def _mark(self, kind: str) -> None:
        frame = encode_frame({"c": kind, "query_id": self._ids["query_id"]})
        self._outbox.send(self._connection, frame)

    def add(self, topic: str, fields: dict[str, str | int], body: bytes) -> None:
        """Add a record; it is sent with others if the query asks for that."""
        if topic != self._topic or self._batch_bytes + len(body) > MAX_BATCH_BYTES:
            self.send_batch()
            self._topic = topic
        self._batch.append((fields, body))
        self._batch_bytes += len(body)
        self.returned += 1
        if len(self._batch) >= (self._message.batch_size or 1):
            self.send_batch()

    def send_batch(self) -> None:
        """Send what was added and not sent yet."""
        if self._batch:
            outer = {"c": "sow", "query_id": self._ids["query_id"], "t": self._topic}
            self._outbox.send(self._connection, sow_batch(outer, self._batch))
            self._batch, self._batch_bytes = [], 0

    def end(self, *, topic_matches: int, matches: int, completes: bool = True) -> None:
        """End the group, and send the acks that the query has asked for.

        Args:
            topic_matches: How many records there are.
            matches: How many of them fit.
            completes: Whether nothing follows, so that the query is completed.
        """
        self.send_batch()
        self._mark("group_end")
        connection, message = self._connection, self._message
        wanted = requested(message.ack_type)
        if completes and "completed" in wanted:
            self._outbox.send(connection, ack("completed", message.command_id, more=self._ids))
        if "stats" in wanted:
            counts = {
                "records_returned": self.returned,
                "topic_matches": topic_matches,
                "matches": matches,
            }
            self._outbox.send(
                connection, ack("stats", message.command_id, more={**self._ids, **counts})
            )


def check_batch_size(message: Message) -> None:
    """Check how many records of a query shall be in one frame.

    Raises:
        Refused: Too many.
    """
    if (message.batch_size or 1) > MAX_BATCH_SIZE:
        raise Refused(Reason.INVALID_BATCH_SIZE, f"{message.batch_size}, at most {MAX_BATCH_SIZE}")
