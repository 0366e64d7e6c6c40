"""What an import loads: cheap parts stay cheap, and pure ones load no event loop."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after `statement`."""
    show = "print(' '.join({name.partition('.')[0] for name in sys.modules}))"
    paths = [entry for entry in sys.path if entry]
    # Measuring the coverage of that process would load modules of its own into it.
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {paths!r}\n{statement}\n{show}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


HEAVY = {
    "trio",
    "sqlite3",
    "sqlite_utils",
    "tenacity",
    "click",
    "rich",
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark",
}


@pytest.mark.parametrize(
    "name", ["haclient", "haclient.protocol", "haclient.session", "haclient.pyspark"]
)
def test_importing_a_pure_package_loads_no_trio(name: str) -> None:
    assert not loaded_by(f"import {name}") & HEAVY


def test_the_stores_load_neither_the_client_nor_trio() -> None:
    assert not loaded_by("import haclient_stores") & (HEAVY | {"haclient"})


def test_the_journal_format_loads_nothing_of_the_broker() -> None:
    """PySpark's workers read journals by it."""
    assert not loaded_by("import haclient_fake_server.journal.format") & (HEAVY | {"haclient"})


def test_the_client_loads_trio_and_nothing_heavier() -> None:
    loaded = loaded_by("from haclient import Client")
    assert "trio" in loaded
    assert not loaded & (HEAVY - {"trio"})
