"""The subscriptions to send again after a lost connection.

The manager holds commands as they were first submitted, in the order of entry, and no message data.
The command is sent again unchanged, with two exceptions: a bookmark subscription resumes where its
store says, and `replace` is omitted, since there is nothing to replace yet.

The file of a `FileSubscriptionManager` has one line for each change: the CRC-32 of the rest in
hexadecimal, a blank, and JSON. The first line is
`{"haclient-subscriptions":1,"client":NAME}`. Each further line is an entry,
`{"sub_id":...,"fields":{...},"body":...,"acks":...,"is_stream":...}` with the body in Base64, or
`{"removed":SUB_ID}`. A last line without its line feed was torn by a
crash and is dropped, since no caller has seen its change succeed; the first line is written whole,
and any other damage is an error. The lock file `PATH.lock` beside it is held by the process that
uses the file.

Each line is passed to the operating system at once, so it survives a kill of the process. A power
failure may lose the last lines. A change is in the file before it is in memory, so a change that
could not be written can be made again. When a rewrite has failed half-way, nobody knows which of
the two files is there: it is read again before the next change.
"""

from __future__ import annotations

import json
import zlib
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast

import msgspec
from typing_extensions import override

from haclient.errors import StoreCorrupt, StoreError
from haclient_stores.disk.files import Disk, File, RealDisk
from haclient_stores.disk.ownership import check_client_name, check_path
from haclient_stores.logs import logger_of

__all__ = [
    "Entry",
    "FileSubscriptionManager",
    "MemorySubscriptionManager",
    "SubscriptionManager",
]

_VERSION: Final = 1
_MAGIC: Final = "haclient-subscriptions"
_MIN_DEAD: Final = 64  # lines; a file is rewritten when more lines than these, and most, are dead
_logger = logger_of("haclient.subscription_manager")


@dataclass(frozen=True, slots=True)
class Entry:
    """One subscription.

    Attributes:
        sub_id: Its id.
        fields: The header of its command by wire name, in its current form: a subscription that is
            replaced, paused or resumed is added again.
        body: The body of its command.
        acks: The ack types that the application asked for, separated by commas; these acks are
            delivered like messages. `fields` also has those that the client itself asks for.
        is_stream: Whether a stream reads it. The next process opens a new one: nothing restores it.
    """

    sub_id: str
    fields: dict[str, str | int]
    body: bytes = b""
    acks: str = ""
    is_stream: bool = False


class SubscriptionManager(Protocol):
    """Remembers the subscriptions of a client."""

    @abstractmethod
    def add(self, entry: Entry) -> None:
        """Add a subscription that a server has accepted.

        Args:
            entry: The subscription; it replaces one of the same id and keeps that one's place.
        """

    @abstractmethod
    def remove(self, sub_id: str) -> None:
        """Remove a subscription that was ended on purpose.

        Args:
            sub_id: Its id; an unknown one is no error.
        """

    @abstractmethod
    def clear(self) -> None:
        """Remove every subscription."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """List the subscriptions.

        Returns:
            All of them, in the order in which they were added.
        """


class MemorySubscriptionManager(SubscriptionManager):
    """Remembers for as long as the process lives."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    @override
    def add(self, entry: Entry) -> None:
        self._entries[entry.sub_id] = entry

    @override
    def remove(self, sub_id: str) -> None:
        self._entries.pop(sub_id, None)

    @override
    def clear(self) -> None:
        self._entries.clear()

    @override
    def entries(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))


class FileSubscriptionManager(MemorySubscriptionManager):
    """Keeps the subscriptions of one client in a file; `HAClient.restore_subscriptions` reads them.

    Args:
        path: The file; created when it is missing. A symbolic link is followed.
        disk: The file system, for tests.

    Raises:
        StoreLocked: Another process, or another client of this process, uses the file.
        StoreCorrupt: The file is damaged, or is not a subscription file.
        StoreError: The file cannot be read or written.
        UsageError: `path` is not a path.
    """

    def __init__(self, path: str | Path, *, disk: Disk | None = None) -> None:
        self.path = check_path(path, "the file of the subscriptions")
        super().__init__()
        self._disk = disk or RealDisk()
        self._owner = ""
        self._lines = 0
        self._end = 0
        self._must_reread = False
        self._file_path = self._disk.resolve(self.path)  # which is replaced, and not a link
        self._disk.make_directory(self._file_path.parent)
        lock_path = self._file_path.with_name(f"{self._file_path.name}.lock")
        self._lock: File | None = self._disk.open_locked(lock_path)
        try:
            self._file = self._disk.open(self._file_path, create=True)
            self._read()
        except BaseException:
            self.close()
            raise
        self._disk.on_fork(self, FileSubscriptionManager._forked)

    def _forked(self) -> None:
        """Refuse changes in a forked child: the file is its parent's."""
        self._lock = None

    # -- the client's side ----------------------------------------------------------------

    def open_for(self, client_name: str) -> None:
        """Bind the manager to a client name, permanently.

        Args:
            client_name: The name of the client.

        Raises:
            StoreLocked: The manager belongs to a client of another name.
            UsageError: `client_name` is not a valid name.
        """
        check_client_name(self.path, self._owner, client_name)
        if not self._owner:
            self._rewrite(client_name, self._entries)

    def close(self) -> None:
        """Release the file to other processes; a second call does nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            if hasattr(self, "_file"):
                self._file.close()
            lock.close()

    @override
    def add(self, entry: Entry) -> None:
        self._check_open()
        if self._entries.get(entry.sub_id) != entry:
            self._append(msgspec.to_builtins(entry))
            super().add(entry)
            self._rewrite_if_mostly_dead()

    @override
    def remove(self, sub_id: str) -> None:
        self._check_open()
        if sub_id in self._entries:
            self._append({"removed": sub_id})
            super().remove(sub_id)
            self._rewrite_if_mostly_dead()

    @override
    def clear(self) -> None:
        self._check_open()
        if self._entries:
            self._rewrite(self._owner, {})

    # -- the file -------------------------------------------------------------------------

    def _append(self, change: dict[str, object]) -> None:
        line = _line(change)
        self._file.pwrite(line, self._end)
        self._end += len(line)
        self._lines += 1

    def _rewrite_if_mostly_dead(self) -> None:
        if self._lines <= 2 * len(self._entries) + _MIN_DEAD:
            return
        try:
            self._rewrite(self._owner, self._entries)
        except StoreError as error:  # the change before it is in the file; the next one tries again
            _logger.warning("%s: not rewritten: %s", self.path, error)

    def _rewrite(self, owner: str, entries: dict[str, Entry]) -> None:
        """Write the live entries to a new file, which replaces this one."""
        self._check_open()
        changes: list[dict[str, object]] = [{_MAGIC: _VERSION, "client": owner}]
        changes += map(msgspec.to_builtins, entries.values())
        data = b"".join(map(_line, changes))
        self._must_reread = True
        self._disk.replace(self._file_path, data)
        self._reopen()
        self._must_reread = False
        self._end, self._lines = len(data), len(changes)
        self._owner, self._entries = owner, dict(entries)

    def _reopen(self) -> None:
        file = self._disk.open(self._file_path)
        self._file.close()
        self._file = file

    def _read(self) -> None:
        data = self._file.pread(self._file.size(), 0)
        lines = data.split(b"\n")
        cut = lines.pop()  # empty, unless a crash has torn the last line
        if cut and not lines:
            raise StoreCorrupt(self.path, 0, "line 1 is cut off: restore it, or remove it")
        self._owner, self._entries = "", {}
        for number, line in enumerate(lines, 1):
            self._take(number, line)
        self._end, self._lines = len(data) - len(cut), len(lines)
        if cut:
            self._rewrite(self._owner, self._entries)

    def _take(self, number: int, line: bytes) -> None:
        try:
            change = _change_of(line)
            if number == 1:
                self._owner = _owner_of(change)
            elif "removed" in change:
                super().remove(str(change["removed"]))
            else:
                super().add(msgspec.convert(change, Entry))
        except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
            raise StoreCorrupt(
                self.path, 0, f"line {number} cannot be read ({error}): restore it, or remove it"
            ) from error

    def _check_open(self) -> None:
        if self._lock is None:
            raise StoreError(f"{self.path} is closed: create a new FileSubscriptionManager")
        if self._must_reread:
            try:
                self._reopen()
                self._must_reread = False
                self._read()
            except StoreError:
                self._must_reread = True
                raise


def _line(change: dict[str, object]) -> bytes:
    text = json.dumps(change, separators=(",", ":")).encode("ascii")
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _change_of(line: bytes) -> dict[str, object]:
    checksum, _, text = line.partition(b" ")
    if int(checksum, 16) != zlib.crc32(text):
        raise ValueError("its checksum does not match")
    return cast("dict[str, object]", json.loads(text))


def _owner_of(change: dict[str, object]) -> str:
    if change[_MAGIC] != _VERSION:
        raise ValueError(f"its version is {change[_MAGIC]}, wanted {_VERSION}")
    return str(change["client"])
