from __future__ import annotations

from support.clock import pytest_collection_modifyitems

__all__ = ["pytest_collection_modifyitems"]
