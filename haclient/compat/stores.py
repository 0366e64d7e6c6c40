"""Stores with the official names: handles that outlive a connection and work in any thread.

A store of `haclient` belongs to the thread of the client that uses it, and is closed with that
client. The objects here wrap such a store, call it in that thread, and reopen a file store for the
next connection. Without a connection they call it in the thread of the caller.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast, overload

from typing_extensions import override

import haclient_stores.interfaces
from haclient.compat.adapters import adapter_of
from haclient.compat.messages import Message
from haclient.compat.names import advice
from haclient.compat.units import seconds_of
from haclient.errors import UsageError
from haclient.protocol.commands import Command as NativeCommand
from haclient.session.kept_subscriptions import first_bookmark, header_fields
from haclient.subscription_manager import Entry
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore as _LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore as _MemoryBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore as _RingBookmarkStore
from haclient_stores.bookmark_stores.tracked_store import TrackedBookmarkStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.hybrid import HybridPublishStore as _HybridPublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore as _MemoryPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog

_Native = TypeVar("_Native", bound="Closable")
_T = TypeVar("_T")
ResizeHandler: TypeAlias = Callable[[Any, int], bool]
"""Gets the store and the size in bytes that it would have; `False` refuses."""


class Closable(Protocol):
    """What the stores have in common."""

    def close(self) -> None:
        """Release files and locks; a second call does nothing."""
        ...


class StoreOwner(Protocol):
    """The client that uses a store."""

    def in_thread(
        self, function: Callable[[], _T], what: str, *, otherwise: Callable[[], _T]
    ) -> _T:
        """Call a function in the thread of the client, or another one if that does not run."""
        ...

    def wait_empty(self, timeout_s: float) -> None:
        """Wait until everything is persisted."""
        ...

    def report(self, error: Exception) -> None:
        """Give an exception of a callback to the exception listener."""
        ...


class _Store(Generic[_Native]):
    """What both kinds of stores have in common.

    Args:
        open_: Opens a store.
        is_kept: Whether its content survives when it is reopened.
    """

    def __init__(self, open_: Callable[[], _Native], *, is_kept: bool) -> None:
        self._open: Callable[[], _Native] = open_
        self._is_kept = is_kept
        self._was_connected = False
        self._is_closed = False
        self._calling = threading.RLock()  # while no client has bound the store to its thread
        self._owner: StoreOwner | None = None
        self._resize_handler: ResizeHandler | None = None
        self.native: _Native = open_()

    if not TYPE_CHECKING:  # else each name would pass the type checker

        def __getattr__(self, name: str) -> object:
            raise AttributeError(advice(name), name=name, obj=self)

    def own(self, owner: StoreOwner) -> None:
        """Bind the store to a client.

        Raises:
            UsageError: Another client has it.
        """
        if self._owner is not None and self._owner is not owner:
            raise UsageError("the store belongs to another client: create one for each client")
        self._owner = owner

    def is_owned_by(self, owner: StoreOwner) -> bool:
        """Whether the store is bound to this client."""
        return self._owner is owner

    def connected(self) -> None:
        """Note that the client has connected: from now on the content of the store matters."""
        self._was_connected = True

    def close_for(self, owner: StoreOwner) -> None:
        """Release files and locks, unless another client has the store; `reopen` opens it again."""
        if self._owner is None or self._owner is owner:
            self._is_closed = True
            self.native.close()  # nothing, where its client has closed it

    def pause_for(self, owner: StoreOwner) -> None:
        """Release files and locks: the client has disconnected and may connect again.

        A store in memory keeps its content.
        """
        if self._is_kept:
            self.close_for(owner)

    def reopen(self) -> None:
        """Open it again if it was closed, for a client that connects.

        Raises:
            UsageError: It was in memory, and its content is gone.
        """
        if not self._is_closed:
            return
        if self._was_connected and not self._is_kept:
            raise UsageError(
                "the store was in memory and has ended with the connection: create a new client "
                "with new stores, or use one in a file"
            )
        self.native = self._open()
        self._is_closed = False

    def _may_grow(self, size: int) -> bool:
        """Ask the application, in the thread of the client; it must not use the store."""
        handler = self._resize_handler
        if handler is None:
            return True
        try:
            return handler(self, size)
        except Exception as error:  # of any kind: it is the application's
            if self._owner is None:
                raise
            self._owner.report(error)
            return False

    def _call(self, function: Callable[[_Native], _T], what: str) -> _T:
        native = self.native

        def here() -> _T:
            with self._calling:
                _release_thread(native)  # its client has ended
                try:
                    return function(native)
                finally:
                    _release_thread(native)  # for the thread of the next client

        if self._owner is None:
            return here()
        return self._owner.in_thread(lambda: function(native), what, otherwise=here)


def _release_thread(native: Closable) -> None:
    if isinstance(native, TrackedBookmarkStore):
        native.release_thread()


class BasePublishStore(_Store[haclient_stores.interfaces.PublishStore]):
    """Keeps publishes until they are persisted."""

    error_on_publish_gap: bool | None = None
    """What was set; `None` where nothing was."""

    @override
    def reopen(self) -> None:
        super().reopen()
        self._apply_error_on_publish_gap()

    def set_resize_handler(self, handler: ResizeHandler | None) -> None:
        """Ask `handler` before the store grows.

        Args:
            handler: Called with this store and the new size in bytes, in the thread of the client,
                so it must be quick and must not use the store. `False` refuses: a publish then
                waits for room. What it raises goes to the exception listener, and refuses too.
                `None` lets it grow up to its limit.
        """
        self._resize_handler = handler

    def set_error_on_publish_gap(self, error_on_publish_gap: bool) -> None:  # noqa: FBT001  # the official signature
        """Whether a server is refused that lacks what another one has acknowledged.

        Args:
            error_on_publish_gap: `True` has a logon there raise `PublishStoreGapException`, and an
                `HAClient` try another server. `False` continues there, and what is missing stays
                so. By default a `Client` continues and an `HAClient` does not.
        """
        self.error_on_publish_gap = error_on_publish_gap
        self._call(lambda _: self._apply_error_on_publish_gap(), "set_error_on_publish_gap")

    def _apply_error_on_publish_gap(self) -> None:
        if self.error_on_publish_gap is not None and isinstance(self.native, PublishLog):
            self.native.error_on_publish_gap = self.error_on_publish_gap

    def unpersisted_count(self) -> int:
        """How many messages are not persisted yet."""
        return self._call(lambda store: store.unpersisted_count, "unpersisted_count")

    def get_unpersisted_count(self) -> int:
        """The same as `unpersisted_count`."""
        return self.unpersisted_count()

    def get_lowest_unpersisted(self) -> int:
        """The lowest sequence that is not persisted; 0 if there is none."""
        return self._call(lambda store: store.lowest_unpersisted, "get_lowest_unpersisted")

    def get_last_persisted(self) -> int:
        """The highest persisted sequence; 0 if there is none."""
        return self._call(lambda store: store.last_persisted, "get_last_persisted")

    def flush(self, timeout: float = 0) -> None:
        """Wait until all messages are persisted.

        Args:
            timeout: Milliseconds; 0 for no limit.

        Raises:
            TimedOut: It took longer.
            UsageError: No client uses the store.
        """
        if self._owner is None:
            raise UsageError("flush: no client uses this publish store, so nothing is sent")
        self._owner.wait_empty(seconds_of(timeout))


class MemoryPublishStore(BasePublishStore):
    """Keeps publishes in memory until they are persisted."""

    def __init__(self) -> None:
        super().__init__(lambda: _MemoryPublishStore(resize_handler=self._may_grow), is_kept=False)


class PublishStore(BasePublishStore):
    """Keeps publishes in files until they are persisted, even after the end of the process.

    Args:
        file_name: The directory of the store; created when it is missing.

    Raises:
        StoreLocked: It is in use.
        StoreCorrupt: A file does not match its checksums.
    """

    def __init__(self, file_name: str) -> None:
        super().__init__(
            lambda: FilePublishStore(file_name, resize_handler=self._may_grow), is_kept=True
        )


class HybridPublishStore(BasePublishStore):
    """Keeps publishes in memory, and in files once the memory is used up.

    Args:
        file_name: The directory of the store; created when it is missing.

    Raises:
        StoreLocked: It is in use.
        StoreCorrupt: A file does not match its checksums.
    """

    def __init__(self, file_name: str) -> None:
        super().__init__(
            lambda: _HybridPublishStore(file_name, resize_handler=self._may_grow), is_kept=True
        )


class BaseBookmarkStore(_Store[haclient_stores.interfaces.BookmarkStore]):
    """Records which messages each subscription has received and finished."""

    @overload
    def discard(self, message: Message, /) -> None: ...
    @overload
    def discard(self, sub_id: str, seq_no: int, /) -> None: ...
    def discard(self, message: Message | str, seq_no: int = 0, /) -> None:
        """Mark a message as finished.

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
        """Whether a message was discarded, or its consumer still holds it."""
        sub_id, bookmark = message.get_sub_id(), message.get_bookmark()
        return self._call(lambda store: store.is_discarded(sub_id, bookmark), "is_discarded")

    def get_oldest_bookmark_seq(self, sub_id: str) -> int:
        """The lowest number that is not discarded; 0 when all are."""
        return self._call(lambda store: store.oldest_undiscarded(sub_id), "get_oldest_bookmark_seq")

    def resumed(self, command: NativeCommand) -> NativeCommand:
        """The command of a subscription of an earlier connection, to continue where that ended."""
        entry = Entry(command.sub_id, header_fields(command))
        bookmark = self._call(lambda store: first_bookmark(entry, store), "resubscribe")
        return dataclasses.replace(command, bookmark=bookmark)

    def purge(self, sub_id: str | None = None) -> None:
        """Forget the entries of a subscription, or of all."""
        self._call(lambda store: store.purge(sub_id), "purge")

    def prune(self, tmp_file_name: str = "") -> None:  # noqa: ARG002  # the official signature
        """Release the space of finished entries.

        Args:
            tmp_file_name: Ignored: the new file is beside the old one until it replaces it.
        """
        self.native.prune()  # in this thread: it may be slow, and the client goes on


class MemoryBookmarkStore(BaseBookmarkStore):
    """A bookmark store in memory.

    Args:
        adapter: Keeps a copy of the recovery points somewhere else.

    Raises:
        UsageError: The adapter is none.
    """

    def __init__(self, adapter: object = None) -> None:
        super().__init__(
            lambda: _MemoryBookmarkStore(adapter=adapter_of(adapter)), is_kept=adapter is not None
        )


class LoggedBookmarkStore(BaseBookmarkStore):
    """A bookmark store in a file that is appended to.

    Args:
        file_name: The file; created when it is missing.
        adapter: Keeps a copy of the recovery points somewhere else.

    Raises:
        StoreLocked: It is in use.
        StoreCorrupt: It does not match its checksums.
        UsageError: The adapter is none.
    """

    def __init__(self, file_name: str, *, adapter: object = None) -> None:
        super().__init__(
            lambda: _LoggedBookmarkStore(
                file_name, adapter=adapter_of(adapter), resize_handler=self._may_grow
            ),
            is_kept=True,
        )

    def set_resize_handler(self, handler: ResizeHandler | None) -> None:
        """Ask `handler` before messages make the file larger.

        Args:
            handler: Called with this store and the new size in bytes, in the thread of the client,
                so it must be quick and must not use the store. `False` refuses: the messages are
                not delivered. What it raises goes to the exception listener, and refuses too.
                `None` lets the file grow.
        """
        self._resize_handler = handler


MMapBookmarkStore = LoggedBookmarkStore


class RingBookmarkStore(BaseBookmarkStore):
    """A bookmark store in a small file of a fixed size.

    Args:
        file_name: The file; created when it is missing.
        adapter: Keeps a copy of the recovery points somewhere else.

    Raises:
        StoreLocked: It is in use.
        StoreCorrupt: It does not match its checksums.
        UsageError: The adapter is none.
    """

    def __init__(self, file_name: str, *, adapter: object = None) -> None:
        super().__init__(
            lambda: _RingBookmarkStore(file_name, adapter=adapter_of(adapter)), is_kept=True
        )


def _given(native: _Native) -> Callable[[], _Native]:
    """Returns a store that is open already, once."""
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

    @override
    def set_resize_handler(self, handler: ResizeHandler | None) -> None:
        """Refused: the store was made without it."""
        raise UsageError("the store was made without it: give resize_handler= to the store")


class GivenBookmarkStore(BaseBookmarkStore):
    """A bookmark store of `haclient`, or of the application, given as it is."""

    def __init__(self, native: haclient_stores.interfaces.BookmarkStore) -> None:
        super().__init__(_given(native), is_kept=True)


def publish_store_of(given: object) -> BasePublishStore:
    """The publish store for an argument: a store, or the name of its files.

    Raises:
        UsageError: The argument is neither.
    """
    if isinstance(given, BasePublishStore):
        return given
    if isinstance(given, str):
        return PublishStore(given)
    if callable(getattr(given, "store", None)) and callable(getattr(given, "discard_up_to", None)):
        return GivenPublishStore(cast("haclient_stores.interfaces.PublishStore", given))
    raise UsageError(f"wanted a publish store, or the name of its files, found {given!r}")


def bookmark_store_of(given: object) -> BaseBookmarkStore:
    """The bookmark store for an argument: a store, or the name of its file.

    Raises:
        UsageError: The argument is neither.
    """
    if isinstance(given, BaseBookmarkStore):
        return given
    if isinstance(given, str):
        return LoggedBookmarkStore(given)
    if callable(getattr(given, "log", None)) and callable(getattr(given, "most_recent", None)):
        return GivenBookmarkStore(cast("haclient_stores.interfaces.BookmarkStore", given))
    raise UsageError(f"wanted a bookmark store, or the name of its file, found {given!r}")
