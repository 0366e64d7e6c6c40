"""One segment in a file: seals, and reading back what a kill or a loss of power has left."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from haclient_stores import header_page
from haclient_stores.errors import StoreCorrupt, StoreError
from haclient_stores.publish_stores.segment_file import (
    HEADER_BYTES,
    SEAL_BYTES,
    SEGMENT_MAGIC,
    FileSegment,
    Seal,
    read_seal,
    read_segment,
    seal_at,
    seal_checksum,
    seal_frames,
    write_seal,
)
from haclient_stores.publish_stores.segment_log import SLOT_BYTES
from support.frames import frame_of
from support.recording import Event, RecordingDisk, Synced

pytestmark = pytest.mark.row("PS21", "PS22")

PATH = Path("/stores/1.seg")
SIZE = 2 * HEADER_BYTES
BOOT, OTHER = b"this boot.......", b"another boot...."
THIRD_SEAL = SIZE - 3 * SEAL_BYTES
FRAMES = [frame_of(number, b"body") for number in (5, 6, 7)]


def checksum(data: bytes, begin: int, sequence: int, next_sequence: int) -> int:
    return seal_checksum(data, begin=begin, sequence=sequence, next_sequence=next_sequence)


SEALS = [Seal(200, 1, 11), Seal(201, 2**32 - 1, 13), Seal(5000, zlib.crc32(b"x"), 2**63)]


def sealed(count: int) -> bytearray:
    """A file of 8 places for seals, with bytes of an earlier life in each."""
    file = bytearray(b"!" * 16 * 8)
    file[-16:] = bytes(16)
    for index, seal in enumerate(SEALS[:count]):
        write_seal(memoryview(file), 16 * (7 - index), seal)
    return file


def read_seals(file: bytearray) -> list[Seal]:
    found: list[Seal] = []
    while seal := read_seal(memoryview(file), 16 * (7 - len(found))):
        found.append(seal)
    return found


@pytest.mark.parametrize("count", range(4))
def test_seals_are_read_downwards_to_the_first_empty_place(count: int) -> None:
    assert read_seals(sealed(count)) == SEALS[:count]


def test_a_seal_whose_last_word_was_not_written_does_not_count() -> None:
    file = sealed(3)
    file[16 * 5 : 16 * 5 + 8] = bytes(8)
    assert read_seals(file) == SEALS[:2]


def test_a_checksum_is_over_the_frames_their_place_and_the_numbers_around_them() -> None:
    numbers = [(4096, 5, 7), (4096, 5, 8), (4096, 6, 7), (4097, 5, 7)]
    assert len({checksum(b"frames", *each) for each in numbers}) == 4
    assert checksum(b"frames", 4096, 5, 7) != checksum(b"Frames", 4096, 5, 7)


def made(disk: RecordingDisk) -> FileSegment:
    file = disk.open(PATH, create=True)
    file.allocate(SIZE)
    segment = FileSegment(disk, PATH, first=5, size=SIZE)
    segment.adopt(file)
    return segment


def test_a_segment_is_mapped_when_it_is_looked_at() -> None:
    disk = RecordingDisk()
    segment = made(disk)
    segment.view[HEADER_BYTES : HEADER_BYTES + 2] = b"ab"
    segment.unmap()
    assert segment._region is None
    assert bytes(segment.view[HEADER_BYTES : HEADER_BYTES + 2]) == b"ab"
    other = FileSegment(disk, PATH, first=9, size=SIZE)
    other.take_mapping(segment)
    assert (segment._region, other.begin) == (None, HEADER_BYTES)
    other.unmap()
    other.unmap()


def test_a_seal_covers_the_frames_since_the_last_one() -> None:
    segment = made(RecordingDisk())
    for end, following in ((HEADER_BYTES + 100, 7), (HEADER_BYTES + 150, 9)):
        seal_frames(segment, end, following)
        segment.mark(end, following)
    assert [read_seal(segment.view, seal_at(segment, index)) for index in range(3)] == [
        Seal(HEADER_BYTES + 100, checksum(bytes(100), HEADER_BYTES, 5, 7), 7),
        Seal(HEADER_BYTES + 150, checksum(bytes(50), HEADER_BYTES + 100, 7, 9), 9),
        None,
    ]


def test_each_seal_takes_its_room_from_the_frames_and_no_more() -> None:
    segment = made(RecordingDisk())
    first = segment.frame_limit
    count = 0
    while segment.end + 5 + SLOT_BYTES <= segment.frame_limit:
        seal_frames(segment, segment.end + 5, segment.next_sequence + 1)
        segment.mark(segment.end + 5, segment.next_sequence + 1)
        count += 1
    assert segment.frame_limit == first - count * SEAL_BYTES
    for late in (1, 2):  # appends that had looked at the limit before
        assert segment.end + 5 * late + SLOT_BYTES <= seal_at(segment, count + 1 + late)


# -- reading back -------------------------------------------------------------------------------


def written(
    frames: list[bytes], *, sealed: int, synced: int = 0, boot: bytes = BOOT
) -> RecordingDisk:
    """A segment with frames from 5 on, of which so many are sealed, and so many synced."""
    disk = RecordingDisk()
    file = disk.open(PATH, create=True)
    file.allocate(SIZE)
    segment = FileSegment(disk, PATH, first=5, size=SIZE)
    segment.adopt(file)
    view = segment.view
    header_page.write_identity(
        view, header_page.Identity(SEGMENT_MAGIC, HEADER_BYTES, SIZE, 5), boot
    )
    for number, frame in enumerate(frames, 5):
        end = segment.end + len(frame)
        view[segment.end : end] = frame
        if number < 5 + sealed:
            seal_frames(segment, end, number + 1)
        segment.mark(end, number + 1)
    header_page.write_word(
        view, header_page.FIRST_WORD, segment.mark_offsets[synced] if synced else 0
    )
    segment.unmap()
    return disk


def read(disk: RecordingDisk, boot: bytes = BOOT) -> FileSegment | None:
    return read_segment(disk, disk.open(PATH), boot)


def count(segment: FileSegment | None) -> int:
    assert segment is not None
    return segment.next_sequence - segment.first


def test_unsealed_frames_count_until_the_machine_is_started_again() -> None:
    assert count(read(written(FRAMES, sealed=1))) == 3
    assert count(read(written(FRAMES, sealed=1), OTHER)) == 1


def test_what_was_read_is_sealed_and_belongs_to_this_boot() -> None:
    disk = written(FRAMES, sealed=0)
    read(disk)
    assert count(read(disk, BOOT)) == 3
    again = written(FRAMES, sealed=2)
    read(again, OTHER)
    assert count(read(again, OTHER)) == 2


def test_where_the_machine_has_no_boot_id_it_may_have_been_restarted() -> None:
    unknown = bytes(16)
    assert count(read(written(FRAMES, sealed=2, boot=unknown), unknown)) == 2
    disk = written(FRAMES, sealed=2, synced=1, boot=unknown)
    disk.open(PATH).pwrite(b"!", HEADER_BYTES + len(FRAMES[0]) + 8)
    assert count(read(disk, unknown)) == 1


def test_frames_that_do_not_carry_the_next_number_are_of_another_life() -> None:
    assert count(read(written([*FRAMES, frame_of(3, b"body")], sealed=0))) == 3


@pytest.mark.parametrize("boot", [BOOT, OTHER])
def test_a_seal_that_is_missing_below_the_synced_end_is_corrupt(boot: bytes) -> None:
    disk = written(FRAMES, sealed=3, synced=3)
    disk.open(PATH).pwrite(bytes(16), THIRD_SEAL)
    end = HEADER_BYTES + sum(map(len, FRAMES))
    with pytest.raises(StoreCorrupt, match=f"synced up to byte {end}, and ends here") as caught:
        read(disk, boot)
    assert caught.value.offset == end - len(FRAMES[-1])


SEALS_OF_ANOTHER_LIFE = {
    "its frames end before": Seal(HEADER_BYTES + 5, 1, 90),
    "its frames end too late": Seal(THIRD_SEAL, 1, 90),
    "its numbers are lower": Seal(HEADER_BYTES + 90, 1, 4),
    "nothing matches": Seal(HEADER_BYTES + 90, 1, 90),
}


@pytest.mark.parametrize("name", SEALS_OF_ANOTHER_LIFE)
def test_a_place_for_a_seal_that_never_reached_the_disk_may_hold_anything(name: str) -> None:
    disk = written(FRAMES, sealed=2, synced=2)
    packed = bytearray(2 * SEAL_BYTES)
    write_seal(memoryview(packed), SEAL_BYTES, SEALS_OF_ANOTHER_LIFE[name])
    disk.open(PATH).pwrite(packed, THIRD_SEAL - SEAL_BYTES)
    found = read(disk, OTHER)
    assert count(found) == 2
    assert found is not None
    seal_frames(found, found.end + 10, 8)  # it goes on from here
    assert count(read(disk, BOOT)) == 3
    disk.open(PATH).pwrite(packed, THIRD_SEAL - SEAL_BYTES)
    with pytest.raises(StoreCorrupt):  # while the machine runs, the order of writes forbids it
        read(disk, BOOT)


def test_seals_do_not_vouch_for_frames_under_other_numbers() -> None:
    disk = written(FRAMES, sealed=3)
    identity = header_page.Identity(SEGMENT_MAGIC, HEADER_BYTES, SIZE, 4)
    page = bytearray(disk.open(PATH).pread(128, 0))
    header_page.write_identity(memoryview(page), identity, OTHER)  # what was there before
    disk.open(PATH).pwrite(page, 0)
    assert count(read(disk, BOOT)) == 0


def test_a_file_whose_length_never_reached_the_disk_holds_nothing() -> None:
    for synced, boot, torn in ((0, OTHER, True), (1, OTHER, False), (0, BOOT, False)):
        disk = written(FRAMES, sealed=2, synced=synced)
        left = disk.open(PATH).pread(HEADER_BYTES + 90, 0)
        short = RecordingDisk(image={PATH: left})
        if torn:
            assert count(read(short, boot)) == 0
            continue
        with pytest.raises(StoreCorrupt, match="the file ends before byte") as caught:
            read(short, boot)
        assert caught.value.offset == HEADER_BYTES + 90


def test_a_damaged_block_is_a_torn_tail_only_if_it_was_never_synced() -> None:
    for synced, boot, torn in ((1, OTHER, True), (2, OTHER, False), (1, BOOT, False)):
        disk = written(FRAMES, sealed=2, synced=synced)
        disk.open(PATH).pwrite(b"!", HEADER_BYTES + len(FRAMES[0]) + 8)
        if torn:
            assert count(read(disk, boot)) == 1
            continue
        with pytest.raises(StoreCorrupt) as caught:
            read(disk, boot)
        assert caught.value.offset == HEADER_BYTES + len(FRAMES[0])


def test_a_file_that_is_not_in_use_is_no_segment() -> None:
    disk = written(FRAMES, sealed=3)
    disk.open(PATH).pwrite(bytes(8), 0)
    assert read(disk) is None


def test_a_tail_that_was_cut_is_cleared_on_the_disk_before_anything_is_appended() -> None:
    disk = written(FRAMES, sealed=3, synced=1)
    disk.open(PATH).pwrite(b"!", HEADER_BYTES + len(FRAMES[0]) + 8)  # the second block is lost
    events: list[Event] = []
    again = RecordingDisk(events, image=disk.image())
    found = read(again, OTHER)
    assert count(found) == 1
    assert found is not None
    assert any(isinstance(event, Synced) for event in events)
    third = seal_at(found, 2)
    assert not any(bytes(found.view[found.end : seal_at(found, 0)]))
    assert not any(
        bytes(found.view[third : third + SEAL_BYTES])
    )  # it was whole, and must not come back


def test_another_version_of_the_format_is_no_corruption() -> None:
    disk = written(FRAMES, sealed=3)
    page = bytearray(disk.open(PATH).pread(128, 0))
    identity = header_page.Identity(SEGMENT_MAGIC, HEADER_BYTES, SIZE, 5, version=2)
    header_page.write_identity(memoryview(page), identity, BOOT)
    disk.open(PATH).pwrite(page, 0)
    with pytest.raises(StoreError, match="format version 2, newer than version 1") as caught:
        read(disk)
    assert not isinstance(caught.value, StoreCorrupt)
