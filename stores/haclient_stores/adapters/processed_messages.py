"""Effectively-once processing of queues: the message's id in the user's own transaction.

A queue redelivers a message when its consumer was killed between the effect and the
acknowledgement, or when the lease ended too early. A program that writes its results into a
database also records in the same transaction which message they came from. The consumer that gets
the message again finds that record, and only acknowledges the message::

    connection = sqlite3.connect("results.db")
    ledger = ProcessedMessages(connection)

    def work(message: Message) -> None:
        with connection:  # one transaction: both or neither
            if ledger.is_new(message):
                connection.execute("insert into results values (?)", [message.text])
                ledger.record(message)

    async with HAClient("worker-1", servers=[...]) as client:
        await client.queue_subscribe("jobs", handler=work)  # acknowledges when it has returned
        ...

All consumers of a queue use one table, `haclient_processed`, in one database; the name of the
client does not matter. When two of them work on one message at the same time, the second `record`
raises, and its transaction is rolled back.

**Pruning:** a row is needed until its message cannot be redelivered, which is until its
acknowledgement has reached the server. That is unknown when a consumer was killed, so rows are kept
for a time (`keep_s`) that is longer than any outage of server or consumers. Now and then a `record`
deletes older rows, in its transaction. So the table has at most the rows of that time, and of the
last `PRUNE_EVERY` messages of each consumer. A message that is redelivered after that time has its
effect again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from haclient_stores.adapters.recovery_tables import Database, DatabaseConnection
from haclient_stores.bookmark import Bookmark
from haclient_stores.checks import check_seconds
from haclient_stores.errors import StoreError, UsageError

__all__ = ["ProcessedMessages", "QueueMessage"]

PRUNE_EVERY: Final = 1000
"""After so many messages a `record` deletes the rows whose time is over."""

WEEK_S: Final = 7 * 86_400.0

_CREATE_TABLE: Final = (
    "create table if not exists haclient_processed (queue text not null, publisher text not null, "
    "sequence text not null, processed_us bigint not null, "
    "primary key (queue, publisher, sequence))"
)
_CREATE_INDEX: Final = (
    "create index if not exists haclient_processed_at on haclient_processed (processed_us)"
)
_READ: Final = "select 1 from haclient_processed where queue = ? and publisher = ? and sequence = ?"
_RECORD: Final = (
    "insert into haclient_processed (queue, publisher, sequence, processed_us) "
    "values (?, ?, ?, ?) on conflict do nothing"
)
_PRUNE: Final = "delete from haclient_processed where processed_us < ?"


class QueueMessage(Protocol):
    """The attributes of a message that are read."""

    @property
    def bookmark(self) -> str: ...  # noqa: D102  # see `haclient.Message`

    @property
    def topic(self) -> str: ...  # noqa: D102  # see `haclient.Message`


def _now_us() -> int:
    return time.time_ns() // 1000


class ProcessedMessages:
    """Records which messages of queues have had their effect, in the user's own database.

    Args:
        connection: A DB-API connection: the one that writes the results, or another one to the same
            database if the methods get that one. It must not commit by itself.
        placeholder: How the driver marks a parameter: `?` (sqlite3) or `%s` (psycopg).
        create_table: Create the table if it is missing, and commit.
        keep_s: Seconds after which the record of a message may be deleted; see the module.
        clock_us: Tells microseconds since 1970.

    Raises:
        UsageError: An argument is invalid.
    """

    def __init__(
        self,
        connection: DatabaseConnection,
        *,
        placeholder: str = "?",
        create_table: bool = True,
        keep_s: float = WEEK_S,
        clock_us: Callable[[], int] = _now_us,
    ) -> None:
        check_seconds("keep_s", keep_s)
        self._database = Database(connection, placeholder)
        self._keep_s = keep_s
        self._clock_us = clock_us
        self._recorded = 0
        if create_table:
            with self._database.transaction():
                self._database.execute(None, _CREATE_TABLE)
                self._database.execute(None, _CREATE_INDEX)

    def is_new(self, message: QueueMessage, connection: DatabaseConnection | None = None) -> bool:
        """Whether a message has had no effect yet, as the running transaction sees it.

        Args:
            message: A message of a queue.
            connection: The one whose transaction it is, if it is not the ledger's.

        Raises:
            UsageError: The message has no bookmark.
        """
        return not self._database.read(connection, _READ, *_key(message))

    def record(self, message: QueueMessage, connection: DatabaseConnection | None = None) -> None:
        """Note in the running transaction that a message has its effect; commit is the user's.

        Args:
            message: A message of a queue.
            connection: The one whose transaction it is, if it is not the ledger's.

        Raises:
            UsageError: The message has no bookmark.
            StoreError: Another consumer has recorded it since `is_new`; the transaction has to be
                rolled back, or the effect happens twice.
        """
        now_us = self._clock_us()
        if not self._database.execute(connection, _RECORD, *_key(message), now_us):
            raise StoreError(
                f"the message {message.bookmark} of the queue {message.topic!r} was processed "
                "already, by this or another consumer: roll the transaction back; is_new is false "
                "when the message is redelivered"
            )
        self._recorded += 1
        if self._recorded >= PRUNE_EVERY:
            self.prune(connection)

    def prune(self, connection: DatabaseConnection | None = None) -> int:
        """Delete the rows whose time is over, in the running transaction.

        Args:
            connection: The one whose transaction it is, if it is not the ledger's.

        Returns:
            How many were deleted.
        """
        self._recorded = 0
        oldest_us = self._clock_us() - int(self._keep_s * 1_000_000)
        return self._database.execute(connection, _PRUNE, oldest_us)


def _key(message: QueueMessage) -> tuple[str, str, str]:
    """Queue, publisher and sequence; numbers of 64 bits as texts of equal length."""
    try:
        place = Bookmark.parse(message.bookmark)
    except UsageError as error:
        raise UsageError(
            f"only a message of a queue has an id to record, not {message.bookmark!r}: {error}"
        ) from error
    return message.topic, f"{place.publisher_id:020d}", f"{place.sequence:020d}"
