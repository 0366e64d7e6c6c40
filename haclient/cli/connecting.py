"""The one place where the command line builds a client.

Every command says what it needs (`Connection`) and gets a logged-on client. The servers are tried
in the order given; one that cannot be reached passes the turn on, one that answers "no" (wrong
password, name in use) ends the search, since the next one would say the same.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from haclient.client import Client
from haclient.errors import (
    AuthenticationError,
    DisconnectedError,
    HAClientError,
    NameInUse,
    ReconnectGaveUp,
    TimedOut,
    UsageError,
)
from haclient.protocol.messages import Message
from haclient.protocol.uri import Uri
from haclient.stores import BookmarkStore, PublishStore

__all__ = ["CONNECT_TIMEOUT_S", "Connection", "open_client"]

CONNECT_TIMEOUT_S = 10.0
"""How long one server may take to answer, when the command line does not say."""

HEARTBEAT_S = 10.0
"""Seconds between beats: a server that vanished without a word is noticed after two of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """What a command needs to be connected.

    Attributes:
        servers: URIs, tried in this order.
        name: The client name.
        timeout_s: For each server: connecting and logging on.
        publish_store: Owned by the client from now on, which closes it.
        bookmark_store: Likewise.
        on_failed_write: Called with each publish that the server refused, and its reason.
    """

    servers: tuple[str, ...]
    name: str
    timeout_s: float = CONNECT_TIMEOUT_S
    publish_store: PublishStore | None = None
    bookmark_store: BookmarkStore | None = None
    on_failed_write: Callable[[Message, str], object] | None = None


async def _log_on_to_first(client: Client, connection: Connection) -> None:
    failures: list[HAClientError] = []
    for server in connection.servers:
        try:
            await client.connect(server, timeout=connection.timeout_s)
            await client.logon(timeout=connection.timeout_s)
        except (AuthenticationError, NameInUse):
            raise
        except (DisconnectedError, TimedOut) as error:
            failures.append(error)
            await client.disconnect()
        else:
            return
    raise _all_failed(connection.servers, failures)


def _all_failed(servers: tuple[str, ...], failures: list[HAClientError]) -> HAClientError:
    """One server's own error as it is; of several, a line that names each."""
    match failures:
        case []:
            return UsageError("no server is named: give --server or set AMPS_URI")
        case [only]:
            return only
        case _:
            told = "; ".join(
                f"{Uri.parse(server).safe}: {failure}"
                for server, failure in zip(servers, failures, strict=True)
            )
            return ReconnectGaveUp(len(failures), told)


@asynccontextmanager
async def open_client(connection: Connection) -> AsyncGenerator[Client]:
    """A connected, logged-on client of the first server that answers.

    Raises:
        AuthenticationError: A server refused user or password.
        NameInUse: The client name belongs to another user's connection.
        DisconnectedError: No server could be reached.
        TimedOut: The only server did not answer in time.
    """
    client = Client(
        connection.name,
        publish_store=connection.publish_store,
        bookmark_store=connection.bookmark_store,
        on_failed_write=connection.on_failed_write,
        heartbeat=HEARTBEAT_S,
    )
    async with client:
        await _log_on_to_first(client, connection)
        yield client
