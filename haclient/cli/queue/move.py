"""`haclient queue move`: move messages from a queue to another queue or topic.

A message is copied, and acknowledged once the server has persisted the copy. So a kill at any
moment loses no message. A copy whose original was not acknowledged in time is there, and so is the
original, which is copied again by the next run. Copies keep the correlation id, unless it has
characters that the protocol does not allow; a dead letter that returns to its queue gets back that
of its message. A signal lets the copies that were begun be finished and acknowledged.

A message that comes back as a dead letter of its copy is not moved again: it would for ever.

A queue with `at-most-once` removes a message when it delivers it, so a kill would lose the message.
Such a queue is refused if the server publishes its semantics.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import click
import msgspec
import trio

from haclient.cli.connection import ConnectionRequest
from haclient.cli.options import (
    client_name_option,
    count_option,
    filter_option,
    json_option,
    max_backlog_option,
    server_option,
    timeout_option,
    with_request,
)
from haclient.cli.output import print_report
from haclient.cli.queue.bounded_consumer import BoundedConsumer, run_connected
from haclient.cli.queue.statistics import QueueStatistics, ServerQueues, query_queues
from haclient.cli.termination import ExitCode, hidden_warnings, run_until_signal
from haclient.client import BaseClient, HAClient
from haclient.errors import HAClientError, PublishFailed, TimedOut, UsageError
from haclient.protocol.codec import check_correlation_id
from haclient.protocol.identity import publisher_id
from haclient.protocol.messages import Message
from haclient.session.dead_letter import DeadLetter
from haclient.stores import MemoryPublishStore
from haclient_fake_server.engine.patterns import TopicMatcher
from haclient_stores.bookmark import Bookmark

_IDLE_S: Final = 1.0
"""How long no message may come before the queue counts as empty."""

_PERSIST_S: Final = 30.0
"""How long the server may take to persist copies."""

_STATUS: Final = "/HACLIENT/status"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MoveRequest:
    servers: tuple[str, ...]
    client_name: str | None
    source: str
    target: str
    filter: str
    count: int | None
    max_backlog: int
    timeout: float | None
    as_json: bool

    def check(self) -> None:
        """Check what one option alone does not show.

        Raises:
            click.UsageError: A message would be moved to where it is.
        """
        if self.source == self.target:
            raise click.UsageError(f"{self.source!r} is both the source and the target")


class MoveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did: the result of `--json`."""

    source: str
    target: str
    moved: int
    seconds: float

    def as_text(self) -> str:
        """The summary as a sentence."""
        messages = "1 message" if self.moved == 1 else f"{self.moved} messages"
        return f"moved {messages} from {self.source} to {self.target} in {self.seconds:.2f} s"


def check_route(source: QueueStatistics, target: str, queues: ServerQueues) -> None:
    """Check that messages can be moved from a queue without losing them, and that the move ends.

    Raises:
        HAClientError: The queue delivers at most once; or messages that are published to the
            target return to the queue.
    """
    if source.semantics == "at-most-once":
        raise HAClientError(
            f"{source.name!r} delivers at most once, so a message is removed when it is delivered, "
            "and a kill would lose it: consume it, and publish what is printed"
        )
    other = queues.find(target)
    feeding = [target] if other is None else other.topics
    own = [TopicMatcher(topic) for topic in source.topics]
    for topic in feeding:
        if topic in source.topics or any(matcher.matches(topic) for matcher in own):
            where = "" if other is None else f", a queue over {topic!r},"
            raise HAClientError(
                f"what is published to {target!r}{where} returns to {source.name!r}: "
                "the move would never end"
            )


async def _check(client: BaseClient, name: str, target: str) -> None:
    """Check source and target, if the server has statistics of its queues."""
    queues = await query_queues(client)
    if queues is None:
        return
    source = queues.select(name).find(name)
    if source is not None:
        check_route(source, target, queues)
    if queues.find(target) is None:
        await _check_logged(client, target)


async def _check_logged(client: BaseClient, topic: str) -> None:
    """Check that the target is in the transaction log, or copies could be lost.

    Raises:
        HAClientError: It is not.
    """
    query = msgspec.json.encode({"topics": [topic]})
    async with client.sow(_STATUS, data=query) as stream:
        answers = [message.data async for message in stream if message.kind == "sow"]
    unlogged = msgspec.json.decode(answers[0], type=dict[str, object]).get("unlogged_topics")
    if unlogged:
        raise HAClientError(
            f"the server does not log {topic!r}: copies would reach current subscribers only, and "
            "could be lost"
        )


class Mover:
    """Copies messages, and finishes each when its copy is persisted.

    Args:
        client: It has a publish store.
        consumer: What consumes the messages.
        target: The topic of the copies.
        timeout_s: How long the server may take to persist a batch of them, in seconds.
    """

    def __init__(
        self, client: BaseClient, consumer: BoundedConsumer, target: str, timeout_s: float
    ) -> None:
        self._client = client
        self._consumer = consumer
        self._target = target
        self._timeout_s = timeout_s
        self._publisher_id = publisher_id(client.name)
        self._copies: set[Bookmark] = set()
        self._has_warned = False

    async def move(self, batch: list[Message]) -> None:
        """Copy a batch. A signal waits for its end: no copy is left beside its original.

        Raises:
            PublishFailed: The server has refused a copy; its original stays.
            TimedOut: The server has not persisted the copies in time; their originals stay.
        """
        client = self._client
        batch = [message for message in batch if not self._has_returned(message)]
        refused: list[tuple[Message, PublishFailed]] = []
        with trio.CancelScope(shield=True):
            copies = [
                (
                    await client.publish(
                        self._target,
                        message.data,
                        correlation_id=_correlation_id_of(message, self._target),
                    ),
                    message,
                )
                for message in batch
            ]
            self._copies.update(Bookmark(self._publisher_id, number) for number, _ in copies)
            await client.publish_flush(timeout=self._timeout_s)
            for sequence, message in copies:
                try:
                    await client.wait_persisted(sequence or 0, timeout=self._timeout_s)
                except PublishFailed as error:  # those behind it have copies, and are finished
                    refused.append((message, error))
                else:
                    self._consumer.finish(message)
        if refused:
            first, why = refused[0]
            raise PublishFailed(
                f"the server refused the copy of {first.bookmark} to {self._target!r}: "
                f"{why.reason or 'no reason given'}; "
                f"{self._consumer.consumed} messages were moved",
                reason=why.reason,
            ) from why

    def _has_returned(self, message: Message) -> bool:
        """Whether it is the dead letter of a copy of this run, which would never end otherwise.

        It is not finished, so the server gives it back when the run ends.
        """
        try:
            failed = Bookmark.parse(str(DeadLetter.context(message).get("bookmark")))
        except UsageError:  # it is no dead letter
            return False
        has_returned = failed in self._copies
        if has_returned and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "messages that were moved to %s have come back as dead letters, and stay in %s",
                self._target,
                self._consumer.name,
            )
        return has_returned


def _correlation_id_of(message: Message, target: str) -> str:
    """The correlation id for the copy; empty if that of the message cannot be published.

    A dead letter that returns to its queue gets the one that it had there.
    """
    found = message.correlation_id
    with suppress(UsageError):  # it is no dead letter
        context = DeadLetter.context(message)
        own = context.get("correlation_id", "")
        if context.get("queue") == target and isinstance(own, str):
            found = own
    try:
        check_correlation_id(found)
    except UsageError as error:  # else the queue could never be moved
        _logger.warning(
            "the copy of %s has no correlation id: %s", message.bookmark or "a message", error
        )
        return ""
    return found


async def move_messages(
    client: BaseClient, consumer: BoundedConsumer, target: str, *, timeout_s: float = _PERSIST_S
) -> None:
    """Move the messages that a consumer gets to a topic.

    Args:
        client: It has logged on, and has a publish store.
        consumer: What consumes the messages.
        target: The topic of the copies, or a queue.
        timeout_s: How long the server may take to persist a batch of copies, in seconds.

    Raises:
        HAClientError: The messages would be lost, or return; or the server refused something.
        TimedOut: The server was too slow; what was not persisted stays in the queue.
    """
    await _check(client, consumer.name, target)
    await consumer.consume(client, Mover(client, consumer, target, timeout_s).move)


async def _work(request: _MoveRequest, consumer: BoundedConsumer) -> int:
    connection = ConnectionRequest(
        servers=request.servers,
        name=request.client_name,
        timeout_s=request.timeout,
        give_up_after_s=request.timeout,
        publish_store=MemoryPublishStore(),
    )
    began = trio.current_time()
    timeout_s = request.timeout or _PERSIST_S

    async def work(client: HAClient) -> None:
        await move_messages(client, consumer, request.target, timeout_s=timeout_s)

    with hidden_warnings("haclient.client", "publish .+? was refused"):
        await run_connected(connection, consumer, work)
    summary = MoveSummary(
        source=request.source,
        target=request.target,
        moved=consumer.consumed,
        seconds=round(trio.current_time() - began, 3),
    )
    print_report(summary, summary.as_text(), as_json=request.as_json, aside=True)
    if request.count is None or consumer.is_complete:
        return ExitCode.OK
    raise TimedOut(f"{consumer.consumed} of {request.count} messages were in the queue")


@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@server_option
@filter_option
@count_option
@max_backlog_option(
    default=100, help="How many messages are moved together; the server may grant less."
)
@client_name_option
@timeout_option(
    help="How long the server may take to persist copies (default: 30), and how long a lost "
    "connection is looked for (default: 30)."
)
@json_option
@with_request(_MoveRequest)
def move(request: _MoveRequest) -> int:
    """Move the messages of a queue to another queue or topic.

    A message is acknowledged when its copy is persisted. So a kill loses none, and may leave some
    in both places.
    """
    request.check()
    consumer = BoundedConsumer(
        name=request.source,
        filter=request.filter,
        count=request.count,
        max_backlog=request.max_backlog,
        idle_s=_IDLE_S,
        acknowledge=Message.ack,
    )
    return run_until_signal(
        partial(_work, request, consumer),
        lambda: f"interrupted after {consumer.consumed} messages; the others are where they were",
    )
