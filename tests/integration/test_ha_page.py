"""The first program of docs/ha.md, run as it stands, but for the ports."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from haclient import HAClient
from haclient_fake_server.testing.cluster import Cluster
from haclient_fake_server.testing.faults import Kill
from support.documents import FORMS, programs
from support.process import LIMIT_S, Child

PAGE = Path(__file__).parents[2] / "docs/ha.md"
PORTS = ("tcp://127.0.0.1:9007/amps/json", "tcp://127.0.0.1:9008/amps/json")


@pytest.mark.row("HA1")
@pytest.mark.parametrize(
    "form", [FORMS[0], *(pytest.param(form, marks=pytest.mark.full) for form in FORMS[1:])]
)
async def test_the_first_program_goes_on_after_the_kill_of_a_broker(
    amps_cluster: Callable[..., Awaitable[Cluster]], tmp_path: Path, form: str
) -> None:
    cluster = await amps_cluster("east", "west", on="process")
    program = programs(PAGE.read_text(encoding="utf-8"), form)[0]
    for port, uri in zip(PORTS, cluster.uris, strict=True):
        assert program.count(port) == 1
        program = program.replace(port, uri)
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")
    command = ["sh", "-c", f"cd '{tmp_path}' && exec '{sys.executable}' -u {path.name}"]
    with Child(command) as child, trio.fail_after(LIMIT_S):
        assert await trio.to_thread.run_sync(child.line) == "{'id': 1}"
        await cluster.apply(Kill("east"))
        async with HAClient("other", servers=[cluster.uris[1]]) as other:
            await other.publish("orders", b'{"id": 2}')
            await other.flush()
            assert await trio.to_thread.run_sync(child.line) == "{'id': 2}"
        assert "WARNING:haclient.client:client orders-ha" in child.err
