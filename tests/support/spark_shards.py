"""Which tests of PySpark a change runs, and in which order.

A change runs every test that needs no JVM, those that are marked `smoke` (a path through each of
source, stream, sink and job), and one of some shards of the others. The hash of the commit chooses
the shard (`--part`), so that a few changes run everything.

A test needs a JVM if it uses the fixture `java`, which the session of PySpark and everything else
that starts a JVM asks for. Whole files are in a shard, since their tests share what is built once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

__all__ = ["COST_S", "SHARDS", "cost_of", "files_below", "shards_of"]

SHARDS: Final = 6

COST_S: Final[Mapping[str, int]] = {
    "cluster/test_exactly_once.py": 105,
    "jobs/test_audit.py": 51,
    "cli/test_commands.py": 45,
    "test_py_files.py": 42,
    "jobs/test_reconcile.py": 38,
    "test_examples.py": 33,
    "jobs/test_queue_audit.py": 28,
    "test_connect.py": 27,
    "jobs/test_order.py": 27,
    "jobs/test_journal_files.py": 16,
    "jobs/test_history.py": 13,
    "sink/test_writers.py": 10,
    "jobs/test_latency.py": 9,
    "server/test_session.py": 7,
    "journal/test_source.py": 5,
    "server/test_fail_over_session.py": 5,
    "sink/test_staged.py": 5,
    "sink/test_publish.py": 4,
    "cli/test_session.py": 3,
    "jobs/test_fleet.py": 2,
    "jobs/test_kernels.py": 2,
    "jobs/test_reports.py": 2,
    "jobs/test_verdict.py": 2,
    "test_environment.py": 2,
}
"""By file, the seconds of processor time of its tests that need a JVM, with all their processes.

Without the start of the session that they share. Only the proportions count.
"""

_SMALL_S: Final = 1
"""Of a file that is not in the table."""


def cost_of(file: str) -> int:
    """The seconds of processor time of a file.

    Args:
        file: Its path below the folder of the tests of PySpark.
    """
    return COST_S.get(file, _SMALL_S)


def shards_of(files: Iterable[str]) -> dict[str, int]:
    """By file, the number of its shard: the longest files first, each to the shortest shard."""
    loads = [0] * SHARDS
    found: dict[str, int] = {}
    for file in sorted(files, key=lambda each: (-cost_of(each), each)):
        found[file] = loads.index(min(loads))
        loads[found[file]] += cost_of(file)
    return found


def files_below(folder: Path) -> list[str]:
    """The test files of a folder, as `shards_of` takes them."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("test_*.py"))
