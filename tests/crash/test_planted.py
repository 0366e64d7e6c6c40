"""Bugs planted in the stores: the crash proofs find each, which is why they are believed."""

from __future__ import annotations

import itertools
import logging
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, TypeVar

import pytest

from haclient_stores import header_page
from haclient_stores.bookmark_stores import logged as logged_bookmark
from haclient_stores.bookmark_stores import record_file, records, ring_slots, subscription
from haclient_stores.disk import durable_file
from haclient_stores.publish_stores import hybrid, segment_file, store_directory
from haclient_stores.publish_stores import segment_log as segments
from support import bookmark_walk, prune_in_use, publish_walk, unsynced_tail
from support.recording import RecordingDisk, power_cuts

pytestmark = [
    pytest.mark.row("PS21", "PS22", "BS14", "BS15", "BS16"),
    pytest.mark.timeout(3600),
    pytest.mark.in_parts,
]

Ours: TypeAlias = Any  # an object of the product, inside and all
Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]
Proofs: TypeAlias = Callable[[str, int], Iterator[None]]
_F = TypeVar("_F", bound=Plant)

MOST_CRASHES: Final = 20_000  # of all that are tried before a bug counts as not found
SEEDS: Final = range(4)
BUGS: dict[str, tuple[str, Plant, Proofs]] = {}
"""By name: the kind of store that has the bug, what plants it, and the proofs that find it."""


def publish_proofs(kind: str, seed: int) -> Iterator[None]:
    """A walk, and every crash on the way; raises where a promise is broken."""
    walk, events = publish_walk.walked(kind, seed, steps=40, kill_every=5 * (seed % 2))
    for crash, check in publish_walk.crashes(events):
        check(walk, crash)
        yield


def bookmark_proofs(kind: str, seed: int) -> Iterator[None]:
    """The same for a bookmark store."""
    events = bookmark_walk.walked(kind, seed, steps=30, kill_every=3 * (seed % 2))
    for crash in bookmark_walk.crashes(events):
        bookmark_walk.check(kind, crash)
        yield


def prune_proofs(_kind: str, seed: int) -> Iterator[None]:
    """A log is used while it is pruned, and power fails."""
    for crash in prune_in_use.crashes(power_cuts, every=7 + seed):
        prune_in_use.check(crash)
        yield


def lost_pages(kind: str, _: int) -> Iterator[None]:
    """Any pages of an unsynced tail are lost, and the next process appends."""
    for synced, crash in unsynced_tail.cut_while_syncing(kind):
        unsynced_tail.check_beginning(kind, synced, crash)
        yield from unsynced_tail.check_appended(kind, synced, crash)


def bug(kind: str, proofs: Proofs = publish_proofs) -> Callable[[_F], _F]:
    def register(plant: _F) -> _F:
        BUGS[f"{kind}: {plant.__name__}"] = (kind, plant, proofs)
        return plant

    return register


# -- publish stores -----------------------------------------------------------------------------


@bug("file")
def a_segment_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store_directory.StoreDirectory, "_sync_segment", lambda *_: None)


@bug("file")
def the_directory_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecordingDisk, "fsync_dir", lambda *_: None)


@bug("file", lambda kind, _: publish_walk.check_next_process(kind))
def names_of_a_killed_process_are_taken_for_synced(patch: pytest.MonkeyPatch) -> None:
    made = store_directory.StoreDirectory.__init__

    def begin(self: Ours, *values: Ours, **named: Ours) -> None:
        made(self, *values, **named)
        self._names_unsynced = False

    patch.setattr(store_directory.StoreDirectory, "__init__", begin)


@bug("file")
def a_length_is_written_before_its_frame(patch: pytest.MonkeyPatch) -> None:
    def append(self: Ours, head: bytes, tail: bytes, body: bytes) -> int:
        rest = b"%b%d%b%b" % (head, self._window.last_sequence + 1, tail, body)
        if self._at + len(rest) + 4 > self._limit:
            self._make_room(len(rest) + 4)
            return append(self, head, tail, body)
        self._memory[self._at - 4 : self._at] = struct.pack(">I", len(rest))
        self._memory[self._at : self._at + len(rest) + 4] = rest + bytes(4)
        self._at += len(rest) + 4
        self._window.last_sequence += 1
        self.unsent_bytes += len(rest) + 4
        return int(self._window.last_sequence)

    patch.setattr(segments.SegmentLog, "append", append)


@bug("file")
def checksums_say_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segment_file, "seal_checksum", lambda *_, **__: 0)


@bug("file")
def a_segment_is_used_again_before_the_disk_knows(patch: pytest.MonkeyPatch) -> None:
    released = store_directory.StoreDirectory.release

    def release(self: Ours, segment: Ours) -> None:
        segment.header_on_disk = False
        released(self, segment)

    patch.setattr(store_directory.StoreDirectory, "release", release)


@bug("file")
def acks_are_not_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store_directory.StoreDirectory, "save_numbers", lambda *_, **__: None)


@bug("file")
def the_synced_word_is_written_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def sync(self: Ours, segment: Ours) -> None:
        with self._disk.open(segment.path) as file:
            word = bytearray(16)
            header_page.write_word(memoryview(word), 0, segment.end)
            file.pwrite(word, header_page.FIRST_WORD)
            segment.header_on_disk = True
            file.fsync()

    patch.setattr("support.recording._RecordedFile.__enter__", lambda self: self, raising=False)
    patch.setattr("support.recording._RecordedFile.__exit__", lambda *_: None, raising=False)
    patch.setattr(store_directory.StoreDirectory, "_sync_segment", sync)


@bug("ring")
def a_header_is_valid_before_it_is_whole(patch: pytest.MonkeyPatch) -> None:
    written = header_page.write_identity

    def write(page: Ours, identity: header_page.Identity, boot_id: bytes) -> None:
        page[:8] = identity.magic
        written(page, identity, boot_id)

    patch.setattr(header_page, "write_identity", write)


@bug("hybrid")
def numbers_in_memory_are_not_reserved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store_directory.StoreDirectory, "reserve", lambda *_: None)


@bug("hybrid")
def the_newest_segment_moves_to_the_files_first(patch: pytest.MonkeyPatch) -> None:
    moved = hybrid.HybridStorage._move_out
    patch.setattr(
        hybrid.HybridStorage, "_move_out", lambda self, _: moved(self, self._in_memory[-1])
    )


# -- bookmark stores ----------------------------------------------------------------------------


@bug("logged", bookmark_proofs)
def a_prune_is_not_synced_before_the_rename(patch: pytest.MonkeyPatch) -> None:
    synced = durable_file.DurableFile.fsync

    def fsync(self: Ours) -> None:
        if not self.file.path.name.endswith(".prune"):
            synced(self)

    patch.setattr(durable_file.DurableFile, "fsync", fsync)


@bug("logged", prune_proofs)
def what_was_synced_during_a_prune_is_renamed_away(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        logged_bookmark.LoggedBookmarkStore, "_catch_up", lambda _self, _pruned, begin: begin
    )


@bug("logged", lambda kind, _: bookmark_walk.check_next_process(kind))
def the_name_of_a_pruned_file_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(logged_bookmark.LoggedBookmarkStore, "_sync_name", lambda _: None)


@bug("logged", bookmark_proofs)
def a_prune_drops_one_live_entry(patch: pytest.MonkeyPatch) -> None:
    taken = records.snapshot

    def snapshot(*values: Ours) -> Iterator[tuple[int, int]]:
        taken_records = list(taken(*values))
        logged = [at for at, (word, _) in enumerate(taken_records) if word >> 56 == 1]
        return iter(
            taken_records[: logged[-1]] + taken_records[logged[-1] + 1 :]
            if logged
            else taken_records
        )

    patch.setattr(logged_bookmark, "snapshot", snapshot)


@bug("logged", bookmark_proofs)
def a_prune_forgets_what_was_discarded_out_of_order(patch: pytest.MonkeyPatch) -> None:
    taken = records.snapshot
    patch.setattr(
        logged_bookmark,
        "snapshot",
        lambda *values: (each for each in taken(*values) if each[0] >> 56 != 2),
    )


@bug("logged", bookmark_proofs)
def discards_are_not_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        logged_bookmark.LogNotes, "discard_function", subscription.StoreNotes.discard_function
    )


@bug("ring", bookmark_proofs)
def the_first_slot_counts(patch: pytest.MonkeyPatch) -> None:
    def newest(pair: bytes, **_: Ours) -> ring_slots.Slot | None:
        return ring_slots.Slot.unpack(pair[:4096])

    patch.setattr(ring_slots, "newest_slot", newest)


@bug("ring", bookmark_proofs)
def a_slot_counts_without_its_checksum(patch: pytest.MonkeyPatch) -> None:
    class Trusting:
        @staticmethod
        def crc32(_: object) -> int:
            return 0

    patch.setattr(ring_slots, "zlib", Trusting)


@bug("ring", bookmark_proofs)
def a_slot_is_written_where_the_newest_is(patch: pytest.MonkeyPatch) -> None:
    written = ring_slots.Page.write

    def write(self: Ours, above: int) -> int:
        self.slots = (self.slots[0], self.slots[0])
        return written(self, above)

    patch.setattr(ring_slots.Page, "write", write)


@bug("logged", bookmark_proofs)
def a_value_of_zero_is_the_end(patch: pytest.MonkeyPatch) -> None:
    read = record_file._Reading._unsealed

    def unsealed(self: Ours, words: Ours, offset: int, sealed: int) -> int:
        zeros = (at for at in range(1, len(words), 2) if not words[at])
        return min(read(self, words, offset, sealed), next(zeros, len(words)) - 1)

    patch.setattr(record_file._Reading, "_unsealed", unsealed)


@bug("bookmark log", lost_pages)
def a_lost_page_takes_its_whole_block(patch: pytest.MonkeyPatch) -> None:
    read = record_file._Reading._partly_sealed

    def partly_sealed(words: Ours, offset: int) -> tuple[int, int]:
        whole, damaged = read(words, offset)
        return (0, damaged) if damaged else (whole, 0)

    patch.setattr(record_file._Reading, "_partly_sealed", staticmethod(partly_sealed))


@bug("bookmark log", lost_pages)
def what_is_cut_is_not_cleared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(record_file, "clear_tail", lambda *_: False)


# -- finding them -------------------------------------------------------------------------------


def found(proofs: Proofs, kind: str) -> bool:
    for seed in SEEDS:
        try:
            for _ in itertools.islice(proofs(kind, seed), MOST_CRASHES):
                pass
        except Exception:  # whatever it is: the bug shows
            return True
    return False


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr(record_file, "GROW_BYTES", record_file.BLOCK_BYTES)
    kind, plant, proofs = BUGS[name]
    plant(monkeypatch)
    assert found(proofs, kind)
