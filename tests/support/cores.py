"""The core of a client that is logged on to a server whose part the test plays."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from haclient.options import Settings
from haclient.transport.core import Core
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.peer import Peer, Server, together

__all__ = ["core_at"]


@asynccontextmanager
async def core_at(server: Server, *, has_store: bool) -> AsyncGenerator[tuple[Core, Peer]]:
    """A core and the server's end of its connection."""
    store = MemoryPublishStore() if has_store else None
    core = Core(Settings(name="c", publish_store=store, exit_timeout=0))
    await core.enter()
    await together(lambda: core.connect(server.uri, timeout=1), trio.lowlevel.checkpoint)
    peer = await server.accept()
    await together(lambda: core.logon(timeout=1), peer.log_on)
    try:
        yield core, peer
    finally:
        await core.leave(None, None, None)
