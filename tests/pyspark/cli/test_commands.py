"""The commands `haclient pyspark ...`, as processes: output, files and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from haclient.pyspark.jobs import export
from haclient.pyspark.rows import COLUMNS, schema_ddl
from haclient.stores import LoggedBookmarkStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)

Messages = list[tuple[int, str]]  # sequence, data


def journal_of(spark: SparkSession, messages: Messages) -> DataFrame:
    rows = [
        (
            "orders", f"7|{n}|", 7, n, position, START + timedelta(seconds=position), "publish",
            str(n % 2), None, data.encode(),
        )
        for position, (n, data) in enumerate(messages, 1)
    ]  # fmt: skip
    return spark.createDataFrame(rows, schema_ddl(COLUMNS))


@pytest.fixture
def archive(spark: SparkSession, tmp_path: Path) -> Callable[[str, Messages], str]:
    def make(name: str, messages: Messages) -> str:
        export(journal_of(spark, messages), str(tmp_path / name))
        return str(tmp_path / name)

    return make


def haclient(*words: str) -> subprocess.CompletedProcess[str]:
    """Run one command in a process of its own, with a session of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "haclient", "pyspark", *words]
    if words[-1] != "--help":
        command += ["--master", "local[2]"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


GOOD = [(n, f"order {n}") for n in range(1, 7)]


@pytest.mark.row("AU8")
def test_an_audit_ends_with_4_and_names_what_is_wrong(
    archive: Callable[[str, Messages], str], tmp_path: Path
) -> None:
    bad = archive("bad", [*GOOD[:4], GOOD[1], *GOOD[4:]])
    done = haclient("audit", bad, "--output", str(tmp_path / "report"))
    assert done.returncode == 4, done.stderr
    assert done.stdout.splitlines() == [
        "bad: 1 duplicate",
        "duplicate: 7|2| orders logged before at position 2",
        f"{tmp_path}/report/report.html",
    ]
    verdict = json.loads((tmp_path / "report/verdict.json").read_text())
    assert (verdict["verdict"], verdict["violations"]["duplicate"]) == ("bad", 1)


def test_a_good_audit_is_one_object_and_ends_with_0(
    archive: Callable[[str, Messages], str],
) -> None:
    done = haclient("audit", archive("good", GOOD), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "good"
    assert len(done.stdout.splitlines()) == 1


def test_two_journals_that_differ_end_with_4(archive: Callable[[str, Messages], str]) -> None:
    left, right = archive("a", GOOD), archive("b", [*GOOD[:2], (3, "another"), *GOOD[3:]])
    done = haclient("reconcile", left, right)
    assert done.returncode == 4, done.stderr
    assert done.stdout.splitlines()[1].startswith("other content in replica: 7|3| orders")


def test_a_replay_prints_messages_in_the_order_of_the_log(
    archive: Callable[[str, Messages], str],
) -> None:
    since = (START + timedelta(seconds=3)).isoformat()
    done = haclient("replay", archive("good", GOOD), "--topic", "orders", "--since", since)
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"order {n}" for n in range(3, 7)])


def test_a_state_is_printed_as_of_a_moment(archive: Callable[[str, Messages], str]) -> None:
    at = (START + timedelta(seconds=4)).isoformat()
    done = haclient("sow-as-of", archive("good", GOOD), "--at", at, "--json")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["sow_key"], each["data"]) for each in records] == [
        ("0", "order 2"),
        ("1", "order 3"),
    ]


def test_an_export_of_an_export_has_the_chosen_messages(
    archive: Callable[[str, Messages], str], tmp_path: Path
) -> None:
    target = str(tmp_path / "again")
    until = (START + timedelta(seconds=3)).isoformat()
    source = archive("good", GOOD)
    done = haclient("export", source, target, "--until", until, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"directory": target, "messages": 2}
    again = haclient("export", source, target)
    assert again.returncode == 2
    assert again.stderr == (
        f"haclient: error: {target}: it exists; give another directory, or --mode\n"
    )


def test_the_fleet_report_has_a_line_for_each_store(tmp_path: Path) -> None:
    with closing(LoggedBookmarkStore(tmp_path / "one.bm")) as store:
        store.open_for("desk")
        store.subscription("s1").log_batch(["7|1|", "7|2|"])
    (tmp_path / "two.bm").write_bytes(b"nothing")
    done = haclient("fleet", str(tmp_path / "one.bm"), str(tmp_path / "two.bm"))
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"{tmp_path}/one.bm: logged bookmark store of desk, s1 at , 2 open"
    assert lines[1].startswith(f"{tmp_path}/two.bm: error: ")


def test_what_is_neither_a_journal_nor_an_export_is_one_line(tmp_path: Path) -> None:
    for folder, reason in ((tmp_path, "neither the directory"), (tmp_path / "no", "no such")):
        done = haclient("audit", str(folder))
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert reason in done.stderr
