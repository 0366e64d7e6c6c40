"""A publisher and a bookmark subscriber of one topic, and the proof that nothing was lost.

::

    async with Journey(cluster.uris) as journey:
        await journey.publish(100)
        ...                           # something goes wrong
        await journey.arrive()        # everything was persisted, delivered once, in order
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import trio

from haclient.client import HAClient
from haclient.protocol.messages import Message
from haclient.servers.delay import FixedDelayStrategy
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.process import LIMIT_S

__all__ = ["Journey"]


class Journey:
    """Two clients that stay connected, from the first message to the last.

    Args:
        uris: The servers, best first.
        heartbeat: Of both clients; a half-open connection is found after twice that.
    """

    def __init__(self, uris: Sequence[str], *, heartbeat: float = 0.2) -> None:
        self.publisher = HAClient(
            "publisher",
            servers=uris,
            publish_store=MemoryPublishStore(),
            delay_strategy=FixedDelayStrategy(0.02),
            heartbeat=heartbeat,
            connect_timeout=2 * heartbeat,
            logon_options="ack_conflation=1ms",
        )
        self.subscriber = HAClient(
            "subscriber",
            servers=uris,
            bookmark_store=MemoryBookmarkStore(),
            delay_strategy=FixedDelayStrategy(0.02),
            heartbeat=heartbeat,
            connect_timeout=2 * heartbeat,
        )
        self.published: list[int] = []
        self.finished: list[int] = []
        self._news = trio.Event()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.enter_context(trio.fail_after(LIMIT_S))
            await stack.enter_async_context(self.publisher)
            await stack.enter_async_context(self.subscriber)
            await self.subscriber.bookmark_subscribe(
                "orders", sub_id="s", handler=self._finish, timeout=LIMIT_S
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    def _finish(self, message: Message) -> None:
        message.discard()
        self.finished.append(int(message.data))
        self._news.set()
        self._news = trio.Event()

    async def publish(self, count: int, *, padding: int = 0) -> None:
        """Publish the next so many numbers."""
        for _ in range(count):
            number = len(self.published)
            await self.publisher.publish("orders", b"%0*d" % (padding, number))
            self.published.append(number)

    async def delivered(self, count: int) -> None:
        """Wait until so many messages were delivered."""
        while len(self.finished) < count:
            await self._news.wait()

    async def arrive(self) -> None:
        """Wait until all is persisted and delivered; each once and in order."""
        await self.publisher.publish_flush(timeout=LIMIT_S)
        await self.delivered(len(self.published))
        assert self.finished == self.published
