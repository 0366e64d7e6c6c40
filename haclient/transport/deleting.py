"""A SOW delete that is kept like a publish (PS3).

It stands in the publish store between the publishes around it, and is sent again in its place after
a lost connection, so it takes away neither less nor more than it would have at first. Whoever waits
for its answer goes on waiting where another connection will come.
"""

from __future__ import annotations

import trio

from haclient.errors import DisconnectedError, StoreFull, TimedOut, UsageError
from haclient.protocol.codec import encode_header
from haclient.protocol.messages import Message
from haclient.session.acks import PendingCommand
from haclient.transport.commander import Commander, Fields
from haclient.transport.publisher import Publisher

__all__ = ["delete_stored"]

_WHAT = "sow_delete"


async def delete_stored(
    commander: Commander,
    publisher: Publisher,
    fields: Fields,
    body: bytes,
    *,
    timeout: float,
) -> Message:
    """Store the command, wait for its `stats`; like a publish it waits for room before.

    Returns:
        The `stats` ack. Its counts are missing when a server had carried the command out and the
        connection was lost before it said how many records that were.

    Raises:
        CommandError: The server refused it.
        DisconnectedError: There is no connection and none will come; else see `TimedOut`.
        UsageError: The command has a sequence of its own.
        TimedOut: No answer came in time; what was stored by then is still sent.
    """
    if "s" in fields:
        raise UsageError(
            f"the publish store numbers a sow_delete like a publish, found the sequence "
            f"{fields['s']}: leave it out"
        )
    if not publisher.lasting:
        commander.connected()
    with trio.move_on_after(timeout):
        await publisher.make_room()
        while True:
            try:
                return await _store_and_wait(commander, publisher, fields, body)
            except StoreFull as full:
                await publisher.room_after(full, _WHAT)
    raise TimedOut(f"{_WHAT}: the server did not answer within {timeout:g} s")


async def _store_and_wait(
    commander: Commander, publisher: Publisher, fields: Fields, body: bytes
) -> Message:
    log = publisher.log
    assert log is not None  # noqa: S101  # who has no store sends it as an ordinary command
    # A stored command may be sent again by a later process: no later id may equal its own.
    command_id = f"{_WHAT}-{log.last_sequence + 1}"
    header = {**fields, "cid": command_id, "a": "processed,stats,persisted"}
    head = encode_header(header)[:-1] + b',"s":'
    table = commander.session.pending
    pending, answered = _pending(command_id)
    table.add(pending)
    try:
        sequence = publisher.append(head, body)
        await publisher.settle()
        publisher.hurry(_WHAT)
        await answered.wait()
        while pending.ack is None:
            lost = pending.error or DisconnectedError("the wait was ended")
            if not isinstance(lost, DisconnectedError):
                raise lost
            if log.last_persisted >= sequence:
                return Message(kind="ack", ack_type="stats", status="success", sequence=sequence)
            publisher.check_lasting(_WHAT, lost)
            # The next connection repeats it, unless that server has it already. A server answers
            # before it says "persisted": after that no answer comes.
            pending, answered = _pending(command_id)
            table.add(pending)
            await publisher.persisted.reached(sequence, answered)
    finally:
        table.forget(command_id)
    return pending.ack


def _pending(command_id: str) -> tuple[PendingCommand, trio.Event]:
    event = trio.Event()
    waiter = trio.lowlevel.current_task()
    pending = PendingCommand(command_id, _WHAT, awaited="stats", wake=event.set, waiter=waiter)
    return pending, event
