"""Times as the broker writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["timestamp_text"]

_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp_text(timestamp_us: int) -> bytes:
    """The `ts` header: ISO 8601 basic, microseconds, UTC."""
    moment = _START + timedelta(microseconds=timestamp_us)
    return moment.strftime("%Y%m%dT%H%M%S.%fZ").encode("ascii")
