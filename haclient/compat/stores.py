"""Stores with the official names: handles that outlive a connection and work in any thread.

A store of `haclient` belongs to the thread of the client that uses it, and is closed with it. The
objects here have one inside, call it in that thread, and open it again for the next connection
where it is a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, cast, overload

import haclient_stores.interfaces
from haclient.compat.messages import Message
from haclient.compat.units import seconds_of
from haclient.errors import UsageError
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore as _LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore as _MemoryBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore as _RingBookmarkStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.hybrid import HybridPublishStore as _HybridPublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore as _MemoryPublishStore

_Native = TypeVar("_Native", bound="Closable")
_T = TypeVar("_T")


class Closable(Protocol):
    """What the stores have in common."""

    def close(self) -> None:
        """Release files and locks; a second call does nothing."""
        ...


class StoreOwner(Protocol):
    """The client that uses a store."""

    def in_thread(self, function: Callable[[], _T], what: str) -> _T:
        """Call a function where the store may be used."""
        ...

    def wait_empty(self, timeout_s: float) -> None:
        """Wait until everything is persisted."""
        ...


class _Store(Generic[_Native]):
    """What both kinds of stores have in common.

    Args:
        open_: Opens a store.
        is_kept: Whether what it holds is there when it is opened again.
    """

    def __init__(self, open_: Callable[[], _Native], *, is_kept: bool) -> None:
        self._open: Callable[[], _Native] = open_
        self._is_kept = is_kept
        self._was_connected = False
        self._owner: StoreOwner | None = None
        self.native: _Native = open_()

    def own(self, owner: StoreOwner) -> None:
        """A client takes the store.

        Raises:
            UsageError: Another client has it.
        """
        if self._owner is not None and self._owner is not owner:
            raise UsageError("the store belongs to another client: make one for each client")
        self._owner = owner

    def connected(self) -> None:
        """The client has connected: what is in the store matters from now on."""
        self._was_connected = True

    def open_again(self) -> None:
        """Open it again, for a client that was closed and connects once more.

        Raises:
            UsageError: It was in memory, and what it had is gone.
        """
        if self._was_connected and not self._is_kept:
            raise UsageError(
                "the store was in memory and has ended with the connection: make a new client "
                "with new stores, or use one in a file"
            )
        self.native.close()  # nothing, unless the client was refused before it took the store
        self.native = self._open()

    def _call(self, function: Callable[[_Native], _T], what: str) -> _T:
        native = self.native
        if self._owner is None:
            return function(native)
        return self._owner.in_thread(lambda: function(native), what)


class BasePublishStore(_Store[haclient_stores.interfaces.PublishStore]):
    """Keeps publishes until they are persisted."""

    def unpersisted_count(self) -> int:
        """How many messages wait for their persisted ack."""
        return self._call(lambda store: store.unpersisted_count, "unpersisted_count")

    def get_unpersisted_count(self) -> int:
        """The same as `unpersisted_count`."""
        return self.unpersisted_count()

    def get_lowest_unpersisted(self) -> int:
        """The lowest sequence that waits; 0 when none does."""
        return self._call(lambda store: store.lowest_unpersisted, "get_lowest_unpersisted")

    def get_last_persisted(self) -> int:
        """The highest sequence that was acknowledged; 0 when none was."""
        return self._call(lambda store: store.last_persisted, "get_last_persisted")

    def flush(self, timeout: float = 0) -> None:
        """Wait until nothing waits for a persisted ack.

        Args:
            timeout: Milliseconds; 0 for no limit.

        Raises:
            TimedOut: It took longer.
            UsageError: No client uses the store.
        """
        if self._owner is None:
            raise UsageError("flush of a publish store that no client uses: nothing is sent")
        self._owner.wait_empty(seconds_of(timeout))


class MemoryPublishStore(BasePublishStore):
    """Keeps publishes in memory until they are persisted."""

    def __init__(self) -> None:
        super().__init__(_MemoryPublishStore, is_kept=False)


class PublishStore(BasePublishStore):
    """Keeps publishes in files until they are persisted, also beyond the process.

    Args:
        file_name: The directory of the store; created when it is missing.

    Raises:
        StoreLocked: It is in use.
        StoreCorrupt: A file does not match its checksums.
    """

    def __init__(self, file_name: str) -> None:
        super().__init__(lambda: FilePublishStore(file_name), is_kept=True)


class HybridPublishStore(BasePublishStore):
    """Keeps publishes in memory, and in files what there is no room for.

    Args:
        file_name: The directory of the store; created when it is missing.

    Raises:
        StoreLocked: It is in use.
        StoreCorrupt: A file does not match its checksums.
    """

    def __init__(self, file_name: str) -> None:
        super().__init__(lambda: _HybridPublishStore(file_name), is_kept=True)


class BaseBookmarkStore(_Store[haclient_stores.interfaces.BookmarkStore]):
    """Remembers what each subscription has received and finished."""

    @overload
    def discard(self, message: Message, /) -> None: ...
    @overload
    def discard(self, sub_id: str, seq_no: int, /) -> None: ...
    def discard(self, message: Message | str, seq_no: int = 0, /) -> None:
        """Note that the application has finished with a message.

        Args:
            message: The message, or the id of its subscription.
            seq_no: With an id, the number from `message.get_bookmark_seq_no()`.
        """
        if isinstance(message, Message):
            message.discard()
        else:
            self._call(lambda store: store.discard(message, seq_no), "discard")

    def get_most_recent(self, sub_id: str) -> str:
        """The recovery point of a subscription: a comma list of bookmarks, or `0`."""
        return str(self._call(lambda store: store.most_recent(sub_id), "get_most_recent"))

    def is_discarded(self, message: Message) -> bool:
        """Whether a message was discarded, or is still held by its consumer."""
        sub_id, bookmark = message.get_sub_id(), message.get_bookmark()
        return self._call(lambda store: store.is_discarded(sub_id, bookmark), "is_discarded")

    def get_oldest_bookmark_seq(self, sub_id: str) -> int:
        """The lowest number that is not discarded; 0 when all are."""
        return self._call(lambda store: store.oldest_undiscarded(sub_id), "get_oldest_bookmark_seq")

    def purge(self, sub_id: str | None = None) -> None:
        """Forget what is known of a subscription, or of all."""
        self._call(lambda store: store.purge(sub_id), "purge")

    def prune(self, tmp_file_name: str = "") -> None:  # noqa: ARG002  # the official signature
        """Give back the space of what is finished.

        Args:
            tmp_file_name: Not needed: the new file is beside the old one until it replaces it.
        """
        self.native.prune()  # in this thread, since it may be slow: the client goes on meanwhile


class MemoryBookmarkStore(BaseBookmarkStore):
    """Remembers in memory."""

    def __init__(self) -> None:
        super().__init__(_MemoryBookmarkStore, is_kept=False)


class LoggedBookmarkStore(BaseBookmarkStore):
    """Remembers in a file that is appended to.

    Args:
        file_name: The file; created when it is missing.

    Raises:
        StoreLocked: It is in use.
        StoreCorrupt: It does not match its checksums.
    """

    def __init__(self, file_name: str) -> None:
        super().__init__(lambda: _LoggedBookmarkStore(file_name), is_kept=True)


MMapBookmarkStore = LoggedBookmarkStore


class RingBookmarkStore(BaseBookmarkStore):
    """Remembers in a small file of a fixed size.

    Args:
        file_name: The file; created when it is missing.

    Raises:
        StoreLocked: It is in use.
        StoreCorrupt: It does not match its checksums.
    """

    def __init__(self, file_name: str) -> None:
        super().__init__(lambda: _RingBookmarkStore(file_name), is_kept=True)


def _given(native: _Native) -> Callable[[], _Native]:
    """Opens a store that is open already, once."""
    left = [native]

    def open_() -> _Native:
        if not left:
            raise UsageError(
                "the store that was given has ended with its client and cannot be opened here: "
                "set another one before connecting again"
            )
        return left.pop()

    return open_


class GivenPublishStore(BasePublishStore):
    """A publish store of `haclient`, or of the application, given as it is."""

    def __init__(self, native: haclient_stores.interfaces.PublishStore) -> None:
        super().__init__(_given(native), is_kept=True)


class GivenBookmarkStore(BaseBookmarkStore):
    """A bookmark store of `haclient`, or of the application, given as it is."""

    def __init__(self, native: haclient_stores.interfaces.BookmarkStore) -> None:
        super().__init__(_given(native), is_kept=True)


def publish_store_of(given: object) -> BasePublishStore:
    """A publish store from what an application gives: one, or the name of its files.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(given, BasePublishStore):
        return given
    if isinstance(given, str):
        return PublishStore(given)
    if callable(getattr(given, "store", None)) and callable(getattr(given, "discard_up_to", None)):
        return GivenPublishStore(cast("haclient_stores.interfaces.PublishStore", given))
    raise UsageError(f"a publish store is one, or the name of its files, not {given!r}")


def bookmark_store_of(given: object) -> BaseBookmarkStore:
    """A bookmark store from what an application gives: one, or the name of its file.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(given, BaseBookmarkStore):
        return given
    if isinstance(given, str):
        return LoggedBookmarkStore(given)
    if callable(getattr(given, "log", None)) and callable(getattr(given, "most_recent", None)):
        return GivenBookmarkStore(cast("haclient_stores.interfaces.BookmarkStore", given))
    raise UsageError(f"a bookmark store is one, or the name of its file, not {given!r}")
