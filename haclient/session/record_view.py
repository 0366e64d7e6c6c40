"""The records of a query with a subscription, kept up to date.

A `RecordView` applies messages, and keeps the records and the changes that the consumer has not
taken.

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

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, cast

import msgspec

from haclient.codecs import Topic
from haclient.errors import UsageError
from haclient.protocol.messages import Message

__all__ = ["RecordChange", "apply_delta"]

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
        # By key and SOW key, other records that have this key, the one that came last at the end.
        self._others: dict[Hashable, dict[str, T]] = {}
        self._merged: dict[str, JsonRecord] = {}  # by SOW key, to merge deltas into
        self._queried: set[str] | None = None  # the SOW keys of the running query
        # The value that the consumer has. A plain dict visits all entries deleted from its front.
        self._pending = OrderedDict[Hashable, list[T]]()
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
            self.forget_changes()  # the consumer starts with these records

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
        owner = self._owners.get(key, sow_key)
        if owner != sow_key:
            others = self._others.setdefault(key, {})
            others.pop(sow_key, None)
            others[owner] = self.records[key]
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
        others = self._others.get(key, {})
        if self._owners[key] != sow_key:  # another record has taken the key
            del others[sow_key]
        else:
            self._remember_old(key)
            if others:
                self._owners[key], self.records[key] = others.popitem()
            else:
                del self._owners[key], self.records[key]
                if not self._pending[key]:  # added and removed before the consumer looked
                    del self._pending[key]
        if not others:
            self._others.pop(key, None)

    def _remember_old(self, key: Hashable) -> None:
        """Remember the value that the consumer has, before the key changes."""
        if key not in self._pending:
            self._pending[key] = self._values(key)

    @property
    def has_pending(self) -> bool:
        """Whether keys have changed; the changes may have cancelled each other out."""
        return bool(self._pending)

    def forget_changes(self) -> None:
        """The consumer has the records as they are now."""
        self._pending.clear()

    def pop_change(self) -> RecordChange[T] | None:
        """The next change, ordered by the first change of each key; `None` if there is none.

        From then on the consumer has the new value.
        """
        while self._pending:
            key, before = self._pending.popitem(last=False)
            after = self._values(key)
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
