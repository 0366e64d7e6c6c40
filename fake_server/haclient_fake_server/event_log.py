"""The event log of a broker process: a file with one line for each event, in the form of AMPS.

::

    2026-01-31T12:00:00.123456Z [4711] warning: broker: connection 2 ... ended: slow client

Time in UTC, process, level, and what has happened. AMPS has the number of the message before the
text; there are no numbers here. The reasons for the end of a connection and for a refusal are the
words that the client was given, such as `name in use`, `heartbeat`, `slow client`, `auth failure`
and `not entitled`.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path

from typing_extensions import override


class EventFormatter(logging.Formatter):
    """Formats records of the broker's loggers; only a traceback takes more than one line."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
        text = " ".join(record.message.split())
        time = f"{at.isoformat(timespec='microseconds')}Z"
        return f"{time} [{record.process}] {record.levelname.lower()}: {text}"


class _EventFile(WatchedFileHandler):
    """The file, which is opened again when it was renamed."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # it cannot be opened again: no reason to end a broker
            self.handleError(record)


@contextmanager
def event_log(path: Path) -> Generator[None]:
    """Append the events of all brokers of this process to a file, while the block runs.

    A file that was renamed, as by logrotate, is begun anew. While that is not possible, what is
    missing in it is told on stderr.

    Raises:
        OSError: It cannot be opened.
    """
    handler = _EventFile(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(EventFormatter())
    logger = logging.getLogger("haclient_fake_server")
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()
