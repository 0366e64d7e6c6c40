"""A `sow_delete` that goes through the publish store and is sent again like a publish."""

from __future__ import annotations

import trio

from haclient.errors import CommandError, DisconnectedError, StoreFull, UsageError
from haclient.protocol.codec import encode_header
from haclient.protocol.messages import Message
from haclient.session.acks import PendingCommand, explained
from haclient.transport.commands import Commander, Fields
from haclient.transport.publisher import Publisher

_WHAT = "sow_delete"


async def delete_stored(
    commander: Commander,
    publisher: Publisher,
    fields: Fields,
    body: bytes,
    *,
    timeout: float,
) -> Message:
    """Wait for room in the store like a publish, store the command, and wait for its `stats` ack.

    Returns:
        The `stats` ack. Its counts are missing if a server had executed the command and the
        connection was lost before it reported the number of records.

    Raises:
        CommandError: The server refused it.
        DisconnectedError: There is no connection, and the client will not reconnect; otherwise see
            `TimedOut`.
        UsageError: The command has a sequence of its own.
        TimedOut: No answer arrived in time; if the command is stored by then, it is still sent.
    """
    if "s" in fields:
        raise UsageError(
            f"the publish store numbers a sow_delete like a publish, found the sequence "
            f"{fields['s']}: leave it out"
        )
    if not commander.status.expects_connection:
        commander.connected()
    with trio.move_on_after(timeout):
        await publisher.make_room()
        while True:
            try:
                return await _store_and_wait(commander, publisher, fields, body)
            except StoreFull as full:  # nothing was stored
                await publisher.room_after(full, _WHAT)
    raise commander.status.timed_out(f"{_WHAT}: the server did not answer within {timeout:g} s")


async def _store_and_wait(
    commander: Commander, publisher: Publisher, fields: Fields, body: bytes
) -> Message:
    log = publisher.log
    assert log is not None  # noqa: S101  # without a store it is an ordinary command
    # A stored command may be sent again by a later process: no later id may equal its own.
    command_id = f"{_WHAT}-{log.last_sequence + 1}"
    header = {**fields, "cid": command_id, "a": "processed,stats,persisted"}
    head = encode_header(header)[:-1] + b',"s":'
    table = commander.session.pending
    pending, answered = _pending(command_id)
    table.add(pending)
    try:
        sequence = publisher.append(head, body)
        await publisher.wait_synced()
        publisher.flush()
        await commander.waits.until(answered, _WHAT)
        while pending.ack is None:
            lost = pending.error or DisconnectedError("the wait was ended")
            if isinstance(lost, CommandError):
                raise explained(lost, fields)
            if not isinstance(lost, DisconnectedError):
                raise lost
            if log.last_persisted >= sequence:
                return Message(kind="ack", ack_type="stats", status="success", sequence=sequence)
            commander.status.check_expects_connection(_WHAT, lost)
            # The next connection repeats it, unless that server has it already. A server answers
            # before it sends "persisted": after that ack no answer follows.
            publisher.flush()
            table.forget(command_id)  # still pending if the watermark has released the wait
            pending, answered = _pending(command_id)
            table.add(pending)
            await publisher.persisted.reached(sequence, _WHAT, answered)
    finally:
        table.forget(command_id)
    return pending.ack


def _pending(command_id: str) -> tuple[PendingCommand, trio.Event]:
    event = trio.Event()
    return PendingCommand(command_id, _WHAT, awaited="stats", wake=event.set), event
