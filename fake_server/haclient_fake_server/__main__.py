"""`python -m haclient_fake_server`: the broker as tests start it, with options for faults.

`haclient broker run` is the command for users: it adds users and checks the data directory.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio

from haclient.errors import HAClientError
from haclient.transport.tasks import open_nursery
from haclient_fake_server.config import (
    BrokerConfig,
    FsyncPolicy,
    parse_entitlement,
    parse_log_topic,
    parse_queue,
    parse_replicate_to,
    parse_sow_topic,
    read_users,
    tls_files,
)
from haclient_fake_server.kill_points import KillPoint, KillPoints
from haclient_fake_server.listener import check_reachable
from haclient_fake_server.server import BrokerServer
from haclient_fake_server.testing.faults import Kill, from_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT; the exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        trio.run(partial(_run, _config(chosen), faults_from_stdin=chosen.faults_from_stdin))
    except (HAClientError, OSError) as error:
        print(f"haclient-fake-server: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        return 1
    return 0


async def _run(config: BrokerConfig, *, faults_from_stdin: bool) -> None:
    points = KillPoints()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with BrokerServer(config, kill_points=points) as server, open_nursery() as nursery:
            for uri in server.uris:
                print(f"listening {uri}", flush=True)  # noqa: T201 - a command's output
            if server.admin_uri:
                print(f"admin {server.admin_uri}", flush=True)  # noqa: T201 - a command's output
            if faults_from_stdin:
                nursery.start_soon(_take_faults, points)
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()


async def _take_faults(points: KillPoints) -> None:
    """Arm the kill points that the lines of standard input name, until it ends."""
    rest = b""
    async for chunk in trio.lowlevel.FdStream(os.dup(0)):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            fault = from_json(line)
            if isinstance(fault, Kill) and fault.at:
                points.arm(KillPoint(fault.at), passes=fault.passes)
                print(f"armed {fault.at}", flush=True)  # noqa: T201 - a command's output


_TLS_FILES = {
    "--tls-cert": "certificate for tcps:// addresses, in PEM",
    "--tls-key": "its key, unless that is in the same file",
    "--tls-client-ca": "accept only clients with a certificate of these authorities",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="haclient-fake-server", description=__doc__)
    parser.add_argument("--listen", action="append", help="tcp://HOST:PORT, port 0 for any")
    parser.add_argument("--admin", default="", help="HOST:PORT of the admin interface")
    parser.add_argument("--name", default="broker", help="instance name")
    parser.add_argument("--data", type=Path, help="journal directory; without it: in memory")
    parser.add_argument("--log-topic", action="append", help="topic or pattern to record")
    parser.add_argument(
        "--sow",
        action="append",
        default=[],
        help="TOPIC:/key[,/key]; TOPIC: where publishers name the keys",
    )
    parser.add_argument("--queue", action="append", default=[], help="NAME[:TOPIC][,option=value]")
    parser.add_argument(
        "--message-type", action="append", default=[], help="a message type besides those of AMPS"
    )
    parser.add_argument("--user-file", type=Path, help="users that may log on, lines user:password")
    parser.add_argument(
        "--entitle", action="append", default=[], help="USER:read|publish|all:TOPIC[:FILTER]"
    )
    parser.add_argument(
        "--replicate-to", action="append", default=[], help="URI[,sync|async][,downgrade=SECONDS]"
    )
    parser.add_argument("--fsync", choices=[*FsyncPolicy], default=FsyncPolicy.NONE)
    parser.add_argument(
        "--parquet", action="store_true", help="also write closed journal files as Parquet"
    )
    for name, meaning in _TLS_FILES.items():
        parser.add_argument(name, type=Path, help=meaning)
    parser.add_argument("--segment-bytes", type=int, help="size of a journal file")
    parser.add_argument("--archive", type=Path, help="directory of archived journal files")
    for action in ("archive", "compress", "remove"):
        parser.add_argument(
            f"--{action}-after", type=float, default=math.inf, help=f"age in seconds to {action} at"
        )
    parser.add_argument("--faults-from-stdin", action="store_true", help=argparse.SUPPRESS)
    return parser


def _config(chosen: argparse.Namespace) -> BrokerConfig:
    listen = tuple(chosen.listen or ("tcp://127.0.0.1:9007",))
    check_reachable(listen)
    return BrokerConfig(
        name=chosen.name,
        listen=listen,
        admin=chosen.admin,
        data_dir=chosen.data,
        log_topics=tuple(map(parse_log_topic, chosen.log_topic or (".*",))),
        sow_topics=tuple(parse_sow_topic(text, allow_user_keys=True) for text in chosen.sow),
        replicate_to=tuple(map(parse_replicate_to, chosen.replicate_to)),
        queues=tuple(map(parse_queue, chosen.queue)),
        users=None if chosen.user_file is None else read_users(chosen.user_file),
        entitlements=tuple(map(parse_entitlement, chosen.entitle)),
        message_types=tuple(chosen.message_type),
        fsync=FsyncPolicy(chosen.fsync),
        parquet=chosen.parquet,
        tls=tls_files(listen, chosen.tls_cert, chosen.tls_key, chosen.tls_client_ca),
        segment_bytes=chosen.segment_bytes or BrokerConfig().segment_bytes,
        archive_dir=chosen.archive,
        archive_after_s=chosen.archive_after,
        compress_after_s=chosen.compress_after,
        remove_after_s=chosen.remove_after,
    )


if __name__ == "__main__":
    sys.exit(main())
