"""Time that passes only while everything waits, and then at once.

pytest-trio hands a clock to trio only where a test takes it as an argument. The hook below makes
`pytestmark = in_virtual_time` enough for a whole module; a conftest.py imports it from here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import iscoroutinefunction

import pytest
import trio
import trio.testing

__all__ = ["in_virtual_time", "pytest_collection_modifyitems"]

in_virtual_time = pytest.mark.usefixtures("autojump_clock")
"""For `pytestmark`: every async test of the module runs under the autojump clock."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not (isinstance(item, pytest.Function) and iscoroutinefunction(item.obj)):
            continue
        if "autojump_clock" in item.fixturenames:
            item.add_marker(pytest.mark.trio(run=_run), append=False)


def _run(
    function: Callable[[], Awaitable[object]],
    *,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> object:
    virtual = clock or trio.testing.MockClock(autojump_threshold=0)
    return trio.run(function, clock=virtual, instruments=instruments)
