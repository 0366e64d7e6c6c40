from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

from support.clock import pytest_collection_modifyitems
from support.record_files import small_growth

__all__ = ["freed_semaphores", "pytest_collection_modifyitems", "small_growth"]


@pytest.fixture
def freed_semaphores() -> Generator[None]:
    """No semaphores of worker processes wait to be freed.

    Python 3.12 warns when the garbage collector frees one while it registers another.
    """
    gc.collect()
    yield
    gc.collect()
