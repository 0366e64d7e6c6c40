"""The root of all errors, and those that the stores raise.

::

    HAClientError
    |-- UsageError                    the caller did something that can never work
    `-- StoreError                    a publish or bookmark store cannot do what was asked
        |-- StoreCorrupt(path, offset)  bytes that no version of this store has written
        |-- StoreLocked(path, owner)    another process, or another client, holds the file
        |-- StoreFull                   no room for one more record; nothing was stored
        `-- PublishGap                  the server knows less than it once acknowledged

The rest of the tree is in `haclient.errors`.
"""

from __future__ import annotations

from pathlib import Path

from typing_extensions import override

__all__ = [
    "HAClientError",
    "PublishGap",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "UsageError",
]


class HAClientError(Exception):
    """Every error that this project raises on purpose.

    It can be pickled and copied with its attributes and notes, whatever its constructor takes:
    process pools send errors between processes.
    """

    @override
    def __reduce__(
        self,
    ) -> tuple[object, tuple[type[HAClientError], tuple[object, ...]], dict[str, object]]:
        # Python would call the constructor with `args`, which is the text alone.
        return _rebuilt, (type(self), self.args), self.__dict__


class UsageError(HAClientError):
    """The call can never succeed as it was made: the caller has to change it."""


class StoreError(HAClientError):
    """A store cannot do what was asked of it."""


class StoreCorrupt(StoreError):
    """A store file holds bytes that no version of the store has written.

    Attributes:
        path: The file.
        offset: Where the first unreadable block starts, in bytes.
    """

    def __init__(self, path: str | Path, offset: int, what: str) -> None:
        super().__init__(f"{path}: corrupt at byte {offset}: {what}")
        self.path = Path(path)
        self.offset = offset
        self.what = what


class StoreLocked(StoreError):
    """A store is open already, or belongs to a client of another name.

    Attributes:
        path: The file or directory.
        owner: The client name that it belongs to; empty when that is unknown.
        in_this_process: It is open in this process: the program opens the same store twice.
    """

    def __init__(
        self, path: str | Path, owner: str, what: str, *, in_this_process: bool = False
    ) -> None:
        super().__init__(f"{path}: {what}")
        self.path = Path(path)
        self.owner = owner
        self.in_this_process = in_this_process


class StoreFull(StoreError):
    """There is no room for one more record; nothing was stored.

    Attributes:
        wait: Acks will make room: `publish` waits for them and tries again.
    """

    def __init__(self, what: str, *, wait: bool = False) -> None:
        super().__init__(what)
        self.wait = wait


class PublishGap(StoreError):
    """The server's last persisted sequence is below one that was already acknowledged.

    Attributes:
        acknowledged: The highest sequence that was acknowledged to this client.
        server: The highest sequence that this server has persisted.
    """

    def __init__(self, acknowledged: int, server: int) -> None:
        super().__init__(
            f"the server has persisted sequence {server} of this publisher, but {acknowledged} "
            "was already acknowledged: what lies between is gone from this server"
        )
        self.acknowledged = acknowledged
        self.server = server


def _rebuilt(kind: type[HAClientError], args: tuple[object, ...]) -> HAClientError:
    """A copy of an error, made without its constructor; pickle then sets its attributes."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error
