"""The receivers of the acks of stored publishes, which outlive the connection as the publishes do.

`execute_async` gives the acks of a publish to a handler. A publish in the store is sent again on
the next connection, under the same command id, so its receiver is registered again. A server that
already has the publish sends no ack for it: the receiver then gets the missing acks from here.
"""

from __future__ import annotations

from haclient.errors import HAClientError
from haclient.protocol.messages import Message
from haclient.session.subscriptions import Marker, Router, Subscription
from haclient.transport.message_queue import Delivery


class PublishReceivers:
    """The receivers of one client whose publishes are stored, or wait for room in the store.

    Args:
        router: Where they are registered while there is a connection.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._sequences: dict[Subscription, int] = {}  # 0 for one that is not stored yet

    def add(self, receiver: Subscription) -> None:
        """Add a receiver whose publish is about to be stored."""
        self._sequences[receiver] = 0

    def stored(self, receiver: Subscription, sequence: int) -> None:
        """Note that the publish of a receiver is stored, under this sequence."""
        if receiver in self._sequences:
            self._sequences[receiver] = sequence

    def remove(self, receiver: Subscription) -> None:
        """Remove a receiver that has ended, or whose publish was not stored."""
        self._sequences.pop(receiver, None)
        self._router.remove(receiver)

    def __contains__(self, receiver: Subscription) -> bool:
        return receiver in self._sequences

    def resume(self, last_persisted: int) -> None:
        """Register the receivers on a new connection; end those whose publishes are persisted.

        Args:
            last_persisted: The last sequence that the server has; later publishes are sent again.
        """
        for receiver, sequence in self._sequences.items():
            if 0 < sequence <= last_persisted:
                self._router.remove(receiver)
                _report_done(receiver, sequence)
            elif self._router.get(receiver.sub_id) is None:
                self._router.add(receiver)

    def end(self, reason: HAClientError) -> None:
        """End every receiver with this error: no connection will follow."""
        for receiver in self._sequences:
            if isinstance(receiver.sink, Delivery):
                receiver.sink.end(reason)


def _report_done(receiver: Subscription, sequence: int) -> None:
    """Deliver the acks that are still awaited, as the server would have sent them."""
    acks = [
        Message(
            kind="ack",
            ack_type=kind,
            status="success",
            command_id=receiver.command_id,
            sub_id=receiver.sub_id,
            sequence=sequence,
        )
        for kind in sorted(receiver.ends_after, reverse=True)  # processed before completed
    ]
    receiver.ends_after.clear()
    if acks:
        receiver.sink.put(acks, 0)
        receiver.sink.mark(Marker.ENDED)
