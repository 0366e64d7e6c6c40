"""`haclient store` on files of every kind: what it prints, and what it leaves alone."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from haclient.cli.app import run
from haclient.cli.store import entries_of, subscriptions_of, summary_of
from haclient.protocol.codec import encode_header, publish_head
from haclient.stores import FilePublishStore, LoggedBookmarkStore, RingBookmarkStore
from support.process import python_environment

pytestmark = pytest.mark.row("PS23")


def test_a_sow_delete_is_shown_with_its_filter(tmp_path: Path) -> None:
    with closing(FilePublishStore(tmp_path / "p")) as store:
        head = encode_header({"c": "sow_delete", "t": "orders", "filter": "/id = 1"})[:-1]
        store.store(head + b',"s":', b"}", b"")
        (row,) = entries_of(store)
    assert (row["command"], row["topic"], row["filter"]) == ("sow_delete", "orders", "/id = 1")


def test_a_store_without_subscriptions_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "s.bm"
    with closing(LoggedBookmarkStore(path)) as store:
        values, text = summary_of(path, store)
        assert list(entries_of(store)) == list(subscriptions_of(store)) == []
    assert values["subscriptions"] == []
    assert text == f"{path}: logged bookmark store of nobody yet, {values['bytes']} bytes"


pytestmark = pytest.mark.row("PS23")

LINES = pytest.CaptureFixture[str]


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    """Of six messages, 1, 2 and 4 are discarded."""
    path = tmp_path / "s.bm"
    with closing(LoggedBookmarkStore(path)) as store:
        store.open_for("me")
        store.subscription("s1").log_batch([f"7|{n}|" for n in range(1, 7)])
        for number in (1, 2, 4):
            store.discard("s1", number)
        store.log("s2", "8|1|")
    return path


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "s.ring"
    with closing(RingBookmarkStore(path)) as store:
        store.discard("s1", store.log("s1", "7|1|"))
    return path


@pytest.fixture
def publish(tmp_path: Path) -> Path:
    path = tmp_path / "p"
    with closing(FilePublishStore(path)) as store:
        store.open_for("me")
        for body in (b"one", b"two", b"\xff"):
            store.store(publish_head("orders"), b"}", body)
        store.discard_up_to(1)
    return path


def output_of(capsys: LINES, *words: str | Path) -> list[str]:
    """The lines of a command that succeeds."""
    assert run(["store", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


def test_show_says_what_each_file_is_and_holds(
    logged: Path, ring: Path, publish: Path, capsys: LINES
) -> None:
    size = sum(file.stat().st_size for file in publish.iterdir())
    assert output_of(capsys, "show", logged, ring, publish) == [
        f"{logged}: logged bookmark store of client 'me', {logged.stat().st_size} bytes",
        "  s1: 7|2|, 3 undiscarded",
        "  s2: 0, 1 undiscarded",
        f"{ring}: ring bookmark store of nobody yet, {ring.stat().st_size} bytes",
        "  s1: 7|1|, 0 undiscarded",
        f"{publish}: publish store of client 'me', {size} bytes",
        "  2 unpersisted, the lowest 2; last persisted 1, last sequence 3",
    ]
    first, _, last = map(json.loads, output_of(capsys, "show", "--json", logged, ring, publish))
    assert first["subscriptions"][0] == {
        "sub_id": "s1",
        "recovery_point": "7|2|",
        "undiscarded": 3,
    }
    assert (last["kind"], last["unpersisted"], last["last_sequence"]) == ("publish", 2, 3)


def test_verify_tells_damage_by_its_offset_and_goes_on(
    logged: Path, ring: Path, publish: Path, capsys: LINES
) -> None:
    assert output_of(capsys, "verify", logged, ring, publish) == [
        f"{logged}: whole, 5 entries",
        f"{ring}: whole, 0 entries",
        f"{publish}: whole, 2 entries",
    ]
    data = bytearray(logged.read_bytes())
    data[4096 + 8] ^= 1
    logged.write_bytes(data)
    assert run(["store", "verify", "--json", str(logged), str(ring)]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["ok"]
    assert err == (
        f"haclient: error: {logged}: corrupt at byte 4096: records do not match their checksum\n"
    )


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("command", ["verify", "show", "prune"])
def test_what_may_not_be_read_does_not_stop_the_others(
    command: str,
    logged: Path,
    ring: Path,
    publish: Path,
    capsys: LINES,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The superuser may read everything, so the refusals of the kernel are played here."""

    def refusing(method: Callable[..., object]) -> Callable[..., object]:
        def call(path: Path, *arguments: object) -> object:
            if path in {logged, publish}:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return method(path, *arguments)

        return call

    def access(path: str, _mode: int) -> bool:
        return path not in {str(logged), str(publish)}

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(Path, "open", refusing(Path.open))
    monkeypatch.setattr(Path, "iterdir", refusing(Path.iterdir))
    assert run(["store", command, str(logged), str(publish), str(ring)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"{ring}: ")
    assert err.splitlines() == [
        f"haclient: error: {path}: Permission denied" for path in (logged, publish)
    ]


@contextmanager
def using(store: Path) -> Generator[None]:
    """Another process that has the store open."""
    opening = f"from haclient.stores import *; store = LoggedBookmarkStore({str(store)!r})"
    with subprocess.Popen(
        [sys.executable, "-c", f"{opening}; print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=python_environment(),
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield  # it ends when its input does


@pytest.mark.row("BS16", "BS17", "CLI9")
def test_prune_is_refused_with_75_while_a_client_has_the_file_and_prunes_the_others(
    logged: Path, ring: Path, tmp_path: Path, capsys: LINES
) -> None:
    with using(logged):
        before = logged.read_bytes()
        assert run(["store", "prune", str(logged), str(ring), str(tmp_path / "none")]) == 75
        assert logged.read_bytes() == before
    out, err = capsys.readouterr()
    size = ring.stat().st_size
    assert out.startswith(f"{ring}: left as it is: ")
    assert out.endswith(f"; {size} bytes before, {size} now\n")
    assert "in use by another process as client 'me'" in err
    assert "(--wait SECONDS asks that client to prune it)" in err
    assert "No such file" in err
    (line,) = output_of(capsys, "prune", "--json", logged)
    assert json.loads(line)["path"] == str(logged)
    assert output_of(capsys, "verify", logged) == [f"{logged}: whole, 5 entries"]


@pytest.mark.row("BS16", "BS17")
@pytest.mark.parametrize("wait", [[], ["--wait", "1"]])
def test_a_file_that_is_named_twice_is_pruned_once(
    wait: list[str], logged: Path, tmp_path: Path, capsys: LINES
) -> None:
    link = tmp_path / "link.bm"
    link.symlink_to(logged)
    (line,) = output_of(capsys, "prune", *wait, logged, logged, link)
    assert line.startswith(f"{logged}: ")


@pytest.mark.row("BS16")
def test_a_bookmark_file_that_was_never_finished_is_a_store_with_nothing_in_it(
    logged: Path, tmp_path: Path, capsys: LINES
) -> None:
    made, unmade = tmp_path / "made.bm", tmp_path / "unmade.bm"
    made.touch()
    unmade.write_bytes(bytes(8) + logged.read_bytes()[8:4096])
    for path, size in ((made, 0), (unmade, 4096)):
        for words in (["prune"], ["prune", "--wait", "1"]):
            told = f"{path}: pruned to 0 undiscarded of 0 subscriptions"
            assert output_of(capsys, *words, path) == [f"{told}; {size} bytes before, {size} now"]
        shown = f"{path}: logged bookmark store of nobody yet, {size} bytes"
        assert output_of(capsys, "show", path) == [shown]
        assert output_of(capsys, "verify", path) == [f"{path}: whole, 0 entries"]
        assert output_of(capsys, "explain", path) == output_of(capsys, "export", path) == []
        assert path.stat().st_size == size


def test_explain_says_what_would_come_again(logged: Path, publish: Path, capsys: LINES) -> None:
    assert output_of(capsys, "explain", logged, "--sub-id", "s1") == [
        "subscription s1: the next process finds every discard",
        "  resumes at    7|2|",
        "  redelivered   3 undiscarded: 7|3|, 7|5|, 7|6|",
        "  skipped       1 discarded",
        "  repeated      0 discarded",
    ]
    both = [json.loads(line) for line in output_of(capsys, "explain", "--json", logged)]
    assert [each["sub_id"] for each in both] == ["s1", "s2"]
    assert run(["store", "explain", str(logged), "--sub-id", "s3"]) == 2
    assert "no subscription 's3' in this store; it knows s1, s2" in capsys.readouterr().err
    assert run(["store", "explain", str(publish)]) == 2
    assert "for bookmark stores" in capsys.readouterr().err


def test_export_takes_out_what_is_not_finished(logged: Path, publish: Path, capsys: LINES) -> None:
    rows = [json.loads(line) for line in output_of(capsys, "export", logged)]
    assert rows[0] == {
        "record": "subscriptions",
        "sub_id": "s1",
        "recovery_point": "7|2|",
        "undiscarded": 3,
    }
    entries = [row for row in rows if row["record"] == "entries" and row["sub_id"] == "s1"]
    assert [(row["bookmark"], row["discarded"]) for row in entries] == [
        ("7|3|", False),
        ("7|4|", True),
        ("7|5|", False),
        ("7|6|", False),
    ]
    rows = [json.loads(line) for line in output_of(capsys, "export", publish)]
    assert [(row["sequence"], row["topic"]) for row in rows] == [(2, "orders"), (3, "orders")]
    assert (rows[0]["data"], rows[1]["data_base64"]) == ("two", "/w==")


def test_export_writes_a_database_again_and_again(
    logged: Path, tmp_path: Path, capsys: LINES
) -> None:
    database = tmp_path / "out.db"
    for _ in range(2):
        assert output_of(capsys, "export", logged, "--sqlite", database) == []
    with closing(sqlite3.connect(database)) as connection:
        query = "select bookmark from entries where not discarded and sub_id = 's1'"
        assert connection.execute(query).fetchall() == [("7|3|",), ("7|5|",), ("7|6|",)]
    database.write_bytes(b"no database" * 1000)
    assert run(["store", "export", str(logged), "--sqlite", str(database)]) == 1
    assert capsys.readouterr().err.startswith(f"haclient: error: {database}: ")


def test_a_database_takes_bodies_of_both_kinds_in_any_order(
    publish: Path, tmp_path: Path, capsys: LINES
) -> None:
    with closing(FilePublishStore(publish)) as store:
        for body in (*200 * [b"text"], b"\xff"):
            store.store(publish_head("orders"), b"}", body)
    database = tmp_path / "out.db"
    assert output_of(capsys, "export", publish, "--sqlite", database) == []
    with closing(sqlite3.connect(database)) as connection:
        query = "select count(data), count(data_base64) from messages"
        assert connection.execute(query).fetchone() == (201, 2)


def test_an_export_that_is_interrupted_leaves_the_tables_as_they_were(
    logged: Path, tmp_path: Path, capsys: LINES, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "out.db"
    output_of(capsys, "export", logged, "--sqlite", database)

    def interrupted(_: object) -> Iterator[dict[str, int]]:
        for number in range(1000):
            yield {"number": number}
        raise KeyboardInterrupt

    monkeypatch.setattr("haclient.cli.store.entries_of", interrupted)
    assert run(["store", "export", str(logged), "--sqlite", str(database)]) == 130
    with closing(sqlite3.connect(database)) as connection:
        query = "select count(*) from entries where sub_id = 's1'"
        assert connection.execute(query).fetchone() == (4,)
        assert connection.execute("select count(*) from subscriptions").fetchone() == (2,)


def test_a_damaged_file_beside_a_publish_store_is_shown_too(publish: Path, capsys: LINES) -> None:
    damaged = publish.with_name(f"{publish.name}.parked-7")
    damaged.write_bytes(b"\0\0\1\0{")
    for name in ("parked-x", "parked-", "other"):  # whose they are is unknown
        publish.with_name(f"{publish.name}.{name}").write_bytes(b"")
    last = output_of(capsys, "show", publish)[-1]
    assert last == f"  parked 7: topic '', 5 bytes, {damaged}"
    assert output_of(capsys, "drop-parked", publish) == [f"{damaged}: removed"]
    assert output_of(capsys, "drop-parked", publish) == []
