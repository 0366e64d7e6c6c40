"""Publishes that no server takes: they end the client, or are moved to files beside the store."""

from __future__ import annotations

import trio

from haclient import events
from haclient.errors import DisconnectedError, HAClientError, PublishFailed
from haclient.protocol.codec import MessageDecoder
from haclient.protocol.framing import FrameReader
from haclient.protocol.messages import Message
from haclient.session.diagnosis import MAX_LOSSES, QUIET_S, RejectedFrames
from haclient.session.recovery import Recovery
from haclient.session.session import Received
from haclient.transport.core import Core
from haclient_stores.publish_stores.publish_log import PublishLog


class RejectedPublishes:
    """What becomes of a publish with which one connection after the other is closed.

    Args:
        core: The client.
        parks: Whether it is moved to a file; else it ends the client.
    """

    def __init__(self, core: Core, *, parks: bool) -> None:
        self._core = core
        self._parks = parks
        self._frames = RejectedFrames()
        self._began_at = 0.0  # to send publishes on this connection, in seconds

    @property
    def has_rejected(self) -> bool:
        """Whether the last loss was the fault of a publish."""
        return self._frames.is_rejected

    async def wait_if_suspected(self) -> None:
        """Before publishes are sent: send none for a while, to see whether the server minds."""
        core = self._core
        if self._frames.suspects(self._first_in_flight()[0]):
            with trio.move_on_after(QUIET_S):
                await core.wait_lost()
        self._began_at = trio.current_time()

    def note_loss(self, state: Recovery, error: HAClientError) -> PublishFailed | None:
        """Note the end of a connection.

        Args:
            state: In which state it has ended.
            error: Why.

        Returns:
            The error that ends the client, if a publish is to blame and stays in the store.

        Raises:
            StoreError: The file for it cannot be written.
        """
        is_sending = state in {Recovery.RESUBSCRIBING, Recovery.LIVE}
        if not is_sending or type(error) is not DisconnectedError:  # a subclass has another reason
            return None
        sequence, frame = self._first_in_flight()
        self._frames.note_loss(sequence, len(frame), after_s=trio.current_time() - self._began_at)
        if not self._frames.is_rejected:
            return None
        (message,) = MessageDecoder(expand_sow=False).decode(*FrameReader().feed(frame))
        reason = (
            f"{MAX_LOSSES} connections in a row were closed when it was sent (topic "
            f"{message.topic!r}, {len(frame)} bytes): it is probably above the limit of the server"
        )
        if not self._parks:
            return self._refuse(message, reason)
        self._park(sequence, reason)
        return None

    def _first_in_flight(self) -> tuple[int, bytes]:
        """Sequence and frame of the first publish that the server may not have read.

        A server holds its acks back for its replicas, but has named at the logon what it has seen.
        """
        publishes = self._core.publisher.publishes
        log = publishes.log
        after = max(log.last_persisted, publishes.seen or 0, publishes.sent_after)
        return next(iter(log.replay(after)), (0, b""))

    def _park(self, sequence: int, reason: str) -> None:
        """Move it to a file, as if a server had refused it."""
        store = self._core.settings.publish_store
        assert isinstance(store, PublishLog)  # noqa: S101  # the settings say so
        reason = f"{reason}; moved to {store.park_publish(sequence)}"
        self._core.publisher.publishes.parked.add(sequence)
        received = Received()
        received.failed.append(Message(kind="ack", sequence=sequence, reason=reason))
        self._core.received(received)

    def _refuse(self, message: Message, reason: str) -> PublishFailed:
        message.reason = reason
        error = PublishFailed(
            f"publish {message.sequence} is not accepted: {reason}; it stays in the store: raise "
            "the limit of the server, or give on_rejected_frame='park'",
            reason=reason,
            sequence=message.sequence or 0,
        )
        reporter, on_failed_write = self._core.reporter, self._core.settings.on_failed_write
        reporter.emit(events.PublishRefused, error=error, message=message)
        if on_failed_write is not None:
            reporter.calls.put(on_failed_write, message, reason, messages=[message])
        return error
