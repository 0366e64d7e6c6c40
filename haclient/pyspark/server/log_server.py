"""What the source asks a server about its log, and how it connects to one of several servers.

The questions are queries on the reference broker's own topics under `/HACLIENT/`, which an AMPS
server does not have: there the source reads the State of the World only (`command=sow`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import trio

from haclient.client import Client
from haclient.errors import (
    BookmarkNotFound,
    CommandError,
    HAClientError,
    InvalidTopic,
    UsageError,
)
from haclient.pyspark.rows import DataLoss
from haclient.pyspark.server.offsets import LogInfo, OffsetPlace, bookmarks_of

CONNECT_TIMEOUT_S: Final = 10.0

Answer = TypeVar("Answer")

ANSWER_TIMEOUT_S: Final = 60.0
"""For one question: the broker reads 256 MiB of its log at most for it, some seconds."""

_STATUS: Final = "/HACLIENT/status"
_POSITION: Final = "/HACLIENT/position"
_PUBLISHER: Final = "/HACLIENT/publisher"
_GUARDS: Final = "/HACLIENT/guards"

_NO_LOG: Final = LogInfo("", (), 0, 0)


@dataclass(slots=True)
class Counted:
    """The messages of a log after some place.

    Attributes:
        log: Which log it is.
        position: The last position that was counted.
        messages: Their number.
        bytes: The size of their payloads.
        publishers: By publisher id, the sequence of the last one.
        begins: The position of the first one, the one after `position` without one.
        first: The bookmark of the first one; empty without one.
        last: The bookmark of the last one; empty without one.
        timestamp: The time of the last one; empty without one.
        until: The last position that would have been counted without a limit.
    """

    log: LogInfo
    position: int
    messages: int = 0
    bytes: int = 0
    publishers: dict[int, int] = field(default_factory=dict[int, int])
    begins: int = 0
    first: str = ""
    last: str = ""
    timestamp: str = ""
    until: int = 0

    @property
    def place(self) -> OffsetPlace:
        """The place of the last position that was counted."""
        return self.log.place(self.position)

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add what one question has counted."""
        self.position = int(answer["position"])
        self.messages += int(answer["messages"])
        self.bytes += int(answer["bytes"])
        self.publishers |= {int(each): seq for each, seq in answer["publishers"].items()}
        if not self.first:
            self.begins, self.first = int(answer["begins"]), str(answer.get("first", ""))
        self.last = str(answer.get("last", self.last))
        self.timestamp = str(answer.get("timestamp", self.timestamp))

    def joined(self, later: Counted) -> Counted:
        """This count and one of what follows, as one."""
        return replace(
            later,
            messages=self.messages + later.messages,
            bytes=self.bytes + later.bytes,
            publishers=self.publishers | later.publishers,
            begins=self.begins,
            first=self.first,
        )


@asynccontextmanager
async def connected(uris: Sequence[str], name: str) -> AsyncGenerator[Client]:
    """A client that has logged on to the first server that can be reached.

    Raises:
        HAClientError: None can be reached; the message has the reason of each.
    """
    reasons: list[str] = []
    for uri in uris:
        async with Client(name) as client:
            try:
                await client.connect(uri, timeout=CONNECT_TIMEOUT_S)
                await client.logon(timeout=CONNECT_TIMEOUT_S)
            except HAClientError as error:
                reasons.append(str(error))
                continue
            yield client
            return
    raise HAClientError(f"amps: no server can be reached: {'; '.join(reasons)}")


async def ask_first(
    uris: Sequence[str], name: str, question: Callable[[Client], Awaitable[Answer]]
) -> Answer:
    """Ask the first server that answers: one that is lost with the question is as one that is down.

    Raises:
        UsageError: A server has refused the question.
        DataLoss: Messages of the question are gone.
        HAClientError: None has answered; the message has the reason of each.
    """
    reasons: list[str] = []
    for uri in uris:
        try:
            async with connected((uri,), name) as client:
                return await question(client)
        except (UsageError, DataLoss):  # nothing that another server should hide
            raise
        except HAClientError as error:
            if len(uris) == 1:
                raise
            reasons.append(str(error))
    raise HAClientError(f"amps: no server has answered: {'; '.join(reasons)}")


async def ask(client: Client, topic: str, parameters: Mapping[str, object]) -> dict[str, Any]:
    """Ask one question.

    Raises:
        UsageError: The server has no such topics, or has refused the question.
        DataLoss: The bookmark of the question is not in the log.
    """
    records: list[bytes] = []
    try:
        with trio.move_on_after(ANSWER_TIMEOUT_S) as waiting:
            query = client.sow(topic, data=json.dumps(parameters), timeout=ANSWER_TIMEOUT_S)
            async with query as stream:
                records = [message.data async for message in stream if message.kind == "sow"]
        if waiting.cancelled_caught:
            raise HAClientError(
                f"amps: the server does not answer {topic} within {ANSWER_TIMEOUT_S:g} s"
            )
    except BookmarkNotFound as error:
        raise DataLoss(
            f"amps: {parameters.get('bookmark')} is not in the log: it was removed, or is one of "
            "another log; set failOnDataLoss=false to begin at the oldest message"
        ) from error
    except CommandError as error:
        if topic != _STATUS:
            await log_info(client)  # a server without such topics gets the error that says so
            if isinstance(error, InvalidTopic):
                raise _not_logged(parameters.get("topic")) from error
            asked = json.dumps(parameters)
            raise UsageError(f"amps: the server has refused the query {asked}: {error}") from error
        records = []
        reason = str(error)
    else:
        reason = "an empty answer"
    if not records:
        raise UsageError(
            f"amps: the server does not answer {topic} ({reason}), which the reference broker of "
            "haclient does: other servers can be read with command=sow only"
        )
    answer: dict[str, Any] = json.loads(records[0])
    return answer


async def log_info(client: Client, topics: Sequence[str] = ()) -> LogInfo:
    """Which log a server has.

    Args:
        client: It has logged on.
        topics: Names of topics that have to be in the log. A server looks up only one that is asked
            for alone and has no character of a pattern.

    Raises:
        UsageError: The server cannot be asked, or it has no log of one of the topics.
    """
    answer = await ask(client, _STATUS, {"topics": [*topics]} if topics else {})
    for topic in answer.get("unlogged_topics", ()):
        raise _not_logged(topic)
    return LogInfo.of_answer(answer)


def _not_logged(topic: object) -> UsageError:
    return UsageError(
        f"amps: the server keeps no log of the topic {topic!r}: read topics that are in its "
        "transaction log, or a SOW with command=sow"
    )


def known_position(
    log: LogInfo, places: Mapping[str, OffsetPlace], *, is_pinned: bool, fails_on_loss: bool
) -> int | None:
    """Where to begin in a log, by a place that is known in it; `None` for its oldest position.

    Args:
        log: The log.
        places: By instance, a place before which nothing is wanted.
        is_pinned: Whether the only place decides what is wanted, so that it has to be in this log.
        fails_on_loss: Whether positions that were removed are an error.

    Raises:
        DataLoss: The place is in another log, or what follows it was removed.
    """
    place = places.get(log.instance)
    if place is None or not log.has(place):
        if is_pinned:
            wanted = next(iter(places.values()))
            raise DataLoss(
                f"amps: position {wanted.position} is one of the log of {wanted.instance!r} with "
                f"the start {wanted.start}, and the log of {log.instance!r} has no such place: it "
                "is another one, or its end was lost"
            )
        if fails_on_loss and log.oldest_position > 1:
            raise DataLoss(
                f"amps: this query has not read from {log.instance!r} before, whose log begins at "
                f"position {log.oldest_position}: what it has removed may be missing; set "
                "failOnDataLoss=false to go on without it"
            )
        return None
    if place.position + 1 < log.oldest_position and fails_on_loss:
        raise DataLoss(
            f"amps: positions {place.position + 1} to {log.oldest_position - 1} of the log of "
            f"{log.instance!r} were removed: set failOnDataLoss=false to go on without them"
        )
    return place.position


async def count(  # noqa: PLR0913  # the parts of one question
    client: Client,
    *,
    topic: str,
    filter: str = "",  # noqa: A002  # the protocol's word
    after: int | None = None,
    bookmark: str = "",
    covered: Mapping[int, int] | None = None,
    messages: int | None = None,
    payload_bytes: int | None = None,
    until: int | None = None,
    fully_durable: bool = False,
    most_questions: int | None = None,
) -> Counted:
    """Count messages of the log, in as many questions as the broker needs.

    Args:
        client: It has logged on.
        topic: A topic or pattern.
        filter: A content filter.
        after: Begin after this position; at the oldest without it and `bookmark`.
        bookmark: Begin where a subscription with this bookmark does; a range also ends there.
        covered: A vector; what it covers does not count.
        messages: Count at most so many.
        payload_bytes: Count at most so many bytes, but for a single message that is larger.
        until: Count up to this position.
        fully_durable: Count only what every synchronous destination of the server has.
        most_questions: Stop after so many questions, before the end; `None` for any number.

    Raises:
        DataLoss: The bookmark is not in the log.
        UsageError: The server is none that can be asked, or it has no log of the topic.
    """
    parameters: dict[str, object] = {"topic": topic, "filter": filter}
    optional = {
        "bookmark": bookmark or None,
        "bookmarks": None if covered is None else bookmarks_of(covered),
        "until": until,
        "fully_durable": fully_durable or None,
    }
    parameters |= {name: value for name, value in optional.items() if value is not None}
    total = Counted(_NO_LOG, 0)
    for questions in itertools.count(1):
        if after is not None:
            parameters["after"] = after
        if messages is not None:
            parameters["messages"] = messages - total.messages
        if payload_bytes is not None:
            parameters["bytes"] = max(1, payload_bytes - total.bytes)
        answer = await ask(client, _POSITION, parameters)
        if questions == 1:
            total.log, total.until = LogInfo.of_answer(answer), int(answer["until"])
        total.add(answer)
        if answer["ended_by"] != "scanned" or questions == most_questions:
            break
        # The log has grown meanwhile: the end stays that of the first answer.
        after, parameters["until"] = total.position, int(answer["until"])
        parameters.pop("bookmark", None)
    return total


async def last_sequence(client: Client, publisher_id: int) -> int:
    """The last sequence that a server has seen of a publisher, although it may be removed; or 0.

    Raises:
        UsageError: The server cannot be asked.
    """
    answer = await ask(client, _PUBLISHER, {"id": str(publisher_id)})
    return int(answer["last_sequence"])


async def set_guard(client: Client, name: str, after: int) -> None:
    """Keep what follows a position from being removed, for a week from now on.

    Raises:
        UsageError: The server cannot be asked.
    """
    await ask(client, _GUARDS, {"name": name, "after": after})
