"""The records of file-backed topics, in a broker that starts again and again on one directory."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typing_extensions import override

from haclient.errors import UsageError
from haclient_fake_server.engine import broker
from haclient_fake_server.engine.broker import Engine
from haclient_fake_server.engine.recovery import SavedState
from haclient_fake_server.engine.settings import LogTopic, QueueTopic, SowTopic
from haclient_fake_server.engine.sow.saved import SowLayout
from haclient_fake_server.engine.sow.table import SowRecord
from haclient_fake_server.journal import segments, sow_database
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.sow_database import FILE_NAME, SowDatabase
from haclient_stores.disk.files import RealDisk
from haclient_stores.errors import StoreError
from support.engine import START_US, Peer, World
from support.lengths import length

pytestmark = pytest.mark.row("SW10")

TOPIC = SowTopic("orders", ("/id",), file_backed=True)


class DiskWorld(World):
    """A broker with its journal and its database in a directory."""

    def __init__(self, directory: Path, *topics: SowTopic) -> None:
        self.directory = directory
        self.topics = topics or (TOPIC,)
        self.starts = 0
        self.files = self._open_journal()
        super().__init__(journal=self.files, sow_topics=self.topics)

    def _open_journal(self) -> JournalFiles:
        self.starts += 1
        return JournalFiles(
            self.directory, RealDisk(), segment_bytes=4096, instance_id=1, start_id=self.starts
        )

    @override
    def _new_engine(self) -> Engine:
        layout = SowLayout.of(self.topics, self.settings.queues)
        self.database = SowDatabase(self.directory, self.files, layout)
        self.database.note_start()
        now_us = START_US + int(self.now * 1e6)
        saved = SavedState(records=self.database.saved)
        return Engine(self.settings, self.files, now=self.now, now_us=now_us, saved=saved)

    def checkpoint(self) -> None:
        """What the hub does every few seconds."""
        prepared = self.database.prepare(self.engine.sow_changes())
        self.files.sync()
        self.database.write(prepared)

    def close(self) -> None:
        self.database.close()
        self.files.close()

    def reopen(self, *topics: SowTopic) -> Peer:
        """Start again, as after a kill; a client of the new broker."""
        self.close()
        return self.open(*topics)

    def open(self, *topics: SowTopic) -> Peer:
        self.topics = topics or self.topics
        self.files = self.journal = self._open_journal()
        self.settings = type(self.settings)(sow_topics=self.topics)
        self.restart()
        return self.client(f"client-{self.starts}")

    def drop_old_log(self) -> None:
        """Remove the segments that the records do not need."""
        while len(self.files.segments) > 1:
            number, segment = next(iter(self.files.segments.items()))
            if segment.manifest.next_position >= self.database.safe_position:
                break
            if not segment.manifest.sealed:
                self.files.seal()
            self.files.forget_oldest()
            self.files.remove_files(number)


@pytest.fixture
def world_of(tmp_path: Path) -> Iterator[Callable[..., DiskWorld]]:
    worlds: list[DiskWorld] = []

    def make(*topics: SowTopic) -> DiskWorld:
        worlds.append(DiskWorld(tmp_path, *topics))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def put(peer: Peer, *keys: int, value: int = 0, topic: str = "orders") -> None:
    for key in keys:
        peer.publish(None, b'{"id":%d,"v":%d}' % (key, value), t=topic)


def records(peer: Peer, topic: str = "orders") -> list[bytes]:
    peer.send(c="sow", cid="q", t=topic)
    return [message.data for message in peer.take() if message.kind == "sow"]


def stored(world: World) -> tuple[SowRecord, ...]:
    return next(iter(world.engine._routes.sow)).records()


def body(key: int, value: int = 0) -> bytes:
    return b'{"id":%d,"v":%d}' % (key, value)


def test_a_restart_needs_only_what_follows_the_last_checkpoint(
    world_of: Callable[..., DiskWorld],
) -> None:
    world = world_of()
    peer = world.client()
    put(peer, *range(200))
    world.checkpoint()
    put(peer, 3, 300, value=1)
    peer.send(c="sow_delete", t="orders", filter="/id > 4 AND /id < 300")
    put(peer, 5, value=2)
    world.drop_old_log()
    assert world.files.first_position > 100
    wanted = [body(0), body(1), body(2), body(3, 1), body(4), body(300, 1), body(5, 2)]
    assert records(peer) == wanted
    peer = world.reopen()
    assert sorted(records(peer)) == sorted(wanted)
    world.checkpoint()
    assert sorted(records(world.reopen())) == sorted(wanted)


def test_records_have_all_that_they_had(world_of: Callable[..., DiskWorld]) -> None:
    topic = SowTopic("named", file_backed=True, expiration_s=100)
    world = world_of(topic)
    peer = world.client()
    peer.publish(1, b"\xff\x00", t="named", k="k\udcff", x="cid", e=50)
    peer.publish(2, b"", t="named", k="2", e=0)
    before = stored(world)
    world.checkpoint()
    world.reopen()
    assert stored(world) == before
    world.advance(60)
    assert [each.key for each in stored(world)] == ["2"]


def _flip(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("update records set body = x'00' where rowid = 2")
    database.close()


def _move_place(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("update place set offset = offset - 1")
    database.close()


def _step_back(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("update place set next_position = next_position - 1")
    database.close()


def _spoil_layout(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("""update layouts set text = '[["json", "(", true, ["/id"]]]'""")
    database.close()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: path.unlink(), "it is missing"),
        (lambda path: path.write_bytes(b"x" * 5000), "file is not a database"),
        (lambda path: path.write_bytes(path.read_bytes()[:6000]), "malformed"),
        (_flip, "the checksum of a record is wrong"),
        (_move_place, "it names another end of the block"),
        (_step_back, "it names another end of the block"),
        (_spoil_layout, "topic '(' is not a valid pattern"),
    ],
)
def test_a_damaged_database_is_made_anew_from_the_log(
    world_of: Callable[..., DiskWorld],
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    told: str,
) -> None:
    world = world_of()
    put(world.client(), *range(100))
    world.checkpoint()
    world.close()
    damage(world.directory / FILE_NAME)
    peer = world.open()
    assert records(peer) == [body(key) for key in range(100)]
    (line,) = caplog.messages
    assert "made anew from the log: " in line
    assert told in line
    world.checkpoint()
    caplog.clear()
    assert records(world.reopen()) == [body(key) for key in range(100)]
    assert not caplog.messages


def _index_entry(data: bytearray, page: int, key: bytes) -> None:
    """Flip a bit of a key in the index, which is behind the table."""
    assert data.rindex(key) > page + 4096
    data[data.rindex(key)] ^= 1


def _cell_count(data: bytearray, page: int, key: bytes) -> None:
    del key
    data[page + 4] ^= 4  # of five cells there is one


def _row_id(data: bytearray, page: int, key: bytes) -> None:
    """The third row is under the number of another one."""
    del key
    at = page + int.from_bytes(data[page + 12 : page + 14], "big")
    at += 2 if data[at] & 128 else 1
    assert data[at] == 3
    data[at] ^= 6


@pytest.mark.parametrize("flip", [_index_entry, _cell_count, _row_id])
def test_records_are_found_and_deleted_although_a_bit_around_them_is_wrong(
    world_of: Callable[..., DiskWorld],
    caplog: pytest.LogCaptureFixture,
    flip: Callable[[bytearray, int, bytes], None],
) -> None:
    """What is around the records has no checksum: they would be missing, or others deleted."""
    world = world_of()
    put(world.client(), *range(5))
    world.checkpoint()
    world.close()
    path = world.directory / FILE_NAME
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma wal_checkpoint(truncate)")
        (size,) = database.execute("pragma page_size").fetchone()
        (key,) = database.execute("select key from records where rowid = 3").fetchone()
        root = "select rootpage from sqlite_master where name = 'records'"
        page = (database.execute(root).fetchone()[0] - 1) * size
    data = bytearray(path.read_bytes())
    flip(data, page, key)
    path.write_bytes(data)
    peer = world.open()
    assert records(peer) == [body(key) for key in range(5)]
    (line,) = caplog.messages
    assert "made anew from the log: " in line
    peer.send(c="sow_delete", t="orders", filter="/id = 2")
    world.checkpoint()
    assert records(world.reopen()) == [body(key) for key in (0, 1, 3, 4)]


def test_what_is_lost_with_a_database_is_said(
    world_of: Callable[..., DiskWorld], caplog: pytest.LogCaptureFixture
) -> None:
    world = world_of()
    put(world.client(), *range(200))
    world.checkpoint()
    world.drop_old_log()
    first = world.files.first_position
    world.close()
    (world.directory / FILE_NAME).unlink()
    assert len(records(world.open())) == 201 - first
    assert f"records from before position {first} are lost" in caplog.text


def test_a_database_that_another_program_has_locked_is_not_made_anew(
    world_of: Callable[..., DiskWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sow_database, "BUSY_TIMEOUT_S", 0.01)
    world = world_of()
    put(world.client(), *range(100))
    world.checkpoint()
    world.close()
    with closing(sqlite3.connect(world.directory / FILE_NAME)) as other:
        other.execute("pragma locking_mode = exclusive")
        other.execute("begin exclusive")
        with pytest.raises(StoreError, match="database is locked"):
            world.open()
    world.files.close()
    assert records(world.open()) == [body(key) for key in range(100)]
    assert world.database.saved is not None


def test_a_log_that_cannot_be_read_leaves_no_open_database(
    world_of: Callable[..., DiskWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of()
    world.client("a").publish(1, b'{"id": 1}')
    world.checkpoint()
    world.close()
    opened: list[sqlite3.Connection] = []

    def fail(_: SowDatabase, database: sqlite3.Connection) -> None:
        opened.append(database)
        raise StoreError("the log cannot be read")

    monkeypatch.setattr(SowDatabase, "_load", fail)
    with pytest.raises(StoreError, match="cannot be read"):
        world.open()
    monkeypatch.undo()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("select 1")
    world.files.close()
    world.open()


def test_a_database_of_another_log_is_not_used(
    world_of: Callable[..., DiskWorld], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    world = world_of()
    put(world.client(), 1, 2)
    world.checkpoint()
    world.close()
    for path in tmp_path.glob("journal*"):
        path.unlink()
    world.starts = 100
    peer = world.open()
    assert records(peer) == []
    assert "it is of another log" in caplog.text


def test_records_outlast_many_starts_that_ended_soon(
    world_of: Callable[..., DiskWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MAX_LOG_STARTS", 2)
    world = world_of()
    put(world.client(), *range(200))
    world.checkpoint()
    world.drop_old_log()
    peers = [world.reopen() for _ in range(3)]
    assert records(peers[-1]) == [body(key) for key in range(200)]


def test_a_database_that_cannot_be_written_serves_nevertheless(
    world_of: Callable[..., DiskWorld],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sow_database, "BUSY_TIMEOUT_S", 0.01)
    world = world_of()
    put(world.client(), 1, 2)
    world.checkpoint()
    with closing(sqlite3.connect(world.directory / FILE_NAME)) as other:
        other.execute("begin immediate")
        assert records(world.reopen()) == [body(1), body(2)]
    assert world.database.saved is not None
    assert "database is locked" in caplog.text


def test_a_topic_that_is_new_or_has_changed_is_rebuilt_and_others_are_not(
    world_of: Callable[..., DiskWorld],
) -> None:
    world = world_of(TOPIC, SowTopic("other", ("/id",)))
    peer = world.client()
    for topic in ("orders", "other", "p1"):
        put(peer, 1, 2, topic=topic)
    world.checkpoint()
    backed = SowTopic("other", ("/id",), file_backed=True)
    several = SowTopic("^p", ("/id",), is_pattern=True, file_backed=True)
    peer = world.reopen(TOPIC, backed, several)
    assert world.database.safe_position == 0  # the log alone has the records of the new ones
    for _ in range(2):
        assert [len(records(peer, each)) for each in ("orders", "other", "p1")] == [2, 2, 2]
        world.checkpoint()
        peer = world.reopen()
    by_value = SowTopic("orders", ("/v",), file_backed=True)
    peer = world.reopen(by_value, backed, several)
    for _ in range(2):
        assert records(peer) == [body(1), body(2)]  # the log has the keys that they had
        world.checkpoint()
        peer = world.reopen()


_PATTERN = SowTopic("^p", ("/v",), is_pattern=True, file_backed=True)


@pytest.mark.parametrize(
    ("preceding", "left"),
    [
        (SowTopic("p1", file_backed=True), [body(2)]),
        (SowTopic("^p1", is_pattern=True, file_backed=True), [body(2)]),
        (SowTopic("^p1", is_pattern=True), [body(2)]),
        (SowTopic("p1", ("/id",)), [body(1), body(2)]),  # the log has the keys that they had
    ],
)
def test_a_topic_that_passes_to_another_definition_is_rebuilt(
    world_of: Callable[..., DiskWorld], preceding: SowTopic, left: list[bytes]
) -> None:
    world = world_of(preceding, _PATTERN)
    peer = world.client()
    for topic in ("p1", "p2"):
        for key in (1, 2):
            peer.publish(None, body(key), t=topic, k=str(key))
    world.checkpoint()
    before = [[body(1), body(2)], [body(2)]]
    assert [records(peer, each) for each in ("p1", "p2")] == before
    peer = world.reopen(_PATTERN)
    assert [records(peer, each) for each in ("p1", "p2")] == [left, [body(2)]]
    peer = world.reopen(preceding, _PATTERN)  # nothing was written meanwhile
    assert [records(peer, each) for each in ("p1", "p2")] == before
    world.reopen(_PATTERN)
    world.checkpoint()
    peer = world.reopen()
    assert world.database.safe_position > 1
    assert [records(peer, each) for each in ("p1", "p2")] == [left, [body(2)]]


def test_the_name_of_a_queue_takes_precedence_over_a_pattern() -> None:
    layout = SowLayout.of((_PATTERN, TOPIC), (QueueTopic(name="p1"),))
    names = ("p1", "p2", "orders", "others")
    found = [SowLayout.parse(layout.text).keys_of("json", each) for each in names]
    assert found == [None, ("/v",), ("/id",), None]
    assert not layout.is_empty
    assert layout.keys_of("fix", "p2") is None


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [(3.0, None, [1, 2, 3]), (None, 3.0, [1, 3]), (0.0, 100.0, [1, 2, 3]), (100.0, 0.0, [1, 2, 3])],
)
def test_saved_records_have_the_lifetime_that_their_topic_has_now(
    world_of: Callable[..., DiskWorld], before: float | None, after: float | None, left: list[int]
) -> None:
    world = world_of(SowTopic("orders", ("/id",), file_backed=True, expiration_s=before))
    peer = world.client()
    peer.publish(None, body(1), t="orders", e=100)
    put(peer, 2)
    peer.publish(None, body(3), t="orders", e=0)
    put(peer, *range(4, 200))
    peer.send(c="sow_delete", t="orders", filter="/id > 3")
    world.checkpoint()
    world.drop_old_log()
    peer = world.reopen(SowTopic("orders", ("/id",), file_backed=True, expiration_s=after))
    world.advance(4)
    assert records(peer) == [body(key) for key in left]


@pytest.mark.parametrize("file_backed", [True, False])
def test_what_only_the_database_had_and_is_dropped_is_told(
    world_of: Callable[..., DiskWorld], caplog: pytest.LogCaptureFixture, *, file_backed: bool
) -> None:
    other = SowTopic("others", ("/id",), file_backed=True)
    world = world_of(TOPIC, other)
    put(world.client(), *range(200))
    world.checkpoint()
    world.drop_old_log()
    world.reopen(TOPIC, other)
    assert caplog.records == []
    first = world.files.first_position
    world.reopen(SowTopic("orders", ("/v",), file_backed=file_backed), other)
    (report,) = (each.message for each in caplog.records)
    assert report.endswith(
        "200 records of topic 'orders' are dropped, since it is configured in another way; "
        f"those from before position {first} of the log are lost"
    )


def test_a_write_that_fails_changes_nothing_and_is_made_up_for(
    world_of: Callable[..., DiskWorld],
) -> None:
    world = world_of()
    peer = world.client()
    put(peer, 1, 2)
    world.checkpoint()
    put(peer, 2, 3, value=1)
    peer.send(c="sow_delete", t="orders", filter="/id = 1")
    prepared = world.database.prepare(world.engine.sow_changes())
    world.database._database.execute(
        "create trigger full before insert on place begin select raise(abort, 'disk full'); end"
    )
    with pytest.raises(StoreError, match=r"sow\.db: disk full"):
        world.database.write(prepared)
    assert world.database.safe_position < world.files.next_position
    world.engine.restore_sow_changes()
    world.database._database.execute("drop trigger full")
    world.checkpoint()
    world.files.sync()
    assert sorted(records(world.reopen())) == [body(2, 1), body(3, 1)]


def test_what_changes_while_parts_are_written_is_as_the_log_has_it(
    world_of: Callable[..., DiskWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "CHANGES_OF_A_PART", 10)
    world = world_of()
    peer = world.client()
    put(peer, *range(40))
    changes, place = world.database.prepare(world.engine.sow_changes())
    parts = [next(changes)]
    put(peer, 1, 31, 100, value=1)
    peer.send(c="sow_delete", t="orders", filter="/id = 2 OR /id = 32 OR /id = 33")
    put(peer, 33, value=2)
    parts += changes
    assert [len(each.records) for each in parts] == [10, 10, 10, 10]
    for each in parts:
        world.database.add(each)
    put(peer, 3, 34, value=3)
    world.files.sync()
    world.database.commit(place)
    wanted = sorted(records(peer))
    assert sorted(records(world.reopen())) == wanted
    world.checkpoint()
    assert sorted(records(world.reopen())) == wanted


def test_parts_that_are_given_up_are_written_the_next_time(
    world_of: Callable[..., DiskWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "CHANGES_OF_A_PART", 2)
    world = world_of()
    peer = world.client()
    put(peer, 1, 2, 3)
    changes, _ = world.database.prepare(world.engine.sow_changes())
    world.database.add(next(changes))
    put(peer, 4)
    world.database.rollback()
    world.engine.restore_sow_changes()
    world.checkpoint()
    world.drop_old_log()
    assert records(world.reopen()) == [body(1), body(2), body(3), body(4)]


def test_a_kill_at_any_moment_leaves_the_last_whole_transaction(
    world_of: Callable[..., DiskWorld], tmp_path: Path
) -> None:
    world = world_of()
    peer = world.client()
    put(peer, 1, 2)
    world.checkpoint()
    put(peer, 2, 3, value=1)
    database = world.database._database
    database.execute("delete from records")  # a transaction that is not committed
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in tmp_path.glob("[js]*"):
        if path.name != "journal.lock":
            shutil.copy(path, copy)
    database.rollback()
    killed = DiskWorld(copy)
    assert records(killed.client()) == [body(1), body(2, 1), body(3, 1)]
    killed.close()


def test_a_file_backed_topic_has_to_be_logged() -> None:
    with pytest.raises(UsageError, match="is file-backed, and what its file lacks is in the log"):
        World(sow_topics=(TOPIC,), log_topics=(LogTopic("other"),))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["p", "p", "delta_publish", "sow_delete", "checkpoint", "kill", "drop"]),
        st.integers(1, 4),
    ),
    max_size=25,
)


@settings(max_examples=length(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_any_order_of_changes_checkpoints_and_kills_keeps_the_records(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = DiskWorld(tmp_path_factory.mktemp("broker"))
    peer, model = world.client(), dict[int, bytes]()
    for number, (step, key) in enumerate(steps):
        match step:
            case "checkpoint":
                world.checkpoint()
            case "kill":
                peer = world.reopen()
            case "drop":
                world.drop_old_log()
            case "sow_delete":
                peer.send(c="sow_delete", t="orders", filter=f"/id = {key}")
                model.pop(key, None)
            case _:
                text = b"%d" % number * 200
                peer.send(b'{"id":%d,"v":"%b"}' % (key, text), c=step, t="orders")
                model[key] = b'{"id":%d,"v":"%b"}' % (key, text)
        assert sorted(records(peer)) == sorted(model.values())
    assert sorted(records(world.reopen())) == sorted(model.values())
    world.close()
