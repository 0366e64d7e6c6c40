"""Bookmark logs that a few thousand messages fill."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from haclient_stores.bookmark_stores import logged, record_file
from haclient_stores.bookmark_stores.record_file import BLOCK_BYTES

__all__ = ["small_growth"]


@pytest.fixture
def small_growth() -> Generator[None]:
    """Bookmark logs grow by `BLOCK_BYTES`, a sixteenth of what they do otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_file, "GROW_BYTES", BLOCK_BYTES)
        patch.setattr(logged, "GROW_BYTES", BLOCK_BYTES)
        yield
