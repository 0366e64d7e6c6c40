"""`haclient queue consume`: print messages of a queue and acknowledge them.

Each message is written to standard output, and only then acknowledged, with no await in between. So
a process that is killed has never acknowledged a message that it has not printed. A printed message
is redelivered if its acknowledgement had not reached the server; these are at most as many messages
as the backlog.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias

import click
import trio

from haclient.cli.connection import CONNECT_TIMEOUT_S, ConnectionRequest
from haclient.cli.message_format import Form, format_option, message_form, pretty_option
from haclient.cli.options import (
    client_name_option,
    count_option,
    filter_option,
    json_option,
    max_backlog_option,
    server_option,
    timeout_option,
    with_request,
)
from haclient.cli.output import STDOUT, OutputClosed, OutputWriter
from haclient.cli.queue.bounded_consumer import BoundedConsumer, Process, run_connected
from haclient.cli.queue.statistics import find_queue
from haclient.cli.termination import ExitCode, run_until_signal
from haclient.client import HAClient
from haclient.errors import HAClientError, TimedOut
from haclient.protocol.messages import Message

_CHECKPOINT_EVERY: Final = 64
"""Messages between two checkpoints for signals, while the output takes all at once."""

Afterwards: TypeAlias = Literal["ack", "cancel", "expire", "no-ack"]


def _leave_to_server(_: Message) -> None:
    """The server gives it back when we disconnect."""


_ACKNOWLEDGE: Final[dict[Afterwards, Callable[[Message], object]]] = {
    "ack": Message.ack,
    "cancel": lambda message: message.ack(cancel=True),
    "expire": lambda message: message.ack(expire=True),
    "no-ack": _leave_to_server,
}
_KEEPS: Final = frozenset({"cancel", "no-ack"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConsumeRequest:
    servers: tuple[str, ...]
    client_name: str | None
    name: str
    filter: str
    count: int | None
    max_backlog: int
    ack: bool
    cancel: bool
    expire: bool
    no_ack: bool
    timeout: float | None
    as_json: bool
    format: str | None = None
    pretty: bool = False

    @property
    def _chosen(self) -> list[Afterwards]:
        flags: dict[Afterwards, bool] = {
            "ack": self.ack,
            "cancel": self.cancel,
            "expire": self.expire,
            "no-ack": self.no_ack,
        }
        return [name for name, is_set in flags.items() if is_set]

    @property
    def afterwards(self) -> Afterwards:
        """What happens to a message that was printed."""
        return self._chosen[0] if self._chosen else "ack"

    @property
    def keeps(self) -> bool:
        """Whether messages are given back."""
        return self.afterwards in _KEEPS

    def check(self) -> None:
        """Check what one option alone does not show.

        Raises:
            click.UsageError: Options exclude each other, or messages that are given back would be
                redelivered without end.
        """
        if len(self._chosen) > 1:
            first, second, *_ = self._chosen
            raise click.UsageError(f"--{first} and --{second} exclude each other: choose one")
        if self.keeps and self.count is None:
            raise click.UsageError(
                f"--{self.afterwards} needs -n: messages that are given back are delivered again"
            )


def consumer_for(request: _ConsumeRequest) -> BoundedConsumer:
    """The consumer for a request."""
    return BoundedConsumer(
        name=request.name,
        filter=request.filter,
        count=request.count,
        max_backlog=request.max_backlog,
        idle_s=request.timeout or float("inf"),
        acknowledge=_ACKNOWLEDGE[request.afterwards],
        answer_limit_s=request.timeout or CONNECT_TIMEOUT_S,
        keeps=request.keeps,
    )


async def _print(
    consumer: BoundedConsumer, form: Form, output: OutputWriter, batch: list[Message]
) -> None:
    for number, message in enumerate(batch, 1):
        await output.write(form(message))
        consumer.finish(message)  # no await in between: a signal finds it printed and finished
        if not number % _CHECKPOINT_EVERY:
            await trio.lowlevel.checkpoint()


async def _consume(
    request: _ConsumeRequest,
    consumer: BoundedConsumer,
    process: Process,
    client: HAClient,
) -> None:
    known = await find_queue(client, request.name, limit_s=consumer.answer_limit_s)
    if known is not None and known.semantics == "at-most-once" and request.afterwards != "ack":
        raise HAClientError(
            f"--{request.afterwards}: {request.name!r} delivers at most once, so a message is "
            "removed when it is delivered; `haclient queue browse` removes nothing"
        )
    await consumer.consume(client, process)


async def _work(request: _ConsumeRequest, consumer: BoundedConsumer, process: Process) -> int:
    connection = ConnectionRequest(
        servers=request.servers,
        name=request.client_name,
        timeout_s=request.timeout,
        give_up_after_s=request.timeout,
    )
    try:
        await run_connected(connection, consumer, partial(_consume, request, consumer, process))
    except OutputClosed:  # the pipe was closed (`| head`); what was not printed is given back
        return ExitCode.OK
    if request.count is None or consumer.is_complete:
        return ExitCode.OK
    raise TimedOut(
        f"{consumer.consumed} of {request.count} messages came, then none for {request.timeout:g} s"
    )


@click.command()
@click.argument("name", metavar="QUEUE")
@server_option
@filter_option
@count_option
@max_backlog_option(
    default=10, help="How many unacknowledged messages the server may send; it may grant less."
)
@click.option(
    "--ack",
    is_flag=True,
    help="Acknowledge what is printed. This is the default.",
)
@click.option(
    "--cancel",
    is_flag=True,
    help="Give back what was printed, at the end; it counts as cancelled. Needs -n.",
)
@click.option(
    "--expire",
    is_flag=True,
    help="Remove what is printed as expired; the dead-letter topic gets a copy.",
)
@click.option(
    "--no-ack",
    is_flag=True,
    help="Do not acknowledge: the server gives back what was printed, at the end. Needs -n.",
)
@client_name_option
@timeout_option(
    help="End when no message came for so long (default: never); also the limit for "
    "connecting to a server (default: 10) and for finding one again (default: 30)."
)
@format_option
@json_option
@pretty_option
@with_request(_ConsumeRequest)
def consume(request: _ConsumeRequest) -> int:
    """Print messages of a queue as they arrive, and acknowledge them.

    A message is acknowledged after it was printed, so a killed process loses none.
    """
    request.check()
    form = message_form(request.format, as_json=request.as_json, pretty=request.pretty)
    consumer, output = consumer_for(request), OutputWriter(STDOUT)
    return run_until_signal(
        partial(_work, request, consumer, partial(_print, consumer, form, output)),
        lambda: f"interrupted after {consumer.consumed} messages",
        output=output,
        # Only promised work that was not done is a failure.
        is_service=request.count is None,
    )
