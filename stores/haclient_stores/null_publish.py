"""A publish store that keeps nothing, where a store is asked for and none is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from haclient_stores.interfaces import PublishStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from haclient_stores.errors import PublishGap

__all__ = ["NullPublishStore"]


class NullPublishStore(PublishStore):
    """Keeps nothing, so there is nothing to replay and nothing to wait for.

    A client that is given one works as without a store: it asks for no persisted acks, `publish`
    returns None, and a publish without a connection is an error.
    """

    client_name = ""
    unpersisted_count = 0
    unpersisted_bytes = 0
    lowest_unpersisted = 0
    last_persisted = 0
    last_sequence = 0
    gap: PublishGap | None = None

    @override
    def open_for(self, client_name: str) -> None:
        """Nothing is kept that could belong to anybody."""
        self.client_name = client_name

    @override
    def store(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        self.last_sequence += 1
        return self.last_sequence

    @override
    def discard_up_to(self, sequence: int) -> None:
        self.last_persisted = max(self.last_persisted, sequence)
        self.last_sequence = max(self.last_sequence, sequence)

    @override
    def replay(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        return iter(())

    @override
    def replay_single(self, sequence: int) -> bytes | None:
        return None

    @override
    def number_above(self, sequence: int) -> None:
        self.last_sequence = self.last_sequence or sequence

    @override
    def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
        self.last_sequence = max(self.last_sequence or clock_us, seen, persisted)

    @override
    def sync(self) -> None:
        """Nothing is kept."""

    @override
    def close(self) -> None:
        """Nothing is held."""
