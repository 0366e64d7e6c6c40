"""Every byte of a small publish store, damaged: what was synced is there, or it is corrupt."""

from __future__ import annotations

import pytest

from haclient_stores.disk.files import PAGE_BYTES
from haclient_stores.errors import StoreCorrupt
from haclient_stores.header_page import FIRST_WORD, IDENTITY_BYTES, OWNER_OFFSET
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.segment_file import HEADER_BYTES, SEAL_BYTES
from support.frames import fill, frame_of, put
from support.publish_model import DIRECTORY, KINDS
from support.recording import FIRST_BOOT, NEXT_BOOT, Image, RecordingDisk

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.row("PS21", "PS22"),
]

CONTROL, SEGMENT = DIRECTORY / "control", DIRECTORY / "00000001.seg"
OWNER = b"orders-7"


def closed_store() -> tuple[Image, dict[int, bytes], dict[int, bytes]]:
    """A store in which each frame has a seal of its own; what it ever held, and what waits."""
    disk = RecordingDisk()
    store = KINDS["file"].make(disk)
    store.open_for(OWNER.decode())
    store.reconcile(seen=0, persisted=0, clock_us=1000)
    to_8192 = 8192 - HEADER_BYTES - 7 - 3 * len(frame_of(1001, b""))
    for size in (3, 4, to_8192, 5):  # the end of one seal is a power of two, a bit flip from 0
        put(store, b"b" * size)
        store.sync()
    ever = dict(store.replay())
    store.discard_up_to(1001)
    store.close()
    return disk.image(), ever, {number: f for number, f in ever.items() if number > 1001}


IMAGE, EVER, WAITING = closed_store()
END = HEADER_BYTES + sum(map(len, EVER.values()))


def open_damaged(path: object, offset: int, mask: int, boot: bytes) -> PublishLog | StoreCorrupt:
    image = {each: bytearray(data) for each, data in IMAGE.items()}
    for each, data in image.items():
        if each == path:
            data[offset] ^= mask
    try:
        return KINDS["file"].make(
            RecordingDisk(image={each: bytes(data) for each, data in image.items()}, boot=boot)
        )
    except StoreCorrupt as error:
        assert error.path == path
        return error


MASKS = [0xFF, *(1 << bit for bit in range(8))]


@pytest.mark.parametrize("boot", [FIRST_BOOT, NEXT_BOOT], ids=["same boot", "other boot"])
def test_no_byte_of_a_segment_can_change_what_was_synced(
    boot: bytes, every: int, request: pytest.FixtureRequest
) -> None:
    # Of the header and the long frame.
    step = 1 if request.config.getoption("--kills") else 17 * every
    ends = [HEADER_BYTES]
    for frame in EVER.values():
        ends.append(ends[-1] + len(frame))
    assert 8192 in ends
    size = len(IMAGE[SEGMENT])
    interesting = [*range(FIRST_WORD + 16), *range(size - 6 * SEAL_BYTES, size)]
    rest = [*range(FIRST_WORD + 16, HEADER_BYTES, step), *range(END + 4, END + 100)]
    last = ends[-2]
    within = [*range(HEADER_BYTES, HEADER_BYTES + 128), *range(HEADER_BYTES + 128, last, step)]
    tries = [(offset, mask) for offset in interesting for mask in MASKS]
    tries += [(offset, 0xFF) for offset in [*rest, *within, *range(last, END + 4)]]
    corrupt: set[int] = set()
    for offset, mask in tries:
        found = open_damaged(SEGMENT, offset, mask, boot)
        if isinstance(found, PublishLog):
            assert dict(found.replay()) == WAITING, (offset, mask)
            found.close()
            continue
        corrupt.add(offset)
        if HEADER_BYTES <= offset < END:
            block = max(end for end in ends if end <= offset)
            assert found.offset == block, "the block that holds the byte"
    seals = range(size - 4 * SEAL_BYTES, size)
    sealed = {*range(IDENTITY_BYTES), *seals, *within, *range(last, END)}
    assert corrupt >= sealed


@pytest.mark.parametrize("boot", [FIRST_BOOT, NEXT_BOOT], ids=["same boot", "other boot"])
def test_no_byte_of_the_control_page_can_lose_a_message_or_a_number(
    boot: bytes, every: int
) -> None:
    owner = range(OWNER_OFFSET, OWNER_OFFSET + 8 + len(OWNER))
    for offset in (*range(owner.stop), *range(owner.stop, PAGE_BYTES, 4 * every - 3)):
        for mask in MASKS if offset < owner.stop else [0xFF]:
            found = open_damaged(CONTROL, offset, mask, boot)
            if isinstance(found, StoreCorrupt):
                assert offset < IDENTITY_BYTES or offset in owner
                assert found.offset in {0, 8, OWNER_OFFSET}
                continue
            assert offset >= IDENTITY_BYTES
            assert WAITING.items() <= dict(found.replay()).items() <= EVER.items()
            assert found.last_sequence >= max(EVER)
            assert found.client_name == OWNER.decode()
            found.close()


def test_what_is_not_sealed_is_checked_by_its_structure() -> None:
    disk = RecordingDisk()
    store = KINDS["file"].make(disk)
    store.reconcile(seen=0, persisted=0, clock_us=1000)
    frames = {number: frame_of(number, b"body") for number in fill(store, 5)}
    image = disk.image()
    end = HEADER_BYTES + sum(map(len, frames.values()))
    changed = 0
    for offset in range(HEADER_BYTES, end + 4):
        data = bytearray(image[SEGMENT])
        data[offset] ^= 0xFF
        again = KINDS["file"].make(RecordingDisk(image={**image, SEGMENT: bytes(data)}))
        found = dict(again.replay())
        assert list(found) == list(frames)[: len(found)]
        changed += any(frames[number] != frame for number, frame in found.items())
        again.close()
    assert changed, "the bytes of a body are not covered before they are sealed"
