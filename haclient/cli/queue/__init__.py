"""`haclient queue`: watch, browse, consume and move the messages of queues."""

from haclient.cli.queue.commands import queue

__all__ = ["queue"]
