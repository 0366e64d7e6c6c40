"""The records of a State-of-the-World topic as a mapping that is kept up to date.

`RecordView` is the pure part: it applies the messages of a query with a subscription, and keeps the
records and the changes that the consumer has not taken. `LiveRecords` feeds it.

**Which messages.** `sow` and `publish` set a record, `oof` removes one, whatever its reason. A
delta is merged into the record that it changes. The records of a query come between `group_begin`
and `group_end`; at its end, all other records are removed. So after a lost connection the view
keeps its records until the next query is complete, and the consumer gets the differences.

**Changes are conflated by key.** For each key that has changed the view remembers the value that
the consumer has, and compares when the consumer asks. So a slow consumer gets the latest value of
each key, never the value that it already has. Memory holds at most one pending change for each key
that the view or the consumer has.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar, cast

import msgspec
import trio
from typing_extensions import override

from haclient.codecs import Topic
from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.streams import MessageStream
from haclient.transport.core import Core
from haclient.transport.message_queue import ShuttingDown, check_cut
from haclient.transport.tasks import Turn

__all__ = ["LiveRecords", "RecordChange", "RecordMapping", "apply_delta"]

T = TypeVar("T")
JsonRecord = dict[str, object]


@dataclass(frozen=True, slots=True)
class RecordChange(Generic[T]):
    """How one record differs from the last change of its key.

    Attributes:
        kind: `added`, `changed` or `removed`.
        key: Its key in the mapping.
        old: The value before; `None` for an added record.
        new: The value now; `None` for a removed one.
    """

    kind: Literal["added", "changed", "removed"]
    key: Hashable
    old: T | None
    new: T | None


def apply_delta(record: Mapping[str, object], delta: Mapping[str, object]) -> dict[str, object]:
    """A record as an update has left it.

    Args:
        record: The record before, as parsed; it is not changed.
        delta: The fields that have changed: objects are merged field by field, everything else is
            replaced, `None` removes a field.

    Returns:
        The record after.
    """
    result = dict(record)
    for name, value in delta.items():
        old = result.get(name)
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            before = cast("Mapping[str, object]", old if isinstance(old, Mapping) else {})
            result[name] = apply_delta(before, cast("Mapping[str, object]", value))
        else:
            result[name] = value
    return result


class RecordView(Generic[T]):
    """The records, and the changes that the consumer has not taken yet; pure.

    Args:
        topic: Decodes a record.
        key: Returns the key of a record; by default the SOW key is used.
        deltas: Whether a `publish` carries only the fields that have changed.

    Attributes:
        records: The records by key.
        is_complete: Whether a query was complete once.
    """

    def __init__(
        self, topic: Topic[T], *, key: Callable[[T], Hashable] | None, deltas: bool
    ) -> None:
        self._topic = topic
        self._key = key
        self._deltas = deltas
        self._keys: dict[str, Hashable] = {}  # by SOW key
        self._owners: dict[Hashable, str] = {}  # the SOW key of each key
        self._merged: dict[str, JsonRecord] = {}  # by SOW key, to merge deltas into
        self._queried: set[str] | None = None  # the SOW keys of the running query
        self._pending: dict[Hashable, list[T]] = {}  # the value that the consumer has
        self.records: dict[Hashable, T] = {}
        self.is_complete = False

    def apply(self, message: Message) -> None:
        """Take the next message.

        Raises:
            DecodeError: Its body cannot be read.
            UsageError: The key function has failed, or the topic has no keys.
        """
        match message.command:
            case "group_begin":
                self._queried = set()
            case "group_end":
                self._end_query()
            case "oof":
                self._remove(message.sow_key)
            case "sow" | "publish":
                self._set(message)
            case _:
                pass

    def _end_query(self) -> None:
        if self._queried is not None:
            for sow_key in self._keys.keys() - self._queried:
                self._remove(sow_key)
        self._queried = None
        if not self.is_complete:
            self.is_complete = True
            self._pending.clear()  # the consumer starts with these records

    def _set(self, message: Message) -> None:
        sow_key = message.sow_key
        if not sow_key:
            raise UsageError(
                f"a message of {message.topic!r} has no SOW key: records need a topic with a "
                "State of the World"
            )
        value = self._value(message)
        key = sow_key if self._key is None else self._key_of(value)
        if self._keys.get(sow_key, key) != key:
            self._drop_key(sow_key)
        if self._queried is not None:
            self._queried.add(sow_key)
        self._remember_old(key)
        self._keys[sow_key] = key
        self._owners[key] = sow_key
        self.records[key] = value

    def _value(self, message: Message) -> T:
        if not self._deltas:
            return self._topic.decode(message)
        known = self._merged.get(message.sow_key, {}) if message.command == "publish" else {}
        whole = apply_delta(known, message.json(JsonRecord))
        self._merged[message.sow_key] = whole
        return self._topic.codec.decode(msgspec.json.encode(whole))

    def _key_of(self, value: T) -> Hashable:
        assert self._key is not None  # noqa: S101  # the caller has checked it
        try:
            key = self._key(value)
            hash(key)
        except Exception as error:  # the application's function
            raise UsageError(
                f"the key function of records raised {type(error).__name__}: it has to return a "
                "hashable key for each record"
            ) from error
        return key

    def _remove(self, sow_key: str) -> None:
        self._merged.pop(sow_key, None)
        self._drop_key(sow_key)

    def _drop_key(self, sow_key: str) -> None:
        """Remove a record from the mapping, under the key that it has."""
        if sow_key not in self._keys:
            return
        key = self._keys.pop(sow_key)
        if self._owners[key] == sow_key:  # else another record has taken the key
            self._remember_old(key)
            del self._owners[key], self.records[key]
            if not self._pending[key]:  # added and removed before the consumer looked
                del self._pending[key]

    def _remember_old(self, key: Hashable) -> None:
        """Remember the value that the consumer has, before the key changes."""
        if key not in self._pending:
            self._pending[key] = self._values(key)

    @property
    def has_pending(self) -> bool:
        """Whether keys have changed; the changes may have cancelled each other out."""
        return bool(self._pending)

    def pop_change(self) -> RecordChange[T] | None:
        """The next change, ordered by the first change of each key; `None` if there is none.

        From then on the consumer has the new value.
        """
        while self._pending:
            key = next(iter(self._pending))
            before, after = self._pending.pop(key), self._values(key)
            if before == after:
                continue
            if not before:
                return RecordChange("added", key, None, after[0])
            if not after:
                return RecordChange("removed", key, before[0], None)
            return RecordChange("changed", key, before[0], after[0])
        return None

    def _values(self, key: Hashable) -> list[T]:
        """The record of a key, if there is one."""
        return [self.records[key]] if key in self.records else []


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
        return self

    async def aclose(self) -> None:
        """Unsubscribe; the iteration ends. Calling it again does nothing."""
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
        check_cut(self._error)
        if self._error is not None and not isinstance(self._error, ShuttingDown):
            raise self._error

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordChange[T]:
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
