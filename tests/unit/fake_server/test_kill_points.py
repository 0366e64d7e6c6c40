"""Named points at which a broker dies."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from haclient_fake_server.kill_points import KillPoint, KillPoints


class Kills:
    """Counts them, and lets the caller live."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.mark.row("FI2")
def test_a_point_kills_after_the_passes_that_it_was_given() -> None:
    kills = Kills()
    points = KillPoints(kills)
    points.reach(KillPoint.AFTER_WRITE)
    points.arm(KillPoint.AFTER_WRITE, passes=2)
    for passed in (0, 0, 1):
        points.reach(KillPoint.BEFORE_WRITE)
        assert points.is_due(KillPoint.AFTER_WRITE) == (passed == 1)
        points.reach(KillPoint.AFTER_WRITE)
        assert kills.count == passed


@pytest.mark.row("FI2")
def test_a_kill_is_a_sigkill() -> None:
    program = (
        "from haclient_fake_server.kill_points import KillPoint, KillPoints\n"
        "points = KillPoints()\n"
        "points.arm(KillPoint.IN_WRITE)\n"
        "try:\n"
        "    points.reach(KillPoint.IN_WRITE)\n"
        "finally:\n"
        "    print('still here')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, b"")
