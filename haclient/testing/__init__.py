"""Suites that show whether a class of your own keeps the promises of an interface.

They raise `AssertionError` with the promise that was broken; use them from any test runner.
"""

from __future__ import annotations

from haclient.testing.publish_store import check_publish_store

__all__ = ["check_publish_store"]
