"""What the crash tests share."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from haclient_stores.bookmark_stores import record_file, ring


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    """Free the stores of hundreds of crashes: each holds descriptors until it is collected."""
    yield
    gc.collect()


LONG_STEPS = 60


def walks(config: pytest.Config, *, seed: int, steps: int) -> list[tuple[int, int]]:
    """Seed and steps of each walk: those given, or a long one for each 2000 of `--store-steps`."""
    wanted = int(config.getoption("--store-steps")) // 2000
    return [(each, LONG_STEPS) for each in range(wanted)] or [(seed, steps)]


@pytest.fixture
def every(request: pytest.FixtureRequest, *, full_length: bool) -> int:
    """The step between the crashes of a walk that are checked: 1 for all, 3 for a third."""
    is_long = full_length or request.config.getoption("--store-steps")
    return 1 if is_long or request.config.getoption("--kills") else 3


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Torn tails are what this is about: their warnings are tested elsewhere."""
    caplog.set_level(logging.ERROR)


@pytest.fixture
def small_logs(monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:  # noqa: ARG001 - used as well
    """A log that grows by a block at a time: less to copy; and a ring that grows at all."""
    monkeypatch.setattr(record_file, "GROW_BYTES", record_file.BLOCK_BYTES)
    monkeypatch.setattr(ring, "_TOGETHER", 1)  # each publisher has slots of its own
