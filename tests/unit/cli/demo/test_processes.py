"""Processes that are started here are gone afterwards, whatever happens; their ports are theirs."""

from __future__ import annotations

import socket
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
import trio

from haclient.cli.demo.processes import (
    TICK_S,
    Assignment,
    DemoFailed,
    DemoProcess,
    ProcessGroup,
    Report,
    Stuck,
    open_process_group,
    reserved_ports,
    wait_until,
)
from support.clock import in_virtual_time
from support.process import is_running


async def started_broker(group: ProcessGroup, port: int) -> DemoProcess:
    """A broker that listens."""
    listen = f"tcp://127.0.0.1:{port}"
    data = str(group.directory / f"data {port}")
    broker = await group.start("broker", "broker", "--listen", listen, "--data", data)
    async with aclosing(broker.lines()) as lines:
        assert (await anext(lines)).decode() == f"listening {listen}"
    return broker


async def test_leaving_kills_everybody_and_removes_the_files() -> None:
    with reserved_ports(1) as [port]:
        async with open_process_group() as group:
            broker = await started_broker(group, port)
            directory = group.directory
            assert is_running(broker.pid)
            assert (directory / f"data {port}").is_dir()
    assert not is_running(broker.pid)
    assert not directory.exists()


async def test_an_error_or_a_cancel_leaves_nothing_either() -> None:
    pids: list[int] = []
    directories: list[Path] = []

    async def run(*, fails: bool) -> None:
        async with open_process_group() as group:
            process = await group.start("worker", "publisher", "this is no assignment")
            pids.append(process.pid)
            directories.append(group.directory)
            if fails:
                raise ValueError("mine")
            await trio.sleep_forever()

    with pytest.raises(ValueError, match="mine"):
        await run(fails=True)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: run(fails=False))
            while len(pids) < 2:
                await trio.lowlevel.checkpoint()
            scope.cancel()
    assert not any(map(is_running, pids))
    assert not any(directory.exists() for directory in directories)


async def test_a_member_that_ends_by_itself_is_told_by_its_last_words() -> None:
    async with open_process_group() as group:
        process = await group.start("worker", "publisher", "this is no assignment")
        with pytest.raises(DemoFailed, match=r"^the worker ended with 1: .*JSON"):
            async for _ in process.lines():
                pass


async def test_a_member_that_was_killed_or_stopped_is_no_failure() -> None:
    with reserved_ports(2) as ports:
        async with open_process_group() as group:
            killed, stopped = [await started_broker(group, port) for port in ports]
            await killed.kill()
            await stopped.stop()
            for process in (killed, stopped):
                assert [line async for line in process.lines()] == []
                await process.send_line("nobody hears this")


async def test_a_member_that_does_not_end_in_order_is_told() -> None:
    async with open_process_group() as group:
        process = await group.start("worker", "publisher", "this is no assignment")
        with pytest.raises(DemoFailed):
            async for _ in process.lines():
                pass
        with pytest.raises(DemoFailed, match="the worker ended with 1"):
            await process.stop()


def test_a_reserved_port_is_for_those_who_know_it() -> None:
    with reserved_ports(2) as [port, other]:
        assert port != other
        with (
            socket.socket() as stranger,
            pytest.raises(OSError, match="Address already in use"),
        ):
            stranger.bind(("127.0.0.1", port))
        with (
            socket.create_server(("127.0.0.1", port)) as server,
            socket.create_connection(("127.0.0.1", port)) as dialled,
        ):
            accepted, _ = server.accept()
            accepted.close()
            assert dialled.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_a_report_tells_only_what_it_has_to_say() -> None:
    assert msgspec.json.encode(Report(ready=True)) == b'{"ready":true}'
    assert msgspec.json.encode(Report(published=0, persisted=0)) == b'{"published":0,"persisted":0}'


def test_both_sides_understand_each_other() -> None:
    for said in (
        Report(resumed_ns=17),
        Report(caught_up=True),
        Assignment(servers=("a", "b"), store="s", trace="t", marks=4),
    ):
        assert msgspec.json.decode(msgspec.json.encode(said), type=type(said)) == said


@in_virtual_time
async def test_a_wait_ends_when_nothing_changes_for_too_long() -> None:
    read: list[int] = []

    def read_progress() -> int:
        read.append(len(read))
        return min(len(read), 5)

    began = trio.current_time()
    await wait_until(lambda: len(read) == 3, read_progress, patience_s=1.0)
    assert trio.current_time() - began == pytest.approx(2 * TICK_S)
    with pytest.raises(Stuck):
        await wait_until(lambda: False, read_progress, patience_s=1.0)
    assert trio.current_time() - began == pytest.approx(1 + 5 * TICK_S, abs=2 * TICK_S)
