"""Lanes: how rows become messages that can be published again without becoming two.

The server drops a message whose publisher has sent a sequence as high before. So a row that is
published twice ends once in the log, if both times it has the same publisher and the same sequence.
The sink derives both from what does not change when a batch is repeated:

* A *lane* is a publisher: `{prefix}-{query id}-{lane}`. There are as many as the user says, for
  ever, and which one a row belongs to is a function of its content.
* Within a lane the rows of one batch are put into an order that depends on nothing but their
  content: by the order columns, then by everything that is published. Rows that are equal in all of
  it may change places. (The order of arrival changes from one attempt to the next.)
* Row i of a batch has the sequence `(batch id << 32) + i + 1`: gaps mean nothing to the server.

Three checks make a mistake loud, since what the server drops it drops without a word:

* `check_fence`: the publisher is in a later batch already. The checkpoint was rolled back or
  copied.
* `check_count` and `check_resume`: the server has more rows of this batch than the batch has, or
  they have another digest. The first one of each thousand carries in its correlation id the digest
  of all rows of the lane's batch: one message tells whether they are the same.
* `LaneGuard`: a file in the checkpoint records what must not change between restarts.

Everything here is pure: tables, numbers and text.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Final, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from haclient.errors import HAClientError, UsageError

RowRange: TypeAlias = tuple[int, int]
"""The first and the last one of some rows of a lane's batch, counted from 1."""

LANE_COLUMN: Final = "_lane"
"""The column in which `publish_stream` says where a row belongs; it is not published."""

MAX_ROWS: Final = 2**32 - 1
"""Rows of one batch in one lane."""

MAX_BATCH_ID: Final = 2**30 - 1
"""Batches of one query: a server's logon ack names at most sequence 2**62 - 1."""

PUBLISHED: Final = ("topic", "data", "key", "correlation_id", "expiration")
"""The columns of a row that make up its message; `data` is needed, the others may be missing."""

_BITS: Final = 32
_DIGEST_BYTES: Final = 8
_DIGEST: Final = re.compile(r"[0-9a-f]{16}=")
_PIECE_ROWS: Final = 1024


class Fenced(HAClientError):
    """Another query, or a later state of this one, has published under the name of a lane."""


class ChangedContent(HAClientError):
    """A batch that is repeated has other rows than the ones that were published."""


def lane_name(prefix: str, owner: str, lane: int) -> str:
    """The name of the client that publishes a lane of a query or job, the owner."""
    return f"{prefix}-{owner}-{lane}"


def job_name(prefix: str, job_id: str) -> str:
    """The name of the client whose sequence is the number of lanes of a job."""
    return f"{prefix}-{job_id}-lanes"


def sequence_before(batch_id: int) -> int:
    """The sequence below that of the first row of a batch.

    Raises:
        UsageError: No query gets so far.
    """
    if not 0 <= batch_id <= MAX_BATCH_ID:
        raise UsageError(f"a batch id is 0 to {MAX_BATCH_ID}, not {batch_id}: begin a new query")
    return batch_id << _BITS


def check_fence(name: str, batch_id: int, seen: int) -> None:
    """Check that a publisher, of which the server has seen a sequence, is in no later batch.

    Raises:
        Fenced: It is.
    """
    if seen >= sequence_before(batch_id) + 2**_BITS:
        raise Fenced(
            f"{name} has published batch {(seen - 1) >> _BITS} already, and is to publish batch "
            f"{batch_id}: the checkpoint was rolled back, or another query has a copy of it. Begin "
            "with a new checkpoint; the server would drop these rows as duplicates"
        )


def rows_done(batch_id: int, sequence: int) -> int:
    """How many rows of a batch lie at or below a sequence of their publisher."""
    return max(sequence - sequence_before(batch_id), 0)


def without_rows(first: int, last: int, left_out: Sequence[RowRange]) -> Iterator[RowRange]:
    """The rows from the first to the last one without those of some ranges, all in order."""
    for begin, end in left_out:
        if first <= min(begin - 1, last):
            yield first, min(begin - 1, last)
        first = max(first, end + 1)
    if first <= last:
        yield first, last


def joined_rows(ranges: Iterable[RowRange]) -> list[RowRange]:
    """The rows of ranges, which are in order, in as few ranges as possible."""
    result: list[RowRange] = []
    for first, last in ranges:
        begin = result.pop()[0] if result and result[-1][1] == first - 1 else first
        result.append((begin, last))
    return result


def check_resume(name: str, batch_id: int, digest: str, *, found: str) -> None:
    """Check that what the server has of a batch was published from the same rows.

    Args:
        name: The publisher.
        batch_id: The batch.
        digest: That of its rows now.
        found: The correlation id of its last message that has one.

    Raises:
        ChangedContent: It was not.
    """
    # Without a digest it was published with `verifyResume=false`: nothing to compare. A delta then
    # has the correlation id of the record that it was merged into.
    if _DIGEST.fullmatch(found) and found != digest:
        raise ChangedContent(_changed(name, batch_id, "their digest is another one"))


def check_count(name: str, batch_id: int, count: int, seen: int) -> None:
    """Check that the server has seen no more rows of a lane's batch than there are now.

    Raises:
        ChangedContent: It has more.
        UsageError: A lane cannot have so many rows.
    """
    if count > MAX_ROWS:
        raise UsageError(f"{name}: a lane has {MAX_ROWS} rows in a batch, not {count}: more lanes")
    if rows_done(batch_id, seen) > count:
        found = f"there were {rows_done(batch_id, seen)} rows, and there are {count} now"
        raise ChangedContent(_changed(name, batch_id, found))


def _changed(name: str, batch_id: int, found: str) -> str:
    return (
        f"{name}: batch {batch_id} was published in part and has other rows now ({found}): the "
        "query is not a function of its input (uuid, rand, the time), or its source gave another "
        "range. Use guarantee=exactly-once-staged and a new checkpoint for such a query"
    )


# -- rows -----------------------------------------------------------------------------


def check_lane(table: pa.Table, lane: int) -> None:
    """Check that all rows belong to the lane whose task has them.

    Raises:
        UsageError: One does not: rows were moved between partitions after `publish_stream`.
    """
    found = pc.unique(table[LANE_COLUMN]).to_pylist()
    if any(each != lane for each in found):
        raise UsageError(
            f"the task of lane {lane} has rows of lanes {sorted(found, key=str)[:5]}: publish what "
            "publish_stream or publish_frame returns, without another repartition"
        )


def ordered(table: pa.Table, order_by: Sequence[str]) -> pa.Table:
    """The rows in the order of some columns, and then of everything that is published.

    Raises:
        UsageError: Arrow cannot order a column.
    """
    published = [each for each in PUBLISHED if each in table.column_names]
    columns = list(dict.fromkeys([*order_by, *published]))
    # A lane may have more than 2 GiB of a column, which offsets of 32 bits cannot address.
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    fields = [field.with_type(large.get(field.type, field.type)) for field in table.schema]
    table = table.cast(pa.schema(fields))
    try:
        indices = pc.sort_indices(table, sort_keys=[(each, "ascending") for each in columns])
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise UsageError(
            f"the order columns {', '.join(order_by)} cannot be sorted ({error}): order by "
            "numbers, text, times or bytes"
        ) from error
    result: pa.Table = table.take(indices)
    return result


def digest_of(
    topics: Sequence[str] | str, bodies: Sequence[bytes], keys: Sequence[str] = ()
) -> str:
    """The digest of the rows of a lane's batch, as a correlation id."""
    made = blake2b(digest_size=_DIGEST_BYTES)
    texts = [*([topics] if isinstance(topics, str) else topics), *keys]
    # Lengths keep the rows apart. A few calls for many rows: one for each would cost more.
    for part in ([each.encode() for each in texts], bodies):
        for begin in range(0, len(part), _PIECE_ROWS):
            piece = part[begin : begin + _PIECE_ROWS]
            made.update(b"%d" % len(piece) + struct.pack(f"<{len(piece)}Q", *map(len, piece)))
            made.update(b"".join(piece))
    return f"{made.hexdigest()}="


# -- what must not change between restarts -------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaneGuard:
    """What decides how a row is published, besides its content.

    Attributes:
        lanes: How many there are.
        key: The expression that gives a row its lane, as text.
        order_by: The order columns.
        prefix: Of the publishers' names.
        topic: The topic of all rows; empty where each row has its own.
        command: What each message is.
        guarantee: What is published exactly once: rows that are computed again, or staged ones.
    """

    lanes: int
    key: str
    order_by: tuple[str, ...]
    prefix: str
    topic: str = ""
    command: str = "publish"
    guarantee: str = "exactly-once"

    def to_json(self) -> bytes:
        """The content of the file in the checkpoint."""
        return json.dumps({"version": 1, **asdict(self)}, indent=1).encode()

    def check(self, content: bytes, path: str) -> None:
        """Compare with what an earlier start has written; messages have the path of it.

        Raises:
            UsageError: Something is different, or it is no such file.
        """
        wanted = json.loads(self.to_json())
        with explained(path, "it is a guard of the sink"):
            found = json.loads(content)
            before = {name: found[name] for name in asdict(self)}
        # With another guarantee everything differs: it is what the message names.
        for name in sorted(before, key=lambda each: each != "guarantee"):
            now, then = wanted[name], before[name]
            if then != now:
                raise UsageError(
                    f"{name} is {_shown(now)} and was {_shown(then)} when this checkpoint began "
                    f"({path}): a batch that is repeated would be published in two ways. Keep it, "
                    "or begin with a new checkpoint"
                )


def _shown(value: object) -> str:
    parts = cast("list[object]", value) if isinstance(value, list) else [value]
    return ", ".join(map(str, parts)) or "empty"


@contextmanager
def explained(path: str, what: str) -> Generator[None]:
    """Name a file of ours whose JSON is not as it was written, and say what it is.

    Raises:
        UsageError: It is damaged.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged ({error}): {what}") from error
