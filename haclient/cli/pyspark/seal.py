"""`haclient pyspark seal`: the sealed segments of a journal as Parquet, without a session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from haclient.cli.options import FilePath, json_option, with_request
from haclient.cli.output import print_report
from haclient.errors import UsageError
from haclient.pyspark.environment import check_packages


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sealed:
    journal: Path
    archive: Path | None
    compression: Literal["zstd", "none"]
    verify: bool
    as_json: bool


@click.command()
@click.argument("journal", metavar="JOURNAL", type=FilePath(path_type=Path, file_okay=False))
@click.option(
    "--archive",
    type=FilePath(path_type=Path, file_okay=False),
    help="The archive of the broker, if it has one.",
)
@click.option(
    "--compression",
    type=click.Choice(["zstd", "none"]),
    default="zstd",
    show_default=True,
    help="The compression of the files.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Also check the files that are there, byte by byte, and write damaged ones again.",
)
@json_option
@with_request(_Sealed)
def seal(request: _Sealed) -> None:
    """Write each closed segment of a journal as Parquet.

    JOURNAL is the directory of a broker, which may run. What `broker run --parquet` has written is
    not written again. The segments stay.
    """
    check_packages()
    from haclient.pyspark.journal.log import is_broker_directory
    from haclient.pyspark.journal.sealing import seal_journal

    journal = request.journal
    if not is_broker_directory(journal):
        raise UsageError(f"{journal} is an export, which is Parquet: give the broker's directory")
    written = seal_journal(
        journal, request.archive, compression=request.compression, verify=request.verify
    )
    values = {"journal": str(journal), "written": [str(path) for path in written]}
    count = "1 segment" if len(written) == 1 else f"{len(written)} segments"
    print_report(values, f"{journal}: {count} sealed", as_json=request.as_json)
