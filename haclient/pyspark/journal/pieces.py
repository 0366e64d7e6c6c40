"""Which bytes of a journal hold some rows: what the manifests of its segments say.

A piece has offsets and positions, since its rows are in the segment and, once that was sealed, in
its Parquet file as well.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import NamedTuple

from haclient.pyspark.journal.records import MAX_POSITION, RowRange
from haclient_fake_server.journal.format import Manifest, Stride


class Piece(NamedTuple):
    """Whole blocks of a segment: from one offset to another.

    Attributes:
        segment: Its number.
        start: Offset of the first block.
        end: Offset after the last one.
        first_position: Position of the first message in them.
        next_position: The position that follows them.
    """

    segment: int
    start: int
    end: int
    first_position: int = 0
    next_position: int = MAX_POSITION


def plan_splits(
    manifests: Sequence[Manifest],
    wanted: RowRange,
    is_wanted: Callable[[str], bool],
    max_bytes: int,
    *,
    message_type: str | None = None,
) -> list[tuple[Piece, ...]]:
    """Which bytes have to be read for some rows, in splits of a limited size, by position.

    Args:
        manifests: What the segments hold, in order.
        wanted: Positions and times of the rows.
        is_wanted: Whether a topic is wanted, by its name.
        max_bytes: Size of a split; one stride of the index is never cut.
        message_type: The message type of the topics that are wanted; `None` takes any.
    """
    splits: list[tuple[Piece, ...]] = []
    pieces: list[Piece] = []
    size = 0
    for manifest in wanted_manifests(manifests, wanted, is_wanted, message_type=message_type):
        for stride in _wanted_strides(manifest, wanted):
            length = stride.end - stride.start
            if pieces and size + length > max_bytes:
                splits.append(tuple(pieces))
                pieces, size = [], 0
            if pieces and (pieces[-1].segment, pieces[-1].end) == (stride.segment, stride.start):
                pieces[-1] = pieces[-1]._replace(end=stride.end, next_position=stride.next_position)
            else:
                pieces.append(stride)
            size += length
    if pieces:
        splits.append(tuple(pieces))
    return splits


def wanted_manifests(
    manifests: Sequence[Manifest],
    wanted: RowRange,
    is_wanted: Callable[[str], bool],
    *,
    message_type: str | None = None,
) -> list[Manifest]:
    """The segments that may hold wanted rows; arguments as of `plan_splits`."""
    if wanted.first_position >= wanted.end_position or wanted.from_us >= wanted.until_us:
        return []
    return [
        each
        for each in manifests
        if each.index
        and each.next_position > wanted.first_position
        and each.first_position < wanted.end_position
        and each.last_us >= wanted.from_us
        and each.first_us < wanted.until_us
        and any(has_type(found, message_type) and is_wanted(t) for found, t in each.topics.values())
    ]


def has_type(found: str, wanted: str | None) -> bool:
    """Whether a topic's message type is the wanted one, if there is one."""
    return wanted is None or found == wanted


def _wanted_strides(manifest: Manifest, wanted: RowRange) -> list[Piece]:
    """The strides of such a segment that may hold wanted rows."""
    index = manifest.index
    # The stride before the first one that begins later may hold the first wanted row. Times may be
    # equal, so there it is the stride before the first that begins at this time.
    first = max(
        bisect.bisect_right(index, wanted.first_position, key=lambda each: each.position) - 1,
        bisect.bisect_left(index, wanted.from_us, key=lambda each: each.timestamp_us) - 1,
        0,
    )
    after = min(
        bisect.bisect_left(index, wanted.end_position, key=lambda each: each.position),
        bisect.bisect_left(index, wanted.until_us, key=lambda each: each.timestamp_us),
    )
    return [piece for _, piece in strides(manifest)[first:after]]


def strides(manifest: Manifest) -> list[tuple[Stride, Piece]]:
    """The strides of a segment, and where they are."""
    index = manifest.index
    if not index:  # it has no messages
        return []
    ends = [(each.offset, each.position) for each in index[1:]]
    ends.append((manifest.data_bytes, manifest.next_position))
    return [
        (each, Piece(manifest.number, each.offset, end, each.position, next_position))
        for each, (end, next_position) in zip(index, ends, strict=True)
    ]


def may_hold(stride: Stride, publisher: int, sequence: int) -> bool:
    """Whether a stride may hold a message."""
    if not stride.publishers:  # walked here, or without messages
        return True
    low, high = stride.publishers.get(publisher, (1, 0))
    return low <= sequence <= high
