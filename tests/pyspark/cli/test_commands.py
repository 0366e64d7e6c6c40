"""The commands `haclient pyspark ...`: output, files and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from pyspark.sql import Row

from haclient.cli.app import run
from haclient.cli.pyspark.commands import _known, _lines, _print_messages
from haclient.pyspark.jobs.history import export
from haclient.pyspark.rows import COLUMNS, schema_ddl
from haclient.stores import AuditLog, LoggedBookmarkStore
from support.journals import JournalWriter, message
from support.process import python_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
HINT = "; try 'haclient pyspark export --help'"

Messages = list[tuple[int, str]]  # sequence, data
Archive = Callable[[str, Messages], str]


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
def archive(spark: SparkSession, tmp_path: Path) -> Archive:
    def make(name: str, messages: Messages) -> str:
        export(journal_of(spark, messages), str(tmp_path / name))
        return str(tmp_path / name)

    return make


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Haclient = Callable[..., Done]


@pytest.fixture
def haclient(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Haclient:
    """Run a command in the session of the tests."""
    assert spark.getActiveSession() is not None

    def run_command(*words: str) -> Done:
        capsys.readouterr()
        code = run(["pyspark", *words])
        return Done(code, *capsys.readouterr())

    return run_command


def test_a_command_in_a_process_of_its_own_starts_and_stops_a_session(
    tmp_path: Path, java: Mapping[str, str]
) -> None:
    (tmp_path / "one.bm").write_bytes(b"nothing")
    environment = python_environment(java)
    command = [sys.executable, "-m", "haclient", "pyspark", "fleet", str(tmp_path / "one.bm")]
    done = subprocess.run(
        [*command, "--master", "local[1]", "--json"],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "neither a bookmark store" in json.loads(done.stdout)["error"]


GOOD = [(n, f"order {n}") for n in range(1, 7)]


@pytest.mark.smoke
@pytest.mark.row("AU8")
def test_an_audit_ends_with_4_and_names_what_is_wrong(
    archive: Archive, haclient: Haclient, tmp_path: Path
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


def test_a_good_audit_is_one_object_and_ends_with_0(archive: Archive, haclient: Haclient) -> None:
    done = haclient("audit", archive("good", GOOD), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "good"
    assert len(done.stdout.splitlines()) == 1


def test_an_audit_reads_the_log_of_a_publisher_and_is_told_what_is_not_logged(
    archive: Archive, haclient: Haclient, tmp_path: Path
) -> None:
    with closing(AuditLog(tmp_path / "log")) as log:
        log.open_for("gateway", 7, 1)
        for number, topic in enumerate(["orders"] * len(GOOD) + ["chat"], 1):
            log.published(number, topic, number)
        log.acknowledged(7, 8)
    words = ("audit", archive("good", GOOD), "--publisher-log", str(tmp_path / "log"))
    done = haclient(*words)
    assert done.returncode == 4, done.stderr
    assert "which has no message of this topic" in done.stdout
    done = haclient(*words, "--unlogged", "chat")
    assert (done.returncode, done.stdout) == (0, "good: no violation\n")
    segment = tmp_path / "log/audit-00000001.log"
    data = bytearray(segment.read_bytes())
    data[40] ^= 1
    segment.write_bytes(data)
    done = haclient(*words)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith(f"haclient: error: {segment}: corrupt at byte 0: the block is ")


@pytest.mark.row("AU9")
def test_an_audit_continues_where_an_earlier_one_has_ended(
    archive: Archive, haclient: Haclient, tmp_path: Path
) -> None:
    report = str(tmp_path / "report")
    first = archive("first", [(1, "a"), (2, "b"), (3, "c")])
    assert haclient("audit", first, "--output", report).returncode == 0
    later = archive("later", [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (2, "b"), (5, "e")])
    done = haclient("audit", later, "--after", report, "--output", report, "--json")
    assert done.returncode == 4, done
    found = json.loads(done.stdout)
    assert found["violations"]["duplicate"] == 1
    assert (found["facts"]["messages"], found["facts"]["messages_before"]) == (3, 3)
    again = haclient("audit", later, "--after", report)  # what was found is not found again
    assert (again.returncode, again.stdout) == (0, "good: no violation\n")
    other = haclient("audit", first, "--after", report)
    assert other.returncode == 2
    assert "the earlier audit ended with 7|5| at position 6" in other.stderr


def test_two_journals_that_differ_end_with_4(archive: Archive, haclient: Haclient) -> None:
    left, right = archive("a", GOOD), archive("b", [*GOOD[:2], (3, "another"), *GOOD[3:]])
    done = haclient("reconcile", left, right)
    assert done.returncode == 4, done.stderr
    assert done.stdout.splitlines()[1].startswith("other content in replica: 7|3| orders")


def test_what_the_other_instance_at_work_has_not_yet_is_behind(
    archive: Archive, haclient: Haclient
) -> None:
    left, right = archive("a", GOOD), archive("b", GOOD[:2])
    done = haclient("reconcile", left, right, "--live", "--allowed-lag", "0.5", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["facts"]["right_behind"] == 4


def test_a_replay_prints_messages_in_the_order_of_the_log(
    archive: Archive, haclient: Haclient
) -> None:
    since = (START + timedelta(seconds=3)).isoformat()
    done = haclient("replay", archive("good", GOOD), "--topic", "orders", "--since", since)
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"order {n}" for n in range(3, 7)])


def test_a_body_of_several_lines_is_not_replayed_as_several_messages(
    archive: Archive, haclient: Haclient
) -> None:
    journal = archive("lines", [(1, "one"), (2, '{\n"id": 2\n}'), (3, "")])
    done = haclient("replay", journal)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "the body of 7|2| on 'orders' has several lines" in done.stderr
    done = haclient("replay", journal, "--json")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 3)


def test_a_state_is_printed_as_of_a_moment(archive: Archive, haclient: Haclient) -> None:
    at = (START + timedelta(seconds=4)).isoformat()
    done = haclient("sow-as-of", archive("good", GOOD), "--at", at, "--json")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["sow_key"], each["data"]) for each in records] == [
        ("0", "order 2"),
        ("1", "order 3"),
    ]


def test_an_export_of_an_export_has_the_chosen_messages(
    archive: Archive, haclient: Haclient, tmp_path: Path
) -> None:
    target = str(tmp_path / "again")
    until = (START + timedelta(seconds=3)).isoformat()
    source = archive("good", GOOD)
    done = haclient("export", source, target, "--until", until, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"directory": target, "messages": 2}
    more = haclient("export", source, target, "--since", until, "--mode", "append", "--json")
    assert json.loads(more.stdout) == {"directory": target, "messages": 4}
    again = haclient("export", source, target)
    assert again.returncode == 2
    assert again.stderr == (
        f"haclient: error: {target}: it exists; give another directory, or --mode{HINT}\n"
    )


@pytest.mark.parametrize("mode", ["errorifexists", "append"])
@pytest.mark.parametrize("target", ["broker", "", "broker/out", "link", "file:"])
def test_an_export_is_not_written_over_the_journal_that_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str, target: str
) -> None:
    journal = tmp_path / "broker"
    journal.mkdir()
    (journal / "journal.00000001").touch()
    (tmp_path / "link").symlink_to(journal)
    written = f"file://{journal}" if target == "file:" else str(tmp_path / target)
    assert run(["pyspark", "export", str(journal), written, "--mode", mode]) == 2
    assert capsys.readouterr().err == (
        f"haclient: error: {written}: it overlaps {journal}, which is read: "
        f"give a directory beside it{HINT}\n"
    )
    assert [each.name for each in journal.iterdir()] == ["journal.00000001"]


def test_times_are_printed_of_utc_also_where_an_hour_comes_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        # As PySpark hands them out: of the local zone, without saying so.
        rows = [
            Row(
                topic="t", bookmark="7|1|", sow_key=None, correlation_id=None, data=b"x",
                timestamp=datetime.fromtimestamp(first.timestamp() + 3600 * hours),  # noqa: DTZ006 - local, as PySpark gives it
            )
            for hours in (0, 1)
        ]  # fmt: skip
        printed = [json.loads(line)["timestamp"] for line in _lines(rows, as_json=True)]
    time.tzset()
    assert printed == ["2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z"]


def test_bodies_that_are_not_utf_8_are_printed_as_they_are(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    _print_messages(iter([Row(data=b"caf\xe9"), Row(data=b"")]), as_json=False)
    assert capsysbinary.readouterr().out == b"caf\xe9\n\n"


def test_times_of_the_fleet_report_have_their_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        values = _known(Row(oldest_at=datetime(2026, 1, 31, 4, 30), problem=None))  # noqa: DTZ001  # as PySpark gives it
    time.tzset()
    assert values == {"oldest_at": START}


def test_the_fleet_report_has_a_line_for_each_store(haclient: Haclient, tmp_path: Path) -> None:
    with closing(LoggedBookmarkStore(tmp_path / "one.bm")) as store:
        store.open_for("desk")
        store.subscription("s1").log_batch(["7|1|", "7|2|"])
    (tmp_path / "two.bm").write_bytes(b"nothing")
    done = haclient("fleet", str(tmp_path / "one.bm"), str(tmp_path / "two.bm"))
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"{tmp_path}/one.bm: logged bookmark store of desk, s1 at 0, 2 open"
    assert lines[1].startswith(f"{tmp_path}/two.bm: error: ")


def test_what_can_be_refused_without_a_session_starts_none(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker/journal.00000001").touch()
    program = """
import sys
from haclient.cli.app import run
for words in (
    ["audit", "none"],
    ["audit", "broker", "--topic", "a", "--topic-pattern", "b"],
    ["audit", "broker", "--publisher-log", "none"],
    ["audit", "broker", "--subscriber-log", "none"],
    ["audit", "broker", "--after", "broker"],
    ["export", "none", "out"],
    ["export", "broker", "."],
    ["replay", "."],
    ["sow-as-of", "none"],
    ["sow-as-of", "broker", "--output", "broker"],
    ["reconcile", "broker", "none"],
    ["fleet", "one.bm", "--journal", "none"],
):
    assert run(["pyspark", *words]) == 2, words
assert "pyspark.sql" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, env=python_environment(), cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 12
    assert done.stderr.count("none: there is no such directory") == 7


def test_an_error_of_java_is_one_line_and_exit_code_1(haclient: Haclient) -> None:
    done = haclient("audit", "nosuchscheme://bucket/x")
    assert done.returncode == 1
    assert done.stderr == (
        'haclient: error: UnsupportedFileSystemException: No FileSystem for scheme "nosuchscheme"\n'
    )


def test_what_is_neither_a_journal_nor_an_export_is_one_line(
    haclient: Haclient, tmp_path: Path
) -> None:
    for folder, reason in ((tmp_path, "neither the directory"), (tmp_path / "no", "no such")):
        done = haclient("audit", str(folder))
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert reason in done.stderr


@pytest.fixture
def queue_journal(tmp_path: Path) -> Path:
    """A broker's files: three jobs, of which one was acknowledged, and one twice."""
    folder = tmp_path / "broker"
    writer = JournalWriter(folder)
    writer.append([message(b"%d" % number, topic="jobs", publisher_id=9) for number in range(3)])
    writer.remove_from_queue([(9, 1, 1), (9, 2, 1), (9, 2, 1)])
    writer.close()
    return folder


@pytest.mark.row("AU4")
def test_an_audit_of_queues_counts_how_messages_ended_and_names_what_is_wrong(
    haclient: Haclient, queue_journal: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    words = ("audit-queues", str(queue_journal), "--queue", "work:jobs,lease=5")
    done = haclient(*words, "--output", str(report))
    assert done.returncode == 4, done.stderr
    assert "bad: 1 removed twice" in done.stdout
    assert (report / "verdict.json").exists()
    done = haclient(*words)
    assert done.stdout.startswith("work: 3 messages, 2 acknowledged, 1 queued\n")


@pytest.mark.row("AU4")
@pytest.mark.parametrize(
    ("folder", "queue", "told"),
    [
        ("nowhere", "work:jobs", "nowhere: there is no such directory"),
        ("broker", "work,lease=soon", "--queue work,lease=soon: lease=soon: wanted a number"),
    ],
)
def test_an_audit_of_queues_that_cannot_be_is_refused(
    haclient: Haclient, queue_journal: Path, folder: str, queue: str, told: str
) -> None:
    done = haclient("audit-queues", str(queue_journal.parent / folder), "--queue", queue)
    assert done.returncode == 2
    assert told in done.stderr
