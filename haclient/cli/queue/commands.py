"""The command group `haclient queue`, and what its commands have in common."""

from __future__ import annotations

import click

from haclient.cli.queue.browse import browse
from haclient.cli.queue.consume import consume
from haclient.cli.queue.depth import depth
from haclient.cli.queue.move import move


@click.group()
def queue() -> None:
    """Watch, browse, consume and move the messages of queues."""


for _command in (browse, consume, depth, move):
    queue.add_command(_command)
