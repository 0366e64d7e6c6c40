"""The statistics of a server's queues.

The reference broker answers queries on its own topic `/HACLIENT/queues`, which other servers do not
have. Commands use it to name mistakes exactly (no such queue, not with these semantics). Without it
they depend on the server's answer to the command itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

import msgspec

from haclient.cli.connection import CONNECT_TIMEOUT_S
from haclient.client import BaseClient
from haclient.errors import CommandError, HAClientError, TimedOut
from haclient.protocol.messages import Message

_TOPIC: Final = "/HACLIENT/queues"

_NAMED: Final = 10
"""How many queues an error names at most."""


class QueueStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of one queue. Counts of events begin when the broker is started.

    Attributes:
        name: Its name.
        topics: Its underlying topics, which may be regular expressions.
        semantics: `at-least-once` or `at-most-once`.
        depth: How many messages it has.
        available: How many of them no consumer has.
        leased: How many of them a consumer has and has not acknowledged.
        consumers: How many subscriptions it has.
        oldest_bookmark: The bookmark of its oldest message; empty if there is none.
        oldest_us: When that was logged, in microseconds since 1970.
        delivered: How many deliveries there were.
        redelivered: How many of them were not the first of their message.
        acknowledged: How many messages were acknowledged.
        cancelled: How often a message was given back.
        expired: How many messages have left the queue unprocessed, by reason.
        lease_s: How many seconds a lease lasts; `None` for no limit.
        max_per_subscription_backlog: How many messages one consumer may have.
    """

    name: str
    topics: tuple[str, ...]
    semantics: str
    depth: int
    available: int
    leased: int
    consumers: int
    oldest_bookmark: str
    oldest_us: int
    delivered: int
    redelivered: int
    acknowledged: int
    cancelled: int
    expired: dict[str, int]
    lease_s: float | None
    max_per_subscription_backlog: int


class _StatisticsAnswer(msgspec.Struct, frozen=True):
    queues: tuple[msgspec.Raw, ...]


class ServerQueues:
    """The queues of a server, of the message type of the connection.

    Args:
        records: One JSON object for each.
    """

    def __init__(self, records: Sequence[bytes]) -> None:
        self.records = records
        self._queues = [msgspec.json.decode(each, type=QueueStatistics) for each in records]

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def all(self) -> Sequence[tuple[QueueStatistics, bytes]]:
        """Each queue with the object that it was read from."""
        return list(zip(self._queues, self.records, strict=True))

    def find(self, name: str) -> QueueStatistics | None:
        """The queue of a name."""
        return next((each for each in self._queues if each.name == name), None)

    def select(self, name: str) -> ServerQueues:
        """The queue of a name alone.

        Raises:
            HAClientError: There is none.
        """
        found = [record for queue, record in self.all if queue.name == name]
        if found:
            return ServerQueues(found)
        names = [each.name for each in self._queues]
        if not names:
            raise HAClientError(
                f"{name!r} is no queue: the server has none of this message type; queues are "
                "configured where the server is started"
            )
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        known = ", ".join(repr(each) for each in names[:_NAMED])
        raise HAClientError(f"{name!r} is no queue: the server has {known}{more}")


def _is_queue(topic: str) -> HAClientError:
    name = shlex.quote(topic)
    return HAClientError(
        f"{topic!r} is a queue, and a subscription that acknowledges nothing has each message "
        f"delivered again until it expires: use `haclient queue consume {name}`, or "
        f"`haclient queue browse {name}`, which removes nothing, or `haclient subscribe {name} "
        "--bookmark epoch` for all that was ever published to it"
    )


def check_no_lease(batch: Sequence[Message]) -> None:
    """Check that no message has a lease, since this consumer does not acknowledge.

    Leased messages return to the queue when the connection ends.

    Raises:
        HAClientError: One of them has a lease.
    """
    for message in batch:
        if message.lease is not None:
            raise _is_queue(message.topic)


async def check_no_queue(client: BaseClient, topic: str, *, limit_s: float) -> None:
    """Check that a topic is not a queue, before anything is delivered; see `check_no_lease`.

    Args:
        client: A client that has logged on.
        topic: The topic.
        limit_s: How long the server may take to answer, in seconds.

    Raises:
        HAClientError: The server has a queue of that name.
        TimedOut: The server did not answer.
    """
    queues = await query_queues(client, limit_s=limit_s)
    if queues is not None and queues.find(topic) is not None:
        raise _is_queue(topic)


async def query_queues(
    client: BaseClient, *, limit_s: float = CONNECT_TIMEOUT_S
) -> ServerQueues | None:
    """Query the queues of the server; `None` if it has no such statistics.

    Args:
        client: It has logged on.
        limit_s: How long the server may take to answer, in seconds.

    Raises:
        DisconnectedError: The connection was lost.
        TimedOut: The server did not answer.
    """
    try:
        async with client.sow(_TOPIC, data="{}", timeout=limit_s) as stream:
            records = [message.data async for message in stream if message.kind == "sow"]
    except TimedOut as error:
        raise TimedOut(f"the server did not name its queues within {limit_s:g} s") from error
    except CommandError:  # no such topic; or rights that other servers have by topic
        return None
    if not records:  # a server that takes it for an ordinary topic without records
        return None
    return ServerQueues(
        [bytes(raw) for raw in msgspec.json.decode(records[0], type=_StatisticsAnswer).queues]
    )


async def find_queue(
    client: BaseClient, name: str, *, limit_s: float = CONNECT_TIMEOUT_S
) -> QueueStatistics | None:
    """Query the statistics of a queue; `None` if the server has none.

    Args:
        client: It has logged on.
        name: The queue.
        limit_s: How long the server may take to answer, in seconds.

    Raises:
        HAClientError: The server has statistics, but no queue of this name.
    """
    queues = await query_queues(client, limit_s=limit_s)
    return None if queues is None else queues.select(name).find(name)
