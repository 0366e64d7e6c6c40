"""Recovery point adapters with the official names, for the bookmark stores of this package.

The official methods block: they iterate over the points, update, purge, prune and close. A store of
`haclient` calls an adapter in its client's thread, which must not wait. So each adapter is called
in a thread of its own, and only the newest waiting update of each subscription is kept.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeVar, cast

import trio
from typing_extensions import override

import haclient.client
import haclient.recovery_points.sow
import haclient_stores.adapters.conflating
from haclient.compat.units import seconds_of
from haclient.errors import TimedOut, UsageError
from haclient.facade.thread import Bridge
from haclient.facade.thread_bridge import BlockingThread
from haclient_stores.adapters.recovery_point import RecoveryPoint as NativePoint
from haclient_stores.adapters.recovery_point import RecoveryPointAdapter, TimedAdapter
from haclient_stores.checks import check_text
from haclient_stores.logs import logger_of

_T = TypeVar("_T")
_OFFICIAL: Final = ("__iter__", "update", "purge", "prune", "close")
_logger = logger_of(__name__)


class RecoveryPoint(NativePoint):
    """Where one subscription may resume; its attributes are those of `haclient`.

    An adapter has to keep all of them: without the others, a subscription that resumes at another
    server begins at the start of the log.
    """

    __slots__ = ()

    def get_sub_id(self) -> str:
        """The id of the subscription."""
        return self.sub_id

    def get_bookmark(self) -> str:
        """A comma list of bookmarks, one for each publisher."""
        return self.bookmark


class OfficialAdapter(Protocol):
    """What an adapter with the official names has; its methods may block."""

    def __iter__(self) -> Iterator[RecoveryPoint]: ...  # the points that are kept

    def update(self, point: RecoveryPoint, /) -> object:
        """Keep a point instead of the last one of its subscription."""
        ...

    def purge(self, sub_id: str | None = None, /) -> object:
        """Forget the point of a subscription, or all."""
        ...

    def prune(self) -> object:
        """Give back the space of what was purged."""
        ...

    def close(self) -> object:
        """Write what is still to be written; a second call does nothing."""
        ...


class PointsClient(Protocol):
    """A client that can keep the points of another one."""

    def bridge(self) -> Bridge[haclient.client.BaseClient, BlockingThread]:
        """Calls the client of `haclient` in its thread.

        Raises:
            DisconnectedError: It was not connected.
        """
        ...


class SOWRecoveryPointAdapter:
    """Keeps recovery points in a topic of the server's State of the World.

    The topic has the keys `/clientName` and `/subId`, or what the arguments call them.

    Args:
        client: A client of its own, connected before the tracked one and closed after it.
        tracked_client_name: The name of the client whose points it keeps.
        topic: The topic.
        client_name_field: The field for the name of the tracked client.
        sub_id_field: The field for the subscription.
        bookmark_field: The field for the recovery point.
        timeout: Milliseconds that reading, pruning and closing may take; 0 for no limit.

    Raises:
        UsageError: An argument is invalid.

    Attributes:
        tracked_client_name: As above.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # the official signature
        self,
        client: PointsClient,
        tracked_client_name: str,
        topic: str = "/ADMIN/bookmark_store",
        client_name_field: str = "clientName",
        sub_id_field: str = "subId",
        bookmark_field: str = "bookmark",
        timeout: float = 5000,
    ) -> None:
        if not callable(getattr(client, "bridge", None)):
            raise UsageError(f"client is a Client of haclient.compat, not {client!r}")
        check_text("tracked_client_name", tracked_client_name)
        self.tracked_client_name = tracked_client_name
        self._client = client
        self._timeout_s = seconds_of(timeout)
        self._make = partial(
            _SOWAdapter,
            topic=topic,
            client_name_field=client_name_field,
            sub_id_field=sub_id_field,
            bookmark_field=bookmark_field,
        )
        self._opened: (
            tuple[Bridge[haclient.client.BaseClient, BlockingThread], _SOWAdapter] | None
        ) = None

    def __iter__(self) -> Iterator[RecoveryPoint]:
        """The points that the topic has.

        Raises:
            DisconnectedError: The client is not connected.
            TimedOut: It took longer than the timeout.
        """
        bridge = self._client.bridge()
        native = self._make(bridge.inner)
        found = self._wait(bridge, partial(native.recover, self.tracked_client_name), "reading")
        self._opened = bridge, native
        return iter([_compat_point(point) for point in found])

    def update(self, point: RecoveryPoint) -> None:
        """Publish a point; one that cannot be sent now is sent later.

        Args:
            point: The newest one of its subscription.

        Raises:
            DisconnectedError: The client was never connected, or is closed.
        """
        bridge, native = self._current()
        bridge.thread.now(partial(native.update, point), "update of an adapter")

    def purge(self, sub_id: str | None = None) -> None:
        """Forget the point of a subscription, or all.

        Args:
            sub_id: The subscription; `None` for all of them.
        """
        bridge, native = self._current()
        bridge.thread.now(partial(native.purge, sub_id), "purge of an adapter")

    def prune(self) -> None:
        """Delete the records of purged subscriptions.

        Raises:
            CommandError: The server refused it.
            TimedOut: It took longer than the timeout.
        """
        bridge, native = self._current()
        self._wait(bridge, native.prune, "pruning")

    def close(self) -> None:
        """Publish what is still to be published, and wait for it; a second call does nothing.

        Raises:
            TimedOut: It took longer than the timeout.
        """
        opened, self._opened = self._opened, None
        if opened is not None and opened[0].thread.is_running:
            self._wait(opened[0], opened[1].close, "closing")

    @property
    def is_failing(self) -> bool:
        """Whether a point waits because it could not be published; see `poll`."""
        return self._opened is not None and self._opened[1].is_failing

    def poll(self) -> None:
        """Try again to publish what could not be sent; a store has this called."""
        if self._opened is not None:
            bridge, native = self._opened
            bridge.thread.now(partial(native.poll, 0.0), "poll of an adapter")

    def _current(
        self,
    ) -> tuple[Bridge[haclient.client.BaseClient, BlockingThread], _SOWAdapter]:
        """The adapter of the client as it is connected now."""
        if self._opened is None or self._opened[0] is not self._client.bridge():
            iter(self)  # as the first thing on a connection, which says whose points they are
        if self._opened is None:
            raise UsageError("another thread has closed the adapter")
        return self._opened

    def _wait(
        self,
        bridge: Bridge[haclient.client.BaseClient, BlockingThread],
        function: Callable[[], Awaitable[_T]],
        what: str,
    ) -> _T:
        topic, limit_s = "recovery points", self._timeout_s

        async def limited() -> _T:
            with trio.move_on_after(limit_s):
                return await function()
            raise TimedOut(f"{what} {topic} took longer than {limit_s:g} s")

        return bridge.thread.wait(limited, f"{what} {topic}")


class _SOWAdapter(haclient.recovery_points.sow.SOWRecoveryPointAdapter):
    """The adapter of `haclient`, in the thread of its client."""

    @property
    def is_failing(self) -> bool:
        """Whether a point waits because it could not be published."""
        return self._failing


class ConflatingRecoveryPointAdapter:
    """Forwards the newest point of each subscription after a number of updates or a time.

    Args:
        adapter: The adapter that keeps the points, with the official names.
        max_updates: Forward the collected points after this many updates.
        max_age: Also forward them when the oldest one is this many milliseconds old. Without a
            store, the age is checked only at each update.

    Raises:
        UsageError: The adapter lacks a method, or a limit is invalid.

    Attributes:
        native: What a store of `haclient` calls.
    """

    def __init__(
        self, adapter: OfficialAdapter, max_updates: int = 100, max_age: float = 2000
    ) -> None:
        self._inner = adapter
        self._called = _Called(_official(adapter))
        self.native = haclient_stores.adapters.conflating.ConflatingRecoveryPointAdapter(
            self._called, max_updates=max_updates, max_age_s=seconds_of(max_age, "max_age")
        )

    @property
    def tracked_client_name(self) -> str | None:
        """The client whose points the adapter keeps; `None` where it does not say."""
        return self._called.tracked_client_name

    def __iter__(self) -> Iterator[RecoveryPoint]:
        """The points that the adapter keeps."""
        return iter(self._inner)

    def update(self, point: RecoveryPoint) -> None:
        """Keep a point until it is forwarded.

        Args:
            point: The newest one of its subscription.
        """
        self.native.update(point)
        self.native.poll(time.monotonic())  # noqa: TID251  # outside of any client

    def purge(self, sub_id: str | None = None) -> None:
        """Forget the point of a subscription, or all.

        Args:
            sub_id: The subscription; `None` for all of them.
        """
        self.native.purge(sub_id)

    def prune(self) -> None:
        """Give back the space of what was purged."""
        trio.run(self.native.prune)

    def close(self) -> None:
        """Forward what is left, and close the adapter."""
        trio.run(self.native.close)


class _Called(TimedAdapter):
    """Calls an adapter with the official names in a thread of its own.

    Args:
        inner: The adapter.
    """

    def __init__(self, inner: OfficialAdapter) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        # By subscription what is to be called: update with a point, or purge. None is all of them.
        self._pending = OrderedDict[str | None, RecoveryPoint | None]()
        self._executor: ThreadPoolExecutor | None = None
        self._is_working = False
        self._is_failing = False

    @property
    def tracked_client_name(self) -> str | None:
        """The client whose points the adapter keeps; `None` where it does not say."""
        name: str | None = getattr(self._inner, "tracked_client_name", None)
        return name

    @override
    async def recover(self, client_name: str) -> Iterable[NativePoint]:
        tracked = self.tracked_client_name
        if tracked is not None and tracked != client_name:
            raise UsageError(
                f"the adapter keeps the recovery points of {tracked!r}, and its store is that of "
                f"{client_name!r}: make one for each client"
            )
        return await trio.to_thread.run_sync(self._points, abandon_on_cancel=True)

    def _points(self) -> list[NativePoint]:
        found = map(_compat_point, self._inner)
        return [
            NativePoint(each.sub_id, each.bookmark, each.server, each.caught_up_us, each.generation)
            for each in found
        ]

    @override
    def update(self, point: NativePoint) -> None:
        with self._lock:
            self._pending[point.sub_id] = _compat_point(point)
        self._start()

    @override
    def purge(self, sub_id: str | None = None) -> None:
        with self._lock:
            if sub_id is None:
                self._pending.clear()
            self._pending[sub_id] = None
        self._start()

    @override
    def poll(self, now: float) -> None:
        if self._pending or self._has_failed_points:
            self._start()

    @property
    def _has_failed_points(self) -> bool:
        return bool(getattr(self._inner, "is_failing", False))

    @override
    async def prune(self) -> None:
        await trio.to_thread.run_sync(
            self._after_pending, self._inner.prune, abandon_on_cancel=True
        )

    @override
    async def close(self) -> None:
        await trio.to_thread.run_sync(self._close, abandon_on_cancel=True)

    def _after_pending(self, function: Callable[[], object]) -> None:
        """Call a function after what is pending; returns when it has returned."""
        executor = self._running_executor()
        executor.submit(self._work)
        executor.submit(function).result()

    def _running_executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, "haclient recovery points")
            return self._executor

    def _close(self) -> None:
        try:
            self._after_pending(self._inner.close)
        finally:
            with self._lock:
                executor, self._executor = self._executor, None
            if executor is not None:
                executor.shutdown()
        if self._pending:
            _logger.warning(
                "%d recovery points were not kept: the messages after the last kept ones are "
                "redelivered",
                len(self._pending),
            )

    # -- in the thread of the adapter ---------------------------------------------------------

    def _start(self) -> None:
        """Have the pending calls made, unless that is under way."""
        with self._lock:
            if self._is_working:
                return
            self._is_working = True
        self._running_executor().submit(self._work)

    def _work(self) -> None:
        """Make the pending calls; one that raises is made again at the next poll."""
        try:
            if self._has_failed_points:
                self._inner.poll()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # it is our own
            while (call := self._next()) is not None:
                self._call(*call)
        except BaseException as error:  # the application's: sys.exit ends no thread
            with self._lock:
                self._is_working = False
            if not self._is_failing:  # once, not ten times a second
                _logger.warning("a recovery point was not kept, and is tried again: %r", error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _next(self) -> tuple[str | None, RecoveryPoint | None] | None:
        with self._lock:
            if self._pending:
                return self._pending.popitem(last=False)
            self._is_working = False  # with the lock: what comes now starts another one
            return None

    def _call(self, sub_id: str | None, point: RecoveryPoint | None) -> None:
        try:
            if point is None:
                self._inner.purge(sub_id)
            else:
                self._inner.update(point)
        except BaseException:
            with self._lock:
                if sub_id not in self._pending and None not in self._pending:  # a newer one stays
                    self._pending[sub_id] = point
                    # Before what came since: a purge of all must not delete newer points.
                    self._pending.move_to_end(sub_id, last=False)
            raise


def _compat_point(given: object) -> RecoveryPoint:
    """A recovery point with the official getters."""
    if isinstance(given, RecoveryPoint):
        return given
    if isinstance(given, NativePoint):
        return RecoveryPoint(
            given.sub_id, given.bookmark, given.server, given.caught_up_us, given.generation
        )
    sub_id, bookmark = (getattr(given, name, None) for name in ("get_sub_id", "get_bookmark"))
    if not (callable(sub_id) and callable(bookmark)):
        raise UsageError(
            f"a recovery point has the methods get_sub_id and get_bookmark, not {given!r}"
        )
    return RecoveryPoint(str(sub_id()), str(bookmark()))


def _official(given: object) -> OfficialAdapter:
    missing = [name for name in _OFFICIAL if not callable(getattr(given, name, None))]
    if missing:
        raise UsageError(
            f"{type(given).__name__} is no recovery point adapter: it lacks {', '.join(missing)}"
        )
    return cast("OfficialAdapter", given)


def adapter_of(given: object) -> RecoveryPointAdapter | None:
    """An adapter with the official methods, or one of `haclient`, for a store of `haclient`.

    Raises:
        UsageError: It is none; the message names what it lacks.
    """
    if given is None:
        return None
    if isinstance(given, ConflatingRecoveryPointAdapter):
        return given.native
    if callable(getattr(given, "recover", None)):
        return cast("RecoveryPointAdapter", given)
    return _Called(_official(given))
