"""A client that stays connected, and the servers that a test lets it meet."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager

import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.auth import Authenticator
from haclient.chooser import DefaultServerChooser
from haclient.delay import FixedDelayStrategy
from haclient.ha import HAClient
from haclient.transport.exceptions import open_nursery
from support.peer import Peer, Server

__all__ = ["RecordedDelay", "Recorder", "entered", "live", "lose", "running_tasks"]


class Recorder(DefaultServerChooser):
    """A chooser that writes down what it is asked and told."""

    def __init__(self, uris: Mapping[str, str], seen: list[str]) -> None:
        super().__init__(uris.values())
        self._names = {uri: name for name, uri in uris.items()}
        self._seen = seen

    def name(self) -> str:
        return self._names[super().current_uri()]

    @override
    def current_uri(self) -> str:
        self._seen.append(f"uri {self.name()}")
        return super().current_uri()

    @override
    def current_authenticator(self) -> Authenticator:
        self._seen.append(f"authenticator {self.name()}")
        return super().current_authenticator()

    @override
    def report_success(self, info: Mapping[str, str]) -> None:
        assert "secret" not in str(info)
        self._seen.append(f"success {self.name()}")
        super().report_success(info)

    @override
    def report_failure(self, error: Exception, info: Mapping[str, str]) -> None:
        self._seen.append(f"failure {self.name()}: {type(error).__name__}")
        super().report_failure(error, info)


class RecordedDelay(FixedDelayStrategy):
    def __init__(self, seen: list[str]) -> None:
        super().__init__(0.5)
        self._seen = seen

    @override
    def delay_for(self, uri: str, now: float) -> float:
        delay = super().delay_for(uri, now)
        self._seen.append(f"delay {delay}")
        return delay


async def lose(peer: Peer) -> None:
    peer.link.close()
    await wait_all_tasks_blocked()


async def live(server: Server, *, seen: int = 0, persisted: int | None = None) -> Peer:
    """Accept a client and its logon."""
    peer = await server.accept()
    await peer.log_on(seen=seen, persisted=persisted)
    return peer


@asynccontextmanager
async def entered(client: HAClient, serve: Callable[[], Awaitable[Peer]]) -> AsyncGenerator[Peer]:
    """Enter a client while a server accepts it; the peer that it is live with."""
    peers: list[Peer] = []

    async def accept() -> None:
        peers.append(await serve())

    async with open_nursery() as nursery:
        nursery.start_soon(accept)
        async with client:
            await wait_all_tasks_blocked()
            yield peers[0]


def running_tasks() -> list[str]:
    """The names of all tasks of this run that the test can see, sorted."""

    def below(task: trio.lowlevel.Task) -> Iterator[str]:
        yield task.name
        for nursery in task.child_nurseries:
            for child in nursery.child_tasks:
                yield from below(child)

    root = trio.lowlevel.current_root_task()
    assert root is not None
    return sorted(below(root))
