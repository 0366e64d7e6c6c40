"""Subscriptions that survive the process: a file for those of one client.

The file has one line for each change: the CRC-32 of the rest in hexadecimal, a blank, and JSON. The
first line is `{"haclient-subscriptions":1,"client":NAME}`, the others are an entry, `{"sub_id":...,
"fields":{...},"body":...}` with the body in Base64, or `{"removed":SUB_ID}`. A line without its end
was cut off by a crash and is dropped, since its change had not happened yet for anybody; any other
damage is an error. Beside it is `PATH.lock`, which shows that a process uses it.

Lines are given to the operating system at once, so they survive the end of the process, however
sudden. A loss of power may take the last ones with it.
"""

from __future__ import annotations

import binascii
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

from typing_extensions import override

from haclient.errors import StoreCorrupt, StoreError
from haclient.subscription_manager import Entry, OwnedSubscriptionManager
from haclient_stores.disk.files import Disk, File, RealDisk
from haclient_stores.disk.ownership import check_client_name, check_path

__all__ = ["FileSubscriptionManager"]

_VERSION: Final = 1
_MAGIC: Final = "haclient-subscriptions"
_MIN_DEAD: Final = 64  # lines; a file is written anew when most of it, and so much, is dead


class FileSubscriptionManager(OwnedSubscriptionManager):
    """Keeps the subscriptions of one client in a file; `HAClient.restore_subscriptions` reads them.

    Args:
        path: The file; created when it is missing.
        disk: The file system, for tests.

    Raises:
        StoreLocked: Another process, or another client of this one, uses it.
        StoreCorrupt: It is damaged, or no file of subscriptions.
        StoreError: It cannot be read or written.
        UsageError: `path` is no path.
    """

    def __init__(self, path: str | Path, *, disk: Disk | None = None) -> None:
        self.path = check_path(path, "the file of the subscriptions")
        self._disk = disk or RealDisk()
        self._entries: dict[str, Entry] = {}
        self._owner = ""
        self._lines = 0
        self._end = 0
        self._disk.make_directory(self.path.parent)
        lock_path = self.path.with_name(f"{self.path.name}.lock")
        self._lock: File | None = self._disk.open_locked(lock_path)
        try:
            self._file = self._disk.open(self.path, create=True)
            self._read()
        except BaseException:
            self.close()
            raise

    # -- the client's side ----------------------------------------------------------------

    @override
    def open_for(self, client_name: str) -> None:
        check_client_name(self.path, self._owner, client_name)
        if not self._owner:
            self._owner = client_name
            self._rewrite()

    @override
    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            if hasattr(self, "_file"):
                self._file.close()
            lock.close()

    @override
    def add(self, entry: Entry) -> None:
        if self._entries.get(entry.sub_id) != entry:
            body = binascii.b2a_base64(entry.body, newline=False).decode("ascii")
            self._entries[entry.sub_id] = entry
            self._append({"sub_id": entry.sub_id, "fields": entry.fields, "body": body})

    @override
    def remove(self, sub_id: str) -> None:
        if self._entries.pop(sub_id, None) is not None:
            self._append({"removed": sub_id})

    @override
    def clear(self) -> None:
        if self._entries:
            self._entries.clear()
            self._rewrite()

    @override
    def entries(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    # -- the file -------------------------------------------------------------------------

    def _append(self, change: dict[str, object]) -> None:
        self._check_open()
        line = _line(change)
        self._file.pwrite(line, self._end)
        self._end += len(line)
        self._lines += 1
        if self._lines > 2 * len(self._entries) + _MIN_DEAD:
            self._rewrite()

    def _rewrite(self) -> None:
        """Write what counts to a new file, which takes the place of this one."""
        self._check_open()
        lines = [_line({_MAGIC: _VERSION, "client": self._owner})]
        for each in self._entries.values():
            body = binascii.b2a_base64(each.body, newline=False).decode("ascii")
            lines.append(_line({"sub_id": each.sub_id, "fields": each.fields, "body": body}))
        data = b"".join(lines)
        self._disk.replace(self.path, data)
        self._file.close()
        self._file = self._disk.open(self.path)
        self._end, self._lines = len(data), len(lines)

    def _read(self) -> None:
        data = self._file.pread(self._file.size(), 0)
        lines = data.split(b"\n")
        cut = lines.pop()  # empty, unless a crash has cut the last line off
        for number, line in enumerate(lines, 1):
            self._take(number, line)
        self._end, self._lines = len(data) - len(cut), len(lines)
        if cut:
            self._rewrite()

    def _take(self, number: int, line: bytes) -> None:
        try:
            change = _change_of(line)
            if number == 1:
                self._owner = _owner_of(change)
            elif "removed" in change:
                self._entries.pop(str(change["removed"]), None)
            else:
                entry = _entry_of(change)
                self._entries[entry.sub_id] = entry
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorrupt(
                self.path, 0, f"line {number} cannot be read ({error}): restore it, or remove it"
            ) from error

    def _check_open(self) -> None:
        if self._lock is None:
            raise StoreError(f"{self.path}: was closed: make a new FileSubscriptionManager")


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


def _entry_of(change: dict[str, object]) -> Entry:
    fields = cast("dict[str, object]", change["fields"])
    header = {
        name: value if isinstance(value, int) else str(value) for name, value in fields.items()
    }
    return Entry(str(change["sub_id"]), header, binascii.a2b_base64(str(change["body"])))
