"""Clients, brokers and commands over TLS, in processes of their own."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from typing_extensions import override

from haclient.cli.app import run
from haclient.client import HAClient
from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.servers.chooser import ConnectionInfo, DefaultServerChooser
from haclient.servers.delay import FixedDelayStrategy
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_stores.bookmark import EPOCH
from support.certificates import Certificates, make_certificates
from support.journey import Journey
from support.process import LIMIT_S

pytestmark = pytest.mark.row("AT2")

COUNT = 4  # of large messages


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@contextmanager
def broker(*arguments: str, data: Path) -> Generator[BrokerProcess]:
    command = [sys.executable, "-m", "haclient", "broker", "run"]
    with BrokerProcess(
        *arguments, data_dir=data, listen="tcps://127.0.0.1:0", command=command
    ) as process:
        assert process.address.startswith("tcps://127.0.0.1:")
        yield process


@pytest.fixture(scope="module")
def running(
    files: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """One that nobody kills."""
    with broker("--tls-cert", str(files.server), data=tmp_path_factory.mktemp("log")) as process:
        yield process


async def survives_kills(broker: BrokerProcess, uri: str, kills: int) -> None:
    """Nothing is lost while a broker is killed so often."""
    async with Journey([uri]) as journey:
        for _ in range(kills):
            await journey.publish(200, padding=200)
            broker.kill()
            await journey.publish(200)
            await trio.to_thread.run_sync(broker.start)
        await journey.arrive()
        assert len(journey.finished) == kills * 400


class Commands:
    """Runs the command line in this process; returns exit code and output."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *words: str | Path) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        code = run([*map(str, words)])
        return code, *self._capture.readouterr()


@pytest.fixture
def commands(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.delenv("AMPS_URI", raising=False)
    return Commands(capfd)


def test_a_key_in_a_file_of_its_own(
    files: Certificates, tmp_path: Path, commands: Commands
) -> None:
    with broker(
        *("--tls-cert", str(files.server_chain), "--tls-key", str(files.server_key)),
        data=tmp_path / "data",
    ) as process:
        code, _, err = commands("ping", "--server", process.uri, "--tls-ca", files.authority)
        assert (code, err) == (0, "")
    listen = ("--listen", "tcps://127.0.0.1:0", "--data", tmp_path / "other")
    code, _, err = commands("broker", "run", "--tls-cert", files.server_chain, *listen)
    assert (code, err.count("\n")) == (2, 1)
    assert "key" in err


async def test_nothing_is_lost_while_a_broker_with_tls_is_killed(
    files: Certificates, tmp_path: Path
) -> None:
    with broker("--tls-cert", str(files.server), data=tmp_path / "one") as process:
        await survives_kills(process, f"{process.uri}?ca={files.authority}", 2)


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
    with broker("--tls-cert", str(files.server), data=tmp_path / "data") as process:
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
        await survives_kills(process, f"{process.uri}?compression=zlib{trust}", 1)


@pytest.mark.parametrize("option", ["", "&compression=zlib"], ids=["plain", "zlib"])
async def test_large_messages_pass_in_both_directions_at_the_same_time(
    files: Certificates, running: BrokerProcess, option: str
) -> None:
    body = bytes(range(256)) * 20_000  # 5 MB: far more than sockets hold
    got: list[bytes] = []
    done = trio.Event()

    def handle(message: Message) -> None:
        got.append(message.data)
        message.discard()
        if len(got) == COUNT:
            done.set()

    uri = f"{running.uri.replace('/json', '/binary')}?ca={files.authority}{option}"
    topic = f"blobs{len(option)}"
    async with HAClient.memory_backed("one", servers=[uri]) as client:
        await client.bookmark_subscribe(topic, sub_id="s", handler=handle)
        for number in range(COUNT):
            await client.publish(topic, bytes([number]) + body)
        await client.publish_flush(timeout=LIMIT_S)
        with trio.fail_after(LIMIT_S):
            await done.wait()
    assert got == [bytes([number]) + body for number in range(COUNT)]


def test_commands_publish_and_subscribe_with_a_certificate_of_their_own(
    files: Certificates, tmp_path: Path, commands: Commands
) -> None:
    tls = ("--tls-cert", str(files.server), "--tls-client-ca", str(files.authority))
    with broker(*tls, data=tmp_path / "data") as process:
        server = ("--server", process.uri, "--tls-ca", files.authority)
        mine = ("--tls-cert", files.client, "--tls-key", files.key)
        words = (*server, *mine, "--topic", "orders")
        assert commands("publish", *words, "-m", "one", "-m", "two")[::2] == (0, "")
        replay = ("subscribe", *words, "--bookmark", "epoch", "-n", "2")
        assert commands(*replay) == (0, "one\ntwo\n", "")
        for asked, why in ((server, "wants a certificate of ours"), (server[:2], "is not trusted")):
            code, _, err = commands("ping", *asked, "--timeout", f"{LIMIT_S}")
            assert (code, err.count("\n")) == (1, 1)
            assert why in err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["ping", "--server", "tcp://127.0.0.1:1/amps/json", "--tls-ca", "{ca}"], "no server uses"),
        (["ping", "--server", "tcps://127.0.0.1:1/amps/json", "--tls-ca", "/nowhere"], "not exist"),
        (["ping", "--server", "tcps://127.0.0.1:1/amps/json", "--tls-key", "{ca}"], "needs cert"),
        (["broker", "run", "--listen", "tcps://127.0.0.1:0"], "needs a certificate"),
        (["broker", "run", "--listen", "tcp://127.0.0.1:0", "--tls-cert", "{ca}"], "no address"),
        (["broker", "run", "--tls-key", "{ca}"], "need --tls-cert"),
        (["broker", "run", "--listen", "tcps://127.0.0.1:0", "--tls-cert", "{ca}"], "cert="),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    files: Certificates, commands: Commands, arguments: list[str], why: str
) -> None:
    code, _, err = commands(*(each.format(ca=files.authority) for each in arguments))
    assert (code, err.count("\n")) == (2, 1)
    assert why in err


async def test_brokers_replicate_over_tls(files: Certificates, tmp_path: Path) -> None:
    trust, tls = f"ca={files.authority}", ("--tls-cert", str(files.server))
    with broker(*tls, data=tmp_path / "east") as east:
        to = ("--name", "west", "--replicate-to", f"{east.address}/amps/json?{trust}")
        with broker(*tls, *to, data=tmp_path / "west") as west:
            async with HAClient.memory_backed("one", servers=[f"{west.uri}?{trust}"]) as client:
                await client.publish("orders", b"1")
                await client.publish_flush(timeout=LIMIT_S)  # both have it: the link is synchronous
        async with (
            HAClient("two", servers=[f"{east.uri}?{trust}"]) as client,
            client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH) as messages,
        ):
            assert (await anext(messages)).data == b"1"
