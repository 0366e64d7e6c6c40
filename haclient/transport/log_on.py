"""The logon exchange on a connection (protocol 5.3)."""

from __future__ import annotations

import trio

from haclient.auth import Authenticator
from haclient.errors import AuthenticationError, CommandError, DisconnectedError, UsageError
from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message
from haclient.protocol.uri import Uri
from haclient.session.acks import PendingCommand
from haclient.session.logon import MAX_ROUNDS, LoggedOn, logon_fields, read_logon_ack, refusal
from haclient.transport.commander import Commander
from haclient.transport.connection import Connection

__all__ = ["log_on"]


async def log_on(  # noqa: PLR0913  # who, where, how: each a part of one frame
    connection: Connection,
    commander: Commander,
    *,
    client_name: str,
    uri: Uri,
    authenticator: Authenticator,
    options: str,
    correlation_id: str,
    timeout: float | None,
) -> LoggedOn:
    """Log on, answering up to three requests for other credentials (AT9).

    Raises:
        AuthenticationError: The server refused user or password, or asked for others too often.
        NameInUse: The client name belongs to a connection of another user.
        DisconnectedError: Any other refusal, or the connection was lost.
        TimedOut: The server did not answer in time.
    """
    user, given = uri.user, uri.password
    password = await authenticator.authenticate(user, given)
    for _ in range(MAX_ROUNDS):
        command_id = commander.session.next_command_id()
        fields = logon_fields(
            command_id,
            client_name,
            message_type=uri.message_type,
            user=user,
            password=password,
            options=_join(options, "pretty" if uri.pretty else ""),
            correlation_id=correlation_id,
        )
        ack = await _exchange(connection, commander, fields, timeout=timeout)
        if ack.status != "retry":
            server = read_logon_ack(ack)
            authenticator.completed(user, password, server.reason)
            return server
        user = ack.user_id or user
        given = ack.password or given  # without `pw` the authenticator gets what it had before
        password = await authenticator.retry(user, given)
    raise AuthenticationError(f"the server asked for other credentials {MAX_ROUNDS} times")


async def _exchange(
    connection: Connection,
    commander: Commander,
    fields: dict[str, str | int],
    *,
    timeout: float | None,
) -> Message:
    if commander.connection is not connection:  # lost while the authenticator took its time
        raise DisconnectedError("logon: the connection was lost before it was sent")
    event = trio.Event()
    frame = encode_frame(fields)
    pending = PendingCommand(str(fields["cid"]), "logon", awaited="processed", wake=event.set)
    try:
        return await commander.confirm(
            lambda: connection.writer.send_urgent(frame), pending, event, timeout=timeout
        )
    except CommandError as error:
        raise refusal(error.reason) from error


def _join(*options: str) -> str:
    return ",".join(filter(None, options))


def check_client_name(name: str) -> str:
    """Names are the identity of a publisher: an empty one, or one that logs mangle, is refused.

    Raises:
        UsageError: It is empty, or has control characters, newlines or square brackets.
    """
    if not name:
        raise UsageError("a client needs a name that is the same in every run, not an empty one")
    if any(ch < " " or ch in "[]\x7f" for ch in name):
        raise UsageError(
            f"the client name {name!r} has control characters or square brackets: "
            "choose printable characters"
        )
    return name
