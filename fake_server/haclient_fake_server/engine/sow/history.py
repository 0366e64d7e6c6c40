"""Records as they were: the state of the world at an earlier position of the log.

The log has every publish and delete of a topic that keeps a history, so its records at a position
are those that come of applying everything before it. The log is read in steps, between which the
broker does other work; it is only ever appended to, so what is found does not change meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from typing import Final

from haclient_fake_server.engine.apply import apply
from haclient_fake_server.engine.journal import records_of
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.routes import Route, Routes
from haclient_fake_server.engine.sow.table import SowTable
from haclient_fake_server.engine.timers import Clock

STEP_BYTES: Final = 1024 * 1024
"""What is read of the log in one step."""


def records_at(
    log: LogWriter,
    routes: Routes,
    clock: Clock,
    topics: Iterable[SowTable],
    position: int,
    *,
    moment_us: int | None = None,
) -> Generator[None, None, list[SowTable]]:
    """Rebuild some topics of one message type as they were before a position of the log.

    Args:
        log: The log.
        routes: Its topics.
        clock: Tells which records have expired by now.
        topics: The topics as they are now.
        position: The first position that does not count.
        moment_us: What has expired at this moment is left out, and at the last message before the
            position; `None` for the moment at which that position was written, or now.

    Returns:
        The topics as they were, in the same order.
    """
    past = {topic.name: topic.blank() for topic in topics}
    past_routes = {
        topic.name: Route(topic.name, topic.message_type, logged=True, sow=topic)
        for topic in past.values()
    }
    expiring = [topic for topic in past.values() if topic.expiration_s is not None]
    cursor = log.journal.seek(log.journal.first_position)
    while True:
        chunk, cursor = log.journal.read(cursor, STEP_BYTES)
        for record in records_of(chunk):
            is_over = record.position >= position
            until_us = record.timestamp_us
            if is_over and moment_us is not None:
                until_us = min(moment_us, until_us)  # the moment may be ahead of the clock
            for topic in expiring if record.position else ():
                topic.take_expired(until_us, sys.maxsize)
            if is_over:
                return list(past.values())
            now = routes.by_id.get(record.topic_id) if record.position else None
            route = past_routes.get(now.topic) if now is not None else None
            if now is not None and route is not None and now.message_type == route.message_type:
                apply(route, record)
        if not chunk:
            until_us = clock.wall_us if moment_us is None else min(moment_us, clock.wall_us)
            for topic in expiring:
                topic.take_expired(until_us, sys.maxsize)
            return list(past.values())
        yield
