"""The errors of the stores carry facts, not only words."""

from __future__ import annotations

from pathlib import Path

import pytest

from haclient_stores.errors import (
    HAClientError,
    PublishGap,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    UsageError,
)


def test_a_corrupt_file_is_named_with_the_place_of_the_damage() -> None:
    error = StoreCorrupt("orders.pub", 4096, "the checksum of a block is wrong")
    assert (error.path, error.offset) == (Path("orders.pub"), 4096)
    assert str(error) == "orders.pub: corrupt at byte 4096: the checksum of a block is wrong"


def test_a_locked_file_is_named_with_its_owner() -> None:
    error = StoreLocked(Path("orders.pub"), "orders-7", "in use by process 42")
    assert (error.path, error.owner) == (Path("orders.pub"), "orders-7")
    assert str(error) == "orders.pub: in use by process 42"


def test_a_gap_says_what_was_acknowledged_and_what_the_server_has() -> None:
    error = PublishGap(acknowledged=20, server=10)
    assert (error.acknowledged, error.server) == (20, 10)
    assert "20" in str(error)
    assert "10" in str(error)


@pytest.mark.parametrize("kind", [StoreCorrupt, StoreFull, StoreLocked, PublishGap])
def test_what_a_store_raises_is_a_store_error(kind: type[Exception]) -> None:
    assert issubclass(kind, StoreError)


def test_misuse_is_not_an_error_of_the_store() -> None:
    assert issubclass(UsageError, HAClientError)
    assert not issubclass(UsageError, StoreError)
