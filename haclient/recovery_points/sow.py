"""Recovery points in a topic of the server's State of the World.

The points of a client are records of a SOW topic, one for each subscription. So they survive the
loss of the store's file and of the host, and the client finds them wherever it is started again.

The adapter needs a separate client that is connected and logged on. The tracked client cannot be
used: publishing its points would move them again, and the two could wait for each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import astuple
from typing import Final

import msgspec
import trio
from typing_extensions import override

from haclient.client import BaseClient
from haclient.errors import (
    DisconnectedError,
    HAClientError,
    StoreFull,
    TimedOut,
    UsageError,
    WouldBlock,
)
from haclient_stores.adapters.recovery_point import RecoveryPoint, TimedAdapter
from haclient_stores.checks import check_text
from haclient_stores.logs import logger_of

__all__ = ["SOWRecoveryPointAdapter"]

_EXTRA_FIELDS: Final = "server", "caughtUpUs", "generation"
_FORGOTTEN: Final = "0"  # the bookmark of a subscription that was purged
_CLOSE_S: Final = 5.0
_logger = logger_of(__name__)


class SOWRecoveryPointAdapter(TimedAdapter):
    """Keeps recovery points in a SOW topic with the keys `/clientName` and `/subId`.

    A point that cannot be published is kept and retried ten times a second; only the newest point
    of each subscription is kept. Beside the three fields that can have other names, a record has
    `server`, in whose order the point is valid; `caughtUpUs`, the caught-up time in microseconds
    since 1970; and `generation`, how often the subscription was started over.

    Args:
        client: A separate client, connected and logged on. The caller owns it and closes it after
            the tracked client. With a publish store, points survive a lost link.
        topic: The topic.
        client_name_field: The field for the name of the tracked client.
        sub_id_field: The field for the subscription.
        bookmark_field: The field for the recovery point.
        on_error: Called with the error when a point cannot be published; what it raises is logged.
            A warning in the log by default.

    Raises:
        UsageError: An argument is invalid.
    """

    def __init__(  # the names of the fields, all by keyword
        self,
        client: BaseClient,
        *,
        topic: str = "/ADMIN/bookmark_store",
        client_name_field: str = "clientName",
        sub_id_field: str = "subId",
        bookmark_field: str = "bookmark",
        on_error: Callable[[HAClientError], object] | None = None,
    ) -> None:
        if hasattr(client, "__bridge__"):  # its methods would not fit, and only much later
            raise UsageError(
                "client is a haclient.Client or haclient.HAClient, which runs in the thread of the "
                f"store, not one of {type(client).__module__}"
            )
        check_text("topic", topic)
        self._client = client
        self._topic = topic
        named = client_name_field, sub_id_field, bookmark_field
        for name, field in zip(("client_name", "sub_id", "bookmark"), named, strict=True):
            check_text(f"{name}_field", field)
        self._fields = *named, *_EXTRA_FIELDS
        self._on_error = on_error or _warn
        self._tracked = ""
        self._known: set[str] = set()
        # A plain dict visits all entries deleted from its front to find the first one left.
        self._pending = OrderedDict[str, RecoveryPoint]()
        self._failing = False

    # -- records: override these two for another message type ---------------------------------

    def encode(self, client_name: str, point: RecoveryPoint) -> bytes:
        """Make a record of the topic; override it, with `decode`, for another message type.

        Args:
            client_name: The name of the tracked client.
            point: A recovery point.

        Returns:
            The body of the record.
        """
        values = client_name, *astuple(point)
        return msgspec.json.encode(dict(zip(self._fields, values, strict=True)))

    def decode(self, data: bytes) -> tuple[str, RecoveryPoint] | None:
        """Read a record of the topic.

        A record without a server or a time is one of another program; its point is still good.

        Args:
            data: The body of the record.

        Returns:
            The name of the tracked client and the point; None for any other record.
        """
        try:
            record = msgspec.json.decode(data, type=dict[str, object])
        except msgspec.MsgspecError:
            return None
        name, sub_id, bookmark, server, caught_up_us, generation = map(record.get, self._fields)
        if not (isinstance(name, str) and isinstance(sub_id, str) and isinstance(bookmark, str)):
            return None
        server = server if isinstance(server, str) else ""
        caught_up_us = caught_up_us if type(caught_up_us) is int else 0
        generation = generation if type(generation) is int else 0
        return name, RecoveryPoint(sub_id, bookmark, server, caught_up_us, generation)

    # -- the interface ------------------------------------------------------------------------

    @override
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        if client_name == self._client.name:
            raise UsageError(
                f"the adapter's own client is called {client_name!r} like the one whose points it "
                "keeps: give it a client of its own, with another name"
            )
        self._tracked = client_name
        points: list[RecoveryPoint] = []
        async with self._client.sow(self._topic, filter=self._filter()) as records:
            async for record in records:
                found = self.decode(record.data)
                if found is not None and found[0] == client_name:
                    self._known.add(found[1].sub_id)
                    points.append(found[1])
        return [point for point in points if point.bookmark != _FORGOTTEN]

    def _filter(self) -> str:
        if not {"'", "\\"}.isdisjoint(self._tracked):
            return ""  # servers differ in what an escape means: then all records are looked at
        return f"/{self._fields[0]} = '{self._tracked}'"

    @override
    def update(self, point: RecoveryPoint) -> None:
        if not self._tracked:
            raise UsageError("updates come after `recover`, which says whose points they are")
        self._known.add(point.sub_id)
        self._pending[point.sub_id] = point
        self._publish()

    @override
    def purge(self, sub_id: str | None = None) -> None:
        for name in sorted(self._known) if sub_id is None else [sub_id]:
            self.update(RecoveryPoint(name, _FORGOTTEN))

    @override
    def poll(self, now: float) -> None:
        self._publish()

    def _publish(self) -> None:
        while self._pending:
            sub_id, point = next(iter(self._pending.items()))
            data = self.encode(self._tracked, point)
            try:
                self._client.publish_nowait(self._topic, data)
            except (DisconnectedError, WouldBlock, StoreFull) as error:
                if not self._failing:  # once, not ten times a second
                    self._report(error)
                self._failing = True
                self._pending.move_to_end(sub_id)  # the others are not to wait for it
                return
            del self._pending[sub_id]
        self._failing = False

    def _report(self, error: HAClientError) -> None:
        try:
            self._on_error(error)
        except Exception:  # of the application: the tracked client goes on
            _logger.exception("on_error of the SOWRecoveryPointAdapter has raised")

    @override
    async def prune(self) -> None:
        """Delete the records of purged subscriptions."""
        filtered = self._filter()
        forgotten = f"/{self._fields[2]} = '{_FORGOTTEN}'"
        await self._client.sow_delete(
            self._topic, filter=f"{filtered} AND {forgotten}" if filtered else forgotten
        )

    @override
    async def close(self) -> None:
        if not self._tracked:
            return
        lost: DisconnectedError | None = None
        with trio.move_on_after(_CLOSE_S) as limit:
            try:
                await self._publish_all()
            except DisconnectedError as error:
                lost = error
        if self._pending or limit.cancelled_caught:
            self._report(
                TimedOut(
                    f"recovery points were not published: {len(self._pending)}, or not "
                    f"acknowledged in {_CLOSE_S:g} s; later messages are redelivered"
                )
            )
        elif lost is not None:
            self._report(lost)

    async def _publish_all(self) -> None:
        """Publish what is pending; each flush makes room for more, until there is none for any."""
        refused = 0
        while refused <= len(self._pending):
            left = len(self._pending)
            self._publish()
            await self._client.publish_flush()
            if not self._pending:
                return
            refused = 0 if len(self._pending) < left else refused + 1


def _warn(error: HAClientError) -> None:
    _logger.warning("a recovery point was not published: %s", error)
