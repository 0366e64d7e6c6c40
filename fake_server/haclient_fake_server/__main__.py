"""`python -m haclient_fake_server`: a broker in a hurry; `haclient broker run` has more."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from haclient.errors import HAClientError, UsageError
from haclient_fake_server.config import BrokerConfig, LogTopic, ReplicateTo, SowTopic
from haclient_fake_server.listening import check_reachable
from haclient_fake_server.server import BrokerServer

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT; the exit code."""
    try:
        trio.run(_run, _config(arguments))
    except (HAClientError, OSError) as error:
        print(f"haclient-fake-server: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        return 1
    return 0


async def _run(config: BrokerConfig) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with BrokerServer(config) as server:
            for uri in server.uris:
                print(f"listening {uri}", flush=True)  # noqa: T201 - a command's output
            async for _ in signals:
                return


def _config(arguments: Sequence[str] | None) -> BrokerConfig:
    parser = argparse.ArgumentParser(prog="haclient-fake-server", description=__doc__)
    parser.add_argument("--listen", action="append", help="tcp://HOST:PORT, port 0 for any")
    parser.add_argument("--name", default="broker", help="instance name")
    parser.add_argument("--data", type=Path, help="journal directory; without it: in memory")
    parser.add_argument("--log-topic", action="append", help="topic or pattern to record")
    parser.add_argument("--sow", action="append", default=[], help="TOPIC:/key[,/key]")
    parser.add_argument("--replicate-to", action="append", default=[], help="URI[,sync|async]")
    chosen = parser.parse_args(arguments)
    listen = tuple(chosen.listen or ("tcp://127.0.0.1:9007",))
    check_reachable(listen)
    return BrokerConfig(
        name=chosen.name,
        listen=listen,
        data_dir=chosen.data,
        log_topics=tuple(LogTopic(pattern) for pattern in chosen.log_topic or (".*",)),
        sow_topics=tuple(_sow_topic(text) for text in chosen.sow),
        replicate_to=tuple(_replicate_to(text) for text in chosen.replicate_to),
    )


def _sow_topic(text: str) -> SowTopic:
    topic, _, keys = text.partition(":")
    return SowTopic(topic, keys=tuple(key for key in keys.split(",") if key))


def _replicate_to(text: str) -> ReplicateTo:
    uri, _, mode = text.partition(",")
    if mode not in {"", "sync", "async"}:
        raise UsageError(f"--replicate-to: {mode!r} after the address is not sync or async")
    return ReplicateTo(uri, "async" if mode == "async" else "sync")


if __name__ == "__main__":
    sys.exit(main())
