"""Times as the broker writes them."""

from __future__ import annotations

import pytest

from haclient_fake_server.engine.times import timestamp_text
from haclient_stores.bookmark import Timestamp


@pytest.mark.row("TL17", "RB17")
@pytest.mark.parametrize(
    ("timestamp_us", "text"),
    [
        (0, b"19700101T000000.000000Z"),
        (1_711_058_535_075_075, b"20240321T220215.075075Z"),
    ],
)
def test_every_microsecond_is_written(timestamp_us: int, text: bytes) -> None:
    assert timestamp_text(timestamp_us) == text
    assert Timestamp.parse(text.decode()).microseconds == timestamp_us
