from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from support.clock import pytest_collection_modifyitems
from support.peer import Server, listening
from support.record_files import small_growth

__all__ = ["other", "pytest_collection_modifyitems", "server", "small_growth"]


@pytest.fixture
async def server() -> AsyncGenerator[Server]:
    """A server whose part the test plays."""
    async with listening() as found:
        yield found


@pytest.fixture
async def other() -> AsyncGenerator[Server]:
    """A second one."""
    async with listening() as found:
        yield found
