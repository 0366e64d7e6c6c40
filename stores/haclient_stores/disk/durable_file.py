"""Durability: what a store guarantees after a power failure, and a sync that can be trusted.

`Durability` says what the client waits for: `process` for nothing beyond the append, which survives
a killed process; `group` for a sync every few milliseconds; `fsync` for one before each publish
returns.

**A failed sync.** The kernel reports a failed write-back once. From then on it treats the pages as
clean, although the disk does not have them: the next `fsync` skips them and succeeds, in another
process too. So a successful `fsync` covers only pages that were written since the last error.
`DurableFile` therefore writes the others again first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from haclient_stores.checks import check_seconds, check_word
from haclient_stores.disk.files import File

Durability = Literal["process", "group", "fsync"]
_DURABILITIES: Final = ("process", "group", "fsync")
_CHUNK_BYTES: Final = 2**20


def check_durability(durability: str, group_interval_s: object = 0.01) -> None:
    """Refuse what is not a durability.

    Args:
        durability: The word for it.
        group_interval_s: The time between two syncs at durability `group`, in seconds.

    Raises:
        UsageError: There is no such word, or the time is not above zero.
    """
    check_seconds("group_interval_s", group_interval_s, endless=False)
    check_word("durability", durability, _DURABILITIES)


@dataclass(frozen=True, slots=True)
class DurabilityOptions:
    """The durability options of a publish store on disk.

    Attributes:
        durability: What the client waits for.
        group_interval_s: How often the client syncs at durability `group`, in seconds.
        truncate_on_close: `close` frees all space when nothing waits for an ack.

    Raises:
        UsageError: There is no such durability, or the interval is not above zero.
    """

    durability: Durability = "process"
    group_interval_s: float = 0.01
    truncate_on_close: bool = False

    def __post_init__(self) -> None:
        check_durability(self.durability, self.group_interval_s)


class DurableFile:
    """Syncs a file, after rewriting the pages that an earlier, failed sync may have lost.

    Args:
        file: The file.
        rewrite_before_fsync: Whether a sync may have failed before: True for a file that another
            process has written, since how its last sync ended is unknown.

    Attributes:
        file: The file.
        rewrite_before_fsync: Whether the next `sync` must rewrite the unsynced pages first.
    """

    __slots__ = ("file", "rewrite_before_fsync")

    def __init__(self, file: File, *, rewrite_before_fsync: bool) -> None:
        self.file = file
        self.rewrite_before_fsync = rewrite_before_fsync

    def sync(self, *unsynced: tuple[int, int]) -> None:
        """Return when everything written so far would survive a loss of power.

        Args:
            unsynced: Begin and end offsets, in bytes, of what no successful sync has covered yet.
                Nobody else may change these bytes meanwhile. One byte of a page stands for the
                page: writing it makes the page dirty as a whole.

        Raises:
            StoreError: The disk reports an error: nothing in these ranges is known to be on the
                disk. The next call writes them again.
        """
        self.rewrite(*unsynced)
        self.fsync()

    def rewrite(self, *unsynced: tuple[int, int]) -> None:
        """The first half of `sync`, for callers that must exclude other writers during it only."""
        if self.rewrite_before_fsync:
            for begin, end in unsynced:
                for at in range(begin, end, _CHUNK_BYTES):
                    data = self.file.pread(min(_CHUNK_BYTES, end - at), at)
                    self.file.pwrite(data, at)

    def fsync(self) -> None:
        """The second half of `sync`.

        Raises:
            StoreError: The disk reports an error; see `sync`.
        """
        # Set first: an exception of any kind, an interrupt too, leaves the outcome unknown.
        self.rewrite_before_fsync = True
        self.file.fsync()
        self.rewrite_before_fsync = False
