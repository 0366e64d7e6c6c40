from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from haclient.client import Client
from haclient_stores.interfaces import PublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import pytest_collection_modifyitems
from support.custom import DictPublishStore
from support.peer import Peer, Server, listening, server
from support.record_files import small_growth

__all__ = [
    "client",
    "other",
    "peer",
    "pytest_collection_modifyitems",
    "server",
    "small_growth",
    "store",
]


@pytest.fixture
async def other() -> AsyncGenerator[Server]:
    """A second one."""
    async with listening() as found:
        yield found


@pytest.fixture
async def client() -> AsyncGenerator[Client]:
    """A client without stores."""
    async with Client("sub") as found:
        yield found


@pytest.fixture
async def peer(server: Server, client: Client) -> Peer:
    """The server's end of that client's connection, which is logged on."""
    return await server.log_on(client)


@pytest.fixture(params=[MemoryPublishStore, DictPublishStore], ids=["memory", "custom"])
def store(request: pytest.FixtureRequest) -> PublishStore:
    """Each kind of publish store that is in memory."""
    made: PublishStore = request.param()
    return made
