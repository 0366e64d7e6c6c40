from __future__ import annotations

from array import array

import pytest

from haclient.errors import UsageError
from haclient.transport.payload import as_bytes, check_payload


@pytest.mark.parametrize("data", [b"ab", bytearray(b"ab"), memoryview(b"ab"), "ab"], ids=type)
def test_bytes_and_text_can_be_published(data: bytes | str) -> None:
    check_payload(data)
    assert as_bytes(data) == b"ab"


@pytest.mark.parametrize("data", [{"a": 1}, 5, None, ["a"], [1, 2]])
def test_anything_else_is_refused(data: object) -> None:
    wanted = f"data is bytes, bytearray, memoryview or str, not {type(data).__name__}"
    with pytest.raises(UsageError, match=wanted):
        check_payload(data)
    with pytest.raises(UsageError, match=wanted):
        as_bytes(data)  # type: ignore[arg-type]  # what is tested


def test_any_buffer_will_do() -> None:
    check_payload(array("B", b"ab"))
