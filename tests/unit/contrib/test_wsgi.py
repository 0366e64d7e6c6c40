"""One client for all threads of a process: opened late, replaced, left behind by a fork, closed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Generator

import pytest

from haclient import Message
from haclient.blocking import HAClient
from haclient.contrib.wsgi import ProcessClient
from haclient.errors import TimedOut, UsageError
from haclient_fake_server.config import BrokerConfig, SowTopic
from support.broker_thread import BrokerThread, broker_thread
from support.forks import refusals
from support.process import LIMIT_S, python_environment


@pytest.fixture(scope="module")
def broker() -> Generator[BrokerThread]:
    topic = SowTopic(name="orders", keys=("/id",))
    with broker_thread(BrokerConfig(sow_topics=(topic,))) as running:
        yield running


def process_client(broker: BrokerThread) -> ProcessClient:
    def make(name: str) -> HAClient:
        return HAClient.memory_backed(name, servers=[broker.uri])

    return ProcessClient("web", make, open_timeout=LIMIT_S)


@pytest.fixture
def amps(broker: BrokerThread) -> Generator[ProcessClient]:
    made = process_client(broker)
    yield made
    made.close()


def test_all_threads_get_one_client_which_the_first_of_them_opens(amps: ProcessClient) -> None:
    found: list[HAClient] = []
    threads = [threading.Thread(target=lambda: found.append(amps.get())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(client) for client in found}) == 1
    assert found[0].name == f"web-{os.uname().nodename}-{os.getpid()}"


def test_after_close_another_client_is_opened(amps: ProcessClient) -> None:
    first = amps.get()
    amps.close()
    amps.close()
    assert not first.health().is_alive
    assert amps.get() is not first


@pytest.mark.parametrize("error", [UsageError("no more"), ValueError("no more")])
def test_a_client_that_has_ended_for_good_is_replaced(
    amps: ProcessClient, error: Exception
) -> None:
    def fail(_message: Message) -> None:
        raise error

    first = amps.get()
    first.subscribe("orders", handler=fail)
    first.publish("orders", b'{"id": 1}')
    first.__bridge__.thread.join()
    assert amps.get() is not first
    assert amps.get().health().is_alive


def test_the_error_of_on_open_counts_and_not_that_of_the_client_it_has_ended(
    broker: BrokerThread,
) -> None:
    def fail(_message: Message) -> None:
        raise ValueError("of the handler")

    def prepare(client: HAClient) -> None:
        client.subscribe("orders", handler=fail)
        client.publish("orders", b'{"id": 1}')
        client.__bridge__.thread.join()
        raise UsageError("of on_open")

    def make(name: str) -> HAClient:
        return HAClient.memory_backed(name, servers=[broker.uri])

    amps = ProcessClient("web", make, on_open=prepare, open_timeout=LIMIT_S)
    with pytest.raises(UsageError, match="of on_open"):
        amps.get()


def test_each_client_is_prepared_and_one_that_cannot_be_is_closed(broker: BrokerThread) -> None:
    seen: list[HAClient] = []

    def prepare(client: HAClient) -> None:
        seen.append(client)
        if len(seen) == 1:
            raise UsageError("not yet")

    def make(name: str) -> HAClient:
        return HAClient.memory_backed(name, servers=[broker.uri])

    amps = ProcessClient("prepared", make, on_open=prepare, open_timeout=LIMIT_S)
    with pytest.raises(UsageError, match="not yet"):
        amps.get()
    assert not seen[0].health().is_alive
    assert amps.get() is seen[1]
    amps.close()


def test_a_request_does_not_wait_for_all_that_open_the_client_before_it() -> None:
    amps = ProcessClient("slow", lambda _name: pytest.fail("it is not made"), open_timeout=0.01)
    with amps._lock, pytest.raises(TimedOut, match="another request has been opening the client"):
        amps.get()


def test_a_child_opens_a_client_of_its_own_and_leaves_the_other_one_alone(
    amps: ProcessClient,
) -> None:
    first = amps.get()

    def in_child() -> None:  # the parent's lock is held, by a thread that does not exist here
        second = amps.get()
        assert second is not first
        assert second.name.endswith(f"-{os.getpid()}")
        assert second.publish_persisted("orders", b'{"id": 2}', timeout=LIMIT_S) > 0
        amps.close()
        raise UsageError("all of it was done")  # which is counted

    with amps._lock:
        assert refusals(in_child) == 1
    assert amps.get() is first
    assert first.publish_persisted("orders", b'{"id": 3}', timeout=LIMIT_S) > 0


PROGRAM = """
import sys
from haclient.blocking import HAClient
from haclient.contrib.wsgi import ProcessClient
amps = ProcessClient("web", lambda name: HAClient.memory_backed(name, servers=[sys.argv[1]]))
amps.get().publish("orders", b'{"id": 9}')
"""


def test_at_the_end_of_the_process_it_is_closed_in_order_without_a_warning(
    broker: BrokerThread,
) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, broker.uri]
    done = subprocess.run(
        command,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with (
        HAClient.memory_backed("reader", servers=[broker.uri]) as reader,
        reader.sow("orders", filter="/id = 9") as records,
    ):
        assert [record.text for record in records] == ['{"id": 9}']  # it was flushed
