"""The orderly end of all clients of a process: their consumers finish, then they flush.

First the consumers get no further messages (`ActiveConsumers`). What was not delivered yet is
dropped where the server redelivers it (bookmark subscriptions and queues) and still delivered where
it does not (plain subscriptions).
A handler finishes the message that it works on. A stream ends when its consumer asks for the next
message, which shows that it has finished the last one. Queries are part of that work, and go on.

After that the clients of a process have nothing to do but to send what is left: publishes and
acknowledgements.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

import trio

from haclient.errors import HAClientError, failure_text
from haclient.transport.core import Core
from haclient_stores.logs import logger_of

_logger = logger_of(__name__)


async def _flush_one(client: Core, late: list[Core]) -> None:
    try:
        if await client.drain():
            return
    except HAClientError as error:  # it has come to its end already, and raises this from its block
        _logger.warning("client %s: not everything was flushed: %s", client.name, error)
    late.append(client)


class OpenClients:
    """The clients that are open in one `haclient.run`, in the order in which they were entered.

    Attributes:
        run: The trio run that they belong to; `None` for any.
    """

    def __init__(self) -> None:
        self._clients: list[Core] = []
        self._late: list[Core] = []  # those that have not flushed everything in their time
        self._is_stopping = False
        self._publishes_fail = trio.Event()
        self.run: trio.lowlevel.TrioToken | None = None

    def entered(self, client: Core) -> None:
        """A client was entered; during an orderly end it gets no messages."""
        if self.run not in {None, trio.lowlevel.current_trio_token()}:
            return  # a thread that was started with a copy of the context runs trio itself
        self._clients.append(client)
        if self._is_stopping:
            client.consumers.stop()

    def left(self, client: Core) -> None:
        """A client has closed everything."""
        if client in self._clients:
            self._clients.remove(client)

    async def drain(self) -> None:
        """Stop all consumers, let them finish, and send what is left.

        All consumers of all clients rest before any client flushes: a handler of one may publish
        with another.
        """
        await self.finish_consumers()
        await self.pass_on_points()
        await self.flush()

    async def finish_consumers(self) -> None:
        """Stop all consumers, and wait until they have finished what they were given."""
        self._is_stopping = True
        for client in self._clients:
            client.consumers.stop()
        for client in list(self._clients):
            await client.consumers.wait_idle()

    async def pass_on_points(self) -> None:
        """Send what is left, and have adapters write the last recovery points.

        Another client may publish them, which ends with `main`.
        """
        await self._flush()
        for client in self._clients:
            client.pass_on_points()

    async def flush(self) -> None:
        """Send what was published since `pass_on_points`; later publishes wait."""
        for client in self._clients:
            client.publisher.block_publishes(self._publishes_fail)
        await self._flush()

    async def _flush(self) -> None:
        """Flush all clients but those whose time is up."""
        async with trio.open_nursery() as nursery:
            for client in self._clients:
                if client not in self._late:
                    nursery.start_soon(_flush_one, client, self._late)

    def fail_held(self) -> None:
        """Fail the publishes that wait since `flush`, where nothing cancels them."""
        self._publishes_fail.set()

    def unfinished(self) -> str:
        """What is left of the work of all clients, in one line; empty when nothing is."""
        told: list[str] = []
        for client in list(self._clients):
            busy = client.consumers.busy_ids
            what = [f"at work: {', '.join(sorted(busy))}"] if busy else []
            try:
                what += client.unfinished()
            except Exception as error:  # of a store of the application, which may want its thread
                what.append(f"unknown publishes, since the store raised {failure_text(error)}")
            if what:
                told.append(f"client {client.name!r}: {', '.join(what)}")
        return "; ".join(told)


open_clients: Final[ContextVar[OpenClients | None]] = ContextVar("open_clients", default=None)
"""The clients of the surrounding `haclient.run`; `None` outside of one."""
