"""Archive, compress and remove: what is done with old segments of the log while it is in use.

A segment that is sealed is copied to the archive or compressed in a thread, and read from the new
file once that is whole. Only the oldest segment is removed, and only when nobody needs it. An
action that cannot be done says why; one on the schedule is tried again until it can be done.
"""

from __future__ import annotations

import logging
import math
from typing import Final

import trio

from haclient.errors import UsageError
from haclient_fake_server.admin import ConflictError, JournalAction
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.engine.holders import sow_holder
from haclient_fake_server.engine.journal import MemoryJournal
from haclient_fake_server.hub import Hub
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.format import segment_name
from haclient_fake_server.journal.parquet import parquet_path
from haclient_fake_server.journal.segments import JournalSegment
from haclient_stores.errors import StoreError

CHECK_INTERVAL_S: Final = 60.0
"""How often the ages of segments are checked; more often when a limit is shorter."""

RETURN_S: Final = 60.0
"""After a start nothing is removed by its age for so long: those who still need it have to connect
first."""

_log = logging.getLogger(__name__)


class JournalMaintenance:
    """The actions on the segments of one broker, one at a time.

    Args:
        config: The configuration of the broker.
        journal: Its journal.
        hub: Who knows what is needed of it.
    """

    def __init__(
        self, config: BrokerConfig, journal: JournalFiles | MemoryJournal, hub: Hub
    ) -> None:
        self._config = config
        self._journal = journal if isinstance(journal, JournalFiles) else None
        self._hub = hub
        self._one = trio.Lock()
        self._reported: dict[tuple[str, int], str] = {}

    def check(self, action: JournalAction, number: int) -> None:
        """Check that an action can be begun.

        Raises:
            UsageError: It cannot; the text says why.
        """
        self._open_journal(action, number)

    def _open_journal(self, action: JournalAction, number: int) -> JournalFiles:
        journal, name = self._journal, segment_name(number)
        if journal is None:
            raise UsageError(f"{action}: the broker has no journal on disk")
        segment = journal.segments.get(number)
        if segment is None:
            if action == "remove" and journal.is_forgotten(number):
                return journal  # its removal has failed half way
            raise UsageError(f"{action} {name}: the log has no such segment")
        if not segment.manifest.sealed:
            raise ConflictError(f"{action} {name}: it is still written")
        if action == "remove":
            self._check_unneeded(journal, segment)
        elif action == "archive" and self._config.archive_dir is None:
            raise ConflictError(f"{action} {name}: the broker has no archive directory")
        elif action == "archive" and journal.is_archived(number):
            raise ConflictError(f"{action} {name}: it is in the archive already")
        elif action == "compress" and journal.is_compressed(number):
            raise ConflictError(f"{action} {name}: it is compressed already")
        return journal

    def _check_unneeded(self, journal: JournalFiles, segment: JournalSegment) -> None:
        name, first = segment_name(segment.number), next(iter(journal.segments))
        if segment.number != first:
            raise ConflictError(
                f"remove {name}: it would leave a gap: remove {segment_name(first)} first"
            )
        holder = self._hub.log_holder(segment.manifest.next_position) or self._export_of(segment)
        if holder:
            raise ConflictError(f"remove {name}: {holder}")

    def _export_of(self, segment: JournalSegment) -> str:
        config = self._config
        if not config.parquet or config.data_dir is None:
            return ""
        path = parquet_path(config.data_dir, segment.number)
        return "" if path.exists() else f"{path} is not written yet"

    async def run(self, action: JournalAction, number: int) -> None:
        """Carry out an action.

        Raises:
            UsageError: It cannot be done now; the text says why.
            StoreError: The segment is damaged, or the disk failed.
        """
        async with self._one:
            journal = self._open_journal(action, number)
            if action == "remove":
                await self._remove(journal, number)
                return
            compress = action == "compress"
            path = await trio.to_thread.run_sync(
                lambda: journal.copy_sealed(number, compress=compress)
            )
            journal.use_copy(number, path)
            await trio.to_thread.run_sync(journal.finish_copy, number)

    async def _remove(self, journal: JournalFiles, number: int) -> None:
        await trio.to_thread.run_sync(journal.remove_files, number)  # what has failed earlier
        if number not in journal.segments:
            return
        self._open_journal("remove", number)
        position = journal.segments[number].manifest.next_position
        topics = self._hub.sow_snapshot()
        if any(records for _, records in topics):
            # A record that is replaced meanwhile is found in the log behind it: no new one is here.
            highest = journal.highest_before(position)
            holder = await trio.to_thread.run_sync(sow_holder, topics, highest)
            if holder:
                raise UsageError(f"remove {segment_name(number)}: {holder}")
            self._open_journal("remove", number)  # somebody may have begun to read it meanwhile
        journal.forget_oldest()
        await trio.to_thread.run_sync(journal.remove_files, number)

    async def run_reported(self, action: JournalAction, number: int) -> bool:
        """As `run`; what prevents it is reported, once, and is tried again by the caller or not."""
        name, key = segment_name(number), (action, number)
        try:
            await self.run(action, number)
        except (UsageError, StoreError) as error:
            if self._reported.get(key) != str(error):
                _log.warning("%s: %s", self._config.name, error)
            self._reported[key] = str(error)
            return False
        self._reported.pop(key, None)
        _log.info("%s: %s %s: done", self._config.name, action, name)
        return True

    async def keep(self) -> None:
        """Carry out the actions whose ages have come, for ever."""
        config, journal = self._config, self._journal
        limits = (config.archive_after_s, config.compress_after_s, config.remove_after_s)
        if journal is None or min(limits) == math.inf:
            return
        removes_from = trio.current_time() + RETURN_S
        while True:
            for action, number in self._due(journal):
                if action == "remove" and trio.current_time() < removes_from:
                    break
                done = await self.run_reported(action, number)
                if action == "remove" and not done:
                    break  # those that follow have to wait for this one
            await trio.sleep(min(CHECK_INTERVAL_S, *limits))

    def _due(self, journal: JournalFiles) -> list[tuple[JournalAction, int]]:
        config, now_us = self._config, self._hub.clock_us
        found: list[tuple[JournalAction, int]] = []
        removals: list[tuple[JournalAction, int]] = []
        for number, segment in journal.segments.items():
            if not segment.manifest.sealed:
                continue
            age_s = (now_us - segment.manifest.last_us) / 1e6
            if age_s >= config.remove_after_s:
                removals.append(("remove", number))
                continue  # what is about to be removed is not copied first
            if age_s >= config.archive_after_s and not journal.is_archived(number):
                found.append(("archive", number))
            if age_s >= config.compress_after_s and not journal.is_compressed(number):
                found.append(("compress", number))
        return found + removals
