"""The file of the guards against removal, next to the journal: JSON, replaced as a whole.

It is synced before a consumer is answered, so that neither a kill nor a loss of power takes a guard
that was confirmed. It is small and changes rarely: once per batch of a streaming query.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from haclient_fake_server.engine.guards import Guard
from haclient_fake_server.journal.json_file import read_json_file, write_json_file
from haclient_stores.disk.files import Disk

GUARDS_NAME: Final = "guards.json"
FORMAT_VERSION: Final = 1

MAX_POSITION: Final = 2**64 - 1
MAX_TIME_US: Final = 253_402_300_799_999_999
"""The last microsecond of the year 9999, which is the last that can be told as a date."""


class GuardFile:
    """The file, whose content is read once and written whenever a guard changes.

    Args:
        directory: The journal's directory, whose lock also protects this file.
        disk: The file system.

    Attributes:
        guards: What it holds; nothing where there is no file, or a damaged one.

    Raises:
        StoreError: A newer version has written it, or it cannot be read.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path = directory / GUARDS_NAME
        self._disk = disk
        self.guards: tuple[Guard, ...] = self._read() if disk.exists(self._path) else ()

    def write(self, guards: Sequence[Guard]) -> None:
        """Replace the content, and sync it.

        Args:
            guards: What the file holds from now on.

        Raises:
            StoreError: The disk failed.
        """
        self.guards = tuple(guards)
        fields = [each._asdict() for each in guards]
        write_json_file(self._disk, self._path, FORMAT_VERSION, guards=fields)

    def _read(self) -> tuple[Guard, ...]:
        found = read_json_file(
            self._disk,
            self._path,
            FORMAT_VERSION,
            lambda content: tuple(_guard(fields) for fields in content["guards"]),
            without="the broker starts without guards",
        )
        return found or ()


def _guard(fields: dict[str, Any]) -> Guard:
    """Take a guard from JSON.

    Raises:
        TypeError: A field is missing, unknown or of another type.
        ValueError: A number is out of range.
    """
    guard = Guard(**fields)
    name, *numbers = guard
    if type(name) is not str or any(type(number) is not int for number in numbers):
        raise TypeError(f"wanted a name and three whole numbers, found {list(guard)}")
    if not 0 <= guard.after <= MAX_POSITION or not all(
        0 <= time <= MAX_TIME_US for time in (guard.set_us, guard.expires_us)
    ):
        raise ValueError(f"a number is out of range in {list(guard)}")
    return guard
