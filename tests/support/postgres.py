"""A PostgreSQL server of the system's package, started for a test and stopped behind it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

__all__ = ["postgres_server"]

_PACKAGES = Path("/usr/lib/postgresql")
_LIMIT_S = 300.0
_USER = "postgres"


def _programs() -> Path:
    """Where `initdb` is; the test is skipped where it is not."""
    versions = sorted(_PACKAGES.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    found = shutil.which("initdb")
    if not versions and found is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    return versions[-1].parent if versions else Path(found or "").parent


def _as_user() -> list[str]:
    """`initdb` refuses root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("not applicable: root needs setpriv to run PostgreSQL as another user")
    return ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--init-groups"]


@contextlib.contextmanager
def postgres_server() -> Generator[str]:
    """A server on a unix socket in a directory of its own; how to connect to it.

    It listens on no port, so that tests run beside each other, and never syncs.
    """
    programs, as_user = _programs(), _as_user()
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # a short path: a socket's has 107 bytes

    def run(*command: str) -> None:
        with (folder / "log").open("ab") as log:
            done = subprocess.run(
                [*as_user, *command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=_LIMIT_S,
                check=False,
            )
        assert done.returncode == 0, (folder / "log").read_text()

    try:
        if as_user:
            shutil.chown(folder, _USER, _USER)
        data = str(folder / "data")
        run(str(programs / "initdb"), "-D", data, "-U", _USER, "-A", "trust", "--no-sync")
        control = str(programs / "pg_ctl")
        options = f"-F -k {folder} -c listen_addresses=''"
        run(control, "-D", data, "-w", "-l", f"{folder}/server.log", "-o", options, "start")
        try:
            yield f"host={folder} user={_USER} dbname=postgres"
        finally:
            run(control, "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
