"""A client that stays connected, and the servers that a test lets it meet."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager

import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import Unpack, override

from haclient.client import HAClient
from haclient.errors import HAClientError
from haclient.options import HAOptions
from haclient.protocol.messages import Message
from haclient.servers.auth import Authenticator
from haclient.servers.chooser import DefaultServerChooser
from haclient.servers.delay import FixedDelayStrategy
from haclient.session.recovery import STABLE_AFTER_S, Recovery
from haclient.transport.tasks import open_nursery
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import BookmarkStore, PublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.listening import on_losses
from support.peer import Peer, Server, answering

__all__ = [
    "CONNECT_TIMEOUT_S",
    "HEARTBEAT_S",
    "RecordedDelay",
    "Recorder",
    "World",
    "drop",
    "entered",
    "live",
    "lose",
    "not_answering",
    "quiet_client",
    "running_tasks",
    "until_stable",
]

CONNECT_TIMEOUT_S = 3.0
HEARTBEAT_S = 2.0


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
    def __init__(self, seen: list[str], delay_s: float = 0.5) -> None:
        super().__init__(delay_s)
        self._seen = seen

    @override
    def delay_for(self, uri: str, now: float) -> float:
        delay = super().delay_for(uri, now)
        self._seen.append(f"delay {delay}")
        return delay


async def until_stable(peer: Peer) -> None:
    """Let the client be live for as long as it takes to count as a success of the server."""
    for _ in range(int(STABLE_AFTER_S) + 1):
        await trio.sleep(1.0)
        await peer.say("heartbeat")
    await wait_all_tasks_blocked()


async def drop(peer: Peer) -> None:
    """Lose a connection now, stable or not."""
    peer.link.close()
    await wait_all_tasks_blocked()


async def lose(peer: Peer) -> None:
    """Lose a stable connection."""
    await until_stable(peer)
    await drop(peer)


async def live(server: Server, *, seen: int = 0, persisted: int | None = None) -> Peer:
    """Accept a client and its logon."""
    peer = await server.accept()
    await peer.log_on(seen=seen, persisted=persisted)
    return peer


@asynccontextmanager
async def entered(client: HAClient, serve: Callable[[], Awaitable[Peer]]) -> AsyncGenerator[Peer]:
    """Enter a client while a server accepts it; the peer that it is live with."""
    peers: list[Peer] = []
    served = trio.Event()

    async def accept() -> None:
        peers.append(await serve())
        served.set()

    async with open_nursery() as nursery:
        nursery.start_soon(accept)
        async with client:
            await served.wait()
            await wait_all_tasks_blocked()
            yield peers[0]


def quiet_client(
    server: Server, *, bookmark_store: BookmarkStore | None = None, **options: Unpack[HAOptions]
) -> HAClient:
    """A client of a server, without heartbeats, that leaves without waiting."""
    given: HAOptions = {"servers": [server.uri], "heartbeat": None, "exit_timeout": 0, **options}
    return HAClient("ha", bookmark_store=bookmark_store, **given)


class World:
    """A client that was live with A, with something in each store and in somebody's hand."""

    def __init__(
        self,
        *servers: str,
        publish_store: PublishStore | None = None,
        bookmark_store: BookmarkStore | None = None,
        delay_s: float = 0.5,
    ) -> None:
        self.seen: list[str] = []
        self.lost: list[HAClientError] = []
        self.got: list[bytes] = []
        self.numbers: list[int] = []
        chooser = Recorder(dict(zip("AB", servers, strict=False)), self.seen)
        self.client = HAClient(
            "ha",
            server_chooser=chooser,
            delay_strategy=RecordedDelay(self.seen, delay_s),
            publish_store=publish_store or MemoryPublishStore(),
            bookmark_store=bookmark_store or MemoryBookmarkStore(),
            heartbeat=HEARTBEAT_S,
            connect_timeout=CONNECT_TIMEOUT_S,
            on_event=on_losses(self.lost.append),
        )

    async def first(self, server: Server) -> Peer:
        """Accept it for the first time."""
        peer = await server.accept()
        await peer.log_on()
        await peer.answer("heartbeat")
        return peer

    def handle(self, message: Message) -> None:
        """The handler of the bookmark subscription."""
        self.got.append(message.data)
        if message.data != b"3":  # which stays in hand
            message.discard()

    async def work(self, peer: Peer) -> None:
        """Three messages arrive, one stays in hand; of three publishes one is persisted."""
        async with answering(peer):
            await self.client.bookmark_subscribe("orders", sub_id="b", handler=self.handle)
            await peer.ack(None, "completed", sub_id="b")
            await self.client.subscribe("prices", sub_id="p", handler=lambda _: None)
            await peer.publish("b", b"1", b"2", b"3", bm="7|1|")
            await peer.ack(None, "persisted", sub_id="b", bm="7|2|")
            await wait_all_tasks_blocked()
        for body in (b"x", b"y", b"z"):
            self.numbers.append(await self.client.publish("orders", body) or 0)
        for _ in self.numbers:
            await peer.expect("publish")
        await peer.persisted(self.numbers[0])
        await wait_all_tasks_blocked()

    async def up_to(self, peer: Peer, state: Recovery) -> None:
        """Answer as a server should, until the client's next frame is the one of this state."""
        if state is Recovery.LOGGING_ON:
            return
        await peer.log_on(seen=self.numbers[0], persisted=self.numbers[0])
        if state is Recovery.HEARTBEAT:
            return
        await peer.answer("heartbeat")
        if state is Recovery.REPLAYING:
            return
        for number in self.numbers[1:]:
            assert (await peer.expect("publish")).sequence == number

    async def recover(self, peer: Peer) -> None:
        """A good server: everything is as it has to be."""
        await self.up_to(peer, Recovery.RESUBSCRIBING)
        first = await peer.answer("subscribe")
        assert (first.sub_id, first.bookmark.split(",")[0]) == ("b", "7|2|")
        assert (await peer.answer("subscribe")).sub_id == "p"
        await peer.publish("b", b"3", b"4", bm="7|3|")
        await peer.persisted(self.numbers[-1])
        async with answering(peer):
            await self.client.flush(timeout=1)
            await self.client.publish_flush(timeout=1)
        await wait_all_tasks_blocked()
        assert self.got == [b"1", b"2", b"3", b"4"]


@contextmanager
def not_answering() -> Iterator[str]:
    """The address of a server that never finishes a handshake: its queue of clients is full."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        try:
            yield f"tcp://127.0.0.1:{listener.getsockname()[1]}/amps/json"
        finally:
            for each in waiting:
                each.close()


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
