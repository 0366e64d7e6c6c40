from __future__ import annotations

import pytest

from haclient.testing.expecting import expect


def test_a_difference_says_what_was_wanted_and_what_was_found() -> None:
    expect(1, 1, "one")
    with pytest.raises(AssertionError, match=r"^the number: wanted 2, found 1$"):
        expect(1, 2, "the number")
