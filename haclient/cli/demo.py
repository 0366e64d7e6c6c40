"""`haclient demo`: the promise of this package, kept before one's eyes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import click
import msgspec

from haclient.cli.demo_conductor import conduct
from haclient.cli.demo_plan import MIN_MESSAGES
from haclient.cli.demo_trace import MAX_NUMBER
from haclient.cli.exits import ExitCode, Interrupted
from haclient.cli.options import json_option, taking
from haclient.cli.progress import progress_bar
from haclient.cli.stopping import run_stoppable
from haclient.cli.writing import say

__all__ = ["demo", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    messages: int
    as_json: bool


async def _work(request: _Request) -> int:
    with progress_bar("messages arrived", request.messages) as progress:
        verdict = await conduct(request.messages, progress)
    say(msgspec.json.encode(verdict).decode() if request.as_json else verdict.told(), aside=True)
    return ExitCode.OK if verdict.good else ExitCode.FAILURE


def stopped(_number: int) -> int:
    """A signal ended the demo; its processes and files are gone."""
    raise Interrupted("interrupted: there is no verdict")


@click.command()
@click.option(
    "--messages",
    type=click.IntRange(MIN_MESSAGES, MAX_NUMBER),
    default=100_000,
    show_default=True,
    help="How many messages to send.",
)
@json_option
@taking(_Request)
def demo(request: _Request) -> int:
    """Kill brokers and a subscriber in mid-stream, and account for every message.

    Two replicating brokers, a publisher and a subscriber run as processes of this machine. Exit
    code 0 only if nothing was lost, duplicated or out of order.
    """
    return run_stoppable(partial(_work, request), stopped)
