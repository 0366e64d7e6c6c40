"""Conformance suites: whether a store, adapter or chooser of your own keeps what clients rely on.

Each is a plain function that raises `AssertionError` with one line that says what was wanted and
what was found. Call it from a test of your own.
"""

from haclient.testing.bookmark_stores import check_bookmark_store
from haclient.testing.publish_store import check_publish_store
from haclient.testing.recovery_points import check_recovery_point_adapter
from haclient.testing.server_choosers import check_server_chooser

__all__ = [
    "check_bookmark_store",
    "check_publish_store",
    "check_recovery_point_adapter",
    "check_server_chooser",
]
