"""Processes that gevent has really patched: the table in docs/without-trio.md, row by row."""

from __future__ import annotations

import pytest

from haclient_fake_server.testing.processes import BrokerProcess
from support.process import LIMIT_S, run_script

pytest.importorskip("gevent", reason="gevent is not installed: it is in [test]")
pytestmark = pytest.mark.row("CC35")

PATCHED = """
from gevent import get_hub, monkey, spawn
monkey.patch_all(thread={threads}, select={select})
import sys
from haclient.blocking import HAClient
from haclient.errors import UsageError
client = HAClient("orders-7", servers=[sys.argv[1]])
"""

REFUSED = """
import haclient
for use in (client.open, lambda: haclient.HAClient):
    try:
        use()
    except UsageError as error:
        print(error)
"""

WORKS = """
got = []
with client:
    client.subscribe("orders", handler=lambda message: got.append(message.text))
    spawn(client.publish_persisted, "orders", "1").get()
    is_meanwhile = spawn(lambda: True)
    get_hub().threadpool.apply(client.publish_persisted, ("orders", "2"))
    assert is_meanwhile.value
    client.flush()
print(got)
"""


def output(script: str, uri: str) -> list[str]:
    with run_script(script, uri) as process:
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    return out.splitlines()


@pytest.mark.parametrize(
    ("threads", "select", "replaced"),
    [(True, True, "threading and select"), (True, False, "threading"), (False, True, "select")],
)
def test_a_process_that_is_patched_gets_one_clear_error(
    *, threads: bool, select: bool, replaced: str
) -> None:
    script = PATCHED.format(threads=threads, select=select) + REFUSED
    client, of_trio = output(script, "tcp://127.0.0.1:1/amps/json")
    assert client == of_trio
    assert client.startswith(f"gevent has replaced the modules {replaced}, which a client needs")


def test_a_process_with_its_own_threads_publishes_from_greenlets(
    amps_broker_process: BrokerProcess,
) -> None:
    script = PATCHED.format(threads=False, select=False) + WORKS
    assert output(script, amps_broker_process.uri) == ["['1', '2']"]
