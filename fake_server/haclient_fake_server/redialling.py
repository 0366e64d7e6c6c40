"""Keeping in touch with the destinations of replication: dial, serve, dial again (RE3).

It never gives up. The wait doubles from failure to failure up to a limit and starts again from the
beginning when the destination was reached; a connection that has gone silent is ended by the
engine's heartbeats. The first failure of a row is a warning in the log, the others are not.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from haclient.errors import HAClientError
from haclient.transport.dial import dial as dial_uri
from haclient_fake_server.sessions import Session

if TYPE_CHECKING:
    from haclient.transport.link import Link
    from haclient_fake_server.config import BrokerConfig, ReplicateTo
    from haclient_fake_server.hub import Hub

__all__ = ["Dial", "dial_destination", "keep_connected"]

Dial = Callable[["ReplicateTo", float], Awaitable["Link"]]
"""Connects to a destination within so many seconds; raises `HAClientError` or `OSError`."""

_log = logging.getLogger(__name__)


async def dial_destination(to: ReplicateTo, timeout_s: float) -> Link:
    """Connect to where a destination listens.

    Raises:
        HAClientError: It could not be reached in time.
    """
    return await dial_uri(to.parsed, timeout=timeout_s)


async def keep_connected(to: ReplicateTo, *, hub: Hub, config: BrokerConfig, dial: Dial) -> None:
    """Be connected to a destination whenever that is possible; never returns."""
    wait_s, level = config.redial_s, logging.WARNING
    while True:
        before = _links(hub, to)
        try:
            link = await dial(to, config.dial_timeout_s)
        except (HAClientError, OSError) as error:
            _log.log(level, "%s: replication to %s: %s", config.name, to.address, error)
        else:
            session = Session(hub.next_number(), link, hub=hub, config=config)
            hub.dialled(session, to.address)
            await session.run()
        if _links(hub, to) > before:
            wait_s, level = config.redial_s, logging.WARNING
        else:
            level = logging.DEBUG
        await trio.sleep(wait_s)
        wait_s = min(2 * wait_s, config.redial_max_s)


def _links(hub: Hub, to: ReplicateTo) -> int:
    """How often a destination was reached."""
    return sum(each.links for each in hub.destinations if each.address == to.address)
