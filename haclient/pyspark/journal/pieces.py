"""Which bytes of a journal hold some rows: what the manifests of its segments say.

A piece has offsets and positions, since its rows are in the segment and, once that was sealed, in
its Parquet file as well.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from haclient.pyspark.journal.records import MAX_POSITION, RowRange
from haclient_fake_server.journal.format import Manifest, Stride

TopicTest: TypeAlias = Callable[[str, str], bool]
"""Whether a topic is wanted, by its message type and name."""


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


def wanted_pieces(
    manifests: Iterable[Manifest], wanted: RowRange, is_wanted: TopicTest
) -> Iterator[Piece]:
    """The strides of the index that may hold some rows, by position.

    Args:
        manifests: What the segments hold, in order.
        wanted: Positions and times of the rows.
        is_wanted: Which topics are wanted.
    """
    for manifest in wanted_manifests(manifests, wanted, is_wanted):
        yield from _wanted_strides(manifest, wanted)


def pack(pieces: Iterable[Piece], max_bytes: int) -> list[list[Piece]]:
    """Splits of a limited size, in order; in each, adjacent pieces are joined, and none is cut."""
    splits: list[list[Piece]] = []
    size = 0
    for piece in pieces:
        length = piece.end - piece.start
        if not splits or size + length > max_bytes:
            splits.append([])
            size = 0
        split = splits[-1]
        if split and (split[-1].segment, split[-1].end) == (piece.segment, piece.start):
            split[-1] = split[-1]._replace(end=piece.end, next_position=piece.next_position)
        else:
            split.append(piece)
        size += length
    return splits


def wanted_manifests(
    manifests: Iterable[Manifest], wanted: RowRange, is_wanted: TopicTest
) -> list[Manifest]:
    """The segments that may hold wanted rows; arguments as of `wanted_pieces`."""
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
        and any(is_wanted(*topic) for topic in each.topics.values())
    ]


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
