"""The connections to the destinations of replication.

`destination` decides what is sent, `receiver` is the other end, `wire` has the frames, and
`durability` holds back the acks. This module connects them: it finds the destination that an answer
is from, ends connections, and reports to the broker's log. The shell dials, and redials after a
failure.
"""

from __future__ import annotations

from haclient.errors import ProtocolError, UsageError
from haclient.protocol.messages import Message
from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.logon import watch
from haclient_fake_server.engine.replication import wire
from haclient_fake_server.engine.replication.destination import Destination, DestinationStatus
from haclient_fake_server.engine.state import Severity, State


class Replication:
    """The sending side of one instance.

    Args:
        state: The state of the engine.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._by_address = {each.address: each for each in state.destinations}
        self._by_connection: dict[int, Destination] = {}

    @property
    def statuses(self) -> tuple[DestinationStatus, ...]:
        """The state of each destination, in the order of the configuration."""
        end = self._state.batch.position
        return tuple(each.status(end) for each in self._state.destinations)

    # --- connections ---------------------------------------------------------------------------

    def begin(self, connection: Connection, address: str) -> None:
        """A connection to a destination was made: log on and expect heartbeats."""
        state, destination = self._state, self._by_address[address]
        self._by_connection[connection.id] = destination
        destination.connection = connection
        connection.commands = {"ack": self._on_ack, "heartbeat": self._on_heartbeat}
        connection.beat_interval_s = destination.settings.heartbeat_s
        connection.beat_due = state.now + connection.beat_interval_s
        watch(state, connection)
        uri = destination.settings.parsed
        frame = wire.logon(
            state.settings.name,
            user=uri.user,
            password=uri.password,
            beat_interval_s=connection.beat_interval_s,
        )
        state.send(connection, frame)

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
                self._state.close(connection, "replication refused")
            elif destination.is_ready:
                destination.acknowledge(message.sequence or 0)
                for missing in wire.decode_missing(message.data):
                    self._report_missing(destination, missing)
            else:
                self._welcome(destination, message)
        except ProtocolError as error:  # a malformed answer, or an ack of what was never sent
            self._report(destination, str(error))
            self._state.close(connection, "replication error")

    def _report_missing(self, destination: Destination, missing: wire.Missing) -> None:
        destination.missing += missing.records
        self._state.report(
            Severity.ERROR,
            f"replication to {destination.address}: {destination.instance} lacks {missing}"
            " and has gone on without: the two logs differ for good",
        )

    def _welcome(self, destination: Destination, message: Message) -> None:
        state = self._state
        destination.welcome(message, state.journal, end=state.batch.position, now=state.now)
        self._report(
            destination, f"connected to {destination.instance}, {destination.mode_text} replication"
        )
        if destination.lacks_removed(state.journal):
            first = state.journal.first_position
            what = f"{destination.instance} lacks some of it, and is sent what follows"
            self._report(destination, f"what was before position {first} was removed: {what}")

    def _on_heartbeat(self, connection: Connection, message: Message) -> None:
        """The other side is alive; receiving anything has moved the deadline already."""

    # --- sending -------------------------------------------------------------------------------

    def has_backlog(self, connection: Connection) -> bool:
        """Whether `pump` has something for a connection."""
        destination = self._by_connection.get(connection.id)
        return (
            destination is not None and destination.is_ready and self._state.has_more(destination)
        )

    def pump(self, connection: Connection) -> None:
        """Send the next chunk of the log on a connection."""
        state = self._state
        if self.has_backlog(connection):
            destination = self._by_connection[connection.id]
            for frame in destination.pump(state.journal, state.topics):
                state.send(connection, frame)

    # --- modes ---------------------------------------------------------------------------------

    def expire(self) -> None:
        """Downgrade the destinations for which the oldest record has waited too long."""
        state, oldest = self._state, self._state.durability.oldest
        for each in state.destinations if oldest is not None else ():
            limit_s = each.settings.downgrade_after_s
            if (
                oldest is not None
                and limit_s is not None
                and each.acked < oldest.after - 1
                and state.now >= oldest.since + limit_s
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
        self._state.report(Severity.WARNING, f"replication to {destination.address}: {what}")
