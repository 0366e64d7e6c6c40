"""`haclient broker cluster`: several brokers of one machine that replicate to each other.

Each is a process in a session of its own, so that Ctrl-C reaches only the command, which then ends
all of them together. They also end by themselves when the command is gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Final

import click
import trio

from haclient.cli.broker import check_data_directory, topic_options
from haclient.cli.demo.processes import reserved_ports
from haclient.cli.options import Count, FilePath, with_request
from haclient.cli.output import print_result
from haclient.cli.termination import print_error, run_until_signal
from haclient.errors import HAClientError, UsageError
from haclient.transport.tasks import open_nursery

MAX_BROKERS: Final = 16
"""Each replicates to each other one."""

MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClusterRequest:
    count: int
    port: int
    data: Path | None
    replication: str
    log_topics: tuple[str, ...]
    sow_topics: tuple[str, ...]
    queues: tuple[str, ...]
    message_types: tuple[str, ...]

    def check(self) -> None:
        """Check the options once, before each broker does.

        Raises:
            UsageError: An option is malformed or out of range.
        """
        from haclient_fake_server import config  # noqa: PLC0415 - only this command needs a broker

        if self.port + self.count > MAX_PORT + 1:
            raise UsageError(f"--port {self.port}: {self.count} ports from it exceed {MAX_PORT}")
        parse_sow_topic = partial(config.parse_sow_topic, allow_user_keys=True)
        config.BrokerConfig(
            log_topics=tuple(map(config.parse_log_topic, self.log_topics)),
            sow_topics=tuple(map(parse_sow_topic, self.sow_topics)),
            queues=tuple(map(config.parse_queue, self.queues)),
            message_types=self.message_types,
            replicate_to=(config.parse_replicate_to(f"tcp://127.0.0.1:1,{self.replication}"),),
        )
        if self.data is not None:
            for number in range(self.count):
                check_data_directory(self.data / f"broker-{number + 1}")

    def arguments(self, number: int, *, uris: list[str], data: Path) -> list[str]:
        """What `broker run` is given for one of the brokers."""
        name = f"broker-{number + 1}"
        words = ["--name", name, "--listen", uris[number], "--data", str(data / name)]
        for other in (*uris[:number], *uris[number + 1 :]):
            words += ["--replicate-to", f"{other},{self.replication}"]
        for option, values in (
            ("--log-topic", self.log_topics),
            ("--sow", self.sow_topics),
            ("--queue", self.queues),
            ("--message-type", self.message_types),
        ):
            words += [word for value in values for word in (option, value)]
        return words


async def _run_broker(
    arguments: list[str],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run one broker until it ends or is cancelled, which terminates it.

    Raises:
        HAClientError: It has ended before it listened; its reason is on stderr.
    """
    name = arguments[arguments.index("--name") + 1]
    async with _broker_process(arguments) as process:
        if process.stdout is None or not await process.stdout.receive_some():
            raise HAClientError(f"{name} did not start")
        task_status.started()
        await process.wait()
    print_error(f"{name} has ended: {_reason(process.returncode)}", kind="warning")


def _reason(code: int | None) -> str:
    """Why a process has ended, by its exit code."""
    if code is not None and code < 0:
        return f"killed by {Signals(-code).name}"
    return f"exit code {code}"


@asynccontextmanager
async def _broker_process(arguments: list[str]) -> AsyncGenerator[trio.Process]:
    command = [sys.executable, "-m", "haclient.cli.demo.worker", "broker", *arguments]
    # The same modules as ours, wherever they were imported from.
    path = os.pathsep.join(each for each in sys.path if each)
    start = partial(
        trio.run_process,
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
    async with open_nursery() as nursery:
        process: trio.Process = await nursery.start(start)
        try:
            yield process
        finally:
            nursery.cancel_scope.cancel()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            await stream.aclose()


async def _serve(request: _ClusterRequest) -> int:
    with (
        reserved_ports(request.count, first=request.port) as ports,
        nullcontext(request.data) if request.data else _temporary() as data,
    ):
        uris = [f"tcp://127.0.0.1:{port}" for port in ports]
        async with open_nursery() as nursery:
            async with open_nursery() as starting:
                for number in range(request.count):
                    words = request.arguments(number, uris=uris, data=Path(data))
                    starting.start_soon(nursery.start, _run_broker, words)
            servers = ",".join(f"{uri}/amps/json" for uri in uris)
            print_result(
                "\n".join([*(f"listening {uri}" for uri in uris), f"AMPS_URI={servers}"]),
                aside=True,
            )
    raise HAClientError("all brokers have ended")


def _temporary() -> tempfile.TemporaryDirectory[str]:
    found = tempfile.TemporaryDirectory(prefix="haclient-cluster-", ignore_cleanup_errors=True)
    what = f"the logs are in {found.name}, which is removed when the brokers stop"
    print_error(f"no --data: {what}", kind="note")
    return found


@click.command("cluster")
@click.option(
    "-n",
    "count",
    type=Count(2, MAX_BROKERS),
    default=3,
    metavar="N",
    show_default=True,
    help="How many brokers to run.",
)
@click.option(
    "--port",
    type=Count(0, MAX_PORT),
    default=0,
    metavar="PORT",
    help="Where the first one listens on 127.0.0.1; the others take the ports above. Default: free "
    "ports.",
)
@click.option(
    "--data",
    type=FilePath(path_type=Path, file_okay=False),
    help="The directory of their logs, each in one of its own: broker-1, broker-2 ... Default: a "
    "temporary one, which is removed at the end.",
)
@click.option(
    "--replication",
    default="sync,downgrade=10",
    show_default=True,
    metavar="sync|async[,downgrade=SECONDS]",
    help="How each replicates to the others: see `--replicate-to` of `broker run`.",
)
@topic_options
@with_request(_ClusterRequest)
def cluster(request: _ClusterRequest) -> int:
    """Run several brokers until SIGTERM; each replicates to all."""
    request.check()
    return run_until_signal(
        partial(_serve, request),
        lambda: "stopped" + "; everything that was confirmed is in the logs" * bool(request.data),
        is_service=True,
    )
