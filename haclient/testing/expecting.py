"""What a check says when it fails."""

from __future__ import annotations

__all__ = ["expect"]


def expect(found: object, wanted: object, what: str) -> None:
    """Compare.

    Raises:
        AssertionError: They differ.
    """
    if found != wanted:
        raise AssertionError(f"{what}: wanted {wanted!r}, found {found!r}")
