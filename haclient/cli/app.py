"""The command `haclient`: its groups, and the one place where errors become exit codes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import click
from typing_extensions import override

from haclient._version import __version__
from haclient.cli.broker import broker
from haclient.cli.broker_cluster import cluster
from haclient.cli.demo.run import demo
from haclient.cli.ping import ping
from haclient.cli.publish import publish
from haclient.cli.pyspark.commands import pyspark_commands
from haclient.cli.queue.commands import queue
from haclient.cli.sow import sow
from haclient.cli.sow_and_subscribe import sow_and_subscribe
from haclient.cli.sow_delete import sow_delete
from haclient.cli.store import store
from haclient.cli.subscribe import subscribe
from haclient.cli.termination import ExitCode, exit_code_of, print_failure

_VERBOSE: Final = "haclient.verbose"  # how often -v was given, before and after the command


def _note_verbose(context: click.Context, _option: click.Parameter, value: int) -> None:
    count = context.meta[_VERBOSE] = context.meta.get(_VERBOSE, 0) + value
    if count:
        logging.getLogger("haclient").setLevel(logging.INFO if count == 1 else logging.DEBUG)


def add_verbose(command: click.Command) -> None:
    """Add `-v` to a command and all below it: people give it before or after the command's name."""
    command.params.append(
        click.Option(
            ["-v", "--verbose"],
            count=True,
            expose_value=False,
            callback=_note_verbose,
            help="Print on stderr which servers are tried; -vv: also each state and frame, with "
            "times and without bodies.",
        )
    )
    if isinstance(command, click.Group):
        for each in command.commands.values():
            add_verbose(each)


@click.group(name="haclient", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="haclient")
def commands() -> None:
    """Publish to and subscribe from AMPS servers, losing and repeating nothing."""


broker.add_command(cluster)
for _command in (
    *(broker, demo, ping, publish, pyspark_commands, queue, sow, sow_and_subscribe, sow_delete),
    *(store, subscribe),
):
    commands.add_command(_command)
add_verbose(commands)


class _OneLine(logging.Formatter):
    """Formats warnings like our errors, so that one grep finds both; `-vv` adds the time."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        at = ""
        if logging.getLogger("haclient").level == logging.DEBUG:
            moment = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
            at = f"{moment.isoformat(timespec='milliseconds')}Z "
        text = " ".join(record.getMessage().split())
        return f"haclient: {record.levelname.lower()}: {at}{text}"


def _is_shown(record: logging.LogRecord) -> bool:
    """Whether a record is shown: warnings, and below that only records of this package.

    The frames before a failure are several lines for experts: with `-vv` they are there anyway.
    """
    if record.name == "haclient.flight_recorder":
        return False
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] == "haclient"


def _log_to_stderr() -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_is_shown)
    handler.setFormatter(_OneLine())
    logging.getLogger().addHandler(handler)
    return handler


def _context_of(words: Sequence[str]) -> click.Context:
    """The context of the command in `words`: the errors of click's parser lack it."""
    context = click.Context(commands, info_name="haclient")
    for word in words:
        group = context.command
        if isinstance(group, click.Group) and (command := group.commands.get(word)):
            context = click.Context(command, context, info_name=word)
    return context


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        arguments: The words after `haclient`; those of the process when `None`.
    """
    handler, level = _log_to_stderr(), logging.getLogger("haclient").level
    try:
        result: object = commands.main(
            None if arguments is None else list(arguments), "haclient", standalone_mode=False
        )
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    except BaseException as error:  # the program's top: what the table knows becomes one line
        known = exit_code_of(error)
        if known is None:
            raise
        if isinstance(known[1], click.UsageError) and known[1].ctx is None:
            known[1].ctx = _context_of(sys.argv[1:] if arguments is None else arguments)
        return print_failure(known[1])
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger("haclient").setLevel(level)
    return result if isinstance(result, int) else ExitCode.OK
