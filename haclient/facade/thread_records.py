"""`LiveRecords` of `haclient.blocking`: see `haclient.live_records`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar, cast, overload

import haclient.client
import haclient.live_records
from haclient.codecs import Topic
from haclient.errors import UsageError
from haclient.facade.methods import FacadeProperty
from haclient.facade.thread import TrioThread
from haclient.facade.thread_bridge import Bridge
from haclient.live_records import JsonRecord, RecordChange, RecordMapping
from haclient.transport.settings import TIMEOUT_S

T = TypeVar("T")


class RecordChanges(Generic[T]):
    """An iterator of changes, which any number of threads may use."""

    def __init__(self, take: Callable[[], RecordChange[T]]) -> None:
        self._take = take

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RecordChange[T]:
        return self._take()


class LiveRecords(RecordMapping[T]):
    """The records of a topic, by key: `haclient.LiveRecords` for programs without trio.

    A loop over it yields its keys, as of any mapping; `changes` yields its changes. Any thread may
    read it. Several threads may take changes: each change goes to one of them::

        with client.records("prices", key=lambda price: price["symbol"]) as prices:
            print(prices["A"])
            for change in prices.changes():
                print(change.kind, change.key, change.new)
    """

    def __init__(self, records: haclient.live_records.LiveRecords[T], thread: TrioThread) -> None:
        super().__init__(records._view)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours
        self.__bridge__ = Bridge(records, thread)

    def open(self) -> Self:
        """Query, and wait until the records are complete; `with` does this.

        Raises:
            CommandError: The server refused it.
            DisconnectedError: There is no connection, or it was lost.
            TimedOut: The server did not answer, or has stopped sending records.
            UsageError: It was opened before.
        """
        try:
            self.__bridge__.wait(self.__bridge__.inner.open, "open")
            return self  # noqa: TRY300  # inside of `try`: an interrupt may come here, too
        except UsageError:  # it was opened before, and may be in use
            raise
        except BaseException:  # a KeyboardInterrupt, maybe just after the server's answer
            with suppress(Exception):  # the client may have ended, and this with it
                self.close()
            raise

    def close(self) -> None:
        """Unsubscribe; loops over `changes` end. Calling it again does nothing."""
        if self.__bridge__.thread.is_running:
            with suppress(UsageError):  # the client closes at this moment, and this with it
                self.__bridge__.wait(self.__bridge__.inner.aclose, "close")

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _next_change(self) -> RecordChange[T]:
        bridge = self.__bridge__
        while (change := bridge.read(lambda records: records.pop_change(), "iterating")) is None:
            ended = not bridge.thread.is_running
            if ended or not bridge.wait(bridge.inner.wait_change, "iterating"):
                raise StopIteration
        return change

    def changes(self) -> RecordChanges[T]:
        """Each change from now on, without an end."""
        return RecordChanges(self._next_change)

    caught_up = FacadeProperty[haclient.live_records.LiveRecords[T], bool](
        lambda records: records.caught_up, haclient.live_records.LiveRecords, {}
    )
    ended = FacadeProperty[haclient.live_records.LiveRecords[T], bool](
        lambda records: records.ended, haclient.live_records.LiveRecords, {}
    )


class _Bridged(Protocol):
    @property
    def __bridge__(self) -> Bridge[haclient.client.BaseClient]: ...


class RecordsClient:
    """The live records of a client."""

    @overload
    def records(
        self: _Bridged,
        topic: str,
        *,
        key: Callable[[JsonRecord], Hashable] | None = None,
        filter: str = "",
        deltas: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> LiveRecords[JsonRecord]: ...

    @overload
    def records(
        self: _Bridged,
        topic: Topic[T],
        *,
        key: Callable[[T], Hashable] | None = None,
        filter: str = "",
        deltas: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> LiveRecords[T]: ...

    def records(
        self: _Bridged,
        topic: str | Topic[T],
        *,
        key: Callable[[JsonRecord], Hashable] | Callable[[T], Hashable] | None = None,
        filter: str = "",  # noqa: A002  # the protocol's word
        deltas: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> LiveRecords[JsonRecord] | LiveRecords[T]:
        """As in `haclient.Client`, whose docstring replaces this one."""
        bridge = self.__bridge__
        make = partial(
            bridge.inner.records,
            cast("Topic[T]", topic),
            key=cast("Callable[[T], Hashable] | None", key),
            filter=filter,
            deltas=deltas,
            timeout=timeout,
        )
        return LiveRecords(bridge.now(make, "records"), bridge.thread)
