"""What one client has done so far, in numbers that only rise.

They are plain attributes, raised where the work is done: once for each chunk that is read or
written and once for each event, never once for each message. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """The counters of one client, over all its connections.

    Attributes:
        connections: Connections that were made.
        logons: Logons that a server accepted.
        disconnections: Connections that ended.
        failed_attempts: Attempts of an `HAClient` that led to no connection, or to a server that it
            could not use.
        bytes_received: Bytes that were read.
        bytes_sent: Bytes that were written.
        frames_received: Frames that were read: messages, acks and heartbeats.
        messages_delivered: Messages that were put into the queue of a subscription.
        duplicates: Messages that a bookmark store filtered out.
        failed_writes: Publishes that the server refused.
    """

    connections: int = 0
    logons: int = 0
    disconnections: int = 0
    failed_attempts: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    frames_received: int = 0
    messages_delivered: int = 0
    duplicates: int = 0
    failed_writes: int = 0
