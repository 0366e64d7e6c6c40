"""How another process asks the owner of a bookmark log to prune it: a file beside the log.

The lock of a log shows that it is in use, and only its owner may replace the file. So a cron job
writes the word `prune` and a random number into `<log>.prune-request`. The owner looks for that
file when it begins, about once a second, and when it closes the log. It prunes, and replaces the
request by its answer: `done`, or `failed: ` and the reason. The asker removes the answer. If
permitted, the asker gives the file to the user of the log: in a directory that the owner may not
change, the owner writes its answer over the request.

Either side may be killed at any moment:

* A request whose asker is gone is carried out once, now or by the next owner: one prune too many.
* An owner that is killed has not answered, so the log is free and the asker prunes it itself.
* A request whose file has gone was answered for another asker, or withdrawn by it, and is made
  again.
* An answer that nobody has read is overwritten by the next request.
* A request that the owner can neither replace nor write to is carried out once: the owner ignores
  it from then on, by its number. So an asker gives an older request a new number.

A partly written request is not a request; the next asker writes it again.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import Final

from haclient_stores.disk.files import Disk, File
from haclient_stores.errors import StoreError
from haclient_stores.logs import logger_of

_ASKED: Final = b"prune"
_DONE: Final = b"done"
_FAILED: Final = b"failed: "
_LONGEST_BYTES: Final = 4096  # of an answer
_NUMBER_BYTES: Final = 8  # of a request: no two are the same
_logger = logger_of("haclient.bookmark_store")


class PruneRequest:
    """The request beside one log.

    Args:
        disk: Where the log is.
        log: Its file.
    """

    def __init__(self, disk: Disk, log: Path) -> None:
        self._disk = disk
        self._ignored = b""  # a request that was carried out and cannot be answered
        self._log = log = disk.resolve(log)  # beside the file itself, where its owner looks too
        self._path = log.with_name(log.name + ".prune-request")

    # -- who asks -------------------------------------------------------------------------------

    def make(self) -> None:
        """Ask, also if somebody has asked already: the owner may be ignoring that request.

        Raises:
            StoreError: The file cannot be written.
        """
        try:
            with contextlib.closing(self._disk.create_new(self._path)) as file:
                with contextlib.suppress(StoreError):  # only the answer may need it
                    self._give_to_user_of_log(file)
                file.pwrite(b"%b %b\n" % (_ASKED, secrets.token_hex(_NUMBER_BYTES).encode()), 0)
        except StoreError:
            if not _is_request(self._read()):  # another user's request will do
                raise

    def _give_to_user_of_log(self, file: File) -> None:
        with contextlib.closing(self._disk.open(self._log, writable=False)) as log:
            access = log.access()
        if access is not None:
            file.set_access(access)

    def take_answer(self) -> str | None:
        """The owner's answer, which is removed: empty if it has pruned, else why it has failed.

        Returns:
            The answer; `None` while there is none. A request that has gone is made again.
        """
        found = self._read()
        if not found:
            self.make()
            return None
        if found.strip() == _DONE:
            self._disk.remove(self._path)
            return ""
        if found.startswith(_FAILED):
            self._disk.remove(self._path)
            return found.removeprefix(_FAILED).decode(errors="replace").strip()
        return None

    def withdraw(self) -> None:
        """Ask no more."""
        self._disk.remove(self._path)

    # -- who owns the log -----------------------------------------------------------------------

    @property
    def is_made(self) -> bool:
        """Whether somebody asks. What cannot be read is no request: an owner has to go on."""
        try:
            found = self._read()
        except StoreError:
            return False
        return _is_request(found) and found != self._ignored

    def answer(self, error: str = "") -> None:
        """Tell those who ask that it is pruned, or why not.

        Args:
            error: Why not; empty if it is.
        """
        text = _DONE if not error else _FAILED + " ".join(error.split()).encode()
        request = b""
        try:
            request = self._read()
            if self._disk.exists(self._path):
                self._replace(request, text[: _LONGEST_BYTES - 1] + b"\n")
        except StoreError as reason:  # whoever asks finds the time over
            self._ignored = request
            _logger.warning("%s: this request cannot be answered: %s", self._path, reason)

    def _replace(self, request: bytes, text: bytes) -> None:
        try:
            self._disk.replace(self._path, text)
        except StoreError:  # the directory may belong to another user, and the file to this one
            if not _is_request(request):
                raise
            with contextlib.closing(self._disk.open(self._path)) as file:
                file.pwrite(text[:-1].ljust(len(request) - 1) + b"\n", 0)

    def _read(self) -> bytes:
        try:
            with contextlib.closing(self._disk.open(self._path, writable=False)) as file:
                return file.pread(_LONGEST_BYTES, 0)
        except StoreError:
            if self._disk.exists(self._path):
                raise
            return b""


def _is_request(found: bytes) -> bool:
    word, _, number = found.removesuffix(b"\n").partition(b" ")
    return found.endswith(b"\n") and word == _ASKED and b"\n" not in number
