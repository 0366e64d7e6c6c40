"""What the crash tests share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    """Free the stores of hundreds of crashes: each holds descriptors until it is collected."""
    yield
    gc.collect()
