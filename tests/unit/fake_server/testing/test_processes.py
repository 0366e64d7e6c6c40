from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from haclient.errors import HAClientError, UsageError
from haclient_fake_server.testing.faults import Kill
from haclient_fake_server.testing.processes import BrokerProcess
from support.broker import RawClient, port_of


@pytest.mark.row("FI1")
async def test_it_is_killed_and_started_again_on_the_same_port_and_data(tmp_path: Path) -> None:
    with BrokerProcess(data_dir=tmp_path / "data") as broker:
        uri, pid = broker.uri, broker.pid
        async with RawClient.connect(uri) as client:
            await client.logon("p")
            await client.send(b"{}", c="p", t="orders", s=1)
            await client.send(c="flush", cid="f", a="persisted")
            await client.ack("persisted", "f")
        broker.kill()
        assert not broker.is_running
        broker.kill()
        broker.start()
        assert (broker.uri, broker.pid != pid) == (uri, True)
        async with RawClient.connect(uri) as client:
            assert (await client.logon("p")).sequence == 1
        assert broker.stop() == 0
        with pytest.raises(UsageError, match="does not run"):
            broker.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="not applicable: it is so on Linux only")
def test_no_other_program_gets_its_port_before_it_is_started_again() -> None:
    with BrokerProcess() as broker:
        where = ("127.0.0.1", port_of(broker.uri))
        for end in (broker.kill, broker.stop):
            if not broker.is_running:
                broker.start()
            end()
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(where)
    with socket.socket() as other:
        other.bind(where)  # it does not come back


@pytest.mark.row("FI2")
async def test_it_ends_itself_at_a_point_and_says_so(tmp_path: Path) -> None:
    fault = Kill("broker", at="before_write")
    broker = BrokerProcess(data_dir=tmp_path / "data")
    with pytest.raises(UsageError, match="was not started"):
        broker.wait()
    with broker:
        broker.kill_at(fault)
        async with RawClient.connect(broker.uri) as client:
            await client.logon("p")
            await client.send(b"{}", c="p", t="orders", s=1)
            assert await trio.to_thread.run_sync(broker.wait) == -signal.SIGKILL
        with pytest.raises(UsageError, match="does not run"):
            broker.kill_at(fault)
        broker.start()
        async with RawClient.connect(broker.uri) as client:
            assert (await client.logon("p")).sequence == 0


LISTENS = "print('listening tcp://127.0.0.1:9', flush=True)"
# It would sleep for ever through a handled signal that comes just before a `signal.pause`.
UNTIL_SIGTERM = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {15})"


def waiting() -> BrokerProcess:
    """A process that only prints that it listens, and waits: it starts ten times as fast."""
    program = f"{UNTIL_SIGTERM}; {LISTENS}; signal.sigwait({{15}})"
    return BrokerProcess(command=[sys.executable, "-S", "-c", program])


def test_another_command_takes_no_faults() -> None:
    with waiting() as broker, pytest.raises(UsageError, match="takes no faults"):
        broker.kill_at(Kill("broker", at="before_write"))


def test_it_is_paused_and_goes_on() -> None:
    with waiting() as broker:
        state = Path(f"/proc/{broker.pid}/stat")
        if not state.exists():
            pytest.skip("not applicable: no /proc")
        broker.pause()
        while state.read_text().split()[2] != "T":
            pass
        broker.resume()
        while state.read_text().split()[2] == "T":
            pass
        broker.pause()  # a paused one can be killed, too
    assert not broker.is_running


def test_a_paused_one_is_stopped_in_good_order() -> None:
    with waiting() as broker:
        broker.pause()
        assert broker.stop() == 0


def test_it_cannot_be_started_twice() -> None:
    with waiting() as broker, pytest.raises(UsageError, match="runs already"):
        broker.start()


def test_a_broker_that_does_not_start_is_told_with_its_words() -> None:
    broker = BrokerProcess("--replicate-to", "tcp://127.0.0.1:1,maybe")
    assert broker.err == ""
    with pytest.raises(
        HAClientError, match="'maybe' after the address is not sync, async or downgrade"
    ):
        broker.start()
    for use in (broker.pause, broker.resume, broker.stop):
        with pytest.raises(UsageError, match="does not run"):
            use()


def test_a_command_that_says_something_else() -> None:
    command = [sys.executable, "-c", "print('hello')"]
    with pytest.raises(HAClientError, match="instead of 'listening'"):
        BrokerProcess(command=command).start()


def test_what_it_writes_to_stderr_can_be_read() -> None:
    program = "import sys; print('oops', file=sys.stderr); print('listening tcp://h:1', flush=True)"
    with BrokerProcess(command=[sys.executable, "-c", f"{program}; sys.stdin.read()"]) as broker:
        assert (broker.err, broker.uri) == ("oops\n", "tcp://h:1/amps/json")


def test_the_signal_of_its_death_is_its_exit_code() -> None:
    program = "import signal; print('listening x', flush=True); signal.pause()"
    with BrokerProcess(command=[sys.executable, "-c", program]) as broker:
        assert broker.stop() == -signal.SIGTERM


def test_it_starts_in_a_process_with_very_many_open_files() -> None:
    wanted = 1200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * wanted:
        pytest.skip("not applicable: the system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * wanted), hard))
    try:
        with ExitStack() as stack:
            for _ in range(wanted):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
            with waiting() as broker:
                assert broker.uri.startswith("tcp://")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
