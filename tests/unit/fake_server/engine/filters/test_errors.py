"""What is wrong with a filter."""

from __future__ import annotations

import pytest

from haclient.errors import HAClientError
from haclient_fake_server.engine.filters import FilterError, compile_filter


@pytest.mark.row("AK7")
def test_an_error_says_where_what_was_wanted_and_what_was_found() -> None:
    error = FilterError(7, expected="a value", found="the end")
    assert str(error) == "bad filter at character 7: expected a value, found the end"
    assert (error.reason, error.position) == ("bad filter", 7)
    assert (error.expected, error.found) == ("a value", "the end")
    assert isinstance(error, HAClientError)


def test_the_position_is_that_of_the_text() -> None:
    with pytest.raises(FilterError) as caught:
        compile_filter("/a = 1 AND ?")
    assert caught.value.position == len("/a = 1 AND ")
