"""The official names of exceptions."""

from __future__ import annotations

import pytest

from haclient import compat
from haclient.compat import errors
from haclient.errors import HAClientError, NameInUse

pytestmark = pytest.mark.row("B18")


@pytest.mark.parametrize("name", errors.OFFICIAL_NAMES)
def test_each_name_is_an_error_below_the_official_root(name: str) -> None:
    assert issubclass(getattr(compat, name), HAClientError)
    assert issubclass(getattr(compat, name), compat.AMPSException)


def test_both_spellings_are_the_same_class() -> None:
    for name in errors.OFFICIAL_NAMES:
        stem = name.removesuffix("Exception")
        other = f"{stem}Error"
        if stem != name and other in errors.OFFICIAL_NAMES:
            assert getattr(compat, name) is getattr(compat, other)
    assert compat.NameInUseException is compat.NameInUseError is NameInUse
