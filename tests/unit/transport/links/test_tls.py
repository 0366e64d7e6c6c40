"""TLS over any link: every byte arrives, in any pieces, and each failure says what to do."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives import serialization
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from haclient.errors import ConnectionRefused, UsageError
from haclient.protocol.uri import Uri
from haclient.transport.links.dial import Dialler, DialOptions, dial
from haclient.transport.links.link import Link
from haclient.transport.links.memory_network import link_pair
from haclient.transport.links.tls import SEND_BYTES, TlsLink, load_certificate, tls_reason
from haclient_fake_server.config import TlsFiles
from haclient_fake_server.listener import HANDSHAKE_LIMIT_S, TlsListener, server_context
from support.certificates import Certificates, make_certificates
from support.lengths import length
from support.links import Pieces, receive, send

pytestmark = pytest.mark.row("AT2")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class Pair:
    """Both ends of one TLS connection in memory."""

    def __init__(
        self, files: Certificates, *, sizes: list[int] | None = None, capacity: int = 2**20
    ) -> None:
        ends = link_pair(capacity_bytes=capacity)
        self.client_side, self.server_side = (Pieces(end, sizes or [2**30]) for end in ends)
        context = ssl.create_default_context(cafile=str(files.authority))
        self.client = TlsLink(self.client_side, context, server_name="localhost")
        self.server = TlsLink(
            self.server_side, server_context(TlsFiles(cert=files.server)), server_name=None
        )

    async def connect(self) -> Pair:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.client.handshake)
            nursery.start_soon(self.server.handshake)
        return self


@given(
    sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=6).filter(any),
    bodies=st.lists(st.binary(max_size=50), min_size=1, max_size=8),
    factor=st.sampled_from([1, 100, 3000]),
    window=st.integers(1, 70_000),
)
@example(sizes=[1], bodies=[b"0123456789" * 5], factor=100, window=70_000)
@settings(max_examples=length(30))
def test_every_byte_arrives_in_both_directions_whatever_the_pieces(
    sizes: list[int], bodies: list[bytes], factor: int, window: int, files: Certificates
) -> None:
    async def run() -> None:
        pair = await Pair(files, sizes=sizes, capacity=5_000).connect()
        data = (b"".join(bodies) * factor)[: 200 * sum(sizes)]
        got: dict[str, bytes] = {}

        async def take(name: str, link: Link) -> None:
            got[name] = await receive(link, len(data), window)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:  # at the same time: neither waits for all
                nursery.start_soon(send, pair.client, data)
                nursery.start_soon(send, pair.server, data[::-1])
                nursery.start_soon(take, "server", pair.server)
                nursery.start_soon(take, "client", pair.client)
        assert got == {"server": data, "client": data[::-1]}

    trio.run(run)


async def test_what_the_inner_link_does_not_take_is_counted_and_leaves_later(
    files: Certificates,
) -> None:
    pair = await Pair(files).connect()
    pair.client_side.refuses = True
    data = bytes(3 * SEND_BYTES)
    assert pair.client.try_send(data) == SEND_BYTES  # made into records, which nobody takes
    assert pair.client.unsent_bytes > SEND_BYTES
    assert pair.client.try_send(data) is None  # bounded: no more before these have left
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.client.wait_writable)
        await wait_all_tasks_blocked()
        pair.client_side.refuses = False
        pair.client_side.woken.set()
        assert await receive(pair.server, SEND_BYTES) == bytes(SEND_BYTES)
    assert pair.client.unsent_bytes == 0


async def test_an_end_is_told_from_a_cut(files: Certificates) -> None:
    buffer = memoryview(bytearray(100))
    pair = await Pair(files).connect()
    await send(pair.server, b"last words")
    pair.server.close()
    pair.server.close()
    assert pair.client.recv_into(buffer) == len(b"last words")
    assert pair.client.recv_into(buffer) == 0
    assert pair.client.recv_into(buffer) == 0
    pair = await Pair(files).connect()
    await send(pair.server, b"last words")
    pair.server_side.close()  # killed
    assert pair.client.recv_into(buffer) == len(b"last words")
    with pytest.raises(ConnectionResetError, match="cut without an end of TLS"):
        pair.client.recv_into(buffer)


async def test_what_was_decrypted_is_not_lost_when_an_answer_cannot_be_sent(
    files: Certificates,
) -> None:
    buffer = memoryview(bytearray(100))
    pair = await Pair(files).connect()
    pair.client_side.refuses = True
    assert pair.client.try_send(b"waits") == len(b"waits")
    await send(pair.server, b"last words")
    pair.server_side.close()
    pair.client_side.refuses = False  # from now on sending fails: the peer has gone
    assert pair.client.recv_into(buffer) == len(b"last words")
    assert buffer.tobytes().startswith(b"last words")
    with pytest.raises(OSError, match=r"closed|cut"):
        pair.client.recv_into(buffer)


async def test_a_closed_link_does_not_wait_for_its_peer(files: Certificates) -> None:
    pair = await Pair(files).connect()
    pair.client_side.refuses = True
    pair.client.try_send(b"never")
    pair.client.close()
    with pytest.raises(trio.ClosedResourceError):
        await pair.client.wait_readable()


async def test_garbage_and_changed_bytes_are_a_loss(files: Certificates) -> None:
    pair = await Pair(files).connect()
    pair.server_side.try_send(b"\x17\x03\x03\x00\x20" + bytes(32))  # a record with a wrong seal
    with pytest.raises(OSError, match="TLS: "):
        pair.client.recv_into(memoryview(bytearray(100)))


# -- from a URI ----------------------------------------------------------------------------------


@asynccontextmanager
async def serving(tls: TlsFiles) -> AsyncGenerator[str]:
    """A listener with TLS that keeps each connection open; its address."""
    links: list[Link] = []
    listener = TlsListener("127.0.0.1", 0, links.append, context=server_context(tls))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run)
        yield listener.uri
        nursery.cancel_scope.cancel()
    listener.close()
    for link in links:
        link.close()


async def dialled(uri: str, ssl_context: ssl.SSLContext | None = None) -> None:
    options = DialOptions(ssl_context=ssl_context)
    link = await dial(Uri.parse(uri), timeout=30, options=options)
    assert link.peer.startswith("127.0.0.1:")
    link.close()


async def test_the_authority_of_a_uri_or_of_a_context_is_trusted(files: Certificates) -> None:
    async with serving(TlsFiles(cert=files.server)) as address:
        await dialled(f"{address}/amps?ca={files.authority}")
        await dialled(address.replace("127.0.0.1", "localhost") + f"/amps?ca={files.authority}")
        await dialled(f"{address}/amps?verify=false")
        context = ssl.create_default_context(cafile=str(files.authority))
        await dialled(f"{address}/amps", ssl_context=context)
        link = await Dialler(DialOptions(ssl_context=context)).dial(
            Uri.parse(f"{address}/amps"), timeout=30
        )
        link.close()


async def test_the_authorities_of_the_system_are_trusted_by_default(
    files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(files.authority))  # where OpenSSL looks for them
    async with serving(TlsFiles(cert=files.server)) as address:
        await dialled(f"{address}/amps")
        with pytest.raises(ConnectionRefused, match="is not trusted"):
            await dialled(f"{address}/amps?ca={files.stranger}")
    async with serving(TlsFiles(cert=files.elsewhere)) as address:
        with pytest.raises(ConnectionRefused, match="is for another host"):
            await dialled(f"{address}/amps")


async def test_a_server_that_cannot_be_trusted_is_refused(
    files: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(TlsFiles(cert=files.server)) as address:
        for query in ("", f"?ca={files.stranger}"):
            with pytest.raises(
                ConnectionRefused, match=r"is not trusted: .*: give the certificate"
            ):
                await dialled(f"{address}/amps{query}")
        await wait_all_tasks_blocked(0.01)
        assert "does not accept our certificate" in caplog.text
    async with serving(TlsFiles(cert=files.elsewhere)) as address:
        with pytest.raises(ConnectionRefused, match=r"for another host: .*127\.0\.0\.1"):
            await dialled(f"{address}/amps?ca={files.authority}")


async def test_a_server_that_wants_a_certificate_gets_one(files: Certificates) -> None:
    tls = TlsFiles(cert=files.server, client_ca=files.authority)
    async with serving(tls) as address:
        uri = f"{address}/amps?ca={files.authority}"
        await dialled(f"{uri}&cert={files.client}")
        await dialled(f"{uri}&cert={files.client}&key={files.key}")
        link = await dial(Uri.parse(uri), timeout=30)
        with pytest.raises(OSError, match="wants a certificate of ours: give cert=FILE"):
            await receive(link, 1)  # in TLS 1.3 the server says so afterwards
        link.close()


async def test_a_server_without_tls_and_a_client_without(
    files: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def close(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"220 mail.example.org ready\r\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (plain,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, close, [plain])
        port = plain.socket.getsockname()[1]
        with pytest.raises(
            ConnectionRefused, match="does not speak TLS here, or cut the handshake"
        ):
            await dialled(f"tcps://127.0.0.1:{port}/amps?ca={files.authority}")
        nursery.cancel_scope.cancel()
    async with serving(TlsFiles(cert=files.server)) as address:
        stream = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
        await stream.send_all(b'\x00\x00\x00\x20{"c":"logon","cid":"1"}')
        await stream.receive_some()
        await stream.aclose()
    assert "the peer does not speak TLS" in caplog.text


@pytest.mark.usefixtures("autojump_clock")
async def test_a_handshake_that_never_ends_is_given_up_on_both_sides(
    files: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(TlsFiles(cert=files.server)) as address:
        stream = await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))
        began = trio.current_time()
        assert await stream.receive_some() == b""
        assert trio.current_time() >= began + HANDSHAKE_LIMIT_S
        await stream.aclose()
    assert f"not done after {HANDSHAKE_LIMIT_S:g} s" in caplog.text


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("ca=/nowhere.pem", r"the authorities of /nowhere\.pem: No such file"),
        ("cert=/nowhere.pem", r"cert=/nowhere\.pem: No such file"),
        ("cert={authority}&key={key}", "the key is not that of the certificate"),
        ("cert={authority}", "authority.pem has no private key: give key=FILE$"),
        ("cert={authority}&key={authority}", "authority.pem has no private key: give key=FILE$"),
        ("cert={key}&key={key}", "has no certificate in PEM$"),
    ],
)
async def test_a_file_that_cannot_be_used_is_named_before_the_server_is_asked(
    files: Certificates, query: str, why: str
) -> None:
    uri = "tcps://127.0.0.1:1/amps?" + query.format(authority=files.authority, key=files.key)
    with pytest.raises(UsageError, match=why):
        await dialled(uri)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_a_password(
    files: Certificates, tmp_path: Path
) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    encrypted = tmp_path / "key.pem"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    context = ssl.create_default_context()
    with pytest.raises(UsageError, match="is encrypted: decrypt it, or give an ssl_context"):
        load_certificate(context, str(files.client), str(encrypted), what="tcps://h:1/amps")


async def test_two_sources_of_certificates_are_refused(files: Certificates) -> None:
    for query in (f"ca={files.authority}", f"cert={files.client}", "verify=false"):
        with pytest.raises(UsageError, match="ssl_context takes the place of ca, cert, key and"):
            await dialled(f"tcps://h:1/amps?{query}", ssl_context=ssl.create_default_context())


async def test_a_context_for_a_server_is_refused(files: Certificates) -> None:
    context = server_context(TlsFiles(cert=files.server))
    with pytest.raises(UsageError, match="ssl_context is for a server"):
        await dialled("tcps://h:1/amps", ssl_context=context)


def test_errors_without_a_reason_keep_their_words() -> None:
    assert tls_reason(ConnectionResetError(104, "Connection reset by peer")) == (
        "TLS: Connection reset by peer"
    )
