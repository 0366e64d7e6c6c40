"""The logon of a connection: what the client sends until the server knows who it is.

The server accepts the logon, refuses it, or asks for other credentials (`retry`), which the
authenticator then provides. `haclient.session.logon` makes the frames and reads the answers.
"""

from __future__ import annotations

import trio

from haclient.errors import AuthenticationError, CommandError, DisconnectedError, TimedOut
from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message
from haclient.protocol.uri import Uri
from haclient.servers.auth import Authenticator
from haclient.session.acks import PendingCommand
from haclient.session.logon import MAX_ROUNDS, LoggedOn, logon_fields, read_logon_ack, refusal
from haclient.transport.commands import Commands, Fields
from haclient.transport.connection import Connection


async def log_on(  # noqa: PLR0913  # who, where, how: each a part of one frame
    connection: Connection,
    commands: Commands,
    *,
    client_name: str,
    uri: Uri,
    authenticator: Authenticator,
    options: str,
    correlation_id: str,
    timeout: float,
) -> LoggedOn:
    """Log on, answering up to three requests for other credentials.

    Raises:
        AuthenticationError: The server refused user or password, or asked for others too often.
        NameInUse: The client name belongs to a connection of another user.
        DisconnectedError: Any other refusal, or the connection was lost.
        TimedOut: The server did not answer in time.
    """
    user, given = uri.user, uri.password
    password = await authenticator.authenticate(user, given)
    for _ in range(MAX_ROUNDS):
        fields = logon_fields(
            commands.session.next_command_id(),
            client_name,
            message_type=uri.message_type,
            user=user,
            password=password,
            options=",".join(filter(None, (options, "pretty" if uri.pretty else ""))),
            correlation_id=correlation_id,
        )
        ack = await _exchange(connection, commands, fields, timeout=timeout)
        if ack.status != "retry":
            server = read_logon_ack(ack)
            authenticator.completed(user, password, server.reason)
            return server
        user = ack.user_id or user
        given = ack.password or given  # without `pw` the authenticator gets what it had before
        password = await authenticator.retry(user, given)
    raise AuthenticationError(f"the server asked for other credentials {MAX_ROUNDS} times")


async def _exchange(
    connection: Connection, commands: Commands, fields: Fields, *, timeout: float
) -> Message:
    if commands.connection is not connection:  # lost while the authenticator took its time
        raise DisconnectedError("logon: the connection was lost before it was sent")
    event = trio.Event()
    frame = encode_frame(fields)
    pending = PendingCommand(str(fields["cid"]), "logon", awaited="processed", wake=event.set)
    try:
        commands.session.pending.add(pending)
        connection.writer.send_urgent(frame)
        connection.writer.flush()
        return await commands.confirm(pending, event, timeout=timeout)
    except TimedOut as error:
        raise TimedOut(f"{error}{connection.hint_if_silent}") from None
    except CommandError as error:  # the server's refusal
        raise refusal(error.reason, error.detail) from error
