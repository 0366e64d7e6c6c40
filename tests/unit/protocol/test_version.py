from __future__ import annotations

import pytest

from haclient.protocol.version import version_number


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("5.3.4.99", 5030499),
        ("5.2.1.17.717892.e742467", 5020117),
        ("5.3.5", 5030500),
        ("5", 5000000),
        ("5.3.4.1000", 5030499),
        ("5.300.4.1", 5990401),
        ("5.0003.4", 5030400),
        ("5.3rc1.9.9", 5030000),
        ("5.x.9", 5000000),
        ("5..9", 5000000),
        ("develop", 0),
        ("", 0),
        ("9" * 5000, 99000000),
        ("\u0665.1", 0),
    ],
)
def test_a_version_becomes_a_number_that_can_be_compared(version: str, number: int) -> None:
    assert version_number(version) == number
