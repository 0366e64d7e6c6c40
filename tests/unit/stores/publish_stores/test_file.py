from __future__ import annotations

import math
import os
import random
import resource
import shutil
import signal
import subprocess
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.errors import StoreCorrupt, StoreError, StoreFull, StoreLocked, UsageError
from haclient_stores.publish_stores.file import (
    DEFAULT_FILE_SEGMENT_BYTES,
    Durability,
    FilePublishStore,
    publish_store_size,
)
from haclient_stores.publish_stores.hybrid import HybridPublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.ring import RingPublishStore
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES
from simulation.disk import SimulatedDisk
from support.disks import WatchedDisk
from support.frames import BASE, fill, frame_of, kept, put, put_until_full, take_all
from support.holder import holding

KIB = b"k" * 1000

HOLDER = """
import sys
from haclient_stores.publish_stores.file import FilePublishStore
store = FilePublishStore(sys.argv[1], segment_bytes=32768)
store.open_for("orders-1")
store.reconcile(seen=0, persisted=0, clock_us=1000)
for _ in range(3):
    store.store(b'{"c":"p","s":', b"}", b"body")
print("stored", flush=True)
sys.stdin.read()
"""


def opened(path: Path) -> FilePublishStore:
    store = FilePublishStore(path, segment_bytes=MIN_SEGMENT_BYTES)
    if not store.last_sequence:
        store.reconcile(seen=0, persisted=0, clock_us=BASE)
    return store


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the store at tmp_path / "p" open and three messages in it."""
    with holding(HOLDER, tmp_path / "p") as process:
        yield process


# -- files ------------------------------------------------------------------------------------


@pytest.mark.row("PS11")
def test_a_missing_store_is_created_with_its_directories(tmp_path: Path) -> None:
    store = opened(tmp_path / "a" / "b" / "store")
    assert store.path == tmp_path / "a" / "b" / "store"
    assert put(store) == 1001
    store.close()
    assert sorted(os.listdir(store.path)) == ["00000001.seg", "control"]  # noqa: PTH208  names


@pytest.mark.row("PS11", "PS22")
def test_a_store_goes_on_where_it_was_closed(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    fill(store, 50, KIB)
    take_all(store)
    store.discard_up_to(1020)
    store.close()
    again = FilePublishStore(str(tmp_path / "p"), segment_bytes=MIN_SEGMENT_BYTES)
    assert list(again.replay()) == [(n, frame_of(n, KIB)) for n in range(1021, 1051)]
    assert (again.last_persisted, again.last_sequence) == (1020, 1050)
    assert again.unsent_bytes == 30 * len(frame_of(1001, KIB))
    assert take_all(again) == b"".join(frame_of(n, KIB) for n in range(1021, 1051))
    assert put(again) == 1051
    again.close()


@pytest.mark.row("PS8", "PS11")
def test_a_store_without_messages_remembers_its_numbers(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    fill(store, 5)
    store.discard_up_to(1005)
    store.close()
    again = FilePublishStore(tmp_path / "p", segment_bytes=MIN_SEGMENT_BYTES)
    assert (again.unpersisted_count, again.last_sequence, again.last_persisted) == (0, 1005, 1005)
    again.reconcile(seen=1005, persisted=1005, clock_us=10**15)
    assert put(again) == 1006
    again.close()


@pytest.mark.row("PS2", "PS8")
def test_numbers_are_never_used_twice_even_if_nothing_is_stored(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    store.close()
    store = opened(tmp_path / "p")
    assert store.last_sequence == BASE
    fill(store, 3)
    store.discard_up_to(1003)
    store.reconcile(seen=9000, persisted=1003, clock_us=1)
    store.close()
    store = opened(tmp_path / "p")
    store.reconcile(seen=1003, persisted=1003, clock_us=1)
    assert put(store) == 9001
    store.close()


@pytest.mark.row("PS9", "PS11")
def test_a_gap_is_noticed_after_a_restart(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    fill(store, 5)
    store.discard_up_to(1005)
    store.close()
    again = opened(tmp_path / "p")
    again.reconcile(seen=1004, persisted=1004, clock_us=0)
    assert again.gap is not None
    assert (again.gap.acknowledged, again.gap.server) == (1005, 1004)
    again.close()


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    put(store)
    shown = store.peek()
    store.close()
    store.close()
    assert bytes(shown) == frame_of(1001, b"body")  # a send that is under way keeps its bytes
    assert kept(opened_and_closed(tmp_path / "p")) == []


def opened_and_closed(path: Path) -> FilePublishStore:
    store = opened(path)
    store.close()
    return store


def test_a_path_that_cannot_be_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file: is a file, where a directory is wanted"):
        FilePublishStore(tmp_path / "file")


@pytest.mark.row("PS17")
def test_growth_may_be_refused(tmp_path: Path) -> None:
    store = FilePublishStore(
        tmp_path / "p",
        segment_bytes=MIN_SEGMENT_BYTES,
        resize_handler=lambda size: size <= 2 * MIN_SEGMENT_BYTES,
    )
    assert isinstance(put_until_full(store, KIB), StoreFull)
    assert store.unpersisted_count == 2 * 28
    store.close()


@pytest.mark.row("PS11")
def test_the_size_has_a_limit(tmp_path: Path) -> None:
    store = FilePublishStore(
        tmp_path / "p", segment_bytes=MIN_SEGMENT_BYTES, max_bytes=3 * MIN_SEGMENT_BYTES
    )
    assert isinstance(put_until_full(store, KIB), StoreFull)
    assert len(list(store.path.glob("*.seg"))) == 3
    store.close()


@pytest.mark.row("PS1", "PS22")
def test_a_file_size_limit_of_the_process_stores_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = opened(tmp_path / "p")
    fill(store, 3)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIN_SEGMENT_BYTES, hard))
    try:
        with pytest.raises(StoreFull, match=r"cannot reserve .*; allow .* larger files") as full:
            put(store, bytes(2 * MIN_SEGMENT_BYTES))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not full.value.wait  # acks would not help
    assert [path.name for path in store.path.glob("*.seg")] == ["00000001.seg"]
    assert put(store, bytes(2 * MIN_SEGMENT_BYTES)) == 1004
    assert kept(store) == [1001, 1002, 1003, 1004]
    store.close()


# -- owners and locks -------------------------------------------------------------------------


@pytest.mark.row("PS12")
def test_a_store_belongs_to_its_client_for_good(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    store.open_for("orders-1")
    store.close()
    again = opened(tmp_path / "p")
    assert again.client_name == "orders-1"
    with pytest.raises(StoreLocked, match="belongs to the client 'orders-1'") as caught:
        again.open_for("orders-2")
    assert (caught.value.owner, caught.value.path) == ("orders-1", tmp_path / "p")
    again.open_for("orders-1")
    again.close()


@pytest.mark.row("PS12")
def test_an_owner_is_on_the_disk_before_it_counts(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = FilePublishStore(tmp_path / "p", segment_bytes=MIN_SEGMENT_BYTES, disk=disk)
    store.open_for("orders-1")
    assert b"orders-1" in disk.synced[tmp_path / "p" / "control"]
    store.close()


@pytest.mark.row("PS12")
@pytest.mark.parametrize("name", ["", "x" * 1025])
def test_a_name_that_cannot_be_kept_is_refused(tmp_path: Path, name: str) -> None:
    store = opened(tmp_path / "p")
    if name:
        with pytest.raises(UsageError, match="1 to 1024 bytes"):
            store.open_for(name)
    assert store.client_name == ""
    store.close()


@pytest.mark.row("PS12", "PS22")
def test_a_store_that_another_process_uses_is_refused_with_its_owner(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(StoreLocked, match="in use by another process as client 'orders-1'") as it:
        opened(tmp_path / "p")
    assert (it.value.owner, it.value.path) == ("orders-1", tmp_path / "p")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    store = opened(tmp_path / "p")
    assert kept(store) == [1001, 1002, 1003]
    assert store.client_name == "orders-1"
    store.close()


@pytest.mark.row("PS12")
def test_a_store_is_refused_a_second_time_in_one_process(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    with pytest.raises(StoreLocked, match="as client ''"):
        opened(tmp_path / "p")
    store.close()
    opened(tmp_path / "p").close()


@pytest.mark.row("PS12", "PS21")
def test_a_store_that_is_refused_is_not_locked(tmp_path: Path) -> None:
    opened(tmp_path / "p").close()
    control = tmp_path / "p" / "control"
    whole = control.read_bytes()
    control.write_bytes(b"what is this?" + whole[13:])
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="not a HAPUBCTL file"):
            opened(tmp_path / "p")
    control.write_bytes(whole)
    (tmp_path / "p" / "notes.json").write_text("[")
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=r"notes\.json: corrupt at byte 0"):
            opened(tmp_path / "p")
    (tmp_path / "p" / "notes.json").unlink()
    opened(tmp_path / "p").close()


@pytest.mark.row("PS12")
@pytest.mark.parametrize("sealed", [False, True])
def test_a_true_fork_is_refused_and_does_the_store_no_harm(tmp_path: Path, *, sealed: bool) -> None:
    store = opened(tmp_path / "p")
    store.open_for("orders-1")
    put(store)
    if sealed:  # then the next append has no need to ask anybody
        store.checkpoint()
    with warnings.catch_warnings():  # the child only asks and ends, whatever threads there are
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:  # pragma: no cover  another process
        refused = 0
        uses = (lambda: put(store), store.sync, store.close, lambda: store.open_for("orders-1"))
        for use in uses:
            try:
                use()
            except UsageError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    assert put(store) == 1002
    store.close()
    again = opened(tmp_path / "p")
    assert kept(again) == [1001, 1002]
    again.close()


def test_a_store_whose_creator_was_killed_at_once_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    for content in (b"", bytes(4096)):
        (tmp_path / "p" / "control").write_bytes(content)
        store = opened(tmp_path / "p")
        assert put(store) > BASE
        store.close()


# -- durability -------------------------------------------------------------------------------


@pytest.mark.row("PS20")
@pytest.mark.parametrize("durability", ["process", "group", "fsync"])
def test_the_store_says_what_a_client_has_to_wait_for(
    tmp_path: Path, durability: Durability
) -> None:
    store = FilePublishStore(tmp_path / "p", segment_bytes=MIN_SEGMENT_BYTES, durability=durability)
    store.reconcile(seen=0, persisted=0, clock_us=BASE)
    assert store.durability == durability
    store.sync()
    assert not store.needs_sync
    fill(store, 3)
    assert store.needs_sync
    assert store.synced_sequence == 1000
    store.sync()
    assert not store.needs_sync
    assert store.synced_sequence == 1003
    store.close()


@pytest.mark.row("PS20")
def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one of process, group, fsync, not 'always'"):
        FilePublishStore(tmp_path / "p", durability="always")  # type: ignore[arg-type]  # the mistake
    assert not (tmp_path / "p").exists()


@pytest.mark.row("PS20", "PS22")
def test_what_is_synced_is_in_the_file(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = FilePublishStore(tmp_path / "p", segment_bytes=MIN_SEGMENT_BYTES, disk=disk)
    put(store)
    store.sync()
    put(store, b"later")
    on_disk = disk.synced[tmp_path / "p" / "00000001.seg"]
    assert frame_of(1, b"body") in on_disk
    assert b"later" not in on_disk
    store.close()
    assert frame_of(2, b"later") in disk.synced[tmp_path / "p" / "00000001.seg"]


@pytest.mark.row("PS20")
def test_a_jump_in_the_numbering_does_not_need_a_sync_for_ever(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    fill(store, 3)
    store.reconcile(seen=7000, persisted=1001, clock_us=0)
    assert store.needs_sync
    store.sync()
    assert not store.needs_sync
    assert store.synced_sequence == 7000
    store.close()


@pytest.mark.row("PS20")
def test_what_was_read_back_is_not_taken_for_synced(tmp_path: Path) -> None:
    """A killed process leaves frames in the page cache: power loss may still take them."""
    disk = WatchedDisk()
    store = FilePublishStore(tmp_path / "p", segment_bytes=MIN_SEGMENT_BYTES, disk=disk)
    fill(store, 3)
    shutil.copytree(store.path, tmp_path / "q")  # what is left when the process is killed now
    store.close()
    again = FilePublishStore(tmp_path / "q", segment_bytes=MIN_SEGMENT_BYTES, disk=WatchedDisk())
    assert kept(again) == [1, 2, 3]
    assert again.needs_sync
    again.sync()
    assert not again.needs_sync
    again.close()


# -- notes ------------------------------------------------------------------------------------


def test_notes_stay_with_the_store(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    assert store.notes == {}
    store.set_note("line", "12")
    store.set_note("größe", 'a "quoted" \n text')
    store.notes["line"] = "changed in a copy"
    store.set_note("line", "13")
    store.close()
    again = opened(tmp_path / "p")
    assert again.notes == {"line": "13", "größe": 'a "quoted" \n text'}
    again.close()


def test_a_note_that_was_half_written_by_a_killed_process_is_as_it_was(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    store.set_note("line", "12")
    store.close()
    (tmp_path / "p" / "notes.json.new").write_text('{"line": "1')
    again = opened(tmp_path / "p")
    assert again.notes == {"line": "12"}
    again.set_note("line", "13")
    assert again.notes == {"line": "13"}
    again.close()


def test_a_note_without_room_is_not_kept(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = FilePublishStore(tmp_path / "p", segment_bytes=MIN_SEGMENT_BYTES, disk=disk)
    store.set_note("line", "12")

    def full(action: str, name: str) -> None:
        if action == "sync names":
            raise StoreFull(f"{name}: no room")

    disk.before = full
    with pytest.raises(StoreFull):
        store.set_note("line", "13")
    disk.before = None
    assert store.notes == {"line": "12"}
    store.close()


@pytest.mark.row("PS21")
@pytest.mark.parametrize("content", ["", "{", "[1]", '{"line": 12}', "\x80"])
def test_notes_that_are_none_are_corrupt(tmp_path: Path, content: str) -> None:
    opened(tmp_path / "p").close()
    (tmp_path / "p" / "notes.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(StoreCorrupt, match="not a JSON object of texts"):
        opened(tmp_path / "p")


# -- before the first logon -----------------------------------------------------------------------


@pytest.mark.row("PS8")
def test_numbers_from_the_clock_are_no_word_of_a_server_even_after_a_restart(
    tmp_path: Path,
) -> None:
    store = FilePublishStore(tmp_path / "p", segment_bytes=MIN_SEGMENT_BYTES)
    store.number_above(5000)
    store.number_above(9000)  # it has begun
    assert store.store(b"h", b"t", b"early") == 5001
    store.close()
    again = FilePublishStore(tmp_path / "p", segment_bytes=MIN_SEGMENT_BYTES)
    with pytest.raises(StoreError, match="before the first logon"):
        again.reconcile(seen=6000, persisted=6000, clock_us=0)
    assert [number for number, _ in again.replay()] == [5001]
    again.reconcile(seen=0, persisted=0, clock_us=0)
    assert again.store(b"h", b"t", b"next") == 5002
    again.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_loss_of_power_leaves_it_known_that_a_server_was_asked(seed: int) -> None:
    """Else what that server has seen would be taken for the messages of somebody else."""
    disk = SimulatedDisk()
    store = FilePublishStore("/store", durability="fsync", disk=disk)
    store.number_above(1000)
    sequence = put(store, b"before the first logon")
    store.sync()
    store.reconcile(seen=0, persisted=0, clock_us=1000)
    found = FilePublishStore("/store", disk=disk.after_power_loss(random.Random(seed)))
    found.reconcile(seen=sequence, persisted=0, clock_us=2000)
    assert found.lowest_unpersisted == sequence


@pytest.mark.parametrize("seed", range(8))
def test_no_number_is_used_again_after_a_loss_of_power(seed: int) -> None:
    """Not even if nothing of the messages is left, and the server that has them is away."""
    clock_us = 1_000_000
    disk = SimulatedDisk()
    store = FilePublishStore("/store", segment_bytes=MIN_SEGMENT_BYTES, disk=disk)
    store.reconcile(seen=0, persisted=0, clock_us=clock_us)
    put(store)
    store.sync()
    used = fill(store, 2000, b"." * 100)[-1]
    disk = disk.after_power_loss(random.Random(seed))
    for _ in range(2):  # the second one finds a machine that was not stopped since
        disk = disk.after_kill()
        store = FilePublishStore("/store", disk=disk)
    store.number_above(2 * clock_us)
    assert put(store) > max(used, 2 * clock_us)
    last = store.last_sequence
    again = FilePublishStore("/store", disk=disk.after_kill())
    again.number_above(3 * clock_us)
    assert put(again) == last + 1


def test_a_note_of_another_thread_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    with ThreadPoolExecutor(1) as pool, pytest.raises(UsageError, match="a store belongs to the"):
        pool.submit(store.set_note, "line", "7").result()
    assert store.notes == {}
    store.close()


@pytest.mark.row("PS20")
@pytest.mark.parametrize("kind", [LoggedBookmarkStore, RingBookmarkStore, FilePublishStore])
def test_a_store_with_another_durability_is_not_made(
    tmp_path: Path, kind: Callable[..., object]
) -> None:
    with pytest.raises(UsageError, match="one of process, group, fsync, not 'always'"):
        kind(tmp_path / "store", durability="always")
    assert not list(tmp_path.iterdir())


# -- how large a store has to be ----------------------------------------------------------------


@pytest.mark.row("PS19")
def test_a_store_holds_what_is_published_until_a_destination_is_downgraded() -> None:
    size = publish_store_size(10_000, 100, downgrade_age_s=60, check_period_s=15)
    assert size.messages == 750_000
    assert size.bytes == 750_000 * 265 + 3 * DEFAULT_FILE_SEGMENT_BYTES
    assert publish_store_size(0.1, 100, downgrade_age_s=1, check_period_s=0).messages == 1


KINDS: dict[str, Callable[[Path, int], PublishLog]] = {
    "memory": lambda _, size: MemoryPublishStore(max_bytes=size),
    "file": lambda path, size: FilePublishStore(path, max_bytes=size),
    "hybrid": lambda path, size: HybridPublishStore(path, max_bytes=size),
    "ring": RingPublishStore,
}


@pytest.mark.row("PS19")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rate", "body"), [(400, 100), (500, 400), (5, 10_000)])
def test_a_store_of_that_size_holds_so_many_messages_whatever_it_held_before(
    kind: str, rate: float, body: int, tmp_path: Path
) -> None:
    size = publish_store_size(rate, body, downgrade_age_s=60, check_period_s=15)
    store = KINDS[kind](tmp_path / "p", size.bytes)
    head = b'{"c":"p","t":"orders/of/an/average/name","a":"persisted","s":'
    store.number_above(10**15)
    for acked in (False, True):
        for _ in range(size.messages):
            store.store(head, b"}", bytes(body))
            if acked:
                store.discard_up_to(store.lowest_unpersisted)
        store.checkpoint()
        store.advance(len(store.peek()))
        while store.unsent_bytes:
            store.advance(len(store.peek()))
    assert store.unpersisted_count == size.messages
    store.close()


@pytest.mark.row("PS19")
def test_a_store_of_that_size_may_sync_each_message(tmp_path: Path) -> None:
    size = publish_store_size(50, 1, downgrade_age_s=60, check_period_s=15)
    store = RingPublishStore(tmp_path / "p", size.bytes - 3 * DEFAULT_FILE_SEGMENT_BYTES)
    head = b'{"c":"p","t":"orders/of/an/average/name","a":"persisted","s":'
    store.number_above(10**15)
    for _ in range(size.messages):
        store.store(head, b"}", b"1")
        store.checkpoint()
    store.close()


@pytest.mark.row("PS19")
@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_impossible_rates_are_refused(wrong: float) -> None:
    with pytest.raises(UsageError, match="finite and not negative"):
        publish_store_size(wrong, 100, downgrade_age_s=60, check_period_s=15)
    with pytest.raises(UsageError):
        publish_store_size(1, 100, downgrade_age_s=60, check_period_s=wrong)
    with pytest.raises(UsageError, match=r"not .*'fast'"):
        publish_store_size("fast", 100, downgrade_age_s=60, check_period_s=1)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(UsageError, match="no store is as large as"):
        publish_store_size(1e308, 100, downgrade_age_s=1e308, check_period_s=1)
