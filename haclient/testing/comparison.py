"""What all conformance suites compare with."""

from __future__ import annotations


def expect(found: object, wanted: object, what: str) -> None:
    """Check that two values are equal.

    Raises:
        AssertionError: They differ.
    """
    if found != wanted:
        raise AssertionError(f"{what}: wanted {wanted!r}, found {found!r}")
