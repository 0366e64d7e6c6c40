"""The connections to the destinations of replication.

`destination` decides what is sent, `receiver` is the other end, `wire` has the frames, and
`durability` holds back the acks. This module connects them: it finds the destination that an answer
is from, ends connections, and reports to the broker's log. The shell dials, and redials after a
failure.
"""

from __future__ import annotations

from collections.abc import Sequence

from haclient.errors import ProtocolError, UsageError
from haclient.protocol.messages import Message
from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.journal import Block
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.logon import watch
from haclient_fake_server.engine.outbox import Outbox, Severity
from haclient_fake_server.engine.replication import wire
from haclient_fake_server.engine.replication.destination import Destination, DestinationStatus
from haclient_fake_server.engine.replication.durability import Durability, ReplicationProgress
from haclient_fake_server.engine.routes import Routes
from haclient_fake_server.engine.settings import EngineSettings
from haclient_fake_server.engine.timers import Clock


class Replication:
    """The sending side of one instance, and what waits for its destinations.

    Args:
        settings: Who this instance is.
        log: What is sent.
        routes: Its topics.
        durability: What is confirmed, and the acks that wait for more of it.
        clock: The time.
        outbox: Where frames and reports go.
        destinations: All of them, restored.

    Attributes:
        progress: The progress of replication, for the next engine on this journal.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # its collaborators
        self,
        settings: EngineSettings,
        log: LogWriter,
        routes: Routes,
        durability: Durability,
        clock: Clock,
        outbox: Outbox,
        destinations: Sequence[Destination],
    ) -> None:
        self._settings = settings
        self._log = log
        self._routes = routes
        self._durability = durability
        self._clock = clock
        self._outbox = outbox
        self._destinations = destinations
        self._by_address = {each.address: each for each in destinations}
        self._by_connection: dict[int, Destination] = {}
        self._keeps_confirmed = any(each.settings.mode == "sync" for each in destinations)
        self.progress = self._current_progress()

    @property
    def statuses(self) -> tuple[DestinationStatus, ...]:
        """The state of each destination, in the order of the configuration."""
        end = self._log.position
        return tuple(each.status(end) for each in self._destinations)

    # --- connections ---------------------------------------------------------------------------

    def begin(self, connection: Connection, address: str) -> None:
        """A connection to a destination was made: log on and expect heartbeats."""
        destination = self._by_address[address]
        self._by_connection[connection.id] = destination
        destination.connection = connection
        connection.commands = {"ack": self._on_ack, "heartbeat": self._on_heartbeat}
        connection.beat_interval_s = destination.settings.heartbeat_s
        connection.beat_due = self._clock.now + connection.beat_interval_s
        watch(self._clock, self._outbox, connection)
        uri = destination.settings.parsed
        frame = wire.logon(
            self._settings.name,
            user=uri.user,
            password=uri.password,
            beat_interval_s=connection.beat_interval_s,
        )
        self._outbox.send(connection, frame)

    def leave(self, connection: Connection) -> None:
        """A connection has ended."""
        destination = self._by_connection.pop(connection.id, None)
        if destination is not None and destination.connection is connection:
            if destination.is_ready:
                self._report(destination, "disconnected")
            destination.leave()

    def _on_ack(self, connection: Connection, message: Message) -> None:
        destination = self._by_connection[connection.id]
        try:
            if message.status != "success":
                self._report(destination, f"refused: {message.reason}")
                self._outbox.close(connection, "replication refused")
            elif destination.is_ready:
                destination.acknowledge(message.sequence or 0)
                for missing in wire.decode_missing(message.data):
                    self._report_missing(destination, missing)
            else:
                self._welcome(destination, message)
        except ProtocolError as error:  # a malformed answer, or an ack of what was never sent
            self._report(destination, str(error))
            self._outbox.close(connection, "replication error")

    def _report_missing(self, destination: Destination, missing: wire.Missing) -> None:
        destination.missing += missing.records
        self._outbox.report(
            Severity.ERROR,
            f"replication to {destination.address}: {destination.instance} lacks {missing}"
            " and has gone on without: the two logs differ for good",
        )

    def _welcome(self, destination: Destination, message: Message) -> None:
        destination.welcome(message, self._log.journal, end=self._log.position, now=self._clock.now)
        self._report(
            destination, f"connected to {destination.instance}, {destination.mode_text} replication"
        )
        if destination.lacks_removed(self._log.journal):
            first = self._log.journal.first_position
            what = f"{destination.instance} lacks some of it, and is sent what follows"
            self._report(destination, f"what was before position {first} was removed: {what}")

    def _on_heartbeat(self, connection: Connection, message: Message) -> None:
        """The other side is alive; receiving anything has moved the deadline already."""

    # --- sending -------------------------------------------------------------------------------

    def has_backlog(self, connection: Connection) -> bool:
        """Whether `pump` has something for a connection."""
        destination = self._by_connection.get(connection.id)
        return destination is not None and self._has_more(destination)

    def _has_more(self, destination: Destination) -> bool:
        """Whether the log has something that a destination was not given and can be."""
        return destination.is_ready and (
            destination.has_removals or destination.position < self._log.position
        )

    def pump(self, connection: Connection) -> None:
        """Send the next chunk of the log on a connection."""
        if self.has_backlog(connection):
            destination = self._by_connection[connection.id]
            for frame in destination.pump(self._log.journal, self._routes.by_id):
                self._outbox.send(connection, frame)

    # --- batches -------------------------------------------------------------------------------

    def end_batch(self, block: Block | None) -> list[Connection]:
        """Advance the confirmed position at the end of a batch, and send what has waited for it.

        Args:
            block: What the batch has added to the log.

        Returns:
            The connections of the acks that are sent, once for each ack.
        """
        if not self._destinations:
            return []
        self._advance_confirmed(block)
        self.progress = self._current_progress()
        released: list[Connection] = []
        for connection, frame in self._durability.released():
            self._outbox.send(connection, frame)
            released.append(connection)
        self._watch_age()
        for each in self._destinations:
            if each.connection is not None and self._has_more(each):
                self._outbox.wake(each.connection)
        return released

    def _current_progress(self) -> ReplicationProgress:
        known = [each.progress for each in self._destinations]
        end = self._durability.end_of_durable(self._log.position)
        return ReplicationProgress(
            end - 1 if self._keeps_confirmed else None,
            tuple(each for each in known if each is not None),
        )

    def _advance_confirmed(self, block: Block | None) -> None:
        """Note the batch where destinations have to confirm it, and how much is confirmed now."""
        log, durability, now = self._log, self._durability, self._clock.now
        end = log.position
        for each in self._destinations:
            if log.has_removals:
                each.note_removals(end)
            if block is not None:
                each.written(
                    block.first_position, block.next_position, block.publishers, source=log.source
                )
        waiting = () if block is None or log.source_is_confirmed else block.publishers
        durability.written(
            end if block is None else block.first_position,
            end,
            map(log.publishers.of_id, waiting),
            last=log.last,
            now=now,
        )
        for each in self._destinations:
            if each.consider_upgrade(end=end, now=now):
                self._report(each, "synchronous again")
        synchronous = [each.acked for each in self._destinations if each.is_sync]
        durability.waits = bool(synchronous)
        durability.advance_confirmed(min(synchronous, default=0), end=end, last=log.last)

    def _watch_age(self) -> None:
        """The oldest record that is not confirmed may become too old for a destination."""
        oldest = self._durability.oldest
        for each in self._destinations:
            limit_s = each.settings.downgrade_after_s
            if oldest is None or limit_s is None or not each.is_sync:
                continue
            # Else it waits for another: no tick would change that.
            if each.acked < oldest.after - 1:
                # `expire` looks at ages in each tick; this only makes sure of one.
                self._clock.timers.set(each, oldest.since + limit_s, _nothing)

    # --- modes ---------------------------------------------------------------------------------

    def expire(self) -> None:
        """Downgrade the destinations for which the oldest record has waited too long."""
        oldest = self._durability.oldest
        for each in self._destinations if oldest is not None else ():
            limit_s = each.settings.downgrade_after_s
            if (
                oldest is not None
                and limit_s is not None
                and each.acked < oldest.after - 1
                and self._clock.now >= oldest.since + limit_s
                and each.downgrade(stay=False)
            ):
                self._report(each, f"asynchronous, since a record has waited for {limit_s:g} s")

    def downgrade(self, address: str) -> None:
        """Do not let acks wait for a destination until `upgrade`.

        Raises:
            UsageError: There is no such synchronous destination.
        """
        destination = self._synchronous(address)
        if destination.downgrade(stay=True):
            self._report(destination, "asynchronous, as asked")

    def upgrade(self, address: str) -> None:
        """Let acks wait for a destination again, once it has caught up.

        Raises:
            UsageError: There is no such synchronous destination.
        """
        self._synchronous(address).allow_upgrade()

    def _synchronous(self, address: str) -> Destination:
        found = self._by_address.get(address)
        if found is None or found.settings.mode != "sync":
            known = ", ".join(a for a, d in self._by_address.items() if d.settings.mode == "sync")
            raise UsageError(
                f"{address!r} is no synchronous destination; there is: {known or 'none'}"
            )
        return found

    def _report(self, destination: Destination, what: str) -> None:
        self._outbox.report(Severity.WARNING, f"replication to {destination.address}: {what}")


def _nothing() -> None:
    """A moment at which the engine is to be called."""
