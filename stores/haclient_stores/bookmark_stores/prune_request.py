"""How another process asks the owner of a bookmark log to prune it: a file beside the log.

The lock of a log shows that it is in use, and only its owner may exchange the file. So a cron job
writes the word `prune` into `<log>.prune-request`. The owner looks for that file about once a
second, prunes, and replaces the word by its answer: `done`, or `failed: ` and the reason. The one
who asked removes the answer.

Either side may be killed at any moment:

* A request whose asker is gone is carried out once, now or by the next owner: one prune too many.
* An owner that is killed has not answered, so the log is free and the asker prunes it itself.
* A request whose file has gone was answered for another asker, or withdrawn by it, and is made
  again.
* An answer that nobody has read is overwritten by the next request.

A word that was written in part is no request, and is written again by the next asker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from haclient_stores.disk.files import Disk
from haclient_stores.errors import StoreError

_ASKED: Final = b"prune\n"
_DONE: Final = b"done\n"
_FAILED: Final = b"failed: "
_LONGEST_BYTES: Final = 4096  # of an answer


class PruneRequest:
    """The request beside one log.

    Args:
        disk: Where the log is.
        log: Its file.
    """

    def __init__(self, disk: Disk, log: Path) -> None:
        self._disk = disk
        self._path = log.with_name(log.name + ".prune-request")

    # -- who asks -------------------------------------------------------------------------------

    def make(self) -> None:
        """Ask, unless it was asked already.

        Raises:
            StoreError: The file cannot be written.
        """
        if self._read() == _ASKED:
            return
        self._disk.remove(self._path)  # an answer that nobody has read may be longer
        file = self._disk.open(self._path, create=True)
        try:
            file.pwrite(_ASKED, 0)
        finally:
            file.close()

    def take_answer(self) -> str | None:
        """The owner's answer, which is removed: empty if it has pruned, else why it has failed.

        Returns:
            The answer; `None` while there is none. A request that has gone is made again.
        """
        found = self._read()
        if not found:
            self.make()
            return None
        if found == _DONE or found.startswith(_FAILED):
            self._disk.remove(self._path)
            return found.removeprefix(_FAILED).decode(errors="replace").strip() * (found != _DONE)
        return None

    def withdraw(self) -> None:
        """Ask no more."""
        self._disk.remove(self._path)

    # -- who owns the log -----------------------------------------------------------------------

    @property
    def is_made(self) -> bool:
        """Whether somebody asks. What cannot be read is no request: an owner has to go on."""
        try:
            return self._disk.exists(self._path) and self._read() == _ASKED
        except StoreError:
            return False

    def answer(self, error: str = "") -> None:
        """Tell those who ask that it is pruned, or why not.

        Args:
            error: Why not; empty if it is.
        """
        text = _DONE if not error else _FAILED + " ".join(error.split()).encode()
        try:
            if self._disk.exists(self._path):
                self._disk.replace(self._path, text[:_LONGEST_BYTES])
        except StoreError:  # whoever asks finds the time over
            return

    def _read(self) -> bytes:
        if not self._disk.exists(self._path):
            return b""
        try:
            file = self._disk.open(self._path, writable=False)
        except StoreError:  # removed meanwhile
            if self._disk.exists(self._path):
                raise
            return b""
        try:
            return file.pread(_LONGEST_BYTES, 0)
        finally:
            file.close()
