"""The records of a State-of-the-World topic as a mapping that is kept up to date.

`haclient.session.record_view` decides what a message changes; `LiveRecords` feeds it.
"""

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterator, Mapping, ValuesView
from types import TracebackType
from typing import Self, TypeVar

import trio
from typing_extensions import override

from haclient.errors import DisconnectedError
from haclient.session.record_view import JsonRecord, RecordChange, RecordView, apply_delta
from haclient.streams import MessageStream
from haclient.transport.core import Core
from haclient.transport.message_queue import ClientLeft, ShuttingDown
from haclient.transport.tasks import Turn, is_of_handler

__all__ = ["JsonRecord", "LiveRecords", "RecordChange", "RecordMapping", "apply_delta"]

T = TypeVar("T")


class RecordMapping(Mapping[Hashable, T]):
    """The records of a view as they are now, from any thread.

    Loops use a copy, since the records may change meanwhile.

    Args:
        view: The records.
    """

    def __init__(self, view: RecordView[T]) -> None:
        self._view = view

    @override
    def __getitem__(self, key: Hashable) -> T:
        return self._view.records[key]

    @override
    def __iter__(self) -> Iterator[Hashable]:
        return iter(self.snapshot())

    @override
    def __len__(self) -> int:
        return len(self._view.records)

    @override
    def items(self) -> ItemsView[Hashable, T]:
        """The keys and records of `snapshot`."""
        return self.snapshot().items()

    @override
    def values(self) -> ValuesView[T]:
        """The records of `snapshot`."""
        return self.snapshot().values()

    def snapshot(self) -> dict[Hashable, T]:
        """A copy that does not change."""
        return self._view.records.copy()


class LiveRecords(RecordMapping[T]):
    """The records of a topic by key, and their changes; made by `client.records`.

    Entering the block sends the query, and waits until the records are complete. The iteration
    yields each later change, and does not end by itself::

        async with client.records("prices", key=lambda price: price["symbol"]) as prices:
            print(prices["A"])
            async for change in prices:
                print(change.kind, change.key, change.new)

    While there is no connection the records stay as they were, and `caught_up` is false. An
    `HAClient` queries again, and the iteration yields the differences. A `Client` does not
    reconnect: its iteration raises `DisconnectedError`. The last records can be read after the end.
    """

    def __init__(self, view: RecordView[T], stream: MessageStream, core: Core) -> None:
        super().__init__(view)
        self._stream = stream
        self._core = core
        self._error: BaseException | None = None
        self._has_ended = False
        self._changed = trio.Event()

    async def open(self) -> Self:
        """Query, and wait until the records are complete; `async with` does this.

        Raises:
            CommandError: The server refused it.
            DisconnectedError: There is no connection, or it was lost.
            TimedOut: The server did not answer, or has stopped sending records.
            UsageError: It was opened before.
        """
        await self._stream.open()
        try:
            self._core.running("records").start_soon(self._follow)
            while not (self._view.is_complete or self._has_ended):
                await self._changed.wait()
        except BaseException:
            await self.aclose()
            raise
        if self._error is not None:
            raise self._error
        if not self._view.is_complete:
            raise DisconnectedError("the records were closed before they were complete")
        self._view.forget_changes()  # those since the end of the query: the caller sees them now
        return self

    async def aclose(self) -> None:
        """Unsubscribe; the iteration ends. Calling it again does nothing."""
        self._core.thread.check_caller("aclose of records")  # before anything is woken
        self._end(None)
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _follow(self) -> None:
        """Feed the view, in a task of the client."""
        error: BaseException | None = None
        turn = Turn()
        try:
            async for batch in self._stream.batches():
                for message in batch:
                    self._view.apply(message)
                    if turn.now() >= turn.ends_at:
                        await turn.end()
                if self._view.is_complete:
                    self._wake()
            error = self._stream.end_reason
        except Exception as failed:  # also one of the application's codec: the consumer raises it
            error = failed
            await self._stream.aclose()
        except trio.Cancelled:  # nobody may take what there is for complete
            error = ClientLeft("the records have ended early, since their client is left")
            raise
        finally:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._error = error
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _raise_error(self) -> None:
        # A client that is left or shut down ends the iteration without an error, but for a handler.
        if isinstance(self._error, ClientLeft | ShuttingDown) and not is_of_handler():
            return
        if self._error is not None:
            raise self._error

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordChange[T]:
        self._core.thread.check_caller("iterating over records")
        await (
            trio.lowlevel.checkpoint()
        )  # before the change is taken, so that a cancellation loses none
        while (change := self.pop_change()) is None:
            if not await self.wait_change():
                raise StopAsyncIteration
        return change

    def changes(self) -> Self:
        """The changes, as the iteration yields them; it exists in all three forms of the client."""
        return self

    def pop_change(self) -> RecordChange[T] | None:
        """Return the next change without waiting; `None` if there is none."""
        return self._view.pop_change()

    async def wait_change(self) -> bool:
        """Wait until there may be a change.

        Returns:
            Whether there may be one; `False` at the end.

        Raises:
            HAClientError: The error by which the records have ended.
        """
        self._core.thread.check_caller("waiting for changes of records")
        while not self._view.has_pending:
            if self._has_ended:
                self._raise_error()
                return False
            await self._changed.wait()
        return True

    @property
    def caught_up(self) -> bool:
        """Whether the records are up to date: there is a connection, and its query is complete."""
        return self._stream.caught_up and not self._has_ended

    @property
    def ended(self) -> bool:
        """Whether the records do not change any more."""
        return self._has_ended
