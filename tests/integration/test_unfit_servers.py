"""Servers that fail in every way that a socket allows, over TCP and TLS, and one that works.

A client has a publish to deliver and a bookmark subscription. The first server fails, right after
it has accepted the connection or when the client is live; the second is a real broker. Whatever the
first does, the client says what is wrong, its memory stays bounded, and the second gets the publish
once.

Time passes as on any clock, except where a server is silent: there the clock jumps on whenever
everything waits. So no limit of a test depends on the speed of the machine.
"""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf

import pytest
import trio
from trio.testing import MockClock
from typing_extensions import override

from haclient.client import HAClient
from haclient.errors import (
    DisconnectedError,
    HAClientError,
    ProtocolError,
)
from haclient.servers.chooser import ConnectionInfo, DefaultServerChooser
from haclient.servers.delay import FixedDelayStrategy
from haclient.transport.links.link import Link
from haclient_fake_server.config import TlsFiles
from haclient_fake_server.listener import listen, server_context
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_stores.bookmark import EPOCH
from support.certificates import Certificates, make_certificates
from support.listening import both, on_losses, on_unrouted
from support.peer import Peer, delivery
from support.process import LIMIT_S

SILENCE_S = 60.0  # after which a server is left; others answer sooner on any machine
HEARTBEAT_S = SILENCE_S / 2
FLOOD_BYTES = 12 * 2**20
MEMORY_BYTES = 6 * 2**20  # within a flood: half of what was sent

names = (f"orders-{number}" for number in count())


# -- what a server does ----------------------------------------------------------------------------


async def close(peer: Peer) -> None:
    """FIN."""
    peer.link.close()


async def reset(peer: Peer) -> None:
    """RST: closed with bytes unread."""
    byte = memoryview(bytearray(1))  # with TLS, all of it may have been received already
    while peer.link.recv_into(byte) is None:
        await peer.link.wait_readable()
    peer.link.close()


async def stand_still(_: Peer) -> None:
    """It neither reads nor speaks: half open."""
    await trio.sleep_forever()


async def fall_silent(peer: Peer) -> None:
    """It reads, and says nothing."""
    await peer.listen_until_end()


async def speak_http(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await peer.listen_until_end()


async def speak_garbage(peer: Peer) -> None:
    await peer.send(bytes(range(255, 0, -1)) * 20)
    await peer.listen_until_end()


async def announce_a_huge_frame(peer: Peer) -> None:
    await peer.send(b"\x7f\xff\xff\xff" + b"{" * 1000)
    await peer.listen_until_end()


async def stop_in_a_frame(peer: Peer) -> None:
    await peer.send(delivery("s", b"{}" * 100)[:-50])
    peer.link.close()


async def send_broken_json(peer: Peer) -> None:
    await peer.send(b'\x00\x00\x00\x09{"c":"p",}')
    await peer.listen_until_end()


async def flood(peer: Peer) -> None:
    """Messages that nobody wants, without end."""
    frames = delivery("unknown", *[b"x" * 1000] * 100)
    for _ in range(FLOOD_BYTES // len(frames)):
        await peer.send(frames)
    await peer.listen_until_end()


@dataclass
class Fault:
    does: Callable[[Peer], Awaitable[None]]
    error: type[HAClientError]
    says: str

    @property
    def is_silent(self) -> bool:
        return self.says == SILENT


SILENT = f"no answer within {SILENCE_S:g} s|was silent for {SILENCE_S:g} s"
FAULTS = {
    each.does.__name__: each
    for each in (
        Fault(close, DisconnectedError, "closed the connection"),
        Fault(reset, DisconnectedError, "reset by peer|closed the connection"),
        Fault(stand_still, HAClientError, SILENT),
        Fault(fall_silent, HAClientError, SILENT),
        Fault(speak_http, ProtocolError, "HTTP"),
        Fault(speak_garbage, ProtocolError, "limit"),
        Fault(announce_a_huge_frame, ProtocolError, "limit"),
        Fault(stop_in_a_frame, DisconnectedError, "closed the connection"),
        Fault(send_broken_json, ProtocolError, "header"),
        Fault(flood, HAClientError, SILENT),
    )
}


async def refuse_the_logon(peer: Peer) -> None:
    await peer.refuse(await peer.expect("logon"), "invalid message type")
    await peer.listen_until_end()


BEFORE = {
    "refuse_the_logon": Fault(refuse_the_logon, HAClientError, "invalid message type"),
    **FAULTS,
}


# -- where it happens ------------------------------------------------------------------------------


@dataclass
class Place:
    """Both servers of one scheme."""

    broker: BrokerProcess
    files: Certificates

    @property
    def scheme(self) -> str:
        return self.broker.address.partition(":")[0]

    @property
    def query(self) -> str:
        return f"?ca={self.files.authority}" if self.scheme == "tcps" else ""

    @property
    def working_uri(self) -> str:
        return f"{self.broker.uri}{self.query}"

    @asynccontextmanager
    async def unfit(self, serve: Callable[[Peer], Awaitable[None]]) -> AsyncGenerator[str]:
        """The URI of a server that serves each connection so."""
        context = server_context(TlsFiles(cert=self.files.server))
        async with trio.open_nursery() as nursery:

            async def run(peer: Peer) -> None:
                try:
                    with contextlib.suppress(OSError, EOFError, trio.ClosedResourceError):
                        await serve(peer)
                finally:
                    peer.link.close()

            def accept(link: Link) -> None:
                nursery.start_soon(run, Peer(link))

            listener = listen(f"{self.scheme}://127.0.0.1:0", accept, context=context)
            nursery.start_soon(listener.run)
            yield f"{listener.uri}/amps/json{self.query}"
            listener.close()
            nursery.cancel_scope.cancel()


@pytest.fixture(scope="module", params=["tcp", "tcps"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Place]:
    files = make_certificates(tmp_path_factory.mktemp("certificates"))
    tls = ["--tls-cert", str(files.server)] if request.param == "tcps" else []
    data = tmp_path_factory.mktemp("broker")
    with BrokerProcess(*tls, data_dir=data, listen=f"{request.param}://127.0.0.1:0") as broker:
        yield Place(broker, files)


@pytest.fixture
def clock(mock_clock: MockClock) -> MockClock:
    mock_clock.rate = 1.0
    return mock_clock


class Recorder(DefaultServerChooser):
    """Records why each server was left, and ends the jumps of the clock then."""

    def __init__(self, uris: list[str], clock: MockClock) -> None:
        super().__init__(uris)
        self.errors: list[Exception] = []
        self._clock = clock

    def skip_silence(self) -> None:
        """Let the clock jump whenever everything waits, until a server is left."""
        self._clock.autojump_threshold = 0

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self._clock.autojump_threshold = inf  # the working one is a process, and takes real time
        self.errors.append(error)
        super().report_failure(error, info)


@dataclass
class Application:
    """A client with something to publish, and what it got."""

    topic: str
    chooser: Recorder
    lost: list[Exception] = field(default_factory=list[Exception])
    unwanted: int = 0

    def client(self) -> HAClient:
        def count_unwanted(_: object) -> None:
            self.unwanted += 1

        return HAClient.memory_backed(
            self.topic,
            server_chooser=self.chooser,
            delay_strategy=FixedDelayStrategy(0.01),
            heartbeat=HEARTBEAT_S,
            connect_timeout=SILENCE_S,
            on_event=both(on_losses(self.lost.append), on_unrouted(count_unwanted)),
        )

    async def use(
        self, published: Callable[[], None] = lambda: None, *, watches_memory: bool = False
    ) -> None:
        """Publish, and get it from the broker, whatever the first server does meanwhile.

        Args:
            published: Called when the message is in the client's hands.
            watches_memory: That it stays below MEMORY_BYTES, which makes everything slow.
        """
        if watches_memory:
            tracemalloc.start()
        try:
            with trio.fail_after(LIMIT_S):
                async with self.client() as client:
                    await client.publish(self.topic, b"1")
                    published()
                    await self.arrive(client)
            assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
        finally:
            tracemalloc.stop()

    async def arrive(self, client: HAClient) -> None:
        """What it has published is delivered by the broker, once."""
        await client.publish_flush(timeout=LIMIT_S)
        stream = client.bookmark_stream(self.topic, bookmark=EPOCH, sub_id="mine", timeout=LIMIT_S)
        async with stream as messages:
            assert (await anext(messages)).data == b"1"
            await client.publish(self.topic, b"2")
            assert (await anext(messages)).data == b"2"


# -- and what a client makes of it -----------------------------------------------------------------


@pytest.mark.row("HA3", "HA17", "AT2")
@pytest.mark.parametrize("name", BEFORE)
async def test_a_server_that_fails_before_the_logon_is_left(
    place: Place, name: str, clock: MockClock
) -> None:
    fault = BEFORE[name]

    async def serve(peer: Peer) -> None:
        if fault.is_silent:
            application.chooser.skip_silence()
        await fault.does(peer)

    async with place.unfit(serve) as bad:
        application = Application(next(names), Recorder([bad, place.working_uri], clock))
        await application.use(watches_memory=fault.does is flood)
    first = application.chooser.errors[0]
    assert isinstance(first, fault.error), first
    assert_says(first, fault.says)


@pytest.mark.row("HA3", "HA17", "HB2", "AT2")
@pytest.mark.parametrize("name", FAULTS)
async def test_a_server_that_fails_when_it_is_live_is_left(
    place: Place, name: str, clock: MockClock
) -> None:
    fault, begins = FAULTS[name], trio.Event()

    async def serve(peer: Peer) -> None:
        await peer.log_on()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(answer, peer, until=begins))
            await begins.wait()
            nursery.cancel_scope.cancel()
        if fault.is_silent:
            application.chooser.skip_silence()
        if fault.does is reset:  # which waits for something to leave unread
            clock.jump(HEARTBEAT_S)
        await fault.does(peer)

    async with place.unfit(serve) as bad:
        application = Application(next(names), Recorder([bad, place.working_uri], clock))
        await application.use(begins.set, watches_memory=fault.does is flood)
    assert isinstance(application.lost[0], fault.error), application.lost
    assert_says(application.lost[0], fault.says)


@pytest.mark.row("AT2", "HA17")
async def test_a_server_of_the_other_scheme_is_left(place: Place, clock: MockClock) -> None:
    scheme, _, where = place.broker.address.partition("://")
    other = "tcp" if scheme == "tcps" else "tcps"
    wrong = f"{other}://{where}/amps/json{'?verify=false' if other == 'tcps' else ''}"
    application = Application(next(names), Recorder([wrong, place.working_uri], clock))
    await application.use()
    assert_says(application.chooser.errors[0], "does not speak TLS|closed the connection")


async def answer(peer: Peer, *, until: trio.Event) -> None:
    """Confirm every command but publishes."""
    while not until.is_set():
        message = await peer.hear()
        if message.command != "publish":
            await peer.ack(message)


def assert_says(error: Exception, text: str) -> None:
    assert any(each in str(error) for each in text.split("|")), error
    assert "\n" not in str(error)
