"""What can be published, and what is said of anything else."""

from __future__ import annotations

from typing import TypeAlias

from haclient.errors import UsageError

__all__ = ["Payload", "as_bytes", "check_payload"]

Payload: TypeAlias = bytes | bytearray | memoryview | str
"""What can be published: bytes as they are, text as UTF-8."""


def check_payload(data: object) -> None:
    """Whether this can be published.

    It costs something, so it is only asked when writing the data has failed.

    Raises:
        UsageError: It is neither text nor bytes.
    """
    if isinstance(data, str):
        return
    try:
        memoryview(data)  # type: ignore[arg-type]  # whether it is a buffer is the question
    except TypeError:
        raise UsageError(
            "data is bytes, bytearray, memoryview or str, "
            f"not {type(data).__name__}: encode it first, such as with json.dumps"
        ) from None


def as_bytes(data: Payload) -> bytes:
    """The bytes to be sent.

    Raises:
        UsageError: It is neither text nor bytes.
    """
    if isinstance(data, str):
        return data.encode()
    if not isinstance(data, bytes):
        check_payload(data)  # bytes(5) would be five zeros
    return bytes(data)
