"""Sealed segments as Parquet files: what the broker has to do with them.

A process of its own at low priority writes them (`haclient.pyspark.journal.sealing`): it takes a
processor for a second a segment, which would hold up the event loop even from a thread. The broker
starts it when it has sealed a segment, reads none of the files, and keeps a segment until it has
its file.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from haclient.errors import UsageError
from haclient_fake_server.journal.format import PARQUET_FOLDER, PARQUET_SUFFIX, segment_name

COMPRESSIONS: Final = ("zstd", "none")


def check_pyarrow() -> None:
    """Check that what sealing needs is installed, without importing it.

    Raises:
        UsageError: It is not.
    """
    missing = [name for name in ("pyarrow", "numpy") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"Parquet needs {missing[0]}, which is not installed: pip install 'haclient[pyspark]'"
        )


def parquet_path(directory: Path, number: int) -> Path:
    """The Parquet file of a segment: `parquet/journal.00000001.parquet`."""
    return directory / PARQUET_FOLDER / (segment_name(number) + PARQUET_SUFFIX)


def sealing_command(directory: Path, archive: Path | None, compression: str) -> list[str]:
    """The command that writes the missing files."""
    module = "haclient.pyspark.journal.sealing"
    places = map(str, filter(None, (directory, archive)))
    return [sys.executable, "-m", module, *places, "--compression", compression]
