"""The command line at a terminal: the bar, jobs in the background, typed messages, colours."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from haclient_fake_server.testing.processes import BrokerProcess
from support.process import LIMIT_S, python_environment

pytestmark = pytest.mark.row("CLI9")

HIDE_CURSOR = b"\x1b[?25l"
CONTROL_D = b"\x04"


class Terminal:
    """A terminal with a process in its foreground.

    Args:
        command: The command of the process.
        environment: Of the process.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self.pid, self._fd = pty.fork()
        if not self.pid:
            os.execvpe(command[0], command, dict(environment))  # noqa: S606  # the child's part
        self.screen = b""
        self._code: int | None = None

    def type(self, keys: bytes) -> None:
        """Type."""
        os.write(self._fd, keys)

    def until(self, pattern: bytes) -> None:
        """Wait until a text that matches was shown.

        Raises:
            AssertionError: The process ended without it.
        """
        deadline = time.perf_counter() + LIMIT_S
        while not re.search(pattern, self.screen):
            assert self._read(deadline), self.screen[-2000:].decode()

    def wait(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.perf_counter() + LIMIT_S
        while self._read(deadline):
            pass
        return self.end()

    def end(self) -> int:
        """Wait for the process; its exit code."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._fd)
        return self._code

    def kill(self) -> None:
        """SIGKILL, and read what it had written."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def _read(self, deadline: float) -> bool:
        assert select.select([self._fd], [], [], deadline - time.perf_counter())[0], self.screen
        try:
            found = os.read(self._fd, 65_536)
        except OSError:  # all who had the terminal have ended
            return False
        self.screen += found
        return bool(found)


@contextmanager
def terminal(*command: str, **environment: str) -> Generator[Terminal]:
    """A terminal whose process is killed at the end."""
    names = {"TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "", **environment}
    found = Terminal(list(command), python_environment(names))
    try:
        yield found
    finally:
        found.kill()


def words(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "haclient", *map(str, arguments)]


@pytest.fixture
def many(tmp_path: Path) -> Path:
    path = tmp_path / "many"
    path.write_text("row\n" * 1000)
    return path


def test_the_bar_moves_with_each_message_and_a_kill_leaves_the_cursor(
    shared_broker: BrokerProcess, many: Path
) -> None:
    publish = words("publish", "bar", "-s", shared_broker.uri, "-f", many, "--rate", "50")
    with terminal(*publish) as shown:
        shown.until(rb"[1-9]\d*/1000")
        shown.kill()
    done = [int(count) for count in re.findall(rb"(\d+)/1000", shown.screen)]
    assert 0 < done[-1] < 1000  # and not 0 until all are sent
    assert HIDE_CURSOR not in shown.screen


def test_a_job_in_the_background_draws_no_bar(shared_broker: BrokerProcess, many: Path) -> None:
    uri = shared_broker.uri
    publish = shlex.join(words("publish", "job", "-s", uri, "-f", many, "--rate", "2000"))
    with terminal("bash", "-c", f"set -m; {publish} & wait $!") as shown:
        assert shown.wait() == 0
    assert b"published 1000 messages to job in " in shown.screen
    assert b"/1000" not in shown.screen
    assert b"\x1b" not in shown.screen


def test_what_a_job_in_the_background_reports_is_shown_without_its_bar() -> None:
    program = (
        "from haclient.cli.output import progress_bar\n"
        "from haclient.cli.termination import print_error\n"
        "with progress_bar('work', 2) as progress:\n"
        "    progress.update(1)\n"
        "    progress.report('half of it')\n"
        "    print_error('line 7 was refused')\n"
    )
    work = shlex.join([sys.executable, "-c", program])
    with terminal("bash", "-c", f"set -m; {work} & wait $!") as shown:
        assert shown.wait() == 0
    assert shown.screen.startswith(b"half of it\r\nhaclient: error: line 7 was refused\r\n")
    assert b"\x1b" not in shown.screen


def test_who_types_messages_is_told_how_and_sees_no_bar(shared_broker: BrokerProcess) -> None:
    with terminal(*words("publish", "typed", "-s", shared_broker.uri)) as shown:
        shown.until(b"haclient: note: one message per line, Ctrl-D ends\r\n")
        shown.type(b"one\ntwo\n" + CONTROL_D)
        assert shown.wait() == 0
    assert b"published 2 messages to typed in " in shown.screen
    assert b"\x1b" not in shown.screen


@pytest.mark.parametrize(("environment", "colour"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_verdict_has_a_colour_unless_that_is_not_wanted(
    shared_broker: BrokerProcess, environment: dict[str, str], *, colour: bool
) -> None:
    with terminal(*words("ping", "-s", shared_broker.uri), **environment) as shown:
        assert shown.wait() == 0
    assert b"ok" in shown.screen
    assert (b"\x1b[32mok\x1b[0m" in shown.screen) == colour
