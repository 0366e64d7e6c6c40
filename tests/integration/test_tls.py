"""Clients, brokers and commands over TLS, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from typing_extensions import override

from haclient.chooser import ConnectionInfo, DefaultServerChooser
from haclient.delay import FixedDelayStrategy
from haclient.errors import UsageError
from haclient.ha import HAClient
from haclient.protocol.messages import Message
from haclient_fake_server.testing.processes import BrokerProcess
from support.certificates import Certificates, make_certificates
from support.journey import Journey
from support.process import LIMIT_S, python_environment

pytestmark = pytest.mark.row("AT2")

COMMAND = [sys.executable, "-m", "haclient"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@contextmanager
def broker(files: Certificates, *arguments: str, data: Path) -> Generator[BrokerProcess]:
    tls = ["--tls-cert", str(files.server), *arguments]
    command = [*COMMAND, "broker", "run"]
    with BrokerProcess(
        *tls, data_dir=data, listen="tcps://127.0.0.1:0", command=command
    ) as process:
        assert process.address.startswith("tcps://127.0.0.1:")
        yield process


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_a_key_in_a_file_of_its_own(files: Certificates, tmp_path: Path) -> None:
    command = [*COMMAND, "broker", "run"]
    with BrokerProcess(
        "--tls-cert",
        str(files.server_chain),
        "--tls-key",
        str(files.server_key),
        data_dir=tmp_path / "data",
        listen="tcps://127.0.0.1:0",
        command=command,
    ) as process:
        done = run("ping", "--server", process.uri, "--tls-ca", str(files.authority))
        assert done.returncode == 0, done.stderr
    listen = ("--listen", "tcps://127.0.0.1:0", "--data", str(tmp_path / "other"))
    keyless = run("broker", "run", "--tls-cert", str(files.server_chain), *listen)
    assert keyless.returncode == 2
    assert "key" in keyless.stderr
    assert len(keyless.stderr.splitlines()) == 1


async def test_nothing_is_lost_while_a_broker_with_tls_is_killed(
    files: Certificates, tmp_path: Path
) -> None:
    with broker(files, data=tmp_path / "one") as process:
        async with Journey([f"{process.uri}?ca={files.authority}"]) as journey:
            for _ in range(3):
                await journey.publish(500, padding=200)
                process.kill()
                await journey.publish(500)
                await trio.to_thread.run_sync(process.start)
            await journey.arrive()
            assert len(journey.finished) == 3000


class Watching(DefaultServerChooser):
    """Knows when a certificate could not be used."""

    def __init__(self, uri: str) -> None:
        super().__init__([uri])
        self.failed = trio.Event()

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        if "no certificate or key that can be used" in str(error):
            self.failed.set()
        super().report_failure(error, info)


async def test_a_certificate_that_is_damaged_for_a_while_ends_no_client(
    files: Certificates, tmp_path: Path
) -> None:
    authority = tmp_path / "authority.pem"
    authority.write_bytes(files.authority.read_bytes())
    with broker(files, data=tmp_path / "data") as process:
        chooser = Watching(f"{process.uri}?ca={authority}")
        delays = FixedDelayStrategy(0.05)
        async with HAClient.memory_backed(
            "one", server_chooser=chooser, delay_strategy=delays
        ) as client:
            await client.publish("orders", b"1")
            await client.publish_flush(timeout=LIMIT_S)
            authority.write_bytes(b"half of a cert")
            process.kill()
            with trio.fail_after(LIMIT_S):
                await chooser.failed.wait()
            await trio.to_thread.run_sync(process.start)
            authority.write_bytes(files.authority.read_bytes())
            await client.publish("orders", b"2")
            await client.publish_flush(timeout=LIMIT_S)
        authority.write_bytes(b"half of a cert")
        with pytest.raises(UsageError, match="no certificate or key that can be used"):
            async with HAClient("two", servers=[f"{process.uri}?ca={authority}"]):
                pytest.fail("never entered")


@pytest.mark.row("AT7")
@pytest.mark.parametrize("scheme", ["tcp", "tcps"])
async def test_a_compressed_connection_survives_kills_of_its_broker(
    files: Certificates, tmp_path: Path, scheme: str
) -> None:
    listen = f"{scheme}://127.0.0.1:0"
    tls = ["--tls-cert", str(files.server)] if scheme == "tcps" else []
    with BrokerProcess(*tls, data_dir=tmp_path / "data", listen=listen) as process:
        trust = f"&ca={files.authority}" if tls else ""
        async with Journey([f"{process.uri}?compression=zlib{trust}"]) as journey:
            for _ in range(2):
                await journey.publish(500, padding=200)
                process.kill()
                await journey.publish(500)
                await trio.to_thread.run_sync(process.start)
            await journey.arrive()
            assert len(journey.finished) == 2000


@pytest.mark.parametrize("option", ["", "&compression=zlib"], ids=["plain", "zlib"])
async def test_large_messages_pass_in_both_directions_at_the_same_time(
    files: Certificates, tmp_path: Path, option: str
) -> None:
    body = bytes(range(256)) * 20_000  # 5 MB: far more than sockets hold
    got: list[bytes] = []
    done = trio.Event()

    def handle(message: Message) -> None:
        got.append(message.data)
        message.discard()
        if len(got) == 10:
            done.set()

    with broker(files, data=tmp_path / "data") as process:
        uri = f"{process.uri.replace('/json', '/binary')}?ca={files.authority}{option}"
        async with HAClient.memory_backed("one", servers=[uri]) as client:
            await client.bookmark_subscribe("blobs", sub_id="s", handler=handle)
            for number in range(10):
                await client.publish("blobs", bytes([number]) + body)
            await client.publish_flush(timeout=LIMIT_S)
            with trio.fail_after(LIMIT_S):
                await done.wait()
    assert got == [bytes([number]) + body for number in range(10)]


def test_commands_publish_and_subscribe_with_a_certificate_of_their_own(
    files: Certificates, tmp_path: Path
) -> None:
    with broker(files, "--tls-client-ca", str(files.authority), data=tmp_path / "data") as process:
        server = ["--server", process.uri, "--tls-ca", str(files.authority)]
        mine = ["--tls-cert", str(files.client), "--tls-key", str(files.key)]
        done = run("publish", *server, *mine, "--topic", "orders", stdin="one\ntwo\n")
        assert done.returncode == 0, done.stderr
        command = [
            "subscribe",
            *server,
            *mine,
            "--topic",
            "orders",
            "--bookmark",
            "epoch",
            "-n",
            "2",
        ]
        done = run(*command)
        assert (done.returncode, done.stdout) == (0, "one\ntwo\n"), done.stderr
        done = run("ping", *server, "--timeout", f"{LIMIT_S}")
        assert done.returncode == 1
        assert "wants a certificate of ours" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        done = run("ping", "--server", process.uri, "--timeout", f"{LIMIT_S}")
        assert done.returncode == 1
        assert "is not trusted" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["ping", "--server", "tcp://127.0.0.1:1/amps/json", "--tls-ca", "{ca}"], "no server uses"),
        (["ping", "--server", "tcps://127.0.0.1:1/amps/json", "--tls-ca", "/nowhere"], "not exist"),
        (["ping", "--server", "tcps://127.0.0.1:1/amps/json", "--tls-key", "{ca}"], "needs cert"),
        (["broker", "run", "--listen", "tcps://127.0.0.1:0"], "a certificate is needed"),
        (["broker", "run", "--listen", "tcp://127.0.0.1:0", "--tls-cert", "{ca}"], "no address"),
        (["broker", "run", "--tls-key", "{ca}"], "need --tls-cert"),
        (["broker", "run", "--listen", "tcps://127.0.0.1:0", "--tls-cert", "{ca}"], "cert="),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    files: Certificates, arguments: list[str], why: str
) -> None:
    done = run(*(each.format(ca=files.authority) for each in arguments))
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


async def test_brokers_replicate_over_tls(files: Certificates, tmp_path: Path) -> None:
    with broker(files, "--name", "east", data=tmp_path / "east") as east:
        to = f"{east.address}/amps/json?ca={files.authority}"
        with broker(files, "--name", "west", "--replicate-to", to, data=tmp_path / "west") as west:
            uri = f"{west.uri}?ca={files.authority}"
            async with HAClient.memory_backed("one", servers=[uri]) as client:
                await client.publish("orders", b"1")
                await client.publish_flush(timeout=LIMIT_S)  # east has it: the link is synchronous
        done = run(
            *("subscribe", "--server", east.uri, "--tls-ca", str(files.authority)),
            *("--topic", "orders", "--bookmark", "epoch", "-n", "1"),
        )
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
