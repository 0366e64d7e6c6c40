"""The one place where the command line builds a client.

Every command says what it needs (`Connection`) and gets a logged-on client. The servers are tried
in the order given; one that cannot be reached passes the turn on, one that answers "no" (wrong
password, name in use) ends the search, since the next one would say the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
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
from haclient.protocol.uri import Uri
from haclient.stores import BookmarkStore, PublishStore

__all__ = ["CONNECT_TIMEOUT_S", "Connection", "open_client"]

CONNECT_TIMEOUT_S = 10.0
"""How long one server may take to answer, when the command line does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """What a command needs to be connected.

    Attributes:
        servers: URIs, tried in this order.
        name: The client name.
        timeout_s: For each server: connecting and logging on.
    """

    servers: tuple[str, ...]
    name: str
    timeout_s: float = CONNECT_TIMEOUT_S
    publish_store: PublishStore | None = None
    bookmark_store: BookmarkStore | None = None
    on_failed_write: Callable[..., None] | None = None


async def _logged_on(stack: AsyncExitStack, connection: Connection, server: str) -> Client:
    client = await stack.enter_async_context(
        Client(
            connection.name,
            publish_store=connection.publish_store,
            bookmark_store=connection.bookmark_store,
            on_failed_write=connection.on_failed_write,
        )
    )
    await client.connect(server, timeout=connection.timeout_s)
    await client.logon(timeout=connection.timeout_s)
    return client


async def _first_that_answers(stack: AsyncExitStack, connection: Connection) -> Client:
    failures: list[HAClientError] = []
    for server in connection.servers:
        attempt = AsyncExitStack()
        try:
            async with attempt:
                client = await _logged_on(attempt, connection, server)
                await stack.enter_async_context(attempt.pop_all())
                return client
        except (AuthenticationError, NameInUse):
            raise
        except (DisconnectedError, TimedOut) as error:
            failures.append(error)
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
async def open_client(connection: Connection) -> AsyncIterator[Client]:
    """A connected, logged-on client of the first server that answers.

    Raises:
        AuthenticationError: A server refused user or password.
        NameInUse: The client name belongs to another user's connection.
        DisconnectedError: No server could be reached.
        TimedOut: The only server did not answer in time.
    """
    async with AsyncExitStack() as stack:
        yield await _first_that_answers(stack, connection)
