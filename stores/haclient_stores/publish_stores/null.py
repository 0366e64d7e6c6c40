"""A publish store that keeps nothing, where a store is asked for and none is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from haclient_stores.checks import check_text
from haclient_stores.disk.threads import ThreadBinding
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

    def __init__(self) -> None:
        self._thread = ThreadBinding("a publish store that keeps nothing")
        self._client_name = ""
        self._last_sequence = 0
        self._last_persisted = 0

    @property
    @override
    def client_name(self) -> str:
        return self._client_name

    @property
    @override
    def unpersisted_count(self) -> int:
        return 0

    @property
    @override
    def unpersisted_bytes(self) -> int:
        return 0

    @property
    @override
    def lowest_unpersisted(self) -> int:
        return 0

    @property
    @override
    def last_persisted(self) -> int:
        return self._last_persisted

    @property
    @override
    def last_sequence(self) -> int:
        return self._last_sequence

    @property
    @override
    def gap(self) -> PublishGap | None:
        return None

    @override
    def open_for(self, client_name: str) -> None:
        """Note the name; nothing is kept that could belong to a client."""
        self._thread.check()
        check_text("client_name", client_name)
        self._client_name = client_name

    @override
    def store(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        self._thread.check()
        self._last_sequence += 1
        return self._last_sequence

    @override
    def discard_up_to(self, sequence: int) -> None:
        self._thread.check()
        self._last_persisted = max(self._last_persisted, sequence)
        self._last_sequence = max(self._last_sequence, sequence)

    @override
    def replay(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        self._thread.check()
        return iter(())

    @override
    def replay_single(self, sequence: int) -> bytes | None:
        self._thread.check()
        return None

    @override
    def number_above(self, sequence: int) -> None:
        self._thread.check()
        self._last_sequence = self._last_sequence or sequence

    @override
    def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
        self._thread.check()
        self._last_sequence = max(self._last_sequence or clock_us, seen, persisted)

    @override
    def sync(self) -> None:
        """Nothing is kept."""

    @override
    def close(self) -> None:
        """Nothing is held; another thread may go on with the store."""
        self._thread.release()
