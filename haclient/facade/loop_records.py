"""`LiveRecords` of `haclient.aio`: see `haclient.live_records`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Protocol, Self, TypeVar, cast, overload

import haclient.client
import haclient.live_records
from haclient.codecs import Topic
from haclient.errors import UsageError
from haclient.facade.loop_bridge import Bridge, LoopThread
from haclient.facade.methods import FacadeProperty
from haclient.live_records import JsonRecord, RecordChange, RecordMapping
from haclient.transport.settings import TIMEOUT_S

T = TypeVar("T")


class LiveRecords(RecordMapping[T]):
    """The records of a topic, by key: `haclient.LiveRecords` for asyncio.

    Any thread may read it. Several tasks may iterate: each change goes to one of them, and a
    cancelled wait loses no change.
    """

    def __init__(self, records: haclient.live_records.LiveRecords[T], home: LoopThread) -> None:
        super().__init__(records._view)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of ours
        self.__bridge__ = Bridge(records, home)

    async def open(self) -> Self:
        """Query, and wait until the records are complete; `async with` does this.

        Raises:
            CommandError: The server refused it.
            DisconnectedError: There is no connection, or it was lost.
            TimedOut: The server did not answer, or has stopped sending records.
            UsageError: It was opened before.
        """
        bridge = self.__bridge__
        await bridge.wait(bridge.inner.open, "open", undo=lambda records: records.aclose())
        return self

    async def aclose(self) -> None:
        """Unsubscribe; the iteration ends. Calling it again does nothing."""
        if self.__bridge__.thread.is_running:
            with suppress(UsageError):  # the client closes at this moment, and this with it
                await self.__bridge__.wait(self.__bridge__.inner.aclose, "aclose")

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not GeneratorExit:  # the loop discards the coroutine, which cannot wait any more
            await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordChange[T]:
        # Only the wait can be cancelled, and it takes no change; `pop_change` cannot be cancelled.
        bridge = self.__bridge__
        while (change := bridge.read(lambda records: records.pop_change(), "iterating")) is None:
            ended = not bridge.thread.is_running
            if ended or not await bridge.wait(bridge.inner.wait_change, "iterating"):
                raise StopAsyncIteration
        return change

    def changes(self) -> Self:
        """The changes, as the iteration yields them; it exists in all three forms of the client."""
        return self

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
        return LiveRecords(bridge.now(make, "records"), bridge.home)
