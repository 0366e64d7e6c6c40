"""Closed segments of a journal as Parquet files."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import pytest
import trio

from haclient.cli.app import run
from haclient.protocol.identity import publisher_id
from haclient.pyspark.journal import sealing
from haclient.pyspark.journal.sealed import METADATA
from haclient.pyspark.journal.sealing import main, seal_journal
from haclient_fake_server.config import BrokerConfig, SowTopic
from haclient_fake_server.engine.journal import Block
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.format import (
    PARQUET_FOLDER,
    Manifest,
    Record,
    RecordCommand,
    encode_record,
    encode_removals,
    manifest_name,
    segment_name,
)
from haclient_fake_server.journal.parquet import parquet_path
from haclient_stores.disk.files import RealDisk
from haclient_stores.errors import StoreCorrupt, StoreError, StoreLocked
from support.broker import RawClient, running_broker

pq = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.pyspark
MODULE = "haclient.pyspark.journal.sealing"
SCHEMA = (
    "topic: string, bookmark: string, publisher_id: int64, sequence: int64, position: int64, "
    "timestamp: timestamp[us, tz=UTC], command: string, sow_key: string, correlation_id: string, "
    "data: binary, topic_id: int32"
)
BIG = 2**64 - 5


def records() -> list[Record]:
    """Two topics, a delete and a mark; a publisher id beyond what a signed number holds."""
    return [
        Record(1, 7, 10, 1_000, 1, key=b"k", correlation_id=b"c", payload=b"one"),
        Record(2, BIG, BIG - 1, 2_000, 2, payload=b"two", expiration_s=60),
        Record(3, 7, 11, 3_000, 1, RecordCommand.SOW_DELETE, payload=b"k"),
        Record(4, 7, 12, 4_000, 0, RecordCommand.MARK),
        Record(5, 7, 13, 5_000, 1, key=b"caf\xe9", payload=b""),
    ]


def write_journal(directory: Path, *, segment_bytes: int = 2**20, rounds: int = 1) -> JournalFiles:
    """An open journal of `rounds` times the records, in blocks of one record."""
    journal = JournalFiles(directory, RealDisk(), segment_bytes=segment_bytes, instance_id=99)
    definitions = b"".join(
        encode_record(Record(0, 0, 0, 0, number, RecordCommand.TOPIC, key=b"json", payload=topic))
        for number, topic in ((1, b"orders"), (2, b"trades"))
    )
    topics = ((1, "json", "orders"), (2, "json", "trades"))
    position = 0
    for _ in range(rounds):
        for record in records():
            position += 1
            moved = record._replace(position=position)
            data = (definitions if position == 1 else b"") + encode_record(moved)
            # Removals from queues are not among the rows.
            data += encode_removals(b"work", b"json", [(7, 10, 1)], now_us=record.timestamp_us)
            count = 4 if position == 1 else 2
            journal.append(
                Block(
                    data,
                    count,
                    position,
                    position + 1,
                    record.timestamp_us,
                    record.timestamp_us,
                    {record.publisher_id: (record.sequence, record.sequence)},
                    topics if position == 1 else (),
                )
            )
    return journal


def seal(directory: Path, journal: JournalFiles) -> None:
    """Close a journal, and make its only segment a sealed one."""
    journal.close()
    path = directory / manifest_name(1)
    manifest = Manifest.from_json(path.read_text())
    manifest.sealed = True
    path.write_text(manifest.to_json())


class Table(Protocol):
    """What the tests need of an Arrow table."""

    schema: Iterable[Any]
    num_rows: int

    def __getitem__(self, name: str) -> Any: ...  # noqa: ANN401 - a column
    def to_pylist(self) -> list[dict[str, Any]]: ...


def read(path: Path) -> Table:
    table: Table = pq.read_table(path)
    return table


def test_a_row_has_all_that_a_record_has(tmp_path: Path) -> None:
    seal(tmp_path, write_journal(tmp_path))
    (path,) = seal_journal(tmp_path)
    assert path == tmp_path / PARQUET_FOLDER / "journal.00000001.parquet"
    table = read(path)
    assert ", ".join(f"{field.name}: {field.type}" for field in table.schema) == SCHEMA
    rows = [tuple(row.values()) for row in table.to_pylist()]
    times = [row[5] for row in rows]
    assert [time.timestamp() for time in times] == [0.001, 0.002, 0.003, 0.005]
    assert [(*row[:5], *row[6:]) for row in rows] == [
        ("orders", "7|10|", 7, 10, 1, "publish", "k", "c", b"one", 1),
        ("trades", f"{BIG}|{BIG - 1}|", -5, -6, 2, "publish", None, None, b"two", 2),
        ("orders", "7|11|", 7, 11, 3, "sow_delete", None, None, b"k", 1),
        ("orders", "7|13|", 7, 13, 5, "publish", "caf\ufffd", None, b"", 1),
    ]


def test_files_are_compressed_in_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "ROWS_PER_GROUP", 10)
    seal(tmp_path, write_journal(tmp_path, rounds=6))
    (path,) = seal_journal(tmp_path)
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [10, 10, 4]
    assert {metadata.row_group(0).column(n).compression for n in range(11)} == {"ZSTD"}
    assert METADATA in metadata.metadata
    assert read(path)["position"].to_pylist() == [n for n in range(1, 31) if n % 5 != 4]


def test_segments_that_were_compressed_or_archived_are_exported(tmp_path: Path) -> None:
    directory, archive = tmp_path / "log", tmp_path / "archive"
    write_journal(directory, segment_bytes=1024, rounds=10).close()
    journal = JournalFiles(
        directory, RealDisk(), segment_bytes=1024, instance_id=1, archive=archive
    )
    for number, compress in ((1, True), (2, False)):
        journal.use_copy(number, journal.copy_sealed(number, compress=compress))
        journal.finish_copy(number)
    journal.close()
    names = [path.name for path in seal_journal(directory, archive)]
    assert names[:2] == [f"{segment_name(number)}.parquet" for number in (1, 2)]


def test_only_sealed_segments_are_exported_and_each_once(tmp_path: Path) -> None:
    journal = write_journal(tmp_path, segment_bytes=1024, rounds=10)
    while journal.has_unsealed:
        journal.seal()
    live = journal.live.number
    written = seal_journal(tmp_path)
    assert [path.name for path in written] == [
        f"{segment_name(number)}.parquet" for number in range(1, live)
    ]
    assert seal_journal(tmp_path) == []
    journal.close()
    assert seal_journal(tmp_path) == []  # the manifest of the live one is a snapshot
    positions = [read(path)["position"].to_pylist() for path in written]
    found = list(itertools.chain.from_iterable(positions))
    assert found == [n for n in range(1, found[-1] + 1) if n % 5 != 4]


def test_a_segment_with_a_row_of_nothing_has_an_empty_file(tmp_path: Path) -> None:
    journal = JournalFiles(tmp_path, RealDisk(), segment_bytes=2**20, instance_id=99)
    seal(tmp_path, journal)
    (path,) = seal_journal(tmp_path)
    assert read(path).num_rows == 0


def test_the_file_of_another_journal_is_written_again(tmp_path: Path) -> None:
    seal(tmp_path / "a", write_journal(tmp_path / "a"))
    seal(tmp_path / "b", write_journal(tmp_path / "b", rounds=2))
    (path,) = seal_journal(tmp_path / "a")
    folder = tmp_path / "b" / PARQUET_FOLDER
    folder.mkdir()
    path.rename(folder / path.name)
    (again,) = seal_journal(tmp_path / "b")
    assert read(again).num_rows == 8


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 100, b"PAR1" + bytes(20) + b"PAR1"])
def test_a_file_that_is_no_parquet_is_written_again(tmp_path: Path, content: bytes) -> None:
    seal(tmp_path, write_journal(tmp_path))
    (tmp_path / PARQUET_FOLDER).mkdir()
    (tmp_path / PARQUET_FOLDER / "journal.00000001.parquet").write_bytes(content)
    (path,) = seal_journal(tmp_path)
    assert read(path).num_rows == 4


def test_a_damaged_segment_is_named_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seal(tmp_path, write_journal(tmp_path))
    source = tmp_path / segment_name(1)
    data = bytearray(source.read_bytes())
    data[data.index(b"two")] ^= 1
    source.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=r"journal\.00000001.*checksum of a block is wrong"):
        seal_journal(tmp_path)
    assert list((tmp_path / PARQUET_FOLDER).glob("*.parquet")) == []
    assert main([str(tmp_path)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_segment_that_cannot_be_exported_holds_up_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = write_journal(tmp_path, segment_bytes=4096, rounds=60)
    while journal.has_unsealed:
        journal.seal()
    journal.close()
    numbers = range(1, journal.live.number)
    assert len(numbers) > 5
    torn, newer, damaged, *whole = numbers
    (tmp_path / manifest_name(torn)).write_bytes(b'{"format":1,"\xff')
    path = tmp_path / manifest_name(newer)
    path.write_text(json.dumps(json.loads(path.read_text("ascii")) | {"format": 3}))
    header = bytearray((tmp_path / segment_name(damaged)).read_bytes())
    header[20] ^= 1
    (tmp_path / segment_name(damaged)).write_bytes(header)
    with pytest.raises(StoreError, match=r"manifest.json: .* version 3"):
        seal_journal(tmp_path)
    found = sorted(each.name for each in (tmp_path / PARQUET_FOLDER).glob("*.parquet"))
    assert found == [parquet_path(tmp_path, number).name for number in whole]
    path.unlink()
    with pytest.raises(StoreCorrupt, match="checksum of the segment header is wrong"):
        seal_journal(tmp_path)
    assert main([str(tmp_path)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_segment_that_ends_early_is_damaged(tmp_path: Path) -> None:
    seal(tmp_path, write_journal(tmp_path))
    manifest = Manifest.from_json((tmp_path / manifest_name(1)).read_text())
    source = tmp_path / segment_name(1)
    source.write_bytes(source.read_bytes()[: manifest.data_bytes - 200])
    with pytest.raises(StoreCorrupt):
        seal_journal(tmp_path)


def test_two_exports_at_a_time_do_not_disturb_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seal(tmp_path, write_journal(tmp_path))
    (tmp_path / PARQUET_FOLDER).mkdir()
    lock = RealDisk().open_locked(tmp_path / PARQUET_FOLDER / ".lock")
    try:
        with pytest.raises(StoreLocked):
            seal_journal(tmp_path)
        assert main([str(tmp_path)]) == 0
    finally:
        lock.close()
    assert capsys.readouterr() == ("", "")


def test_an_export_that_is_killed_at_any_moment_leaves_whole_files_or_none(tmp_path: Path) -> None:
    journal = write_journal(tmp_path, segment_bytes=64 * 1024, rounds=2000)
    while journal.has_unsealed:
        journal.seal()
    segments = journal.live.number - 1
    journal.close()
    expected: dict[str, int] = {}
    for number in range(1, segments + 1):
        manifest = Manifest.from_json((tmp_path / manifest_name(number)).read_text())
        positions = range(manifest.first_position, manifest.next_position)
        expected[f"{segment_name(number)}.parquet"] = sum(p % 5 != 4 for p in positions)
    for count in range(0, segments, 3):
        with subprocess.Popen(
            [sys.executable, "-m", MODULE, str(tmp_path)], stdout=subprocess.PIPE
        ) as process:
            # The export names the files at its end: the kill comes while it writes the next one.
            while len(list((tmp_path / PARQUET_FOLDER).glob("journal.*.parquet"))) < count + 1:
                with pytest.raises(subprocess.TimeoutExpired):  # it runs, and has the processor
                    process.wait(0.001)
            process.send_signal(signal.SIGKILL)
        found = {
            path.name: read(path).num_rows for path in (tmp_path / PARQUET_FOLDER).glob("*.parquet")
        }
        assert found.items() <= expected.items()
        if len(found) > segments // 2:
            break
    assert main([str(tmp_path)]) == 0
    found = {
        path.name: read(path).num_rows for path in (tmp_path / PARQUET_FOLDER).glob("*.parquet")
    }
    assert found == expected


async def test_a_broker_exports_while_it_runs_and_what_it_finds_at_its_start(
    tmp_path: Path,
) -> None:
    config = BrokerConfig(
        data_dir=tmp_path,
        parquet=True,
        segment_bytes=16 * 1024,
        sow_topics=(SowTopic("orders", ("/id",)),),
    )

    async def publish(uri: str, sequences: range) -> None:
        async with RawClient.connect(uri) as client:
            await client.logon("pubber", opts="ack_conflation=10ms")
            for number in sequences:
                body = b'{"id":%d,"x":"%b"}' % (number, b"x" * 200)
                await client.send(body, c="p", t="orders", a="persisted", s=number)
            while (await client.ack("persisted")).sequence != sequences[-1]:
                pass

    async def exported(count: int) -> None:
        with trio.fail_after(60):
            files = tmp_path / PARQUET_FOLDER
            while len(list(files.glob("journal.*.parquet"))) < count:  # noqa: ASYNC110 - processes
                await trio.sleep(0.02)  # leaves them the processor

    async with running_broker(config) as server:
        await publish(server.uris[0], range(1, 201))
        await exported(2)
    for path in (tmp_path / PARQUET_FOLDER).glob("journal.*.parquet"):
        path.unlink()
    async with running_broker(config):
        await exported(2)
        table = read(tmp_path / PARQUET_FOLDER / "journal.00000001.parquet")
    assert table["sequence"].to_pylist()[:3] == [1, 2, 3]
    assert set(table["bookmark"].to_pylist()) >= {f"{publisher_id('pubber')}|1|"}
    assert table["sow_key"].null_count == 0


def child(words: str) -> int | None:
    """The id of a child of this process whose command has these words."""
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text("ascii").split():
            if words in Path(f"/proc/{pid}/cmdline").read_text("utf-8"):
                return int(pid)
    return None


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="not applicable: no /proc")
async def test_a_broker_ends_although_its_export_does_not(tmp_path: Path) -> None:
    seal(tmp_path, write_journal(tmp_path))
    with trio.fail_after(60):
        async with running_broker(BrokerConfig(data_dir=tmp_path, parquet=True)):
            while (pid := child(MODULE)) is None:  # noqa: ASYNC110 - a process
                await trio.sleep(0.02)
            os.kill(pid, signal.SIGSTOP)  # it takes no other signal in now, except SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_broker_whose_export_fails_goes_on_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig(name="east", data_dir=tmp_path, parquet=True)
    (tmp_path / PARQUET_FOLDER).write_bytes(b"a file where a directory should be")
    async with running_broker(config) as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        with trio.fail_after(60):
            while "east: export to Parquet" not in caplog.text:
                await client.send(c="flush", cid="f", a="processed")
                await client.ack("processed", "f")


async def test_a_broker_that_can_start_no_export_goes_on_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    config = BrokerConfig(name="east", data_dir=tmp_path / "log", parquet=True)
    async with running_broker(config) as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        with trio.fail_after(60):
            while "east: export to Parquet: cannot be started" not in caplog.text:
                await client.send(c="flush", cid="f", a="processed")
                await client.ack("processed", "f")


def test_the_command_takes_the_option_with_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def stop(_text: str, *, aside: bool) -> None:
        assert aside
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("haclient.cli.broker.print_result", stop)
    data = tmp_path / "data"
    listen = ["--listen", "tcp://127.0.0.1:0"]
    code = run(["broker", "run", *listen, "--parquet", "--data", str(data)])
    assert code == 0, capfd.readouterr().err
    assert [*data.glob("journal.*")]


@pytest.mark.parametrize(
    ("name", "what"),
    [("notes.txt", "neither the directory of a broker"), ("date=2026-01-31", "is an export")],
)
def test_the_command_makes_nothing_in_a_directory_that_is_no_journal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, what: str
) -> None:
    (tmp_path / name).mkdir()
    code = run(["pyspark", "seal", str(tmp_path)])
    assert (code, what in capfd.readouterr().err) == (2, True)
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_the_command_counts_what_it_has_sealed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seal(tmp_path, write_journal(tmp_path))
    assert run(["pyspark", "seal", str(tmp_path)]) == 0
    assert capfd.readouterr().out == f"{tmp_path}: 1 segment sealed\n"
