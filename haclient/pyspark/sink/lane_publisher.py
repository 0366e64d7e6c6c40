"""Publishes the rows of one task: finds a server, continues where an earlier attempt got to.

It runs in a worker of PySpark, in a trio of its own, with a plain `Client`: a connection that is
lost, also because another attempt has taken the name, ends the attempt, and PySpark starts another
one. Nothing returns before the persisted ack of the last row. Each step has `Target.timeout_s`: to
connect, to log on, to answer a query, to take the next piece of rows, to persist something more.

**Refused rows.** The server has seen the sequence of a row that it refuses: no attempt can publish
it again, and one that continues above it would end well. The attempt that is told fails with
`RowsNotLogged`, also when its connection is lost later. One that continues asks the server which of
the rows before are in its log. AMPS does not answer: there only the attempt that was told knows.

The log also loses its oldest segments. Sequences rise in a log, so a missing row with an earlier
one of its publisher in the log was refused; any other one was refused or removed, and the server
does not know which. The attempt fails with both possibilities, and the user decides.

**Resolved rows.** The user says which rows were dealt with. They are never published, at whichever
server, and are not looked for in its log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
    RowRange,
    check_count,
    check_fence,
    check_resume,
    joined_rows,
    rows_done,
    sequence_before,
    without_rows,
)

Command: TypeAlias = Literal["publish", "delta_publish", "sow_delete"]

_PIECE_ROWS: Final = 1024
_PIECE_BYTES: Final = 2**20
"""What a server takes within the timeout, or is given up: so many rows and bytes, or one row."""

_PACE_S: Final = 0.1
"""With a limit of rows a second, a task publishes for so long at once; then it waits."""

_ASKED_TOPICS: Final = 1000
"""Topics in one query: it stays well below the limits of a frame."""

_MAX_NAMED: Final = 3  # refused rows, or topics, that an error shows
_PUBLISHER_TOPIC: Final = "/HACLIENT/publisher"
_STATUS_TOPIC: Final = "/HACLIENT/status"
_DROPPED_TOPIC: Final = "/AMPS/devnull"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to publish.

    Attributes:
        uris: The servers, best first.
        command: What each message is.
        expiration: Lifetime of the SOW records in seconds, or `None`; rows may have their own.
        timeout_s: How long a server may take for a step, and go without taking a megabyte of rows
            or persisting anything.
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
        keys: The SOW key of each, or none.
        resolved: Ranges, in order, of rows that are not published exactly once, and need not be in
            the log: the user has dealt with them.
    """

    topics: Sequence[str] | str
    bodies: Sequence[bytes]
    correlation_ids: Sequence[str] = ()
    expirations: Sequence[int | None] = ()
    keys: Sequence[str] = ()
    resolved: Sequence[RowRange] = ()

    def slice(self, begin: int, end: int) -> Rows:
        """A part of them, to be published whole."""
        topics = self.topics if isinstance(self.topics, str) else self.topics[begin:end]
        return Rows(
            topics,
            self.bodies[begin:end],
            self.correlation_ids[begin:end],
            self.expirations[begin:end],
            self.keys[begin:end],
        )

    def with_digest(self, digest: str) -> Rows:
        """The rows with a digest in all of them, if it is not empty."""
        ids = [digest] * len(self.bodies)
        return replace(self, correlation_ids=ids) if digest else self

    def pieces(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
        """Bounds of parts that a server takes within the timeout.

        Args:
            begin: The first row, counted from 0.
            end: The one after the last row, or `None` for all that follow.
        """
        size, end = 0, len(self.bodies) if end is None else end
        for index in range(begin, end):
            size += len(self.bodies[index])
            if index > begin and (index - begin >= _PIECE_ROWS or size > _PIECE_BYTES):
                yield begin, index
                begin, size = index, len(self.bodies[index])
        if begin < end:
            yield begin, end


class RowsNotLogged(PublishFailed):
    """Rows of a batch are not in the server's log, and no attempt can publish them again.

    Attributes:
        rows: Which ones.
    """

    def __init__(
        self, message: str, *, rows: Sequence[RowRange], reason: str = "", sequence: int = 0
    ) -> None:
        super().__init__(message, reason=reason, sequence=sequence)
        self.rows = tuple(rows)


class _Connection:
    """One attempt's client, with the refusals that it was told."""

    def __init__(self, client: Client, target: Target, refusals: list[Message]) -> None:
        self.client = client
        self.target = target
        self.refusals = refusals
        self._next_at = 0.0
        self._unknown_topics: set[str] = set()

    @property
    def seen(self) -> int:
        """The highest sequence that the server has seen of this publisher.

        Raises:
            UsageError: It does not say.
        """
        seen = self.client.connection_info["seen_sequence"]
        if not seen:
            raise UsageError(
                f"{self.client.name}: the server does not say in its logon ack what it has of a "
                "publisher: it needs a transaction log"
            )
        return int(seen)

    @contextmanager
    def _limit(self, what: str) -> Generator[None]:
        """Give the server `timeout_s` for a step.

        Raises:
            TimedOut: It took longer.
        """
        with trio.move_on_after(self.target.timeout_s) as limit:
            yield
        if limit.cancelled_caught:
            raise TimedOut(
                f"{self.client.name}: the server {what} for {self.target.timeout_s:g} s: it hangs "
                "or is overloaded; raise flushTimeoutMs if it only needs longer"
            )

    async def publish(self, rows: Rows, first_sequence: int) -> None:
        """Publish rows at the rate that is permitted; it waits for room, and for no ack.

        Raises:
            TimedOut: The server takes no rows.
        """
        limit, count = self.target.rows_per_second, len(rows.bodies)
        step = max(int(limit * _PACE_S), 1) if limit else max(count, 1)
        for begin in range(0, count, step):
            part = rows.slice(begin, begin + step)
            with self._limit("has taken no more rows"):
                await self.client.publish_many(
                    part.topics,
                    part.bodies,
                    first_sequence=first_sequence + begin,
                    command=self.target.command,
                    expiration=part.expirations or self.target.expiration,
                    correlation_ids=part.correlation_ids,
                    sow_keys=part.keys,
                )
            if limit:  # the wait follows also the last rows: the next batch begins after it
                now = trio.current_time()
                self._next_at = max(self._next_at, now) + len(part.bodies) / limit
                await trio.sleep_until(self._next_at)

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

    async def ask(self, topic: str, **parameters: object) -> dict[str, object] | None:
        """The answer of a server's own topic, `None` when it cannot be asked.

        Raises:
            TimedOut: It does not answer.
        """
        if topic in self._unknown_topics:
            return None
        query = json.dumps(parameters)
        try:
            with self._limit(f"has not answered a query to {topic}"):
                async with self.client.sow(topic, data=query) as records:
                    async for record in records:
                        found: object = record.json()
                        return cast("dict[str, object]", found) if isinstance(found, dict) else None
        except CommandError:  # a server that has no such topic, or not this parameter
            self._unknown_topics.add(topic)
        return None

    async def find_unlogged(self, first: int, last: int) -> list[RowRange] | None:
        """Find the messages of a range of this publisher's sequences that the log does not have.

        Returns:
            Ranges of sequences, in order; `None` when the server cannot be asked.
        """
        found: list[RowRange] = []
        unsearched = [(first, last)]
        while unsearched:
            begin, end = unsearched.pop()
            count = await self.count_logged(begin, end)
            if count is None:
                return None
            if not count:
                found.append((begin, end))
            elif count <= end - begin:
                middle = (begin + end) // 2
                unsearched += [(middle + 1, end), (begin, middle)]  # the last one is next
        return joined_rows(found)

    async def count_logged(self, first: int, last: int, *, is_any: bool = False) -> int | None:
        """How many messages of a range of this publisher's sequences are in the server's log.

        Returns:
            Their number, with `is_any` at least that of some; `None` when the server cannot be
            asked.
        """
        count = 0
        while first <= last:
            found = await self.ask(
                _PUBLISHER_TOPIC, name=self.client.name, first_counted=first, last_counted=last
            )
            messages, counted_to = (found or {}).get("messages"), (found or {}).get("counted_to")
            if not isinstance(messages, int) or not isinstance(counted_to, int):
                return None
            count += messages
            if count and is_any:
                break
            first = max(counted_to, first) + 1  # it reads only so much of its log for an answer
        return count


async def publish_exactly_once(
    name: str,
    batch_id: int,
    rows: Rows,
    target: Target,
    *,
    digest: str = "",
    keeps_refusals: bool = True,
) -> int:
    """Publish a lane's rows of one batch, except those that the server has persisted.

    Args:
        name: The publisher.
        batch_id: The batch.
        rows: All rows of it in this lane, in order.
        target: Where to.
        digest: Of these rows, which some messages carry; empty where it is not to be compared.
        keeps_refusals: Whether the caller keeps what `PublishFailed` says, and publishes nothing
            after it. Otherwise the server has to know, where there was an earlier attempt.

    Returns:
        How many rows had been persisted before.

    Raises:
        Fenced: The publisher is in a later batch.
        ChangedContent: What was published of this batch is not the beginning of it.
        RowsNotLogged: The server has refused a row, now or in an earlier attempt, or does not have
            it any more. Another attempt would perhaps not notice.
        DisconnectedError: No server takes the connection, or it was lost.
        TimedOut: The server has taken or persisted nothing for too long.
        UsageError: The server does not record a topic; nothing was published. Or it cannot be
            asked, and `verifies` or `keeps_refusals` says that it has to be.
    """
    count, before = len(rows.bodies), sequence_before(batch_id)

    async def publish(connection: _Connection) -> int:
        check_fence(name, batch_id, connection.seen)
        check_count(name, batch_id, count, connection.seen)
        await _check_topics(connection, name, rows)
        await _verify(connection, name, batch_id, digest)
        done = rows_done(batch_id, connection.client.persisted_sequence or 0)
        if done:
            wanted = list(without_rows(1, done, rows.resolved))
            await _check_logged(connection, batch_id, wanted, keeps_refusals=keeps_refusals)
        for first, last in without_rows(done + 1, count, rows.resolved):
            for begin, end in rows.pieces(first - 1, last):
                # A delta without an id gets that of the record that it is merged into, and a delete
                # without a record is not in the log: then every row has the digest.
                marked = begin + 1 if target.command == "publish" else end
                some = rows.slice(begin, marked).with_digest(digest)
                await connection.publish(some, before + begin + 1)
                await connection.publish(rows.slice(marked, end), before + marked + 1)
        if count:  # also when all was published: a logon ack may name what was only seen
            await connection.persisted()
        return done

    done, refusals = await _with_a_server(name, target, publish, fails_with_refusals=True)
    if refusals:
        raise _refused_error(name, batch_id, count, refusals)
    return done


def _refused_error(
    name: str, batch_id: int, count: int, refusals: Sequence[Message]
) -> RowsNotLogged:
    numbers = [rows_done(batch_id, each.sequence or 0) for each in refusals]
    reasons = [f"row {row}: {each.reason}" for row, each in zip(numbers, refusals, strict=True)]
    return RowsNotLogged(
        f"{name}: the server has refused {len(numbers)} of {count} rows ({_some(reasons)})",
        rows=joined_rows((row, row) for row in sorted(numbers)),
        reason=refusals[0].reason,
        sequence=numbers[0],
    )


async def claim_lanes(name: str, lanes: int, target: Target) -> None:
    """Record at the server how many lanes a job has, or check it when the job is run again.

    A row has another lane, and so another publisher, with another number: it would be there twice.
    The number is the sequence of a publisher of its own, of which there is no message.

    Args:
        name: That publisher, which is the same whatever the number is.
        lanes: The number.
        target: Where to.

    Raises:
        UsageError: The job was published with another number.
        DisconnectedError: No server takes the connection, or it was lost.
    """

    async def claim(connection: _Connection) -> int:
        if await connection.ask(_STATUS_TOPIC) is None:
            return lanes  # without answers a job needs a directory, whose guard has the number
        if not (found := connection.seen):
            await connection.publish(Rows(_DROPPED_TOPIC, [b""]), lanes)
            await connection.persisted()
        return found or lanes

    target = replace(target, command="publish", expiration=None)
    found, _ = await _with_a_server(name, target, claim)
    if found != lanes:
        raise UsageError(
            f"{name}: the job was published with {found} lanes, and is to have {lanes}: rows would "
            f"be in the log twice. Set lanes={found}, or use another job_id"
        )


async def _check_topics(connection: _Connection, name: str, rows: Rows) -> None:
    """Check that the server records every topic: acks come for those that it does not, too.

    Raises:
        UsageError: It does not.
    """
    topics = [rows.topics] if isinstance(rows.topics, str) else sorted(set(rows.topics))
    for begin in range(0, len(topics) if rows.bodies else 0, _ASKED_TOPICS):
        asked = topics[begin : begin + _ASKED_TOPICS]
        found = await connection.ask(_STATUS_TOPIC, topics=asked)
        unlogged = (found or {}).get("unlogged_topics")
        if isinstance(unlogged, list) and unlogged:
            names = _some(cast("list[str]", unlogged))
            raise UsageError(
                f"{name}: {names} is not in the server's transaction "
                "log: exactly-once needs topics that are recorded there. Nothing was published"
            )
        if found is None:
            return


async def _verify(connection: _Connection, name: str, batch_id: int, digest: str) -> None:
    """Compare what the server has of a batch with the batch, if it has anything of it."""
    verifies = connection.target.verifies
    if verifies is False or (not verifies and not rows_done(batch_id, connection.seen)):
        return
    first = sequence_before(batch_id) + 1
    found = await connection.ask(_PUBLISHER_TOPIC, name=name, identified_from=first)
    if found is None:
        if verifies:
            raise UsageError(
                f"{name}: verifyResume=true needs a server that answers queries to "
                f"{_PUBLISHER_TOPIC}, as the reference broker does: leave it out"
            )
        return
    message = found.get("identified")
    if digest and isinstance(message, dict):
        identified = cast("dict[str, object]", message)
        check_resume(name, batch_id, digest, found=str(identified["correlation_id"]))


async def _check_logged(
    connection: _Connection, batch_id: int, wanted: Sequence[RowRange], *, keeps_refusals: bool
) -> None:
    """Check that the log has every row that earlier attempts have published.

    Args:
        connection: To the server.
        batch_id: The batch.
        wanted: The rows that the server says are persisted, in order; it counts refused ones.
        keeps_refusals: As for `publish_exactly_once`.

    Raises:
        RowsNotLogged: Rows are missing.
        UsageError: Nobody knows.
    """
    name, before = connection.client.name, sequence_before(batch_id)
    count = sum(last - first + 1 for first, last in wanted)
    missing: list[RowRange] = []
    is_known = True
    for first, last in wanted:
        found = await connection.find_unlogged(before + first, before + last)
        is_known = is_known and found is not None
        missing += [(begin - before, end - before) for begin, end in found or ()]
    if connection.target.command == "sow_delete" and missing:
        is_known = False  # the log has no delete without a record: they need not be refused ones
    if not is_known and not keeps_refusals:
        raise UsageError(
            f"{name}: an earlier run has published {count} rows, and this server does not tell "
            "whether it has refused some: set checkpointLocation to a directory of this job, from "
            "its first run on, where refusals are kept"
        )
    if missing and is_known:
        # What is removed is older than what is left: see the docstring of the module.
        refused = await connection.count_logged(1, before + missing[0][0] - 1, is_any=True)
        number = sum(last - first + 1 for first, last in missing)
        shown = [f"row {each}" if each == end else f"rows {each} to {end}" for each, end in missing]
        raise RowsNotLogged(
            f"{name}: {number} of the {count} rows of batch {batch_id} that an earlier attempt has "
            f"published are not in the server's log ({_some(shown)}): it has refused them"
            + ("" if refused else ", or has removed them with its oldest segments"),
            rows=missing,
            reason="not logged",
            sequence=before + missing[0][0],
        )


def _some(texts: Sequence[str]) -> str:
    """A few of some texts, and how many more there are."""
    more = "" if len(texts) <= _MAX_NAMED else f" and {len(texts) - _MAX_NAMED} more"
    return ", ".join(texts[:_MAX_NAMED]) + more


async def publish_at_least_once(
    name: str, batches: Iterable[Rows], target: Target, *, keeps_refused: bool
) -> tuple[int, list[Message]]:
    """Publish rows in the order of arrival, above everything that the publisher has sent before.

    Args:
        name: The publisher. Its numbers only say that none is dropped.
        batches: The rows.
        target: Where to.
        keeps_refused: Whether refused rows are returned instead of raised.

    Returns:
        How many rows there were, and those that the server has refused, with the reasons.

    Raises:
        PublishFailed: The server has refused a row, and they are not kept.
        DisconnectedError: No server takes the connection, or it was lost.
        TimedOut: The server has persisted nothing for too long.
    """
    waiting = iter(batches)  # the next server goes on where one has ended
    count = 0

    async def publish(connection: _Connection) -> int:
        nonlocal count
        first = connection.seen + 1
        for rows in waiting:
            for begin, end in rows.pieces():
                await connection.publish(rows.slice(begin, end), first + count)
                count += end - begin
            if connection.refusals and not keeps_refused:
                break
        await connection.persisted()
        return count

    _, refusals = await _with_a_server(name, target, publish)
    # The client knows the topic, unless the row was acknowledged before: no server does that.
    if refusals and not (keeps_refused and all(each.topic for each in refusals)):
        first = refusals[0]
        raise PublishFailed(
            f"{name}: the server has refused {len(refusals)} rows, the first one: {first.reason}",
            reason=first.reason,
            sequence=first.sequence or 0,
        )
    return count, refusals


async def _with_a_server(
    name: str,
    target: Target,
    work: Callable[[_Connection], Awaitable[int]],
    *,
    fails_with_refusals: bool = False,
) -> tuple[int, list[Message]]:
    """Log on to the first server that takes this client, and work there.

    Args:
        name: The publisher.
        target: Where to.
        work: What is done.
        fails_with_refusals: Whether an error of the work counts less than that rows were refused:
            nobody would hear of these again.

    Returns:
        What the work has returned, and the rows that the server has refused.

    Raises:
        DisconnectedError: None takes it, or the connection was lost.
    """
    problems: list[str] = []
    refusals: list[Message] = []

    def refused(message: Message, _: str) -> None:
        refusals.append(message)

    for uri in target.uris:
        result = 0
        try:
            async with Client(name, on_failed_write=refused, exit_timeout=0) as client:
                try:
                    await client.connect(uri, timeout=target.timeout_s)
                    await client.logon(timeout=target.timeout_s)
                except (DisconnectedError, TimedOut) as error:
                    problems.append(f"{Uri.parse(uri).address}: {error}")
                    continue
                result = await work(_Connection(client, target, refusals))
        except HAClientError as error:
            if not refusals or not fails_with_refusals:
                raise
            _logger.warning("%s: rows were refused, and then: %s", name, error)
        # Outside of the block: every refusal was reported by then.
        return result, refusals
    raise DisconnectedError(f"no server takes {name}: {'; '.join(problems)}")
