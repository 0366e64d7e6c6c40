"""Publishes the rows of one task: finds a server, continues where an earlier attempt got to.

It runs in a worker of PySpark, in a trio of its own, with a plain `Client`: a connection that is
lost, by an error or because another attempt has taken the name, ends the attempt, and PySpark
starts another one. Nothing here connects twice.

Nothing returns before the persisted ack of the last row.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, cast

import trio

from haclient.client import Client
from haclient.errors import (
    CommandError,
    DisconnectedError,
    HAClientError,
    PublishFailed,
    TimedOut,
    UsageError,
)
from haclient.protocol.messages import Message
from haclient.protocol.uri import Uri
from haclient.pyspark.sink.lanes import (
    chained_digests,
    check_count,
    check_fence,
    check_resume,
    rows_done,
    sequence_before,
)

Command: TypeAlias = Literal["publish", "delta_publish", "sow_delete"]

_SLICE: Final = 16_384
"""Rows whose values are Python objects at a time."""

_PACE_S: Final = 0.1
"""With a limit of rows a second, a task publishes for so long at once; then it waits."""

_MAX_NAMED: Final = 3  # refused rows that an error shows
_PUBLISHER_TOPIC: Final = "/HACLIENT/publisher"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to publish.

    Attributes:
        uris: The servers, best first.
        command: What each message is.
        expiration: Lifetime of the SOW records in seconds, or `None`; rows may have their own.
        timeout_s: How long a server may take for a step, and go without persisting anything.
        verifies: Whether a resumed batch is compared with what was published; `None` does so where
            the server can be asked.
        rows_per_second: How many rows a task publishes in a second at most, or `None`.
    """

    uris: tuple[str, ...]
    command: Command = "publish"
    expiration: int | None = None
    timeout_s: float = 10.0
    verifies: bool | None = None
    rows_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages in the order in which they are published.

    Attributes:
        topics: One for each, or one for all.
        bodies: Their bodies.
        correlation_ids: One for each, or none.
        expirations: One for each in seconds, or none.
    """

    topics: Sequence[str] | str
    bodies: Sequence[bytes]
    correlation_ids: Sequence[str] = ()
    expirations: Sequence[int | None] = ()

    def slice(self, begin: int, end: int) -> Rows:
        """A part of them."""
        topics = self.topics if isinstance(self.topics, str) else self.topics[begin:end]
        return Rows(
            topics,
            self.bodies[begin:end],
            self.correlation_ids[begin:end],
            self.expirations[begin:end],
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that the server has refused.

    Attributes:
        topic: Its topic.
        data: Its body.
        reason: The server's.
    """

    topic: str
    data: bytes
    reason: str


class _Connection:
    """One attempt's client, with the refusals that it was told."""

    def __init__(self, client: Client, target: Target, refusals: list[tuple[int, str]]) -> None:
        self.client = client
        self.target = target
        self.refusals = refusals
        self._next_at = 0.0

    @property
    def seen(self) -> int:
        """The highest sequence that the server has seen of this publisher.

        Raises:
            UsageError: It does not say.
        """
        seen = self.client.seen_sequence
        if seen is None:
            raise UsageError(
                f"{self.client.name}: the server does not say in its logon ack what it has of a "
                "publisher: it needs a transaction log"
            )
        return seen

    async def publish(self, rows: Rows, first_sequence: int) -> None:
        """Publish rows at the rate that is permitted; it waits for room, and for no ack."""
        limit = self.target.rows_per_second
        if limit is None:
            await self._publish(rows, first_sequence)
            return
        count = max(int(limit * _PACE_S), 1)
        for begin in range(0, len(rows.bodies), count):
            part = rows.slice(begin, begin + count)
            await self._publish(part, first_sequence + begin)
            # The wait follows the rows, also the last ones: the next batch begins after it.
            now = trio.current_time()
            self._next_at = max(self._next_at, now) + len(part.bodies) / limit
            await trio.sleep_until(self._next_at)

    async def _publish(self, rows: Rows, first_sequence: int) -> None:
        await self.client.publish_batch(
            rows.topics,
            rows.bodies,
            first_sequence=first_sequence,
            command=self.target.command,
            expiration=rows.expirations or self.target.expiration,
            correlation_ids=rows.correlation_ids,
        )

    async def persisted(self) -> None:
        """Wait until everything is persisted, for as long as the server makes progress.

        Raises:
            TimedOut: The server has persisted nothing for `timeout_s`.
        """
        while True:
            before = self.client.persisted_sequence
            try:
                await self.client.flush(ack="persisted", timeout=self.target.timeout_s)
            except TimedOut:
                if self.client.persisted_sequence == before:
                    raise
            else:
                return

    async def last_message(self) -> dict[str, object] | None:
        """What the server says of this publisher, `None` when it cannot be asked."""
        query = json.dumps({"name": self.client.name})
        try:
            async with self.client.sow(_PUBLISHER_TOPIC, data=query) as records:
                async for record in records:
                    found: object = record.json()
                    return cast("dict[str, object]", found) if isinstance(found, dict) else None
        except CommandError:  # a server that has no such topic
            return None
        return None


async def publish_exactly_once(
    name: str, batch_id: int, rows: Rows, target: Target, *, with_digests: bool
) -> int:
    """Publish a lane's rows of one batch, except those that the server has persisted.

    Args:
        name: The publisher.
        batch_id: The batch.
        rows: All rows of it in this lane, in order.
        target: Where to.
        with_digests: Whether each message carries the digest of the rows up to it.

    Returns:
        How many rows had been persisted before.

    Raises:
        Fenced: The publisher is in a later batch.
        ChangedContent: What was published of this batch is not the beginning of it.
        PublishFailed: The server has refused a row, or does not record the topic. Another attempt
            would not notice.
        DisconnectedError: No server takes the connection, or it was lost.
        TimedOut: The server has persisted nothing for too long.
        UsageError: The server cannot be asked, and `verifies` says that it has to be.
    """
    if with_digests:
        digests = chained_digests(rows.topics, rows.bodies)
        rows = replace(rows, correlation_ids=digests)
    count, before = len(rows.bodies), sequence_before(batch_id)
    is_logged = True

    async def publish(connection: _Connection) -> int:
        nonlocal is_logged
        check_fence(name, batch_id, connection.seen)
        check_count(name, batch_id, count, connection.seen)
        can_ask = await _verify(connection, name, batch_id, rows, with_digests=with_digests)
        done = rows_done(batch_id, connection.client.persisted_sequence or 0)
        for begin in range(done, count, _SLICE):
            await connection.publish(rows.slice(begin, begin + _SLICE), before + begin + 1)
        if done < count:
            await connection.persisted()
            is_logged = not can_ask or await _is_logged(connection, before + count)
        return done

    done, refusals = await _with_a_server(name, target, publish)
    if refusals:
        raise refused_error(name, rows, [(number - before, why) for number, why in refusals])
    if not is_logged:  # and not because it was refused, which is known only now
        raise PublishFailed(
            f"{name}: the last row is not in the server's transaction log: exactly-once needs a "
            "topic that is recorded there",
            reason="not logged",
            sequence=before + count,
        )
    return done


async def _verify(
    connection: _Connection, name: str, batch_id: int, rows: Rows, *, with_digests: bool
) -> bool:
    """Compare what the server has of a batch with the batch; whether the server can be asked."""
    if connection.target.verifies is False:
        return False
    found = await connection.last_message()
    if found is None:
        if connection.target.verifies:
            raise UsageError(
                f"{name}: verifyResume=true needs a server that answers queries to "
                f"{_PUBLISHER_TOPIC}, as the reference broker does: leave it out"
            )
        return False
    last, digest = found.get("sequence"), found.get("correlation_id")
    if with_digests and isinstance(last, int):
        check_resume(name, batch_id, rows.correlation_ids, last=last, digest=str(digest))
    return True


async def _is_logged(connection: _Connection, last: int) -> bool:
    """Whether the last row is in the server's log: acks come for topics without one, too."""
    found = await connection.last_message()
    return found is None or found.get("sequence") == last


async def publish_at_least_once(
    name: str, batches: Iterable[Rows], target: Target, *, keeps_refused: bool
) -> tuple[int, list[Refused]]:
    """Publish rows in the order of arrival, above everything that the publisher has sent before.

    Args:
        name: The publisher. Its numbers only say that none is dropped.
        batches: The rows.
        target: Where to.
        keeps_refused: Whether refused rows are returned instead of raised.

    Returns:
        How many rows there were, and those that the server has refused.

    Raises:
        PublishFailed: The server has refused a row, and they are not kept.
        DisconnectedError: No server takes the connection, or it was lost.
        TimedOut: The server has persisted nothing for too long.
    """
    waiting: Iterator[Rows] = iter(batches)
    kept: list[tuple[int, Rows]] = []
    count = 0

    async def publish(connection: _Connection) -> int:
        nonlocal count
        first = connection.seen + 1
        for rows in waiting:
            await connection.publish(rows, first + count)
            kept.append((first + count, rows if keeps_refused else Rows(rows.topics, ())))
            count += len(rows.bodies)
            if connection.refusals and not keeps_refused:
                break
        await connection.persisted()
        return count

    _, refusals = await _with_a_server(name, target, publish)
    if refusals and not keeps_refused:
        number, why = refusals[0]
        raise PublishFailed(
            f"{name}: the server has refused {len(refusals)} rows, the first one: {why}",
            reason=why,
            sequence=number,
        )
    return count, [_refused_row(kept, number, why) for number, why in refusals]


def _refused_row(kept: Sequence[tuple[int, Rows]], number: int, reason: str) -> Refused:
    for first, rows in kept:
        if first <= number < first + len(rows.bodies):
            index = number - first
            topic = rows.topics if isinstance(rows.topics, str) else rows.topics[index]
            return Refused(topic, rows.bodies[index], reason)
    return Refused("", b"", reason)


async def _with_a_server(
    name: str, target: Target, work: Callable[[_Connection], Awaitable[int]]
) -> tuple[int, list[tuple[int, str]]]:
    """Log on to the first server that takes this client, and work there.

    Returns:
        What the work has returned, and the sequences that the server has refused.

    Raises:
        DisconnectedError: None takes it, or the connection was lost.
    """
    problems: list[str] = []
    refusals: list[tuple[int, str]] = []

    def refused(message: Message, reason: str) -> None:
        refusals.append((message.sequence or 0, reason))

    for uri in target.uris:
        result: int | None = None
        async with Client(name, on_failed_write=refused, exit_timeout=0) as client:
            try:
                await client.connect(uri, timeout=target.timeout_s)
                await client.logon(timeout=target.timeout_s)
            except (DisconnectedError, TimedOut) as error:
                problems.append(f"{Uri.parse(uri).address}: {error}")
                continue
            result = await work(_Connection(client, target, refusals))
        # Outside of the block: every refusal was reported by then.
        return result, refusals
    raise DisconnectedError(f"no server takes {name}: {'; '.join(problems)}")


def refused_error(name: str, rows: Rows, refusals: Sequence[tuple[int, str]]) -> HAClientError:
    """The error for rows that a server has refused.

    Args:
        name: The publisher.
        rows: What was published.
        refusals: Number of the row, counted from 1, and reason.
    """
    shown = ", ".join(f"row {number}: {why}" for number, why in refusals[:_MAX_NAMED])
    first, reason = refusals[0]
    more = "" if len(refusals) <= _MAX_NAMED else f" and {len(refusals) - _MAX_NAMED} more"
    return PublishFailed(
        f"{name}: the server has refused {len(refusals)} of {len(rows.bodies)} rows "
        f"({shown}{more})",
        reason=reason,
        sequence=first,
    )
