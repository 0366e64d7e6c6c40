"""`haclient publish`: one message per line, through a publish store, until all are persisted.

With `--store` and `--file` the command can be killed at any moment and run again: see
`haclient.cli.linebook` for how it knows which lines are missing. The order matters: log on (the
store learns what the server has), settle the book, note the new base, only then publish.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import click
import msgspec
import trio

from haclient.cli.connecting import CONNECT_TIMEOUT_S, GIVE_UP_AFTER_S, Connection, open_client
from haclient.cli.exits import ExitCode, Interrupted, complain
from haclient.cli.lines import parse_delimiter
from haclient.cli.options import (
    PositiveNumber,
    client_name_option,
    default_client_name,
    json_option,
    server_option,
    taking,
    timeout_option,
    topic_option,
)
from haclient.cli.progress import progress_bar
from haclient.cli.publishing import (
    PublishRequest,
    PublishRun,
    Summary,
    lost_connection,
    make_plan,
    publish_lines,
    read_book,
)
from haclient.cli.stopping import run_stoppable
from haclient.cli.writing import say
from haclient.errors import PublishFailed, ReconnectGaveUp, TimedOut, UsageError
from haclient.ha import HAClient
from haclient.stores import FilePublishStore, MemoryPublishStore

__all__ = ["publish", "stopped"]

_FLUSH_TIMEOUT_S: Final = 30.0
"""How long the server may take to persist the rest, when the command line does not say."""


def _open_store(request: PublishRequest) -> FilePublishStore | MemoryPublishStore:
    return MemoryPublishStore() if request.store is None else FilePublishStore(request.store)


async def _publish_all(run: PublishRun) -> None:
    request = run.request
    connection = Connection(
        servers=request.servers,
        name=request.client_name or run.store.client_name or default_client_name(),
        timeout_s=request.timeout or CONNECT_TIMEOUT_S,
        give_up_after_s=request.timeout or GIVE_UP_AFTER_S,
        publish_store=run.store,
        on_publish_gap="continue" if request.from_start else "refuse",
        on_failed_write=run.failed_write,
    )
    start = trio.current_time()
    async with open_client(connection) as client:
        run.was_connected = True
        plan = make_plan(run)
        run.summary.skipped = plan.skip
        if plan.remark:
            complain(plan.remark, kind="note")
        with progress_bar(f"publish {request.topic}", run.scan.lines or None) as progress:
            await publish_lines(run, client, plan, progress.tell)
        await _flush(run, client)
        run.note(run.book.settle(run.store.last_sequence))
        run.summary.unpersisted = run.store.unpersisted_count
    run.summary.seconds = round(trio.current_time() - start, 3)


async def _flush(run: PublishRun, client: HAClient) -> None:
    try:
        await client.publish_flush(timeout=run.request.timeout or _FLUSH_TIMEOUT_S)
    except TimedOut as error:
        if client.disconnected:
            raise lost_connection(run) from error
        raise


async def _work(run: PublishRun) -> int:
    try:
        await _publish_all(run)
    except ReconnectGaveUp as error:
        raise (lost_connection(run) if run.was_connected else error) from error
    summary, as_json = run.summary, run.request.as_json
    say(msgspec.json.encode(summary).decode() if as_json else summary.told(), aside=True)
    if summary.failed:
        raise PublishFailed(
            f"the server refused {summary.failed} messages, the first with: {run.first_failure}"
        )
    return ExitCode.OK


def stopped(run: PublishRun, _number: int) -> int:
    """A signal ended the work; what was stored goes out with the next run."""
    told = f"interrupted after {run.summary.published} messages"
    if run.source is not None:
        told += "; run it again to publish the rest"
    raise Interrupted(told)


def _check(request: PublishRequest) -> None:
    path = request.path
    if path is not None and not path.exists():
        raise UsageError(f"{path}: there is no such file")
    if path is not None and path.is_dir():
        raise UsageError(f"{path}: a directory is not a file")
    if request.from_start and (path is None or request.store is None):
        raise UsageError("--from-start only means something with --file and --store")


@click.command()
@server_option
@topic_option
@click.option("--file", default="-", show_default="stdin", help="Read messages from this file.")
@click.option(
    "--delimiter", default="\\n", show_default=True, help=r"What ends a message: \n, \0, \x01 ..."
)
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    help="Keep what is not persisted in this publish store; with --file, resume after a kill.",
)
@click.option("--from-start", is_flag=True, help="Publish every line, also those published before.")
@click.option("--rate", type=PositiveNumber(), help="Messages per second.")
@client_name_option
@timeout_option(
    help_text="How long the server may take to persist the rest, and how long a lost connection is "
    "looked for. Default: 30."
)
@json_option
@taking(PublishRequest)
def publish(request: PublishRequest) -> int:
    """Publish one message per line and wait until all of them are persisted."""
    _check(request)
    delimiter = parse_delimiter(request.delimiter)
    with closing(_open_store(request)) as store:
        run = PublishRun(
            request=request, store=store, delimiter=delimiter, summary=Summary(topic=request.topic)
        )
        run.summary.resent = store.unpersisted_count
        read_book(run)
        return run_stoppable(partial(_work, run), partial(stopped, run))
