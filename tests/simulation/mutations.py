"""Bugs to plant: a check of the simulator itself.

Each replaces one function of the product for as long as its run lasts; the product knows nothing of
it. `nox -s simulate -- --mutations --seeds 500` plants one after the other, and each has to be
found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from typing_extensions import override

from haclient.session import (
    back_pressure,
    connection_state,
    publishes,
    recovery,
    resume,
    subscriptions,
)
from haclient.transport import (
    connection,
    message_queue,
    publisher,
    reconnector,
    store_maintenance,
)
from haclient_fake_server import hub, server, session
from haclient_fake_server.engine import broker, holders, persisted_acks, publishers
from haclient_fake_server.engine.replication import destination, durability, receiver
from haclient_fake_server.journal import files as journal_files
from haclient_fake_server.journal.format import BLOCK_HEADER_BYTES
from haclient_stores.bookmark import Bookmark, BookmarkList
from haclient_stores.bookmark_stores import logged as logged_bookmark
from haclient_stores.bookmark_stores import ring as ring_bookmark
from haclient_stores.bookmark_stores import subscription, tracked_store
from haclient_stores.publish_stores import segment_file, window
from haclient_stores.publish_stores import segment_log as segments
from haclient_stores.publish_stores.segment_log import SLOT_BYTES
from haclient_stores.tracker import resumption
from haclient_stores.tracker import tracker as tracking
from simulation import disk, queue_planning, stories
from simulation.planting import Mutation, Ours, Registering, replace_attribute
from simulation.queue_mutations import QUEUE_MUTATIONS

__all__ = ["MUTATIONS", "Mutation", "planted"]

_LONGEST_FRAME: Final = 2048

MUTATIONS: Final[dict[str, Mutation]] = dict(QUEUE_MUTATIONS)
_mutation = Registering(MUTATIONS)


@contextlib.contextmanager
def planted(name: str) -> Generator[None]:
    """Run with a bug; with none if the name is empty."""
    with contextlib.ExitStack() as stack:
        if name:
            MUTATIONS[name].plant(stack)
        yield


@_mutation("the broker acknowledges the last block, which it has not written yet")
def _ack_before_write(stack: contextlib.ExitStack) -> None:
    unwritten: WeakKeyDictionary[disk._Inode, tuple[int, int]] = WeakKeyDictionary()

    def append(self: Ours, block: Ours) -> None:
        appended(self, block)
        size = BLOCK_HEADER_BYTES + len(block.records)
        for segment in self._segments.values():
            if segment.file is not None:
                unwritten.pop(segment.file.inode, None)
        unwritten[self._live.file.inode] = (self._live.end - size, size)

    def copy(self: Ours) -> Ours:
        made = copied(self)
        offset, size = unwritten.get(self, (0, 0))
        made.memory[offset : offset + size] = bytes(size)
        return made

    appended = replace_attribute(stack, journal_files.JournalFiles, "append", append)
    copied = replace_attribute(stack, disk._Inode, "copy", copy)


@_mutation("the recovery point is the highest sequence seen of each publisher")
def _recovery_point_as_highest_seen(stack: contextlib.ExitStack) -> None:
    def point(self: tracking.SubscriptionTracker) -> BookmarkList:
        ids = self.publishers.ids
        return BookmarkList(tuple(Bookmark(ids[p], s) for p, s in self.seen.items()))

    replace_attribute(stack, tracking.SubscriptionTracker, "recovery_point", point)


@_mutation(
    "the publish store is trimmed to what the server has seen, not to what is persisted",
    stories.replaced,
)
def _trim_by_s(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, connection_state, "_persisted", lambda _bookmark, seen: seen)


@_mutation("messages are discarded before the handler gets them")
def _discard_before_handler(stack: contextlib.ExitStack) -> None:
    async def next_batch(self: Ours) -> Ours:
        batch = await taken(self)
        for message in batch or ():
            message.discard()
        return batch

    taken = replace_attribute(stack, message_queue.MessageQueue, "next_batch", next_batch)


@_mutation("after a logon new publishes leave before those that wait for their ack")
def _new_publish_before_replay(stack: contextlib.ExitStack) -> None:
    def reconcile(self: publisher.Publisher, *values: Ours) -> None:
        reconciled(self, *values)
        self.log.rewind(self.log.last_sequence)

    reconciled = replace_attribute(stack, publisher.Publisher, "reconcile", reconcile)


@_mutation("a restarted broker has forgotten which sequences it has seen")
def _duplicates_forgotten_at_restart(stack: contextlib.ExitStack) -> None:
    def restore(
        self: publishers.KnownPublishers, number: int, _high: int, *, assigned: bool
    ) -> None:
        restored(self, number, 0, assigned=assigned)

    restored = replace_attribute(stack, publishers.KnownPublishers, "restore", restore)


class _Trusting(bytes):
    """Bytes in which everything is found."""

    @override
    def __contains__(self, _: object) -> bool:
        return True


@_mutation("a recycled segment keeps its old frames, and recovery takes them", stories.recycled)
def _stale_frames_of_a_recycled_segment(stack: contextlib.ExitStack) -> None:
    def append(self: Ours, head: bytes, tail: bytes, body: bytes) -> int:
        memory, at = self._memory, self._at
        stale = bytes(memory[at : at + _LONGEST_FRAME])
        sequence: int = appended(self, head, tail, body)
        end = self._at - at
        if memory is self._memory and SLOT_BYTES < end <= len(stale):
            memory[self._at - SLOT_BYTES : self._at] = stale[end - SLOT_BYTES : end]
        return sequence

    appended = replace_attribute(stack, segments.SegmentLog, "append", append)
    vars(segment_file)["bytes"] = _Trusting
    stack.callback(vars(segment_file).pop, "bytes")


@_mutation(
    "the broker acknowledges a subscription that it holds back up to the end of its log",
    stories.slow_reader,
)
def _persisted_ack_for_what_was_not_sent(stack: contextlib.ExitStack) -> None:
    replace_attribute(
        stack,
        persisted_acks.PersistedAcks,
        "_safe_bookmark",
        lambda acks, _item: acks._log.last_bookmark,  # a bug to plant
    )


@_mutation("prune takes the lock of its new file only after the rename")
def _lock_after_rename(stack: contextlib.ExitStack) -> None:
    unlocked: WeakKeyDictionary[disk.SimulatedDisk, Ours] = WeakKeyDictionary()

    def open_locked(self: disk.SimulatedDisk, path: Path) -> Ours:
        if path.name.endswith(".prune"):
            unlocked[self] = self.open(path, create=True)
            return unlocked[self]
        return locked(self, path)

    def rename(self: disk.SimulatedDisk, source: Path, target: Path) -> None:
        renamed(self, source, target)
        if source.name.endswith(".prune"):
            unlocked.pop(self).lock()

    locked = replace_attribute(stack, disk.SimulatedDisk, "open_locked", open_locked)
    renamed = replace_attribute(stack, disk.SimulatedDisk, "rename", rename)


@_mutation("the lock of a file that was opened before a rename counts, whatever the path names now")
def _lock_before_rename(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, disk.SimulatedDisk, "_leads_to", lambda *_: True)


@_mutation("a store without history numbers from what the server has seen, not from the clock")
def _number_reuse_after_a_restart(stack: contextlib.ExitStack) -> None:
    def reconcile(self: Ours, *, seen: int, persisted: int, clock_us: int) -> None:
        reconciled(self, seen=seen, persisted=persisted, clock_us=clock_us and 0)

    reconciled = replace_attribute(stack, window.PublishWindow, "reconcile", reconcile)
    replace_attribute(stack, segments.SegmentLog, "number_above", lambda _self, _sequence: None)


@_mutation("an entry at another server resumes without a time anchor", stories.late_publisher)
def _missing_time_anchor(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, resume, "resume_bookmarks", lambda log, _server, **_: (log.resume(),))


@_mutation(
    "the time anchor is the caught-up time although a message is undiscarded", stories.forked
)
def _time_anchor_behind_an_undiscarded_message(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, resume, "_safe_time_us", lambda log: log.server_order.caught_up_us)


@_mutation("a new process resumes without a time anchor", stories.late_publisher)
def _missing_time_anchor_after_a_restart(stack: contextlib.ExitStack) -> None:
    def recover(self: Ours, *values: Ours, **named: Ours) -> None:
        opened(self, *values, **named)
        for handle in self.subscriptions.values():
            handle.server_order.server = ""

    opened = replace_attribute(stack, logged_bookmark.LoggedBookmarkStore, "__init__", recover)


@_mutation(
    "the time of a loss is an anchor although the replay was not complete", stories.cut_off_replay
)
def _time_anchor_of_an_incomplete_entry(stack: contextlib.ExitStack) -> None:
    def caught_up_until(self: Ours, link_until: float, now: float) -> float:
        self.is_complete = True
        at: float = original(self, link_until, now)
        return max(at, link_until)

    original = replace_attribute(stack, resume.ResumePosition, "caught_up_until", caught_up_until)


@_mutation("an entry that was cut off counts as complete on the same server")
def _incomplete_entry_is_home(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, resumption.Resumption, "in_order", property(lambda _self: True))


@_mutation("what was queued for a handler when the link was lost is handed out nevertheless")
def _old_queue_after_the_new_link(stack: contextlib.ExitStack) -> None:
    def drop(self: Ours, **options: bool) -> Ours:
        kept = tuple(self._batches)
        messages = dropped(self, **options)
        self._batches.extend(kept)
        return messages

    dropped = replace_attribute(stack, message_queue.MessageQueue, "drop", drop)


@_mutation("persisted acks do not wait for synchronous destinations")
def _ack_before_replication(stack: contextlib.ExitStack) -> None:
    def settle(self: Ours, reached: int, *, end: int, last: Ours) -> bool:
        return bool(settled(self, reached * 0 + end, end=end, last=last))

    settled = replace_attribute(stack, durability.Durability, "advance_confirmed", settle)


@_mutation("a discard is remembered in memory and not in the file")
def _discard_not_written(stack: contextlib.ExitStack) -> None:
    forgetful = subscription.StoreNotes.discard_function
    replace_attribute(stack, logged_bookmark.LogNotes, "discard_function", forgetful)


@_mutation("what was queued when the link was lost counts as handed out")
def _lost_queue_counts_as_seen(stack: contextlib.ExitStack) -> None:
    ours = subscriptions.Subscription
    replace_attribute(stack, ours, "note_dropped", lambda _self, _messages: None)


@_mutation(
    "a step of the client's clock leads to a replay that begins too late", stories.late_publisher
)
def _steps_of_the_clock_are_believed(stack: contextlib.ExitStack) -> None:
    def believe(_: Ours, wall_us: int, _now: float) -> int:
        return wall_us

    replace_attribute(stack, resume.StepProofClock, "earliest_us", believe)


@_mutation("durability group never syncs", stories.powerless)
def _groups_are_never_synced(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, store_maintenance, "group_sync", lambda _store: None)


@_mutation("a ring forgets what was discarded and not yet acknowledged", stories.unacknowledged)
def _ring_without_applied(stack: contextlib.ExitStack) -> None:
    def restore(self: Ours, slot: Ours, *pairs: Ours) -> None:
        vectors = tuple((publisher, resume, resume) for publisher, resume, _ in slot.vectors)
        restored(self, replace(slot, vectors=vectors), *pairs)

    restored = replace_attribute(stack, ring_bookmark.RingNotes, "restore", restore)


@_mutation("what comes right behind a point that an adapter has kept counts as known")
def _points_count_for_more(stack: contextlib.ExitStack) -> None:
    def recovered(self: Ours, points: Ours) -> None:
        took(self, points)
        for handle in self.subscriptions.values():
            tracker = handle.tracker
            tracker.seen = {publisher: seen + 2 for publisher, seen in tracker.seen.items()}

    took = replace_attribute(stack, tracked_store.TrackedBookmarkStore, "seed", recovered)


@_mutation("a slow client does not get what was queued for it when it is taken offline")
def _queued_is_lost_offline(stack: contextlib.ExitStack) -> None:
    def take_offline(self: Ours, queue: Ours) -> None:
        self.unsent_bytes -= sum(map(len, self._chunks))
        self._chunks.clear()
        taken(self, queue)

    taken = replace_attribute(stack, session.Session, "take_offline", take_offline)


@_mutation("a broker that was told to accept connections again does not")
def _transports_stay_disabled(stack: contextlib.ExitStack) -> None:
    def set_transport(self: Ours, uri: str, *, enabled: bool) -> None:
        if not enabled:
            disable(self, uri, enabled=False)

    disable = replace_attribute(stack, server.BrokerServer, "set_transport", set_transport)


@_mutation(
    "old files of the log are removed although somebody needs them",
    stories.removed_before_replication,
)
def _removals_without_asking(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, broker, "log_holder", lambda *_, **__: "")


@_mutation(
    "old files of the log are removed although a replay needs them", stories.removed_beside_readers
)
def _removals_beside_readers(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, holders, "_reader", lambda *_: "")


@_mutation(
    "a broker that has removed the beginning of its log takes all that it lacks for removed",
    stories.lost_after_a_removal,
)
def _what_is_lacking_counts_as_removed(stack: contextlib.ExitStack) -> None:
    def may_be_removed(self: Ours, *_: object) -> bool:
        return bool(self._log.journal.first_position > 1)

    replace_attribute(stack, receiver.Holdings, "_may_be_removed", may_be_removed)


@_mutation(
    "the broker's journal takes blocks behind one that it could not write", stories.failing_disk
)
def _blocks_behind_a_failed_write(stack: contextlib.ExitStack) -> None:
    def write(self: Ours, *values: Ours, **named: Ours) -> None:
        self._write_block(*values, **named)

    replace_attribute(stack, journal_files.JournalFiles, "_write", write)
    replace_attribute(stack, hub.Hub, "_check_written", lambda _: None)


@_mutation("a replicated record that cannot be taken any more counts as one that is in the log")
def _diverging_pair_counts_as_equal(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, receiver.Holdings, "lacks", lambda *_: False)


@_mutation(
    "a replica does not take down that a publish was refused or is not logged",
    stories.no_message_last,
)
def _marks_are_not_replicated(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, receiver.Replicas, "_mark", lambda *_: None)


@_mutation("a server has a publish gap until it was told that its replicas have a message too")
def _gap_until_told(stack: contextlib.ExitStack) -> None:
    def has_of(self: Ours, acknowledged: int) -> int:
        return acknowledged if self.persisted is None else self.persisted

    replace_attribute(stack, connection_state.LoggedOn, "has_of", has_of)


@_mutation("at the first contact the vector of a destination is taken for all that it has")
def _first_vector_is_believed(stack: contextlib.ExitStack) -> None:
    def welcome(self: Ours, message: Ours, journal: Ours, *, end: int, now: float) -> None:
        if not self.instance:
            self.instance, self._verified = message.client_name, end - 1
        welcomed(self, message, journal, end=end, now=now)

    welcomed = replace_attribute(stack, destination.Destination, "welcome", welcome)


@_mutation("a connection counts as a success as soon as it is live", stories.flapping)
def _young_connections_are_stable(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, reconnector, "STABLE_AFTER_S", 0.0)


@_mutation(
    "a server that was restored from an older backup is taken for the same log", stories.restored
)
def _restored_log_is_the_same(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, resume, "_holds", lambda *_: True)


@_mutation(
    "half of a message counts as received, with all that its server had then", stories.half_received
)
def _half_a_frame_counts(stack: contextlib.ExitStack) -> None:
    def nothing_left(self: Ours, _pending_bytes: int) -> Ours:
        return original(self, 0)

    original = replace_attribute(stack, connection.Connection, "_nothing_left", nothing_left)


@_mutation(
    "what a client without a store has lost with its link counts as persisted", stories.unstored
)
def _losses_without_a_store_are_forgotten(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, publishes.Publishes, "lost", lambda self, _reason: self.log.forget())


@_mutation(
    "a full queue stops the reading although a caller waits for an ack", queue_planning.answering
)
def _full_queues_hold_acks_back(stack: contextlib.ExitStack) -> None:
    def decide(self: Ours, *, is_ack_awaited: bool, now: float) -> Ours:
        return decided(self, is_ack_awaited=is_ack_awaited and False, now=now)

    decided = replace_attribute(stack, back_pressure.FullQueues, "decide", decide)


@_mutation(
    "a connection that is lost while subscriptions are sent again ends the client",
    stories.late_logon,
)
def _lost_again_is_final(stack: contextlib.ExitStack) -> None:
    key = (recovery.Recovery.RESUBSCRIBING, recovery.Failure.ORDINARY)
    meanings = {**recovery.MEANINGS, key: frozenset({recovery.FailureAction.END})}
    replace_attribute(stack, recovery, "MEANINGS", meanings)


@_mutation(
    "a client whose abandoned logon is read late takes itself for another one", stories.late_logon
)
def _late_logons_are_others(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, recovery, "_may_be_read_late", lambda _: False)
