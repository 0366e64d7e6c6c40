from __future__ import annotations

import errno
import os
import random
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from typing_extensions import override

from haclient_stores.bookmark_stores import record_file
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.prune_policy import PrunePolicy
from haclient_stores.bookmark_stores.prune_request import PruneRequest
from haclient_stores.bookmark_stores.record_file import GROW_BYTES
from haclient_stores.bookmark_stores.records import RecordKind, word
from haclient_stores.disk.durable_file import Durability
from haclient_stores.disk.files import PAGE_BYTES, FileAccess, RealDisk
from haclient_stores.errors import StoreCorrupt, StoreError, StoreFull, StoreLocked, UsageError
from simulation.disk import SimulatedDisk
from support.disks import WatchedDisk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.bm"


def full(*_: int) -> None:
    raise OSError(28, "No space left on device")


def reopened_at(path: Path) -> str:
    """The recovery point that the next process finds."""
    store = LoggedBookmarkStore(path)
    try:
        return str(store.most_recent("s"))
    finally:
        store.close()


@pytest.mark.row("BS1", "BS7", "BS14")
def test_what_was_discarded_is_known_to_the_next_process(path: Path) -> None:
    store = LoggedBookmarkStore(path)
    assert store.path == path
    assert [store.log("s", f"1|{n}|") for n in (1, 2, 3)] == [1, 2, 3]
    store.log("other", "1|9|")
    store.discard("s", 1)
    store.discard("s", 3)
    store.persisted("s", "2|7|")
    store.close()
    store.close()
    store = LoggedBookmarkStore(path)
    assert str(store.most_recent("s")) == "1|1|"
    assert str(store.most_recent("unknown")) == "0"
    assert store.is_discarded("s", "1|3|")
    assert not store.is_discarded("s", "1|2|")
    assert store.oldest_undiscarded("s") == 2
    assert store.oldest_undiscarded("other") == 1
    assert store.log("s", "1|2|") == 4
    store.discard_up_to("s", 0)
    store.discard_up_to("s", 4)
    assert str(store.most_recent("s")) == "1|3|"
    store.purge("other")
    store.close()
    store = LoggedBookmarkStore(path)
    assert store.log("other", "1|9|") == 1, "nothing is known of it, not even its numbers"
    store.purge()
    assert str(store.most_recent("s")) == "0"
    store.close()


@pytest.mark.row("BS14")
def test_a_record_takes_sixteen_bytes(path: Path) -> None:
    store = LoggedBookmarkStore(path)
    log = store.subscription("s")
    for number in range(1, 20_001):
        log.discard(log.log(f"1|{number}|"))
    assert store._log.file.end <= 16.1 * 40_000 + 4096
    store.close()


@pytest.mark.row("BS16")
def test_prune_keeps_what_matters_and_the_file_is_small(path: Path) -> None:
    store = LoggedBookmarkStore(path)
    store.open_for("me")
    log = store.subscription("s")
    for number in range(1, 50_001):
        log.discard(log.log(f"1|{number}|"))
    log.log_batch(["1|50001|", "1|50002|"])
    log.discard(50_002)
    before = path.stat().st_size
    store.prune()
    assert path.stat().st_size < before / 1.4
    log.log("2|1|")
    with pytest.raises(StoreLocked):
        LoggedBookmarkStore(path)
    store.close()
    store = LoggedBookmarkStore(path)
    assert store.client_name == "me"
    assert str(store.most_recent("s")) == "1|50000|"
    assert store.is_discarded("s", "1|50002|")
    assert store.subscription("s").undiscarded_count == 2
    store.close()


def test_prune_follows_no_link_that_somebody_has_planted(path: Path) -> None:
    """As root, it would hand the file over to the owner of the log."""
    store = LoggedBookmarkStore(path)
    victim = path.with_name("victim")
    victim.write_bytes(b"precious")
    path.with_name(path.name + ".prune").symlink_to(victim)
    store.prune()
    store.close()
    assert victim.read_bytes() == b"precious"
    assert not path.is_symlink()


@pytest.mark.row("BS16")
def test_a_redelivery_after_a_prune_reads_back(path: Path) -> None:
    store = LoggedBookmarkStore(path)
    store.log("s", "1|1|")
    store.log("s", "1|2|")
    store.close()
    store = LoggedBookmarkStore(path)
    store.prune()
    assert store.log("s", "1|1|") == 3
    store.prune()
    assert store.log("s", "1|2|") == 4
    store.discard("s", 4)
    store.close()
    store = LoggedBookmarkStore(path)
    assert store.is_discarded("s", "1|2|")
    assert store.oldest_undiscarded("s") == 1
    store.close()


@pytest.mark.row("BS16")
def test_a_prune_that_finds_the_disk_full_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LoggedBookmarkStore(path)
    store.log("s", "1|1|")
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StoreFull):
            store.prune()
    store.discard("s", 1)
    store.close()
    assert not path.with_name("s.bm.prune").exists()
    path.with_name("s.bm.prune").write_bytes(b"of a prune that was killed")
    store = LoggedBookmarkStore(path)
    assert str(store.most_recent("s")) == "1|1|"
    assert not path.with_name("s.bm.prune").exists()
    store.close()


@pytest.mark.row("BS16")
@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.ENAMETOOLONG, errno.ENOSPC])
@pytest.mark.parametrize(
    "operation",
    ["open", "allocate", "map", "pwrite", "fsync", "rename"],
)
@pytest.mark.parametrize("on_exit", [False, True])
def test_a_prune_that_fails_leaves_the_store_as_it_is(
    operation: str, number: int, caplog: pytest.LogCaptureFixture, *, on_exit: bool
) -> None:
    disk, path = SimulatedDisk(), Path("/disk/s.bm")
    store = LoggedBookmarkStore(path, disk=disk, prune_policy=PrunePolicy(on_exit=True))
    for bookmark in range(1, 1001):
        store.discard("s", store.log("s", f"1|{bookmark}|"))
    disk.arm(operation, number)
    if on_exit:
        store.close()
        assert "not pruned" in caplog.text
    else:
        with pytest.raises(StoreError):
            store.prune()
        store.discard("s", store.log("s", "1|1001|"))
        store.prune()
        store.discard("s", store.log("s", "1|1002|"))
        store.close()
    assert disk.failures[operation] == 1
    assert not disk.exists(path.with_name("s.bm.prune"))
    lost = disk.after_power_loss(random.Random(0))
    for each in (disk, lost):
        again = LoggedBookmarkStore(path, disk=each)
        assert str(again.most_recent("s")) == ("1|1000|" if on_exit else "1|1002|")
        again.close()


@pytest.mark.usefixtures("small_growth")
@pytest.mark.parametrize("is_possible", [False, True])
def test_who_asks_for_a_prune_has_its_answer_at_the_end_at_the_latest(
    path: Path, *, is_possible: bool
) -> None:
    store = LoggedBookmarkStore(path)
    store.open_for("c")
    for bookmark in range(1, 6_001):
        store.discard("s", store.log("s", f"1|{bookmark}|"))
    before = path.stat().st_size
    asker = PruneRequest(RealDisk(), path)
    asker.make()
    if not is_possible:
        path.with_name("s.bm.prune").mkdir()  # where the new file would be
    store.close()
    answer = asker.take_answer()
    assert answer is not None
    assert ("cannot remove" in answer, path.stat().st_size < before) == (
        (False, True) if is_possible else (True, False)
    )


def test_an_error_of_any_kind_in_a_prune_on_exit_leaves_no_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LoggedBookmarkStore(path, prune_policy=PrunePolicy(on_exit=True))
    for bookmark in range(1, 1001):
        store.discard("s", store.log("s", f"1|{bookmark}|"))

    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(store, "_write_pruned", fails)
    with pytest.raises(MemoryError):
        store.close()
    assert reopened_at(path) == "1|1000|"


@pytest.mark.parametrize("length", [249, 255])
def test_a_name_that_leaves_no_room_for_others_beside_it_is_only_not_pruned(
    tmp_path: Path, length: int
) -> None:
    path = tmp_path / ("s" * length)
    store = LoggedBookmarkStore(path)
    store.discard("s", store.log("s", "1|1|"))
    assert not store.prune_requested
    if length == 255:
        with pytest.raises(StoreError, match="name too long"):
            store.prune()
    else:
        store.prune()
    store.close()
    assert reopened_at(path) == "1|1|"


@pytest.mark.row("BS16")
def test_a_pruned_log_has_the_mode_that_it_had(path: Path) -> None:
    store = LoggedBookmarkStore(path)
    path.chmod(0o640)
    store.prune()
    assert path.stat().st_mode & 0o777 == 0o640
    store.close()


@pytest.mark.row("BS16")
@pytest.mark.parametrize("is_made_first", [False, True])
def test_a_link_to_a_log_stays_a_link_to_it(tmp_path: Path, *, is_made_first: bool) -> None:
    (tmp_path / "volume").mkdir()
    target, link = tmp_path / "volume" / "s.bm", tmp_path / "s.bm"
    if is_made_first:
        LoggedBookmarkStore(target).close()
    link.symlink_to(target)
    store = LoggedBookmarkStore(link)
    store.prune()
    store.discard("s", store.log("s", "1|1|"))
    assert link.is_symlink()
    with pytest.raises(StoreLocked):
        LoggedBookmarkStore(target)
    asker = PruneRequest(RealDisk(), link)
    asker.make()
    assert store.prune_requested
    store.answer_prune()
    assert asker.take_answer() == ""
    store.close()
    again = LoggedBookmarkStore(target)
    assert str(again.most_recent("s")) == "1|1|"
    again.close()
    assert sorted(each.name for each in target.parent.iterdir()) == ["s.bm"]


@pytest.mark.row("BS16")
def test_a_process_that_changes_its_directory_prunes_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = LoggedBookmarkStore("s.bm")
    assert store.path == Path("s.bm")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.discard("s", store.log("s", "1|1|"))
    store.prune()
    store.close()
    assert not list((tmp_path / "elsewhere").iterdir())
    again = LoggedBookmarkStore(tmp_path / "s.bm")
    assert str(again.most_recent("s")) == "1|1|"
    again.close()


@pytest.mark.row("BS16")
def test_a_log_of_another_user_is_pruned_by_root_and_stays_that_user_s(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("not applicable: only root may give a file away")
    store = LoggedBookmarkStore(path)
    os.chown(path, 65534, 65534)
    store.prune()
    assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534)
    store.close()


@pytest.mark.row("BS16")
def test_a_log_that_would_change_its_owner_is_not_pruned(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = WatchedDisk()
    store = LoggedBookmarkStore(path, disk=disk)
    store.discard("s", store.log("s", "1|1|"))
    access = FileAccess(os.geteuid() + 1, os.getegid(), 0o644)

    def refuse(*_: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fchown", refuse)
        disk.access = access  # the log belongs to somebody else
        with pytest.raises(StoreError, match=r"Operation not permitted.*prune it as that user"):
            store.prune()
    assert not path.with_name("s.bm.prune").exists()
    store.close()
    assert reopened_at(path) == "1|1|"


@pytest.mark.row("BS16")
def test_prune_and_sync_run_beside_the_work(path: Path) -> None:
    store = LoggedBookmarkStore(path, durability="group")
    log = store.subscription("s")
    stop = threading.Event()

    def keep_house() -> None:
        while not stop.is_set():
            store.prune()
            store.sync()

    keeper = threading.Thread(target=keep_house)
    keeper.start()
    try:
        for start in range(1, 30_001, 30):
            for number in log.log_batch([f"1|{n}|" for n in range(start, start + 30)]):
                log.discard(number)
        log.log("1|30001|")
        log.link_lost(30_001)
        log.begin(acked=False, start=None)
    finally:
        stop.set()
        keeper.join(30)
    store.close()
    store = LoggedBookmarkStore(path)
    assert str(store.most_recent("s")) == "1|30000|"
    assert store.subscription("s").undiscarded_count == 1
    store.close()


def test_a_full_disk_stops_messages_and_never_a_discard(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LoggedBookmarkStore(path)
    log = store.subscription("s")
    monkeypatch.setattr(os, "posix_fallocate", full)
    logged = 0
    with pytest.raises(StoreFull):  # noqa: PT012  the loop is the point
        for start in range(1, 10**6, 100):
            log.log_batch([f"1|{n}|" for n in range(start, start + 100)])
            logged += 100
    assert log.undiscarded_count == logged > 10_000
    for number in range(1, logged + 1):
        log.discard(number)
    assert str(log.recovery_point()) == f"1|{logged}|"
    store.close()


@pytest.mark.usefixtures("small_growth")
def test_a_discard_that_could_not_be_written_is_none_and_can_be_made_again() -> None:
    path, disk = Path("/disk/s.bm"), SimulatedDisk()
    store = LoggedBookmarkStore(path, disk=disk)
    log, failed = store.subscription("s"), 0
    for number in log.log_batch([f"1|{n}|" for n in range(1, 20_001)]):
        disk.arm("map", errno.EMFILE)
        try:
            log.discard(number)
        except StoreError:
            failed += 1
            assert log.undiscarded_count == 20_001 - number
            log.discard(number)
        disk.disarm()
    assert failed > 0
    again = LoggedBookmarkStore(path, disk=disk.after_kill())
    assert str(again.most_recent("s")) == "1|20000|"
    assert again.subscription("s").undiscarded_count == 0
    again.close()


@pytest.mark.usefixtures("small_growth")
@pytest.mark.parametrize("durability", ["process", "group"])
def test_acks_and_times_take_no_room_from_discards_on_a_full_disk(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    durability: Durability,
) -> None:
    store = LoggedBookmarkStore(path, durability=durability)
    log = store.subscription("s")
    log.begin(acked=True, start=None)
    log.entered("tcp://a:1#1@0")
    log.log_batch([f"1|{n}|" for n in range(1, 301)])
    monkeypatch.setattr(os, "posix_fallocate", full)
    for sequence in range(1, 5_001):
        log.persisted(f"1|{min(sequence, 300)}|")
        log.caught_up(sequence)
        log.entered(f"tcp://a:1#1@0 1@{sequence}")
        log.discard_up_to(0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    for link in range(200):
        try:
            log.begin(acked=True, start=None)
        except StoreFull:
            break
        assert link < 199
    for number in range(1, 301):
        log.discard(number)
        if durability == "group" and number % 50:
            store._log.file.seal()
    assert str(log.recovery_point()) == "1|300|"
    store.close()
    monkeypatch.undo()
    reopened = LoggedBookmarkStore(path)
    assert reopened.subscription("s").undiscarded_count == 0
    assert str(reopened.most_recent("s")) == "1|300|"
    reopened.close()


@pytest.mark.usefixtures("small_growth")
def test_new_subscriptions_take_no_room_from_discards_on_a_full_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a program that tries again and again to open streams, with ids of their own."""
    store = LoggedBookmarkStore(path)
    log = store.subscription("s")
    monkeypatch.setattr(os, "posix_fallocate", full)
    logged = 0
    with pytest.raises(StoreFull):  # noqa: PT012  the loop is the point
        while True:
            log.log(f"1|{logged + 1}|")
            logged += 1
    with pytest.raises(StoreFull):  # noqa: PT012  likewise
        for number in range(10_000):
            store.subscription(f"{number:032}")
    for number in range(1, logged + 1):
        log.discard(number)
    assert str(log.recovery_point()) == f"1|{logged}|"
    store.close()


def test_sync_seals_and_tells(path: Path) -> None:
    store = LoggedBookmarkStore(path, durability="fsync")
    assert store.durability == "fsync"
    store.log("s", "1|1|")
    assert store.needs_sync
    store.sync()
    assert not store.needs_sync
    store.close()


def test_a_closed_store_refuses_work(path: Path) -> None:
    store = LoggedBookmarkStore(path)
    store.close()
    for use in (store.sync, store.prune, lambda: store.open_for("me"), lambda: store.log("s", "")):
        with pytest.raises(UsageError, match="is closed"):
            use()


class ForkedDisk(RealDisk):
    """A disk that is asked by one process first and by another one then."""

    __slots__ = ("process",)

    def __init__(self) -> None:
        self.process = 1

    @override
    def process_id(self) -> int:
        return self.process


def test_a_fork_is_refused(path: Path) -> None:
    disk = ForkedDisk()
    store = LoggedBookmarkStore(path, disk=disk)
    disk.process = 2
    with pytest.raises(UsageError, match="start workers with spawn"):
        store.sync()
    disk.process = 1
    store.close()


@pytest.mark.row("BS21")
def test_a_true_fork_can_neither_log_nor_discard(path: Path) -> None:
    store = LoggedBookmarkStore(path)
    subscription = store.subscription("s")
    first, second = [subscription.log(f"7|{n}|") for n in (1, 2)]
    with warnings.catch_warnings():  # the child only asks and ends, whatever threads there are
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:  # pragma: no cover  another process
        refused = 0
        for use in (lambda: subscription.discard(first), lambda: subscription.log("7|3|")):
            try:
                use()
            except UsageError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    subscription.discard(second)
    store.close()
    again = LoggedBookmarkStore(path)
    assert not again.is_discarded("s", "7|1|")
    assert again.is_discarded("s", "7|2|")
    assert not again.is_discarded("s", "7|3|")
    again.close()


@pytest.mark.row("PS21")
def test_another_file_is_no_store(path: Path) -> None:
    path.write_bytes(b"bookmark,sequence\n" * 1000)
    with pytest.raises(StoreCorrupt, match="not a HABMKLOG file"):
        LoggedBookmarkStore(path)
    path.unlink()
    LoggedBookmarkStore(path).close()


@pytest.mark.row("PS21")
def test_a_record_of_an_unknown_kind_is_corrupt(path: Path) -> None:
    store = LoggedBookmarkStore(path)
    store._log.file.put(77 << 56, 1)
    store.close()
    with pytest.raises(StoreCorrupt, match="unknown kind"):
        LoggedBookmarkStore(path)


@pytest.mark.row("PS21")
@pytest.mark.parametrize("kind", [RecordKind.LOGGED, RecordKind.SEEN, RecordKind.START_BOOKMARK])
def test_a_damaged_record_behind_the_last_seal_is_corrupt(path: Path, kind: RecordKind) -> None:
    """The publisher that it names was never defined."""
    store = LoggedBookmarkStore(path)
    store.subscription("s")
    store._log.file.put(word(kind, 0, 1), 1)
    left = path.with_name("left")  # as a killed process leaves it
    left.write_bytes(path.read_bytes())
    store.close()
    with pytest.raises(StoreCorrupt, match="an unknown publisher"):
        LoggedBookmarkStore(left)


def test_a_full_disk_stops_no_discard_after_a_prune_either(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LoggedBookmarkStore(path)
    log = store.subscription("s")
    log.log_batch([f"1|{n}|" for n in range(1, 100_001)])
    store.prune()
    monkeypatch.setattr(os, "posix_fallocate", full)
    for number in range(1, 100_001):
        log.discard(number)
    assert str(log.recovery_point()) == "1|100000|"
    store.close()


@pytest.mark.row("BS16", "BS17")
def test_messages_go_on_while_prune_waits_for_the_disk(path: Path) -> None:
    """Whoever would be held up here would wait for ever: it is all one thread."""
    disk = WatchedDisk()
    store = LoggedBookmarkStore(path, disk=disk)
    log = store.subscription("s")
    log.log_batch([f"1|{n}|" for n in range(1, 1001)])
    for number in range(1, 900):
        log.discard(number)
    meanwhile: list[int] = []

    def work(action: str, name: str) -> None:
        if (action, name) == ("sync", "s.bm.prune"):
            meanwhile.extend(log.log_batch([f"2|{n}|" for n in range(1, 20_001)]))
            for number in meanwhile[::2]:
                log.discard(number)

    disk.before = work
    store.prune()
    disk.before = None
    assert len(meanwhile) == 20_000
    log.discard(950)
    point = str(log.recovery_point())
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    store.close()
    again = LoggedBookmarkStore(copy, disk=WatchedDisk())
    assert str(again.most_recent("s")) == point == "1|899|"
    handle = again.subscription("s")
    assert handle.undiscarded_count == 1000 - 899 - 1 + 10_000
    assert handle.is_discarded("2|1|")
    assert not handle.is_discarded("2|2|")
    assert handle.is_discarded("1|950|")
    again.close()


@pytest.mark.row("BS17")
def test_a_prune_on_exit_that_finds_the_disk_full_closes_nevertheless(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = LoggedBookmarkStore(path, prune_policy=PrunePolicy(on_exit=True))
    for number in store.subscription("s").log_batch([f"1|{n}|" for n in range(1, 1001)]):
        store.discard("s", number)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        store.close()
    assert "not pruned" in caplog.text
    assert reopened_at(path) == "1|1000|"


@pytest.mark.row("BS18")
def test_the_resize_handler_is_asked_before_messages_make_the_file_larger(path: Path) -> None:
    asked: list[int] = []
    allowed = GROW_BYTES + PAGE_BYTES

    def resize(size: int) -> bool:
        asked.append(size)
        return size <= allowed

    store = LoggedBookmarkStore(path, resize_handler=resize)
    log = store.subscription("s")
    last = 0
    with pytest.raises(StoreFull, match=r"refused .* prune the store"):  # noqa: PT012  # the one that is too many is not known
        while True:
            last = log.log_batch([f"1|{last + each}|" for each in range(1, 101)])[-1]
    assert asked == [allowed + GROW_BYTES]
    assert path.stat().st_size == allowed
    assert log.undiscarded_count == last
    log.discard_up_to(1)
    for number in range(2, last + 1):  # a discard always has room
        log.discard(number)
    assert path.stat().st_size == allowed
    store.prune()
    assert log.log(f"1|{last + 1}|") == last + 1
    store.close()
    store = LoggedBookmarkStore(path, resize_handler=resize)  # an old file asks as well
    with pytest.raises(StoreFull):
        store.subscription("s").log_batch([f"1|{last + each}|" for each in range(2, 100_000)])
    store.close()


@pytest.mark.row("PS21")
@pytest.mark.parametrize("cut", [4096 + 7, 4096 + 16 * 100, 4096 + 65536])
def test_a_file_that_was_cut_off_behind_its_last_sync_is_corrupt(path: Path, cut: int) -> None:
    store = LoggedBookmarkStore(path)
    log = store.subscription("s")
    for number in range(1, 3001):
        log.discard(log.log(f"1|{number}|"))
    store.close()
    with path.open("r+b") as file:
        file.truncate(cut)
    with pytest.raises(StoreCorrupt, match="was synced up to byte") as caught:
        LoggedBookmarkStore(path)
    assert caught.value.offset == cut // 16 * 16


def test_records_whose_header_a_loss_of_power_has_taken_mean_nothing_later_either(
    path: Path,
) -> None:
    disk = SimulatedDisk()
    store = LoggedBookmarkStore(path, disk=disk)
    for number in range(1, 4):
        store.discard("s", store.log("s", f"1|{number}|"))
    disk.open(path).pwrite(bytes(PAGE_BYTES), 0)
    disk = disk.after_kill()
    assert str(LoggedBookmarkStore(path, disk=disk).most_recent("s")) == "0"
    again = LoggedBookmarkStore(path, disk=disk.after_kill())
    assert not again.subscriptions
    assert not again.is_discarded("s", "1|1|")


@pytest.mark.row("BS14")
def test_a_value_of_zero_is_not_the_end_of_the_log(path: Path) -> None:
    """An explicit start behind sequence 0 of a publisher, and then a kill."""
    store = LoggedBookmarkStore(path)
    log = store.subscription("s")
    log.begin(acked=False, start="7|0|")
    for number in log.log_batch([f"7|{n}|" for n in range(1, 1001)]):
        log.discard(number)
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    again = LoggedBookmarkStore(copy)
    assert str(again.most_recent("s")) == "7|1000|"
    assert all(again.is_discarded("s", f"7|{n}|") for n in range(1, 1001))
    again.close()
    store.close()


class InterruptedDisk(SimulatedDisk):
    """Something happens once, when a file of some name is about to grow."""

    def __init__(self, suffix: str) -> None:
        super().__init__()
        self.suffix = suffix
        self.happens: Callable[[], object] | None = None

    @override
    def check(self, operation: str, path: Path) -> None:
        super().check(operation, path)
        happens = self.happens
        if happens is not None and operation == "allocate" and path.name.endswith(self.suffix):
            self.happens = None
            happens()


@pytest.mark.row("BS16")
@pytest.mark.parametrize("count", [100, 4900])
def test_what_is_synced_while_prune_copies_stays_synced(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(record_file, "GROW_BYTES", record_file.BLOCK_BYTES)
    disk = InterruptedDisk(".prune")
    store = LoggedBookmarkStore(Path("/disk/s.bm"), disk=disk)
    log = store.subscription("s")
    log.log_batch([f"1|{n}|" for n in range(1, 10_001)])
    grown = 0

    def discard_and_sync() -> None:
        nonlocal grown
        grown += 1
        if grown == 1:
            disk.happens = discard_and_sync  # the first time is before the state is copied
            return
        for number in range(5001, 5001 + count):
            log.discard(number)
        store.sync()

    disk.happens = discard_and_sync
    store.prune()
    assert grown == 2
    for seed in range(10):
        lost = disk.after_power_loss(random.Random(seed))
        again = LoggedBookmarkStore(Path("/disk/s.bm"), disk=lost)
        known = [again.is_discarded("s", f"1|{n}|") for n in range(5001, 5001 + count)]
        assert all(known), f"{known.count(False)} of {count} synced discards are lost"


@pytest.mark.row("BS14")
@pytest.mark.parametrize("server", [False, True])
def test_a_text_that_a_kill_has_torn_is_not_glued_to_the_next(path: Path, *, server: bool) -> None:
    text = "subscription-1 at west:9007"

    def write(store: LoggedBookmarkStore) -> None:
        if server:
            store.subscription("s").entered(text)
        else:
            store.subscription(text)

    store = LoggedBookmarkStore(path)
    store.subscription("s")
    before = store._log.file.end
    write(store)
    assert store._log.file.end > before + 32
    torn = bytearray(path.read_bytes())
    torn[before + 32 :] = bytes(len(torn) - before - 32)  # two of its records were written
    path.with_name("torn").write_bytes(torn)
    store.close()
    store = LoggedBookmarkStore(path.with_name("torn"))
    write(store)
    store.close()
    for _ in range(2):
        store = LoggedBookmarkStore(path.with_name("torn"))
        assert [*store.subscriptions] == (["s"] if server else ["s", text])
        assert store.subscription("s").server_order.server == (text if server else "")
        store.close()


@pytest.mark.row("BS21")
def test_a_store_whose_last_sync_fails_lets_go_of_its_lock() -> None:
    disk = SimulatedDisk()
    store = LoggedBookmarkStore(Path("/disk/s.bm"), disk=disk)
    store.log("s", "1|1|")
    disk.arm("fsync", errno.EIO)
    with pytest.raises(StoreError, match="fsync"):
        store.close()
    again = LoggedBookmarkStore(Path("/disk/s.bm"), disk=disk)
    assert again.oldest_undiscarded("s") == 1
    again.close()


@pytest.mark.row("BS16", "BS10")
@pytest.mark.parametrize("pruned", [False, True])
def test_the_next_process_has_a_recovery_point_no_lower(path: Path, *, pruned: bool) -> None:
    store = LoggedBookmarkStore(path)
    log = store.subscription("s")
    log.begin(acked=True, start=None)
    log.log_batch(["1|1|", "1|2|", "2|1|", "3|1|"])
    for number in (1, 2, 3):
        log.discard(number)
    log.persisted("2|1|")  # covers what came before it on this link
    if pruned:
        store.prune()
    store.close()
    store = LoggedBookmarkStore(path)
    assert str(store.most_recent("s")) == "1|2|,2|1|"
    store.subscription("s").begin(acked=True, start=None)
    assert str(store.most_recent("s")) == "1|2|,2|1|"
    store.close()


def test_an_ack_after_a_prune_covers_by_place_nothing_of_an_earlier_link(path: Path) -> None:
    store = LoggedBookmarkStore(path)
    log = store.subscription("s")
    log.begin(acked=True, start=None)
    for number in log.log_batch(["1|1|", "2|1|"]):
        log.discard(number)
    log.link_lost(3)
    log.begin(acked=True, start=None)
    store.prune()  # nothing has come on the new link
    log.persisted("2|1|")  # 1|1| came before it on the earlier link only
    assert str(log.recovery_point()) == "0"
    store.close()
    assert reopened_at(path) == "0"


def test_a_later_link_takes_no_recovery_point_back_however_entries_were_cut(path: Path) -> None:
    store = LoggedBookmarkStore(path)
    log = store.subscription("s")
    log.begin(acked=True, start=None)
    log.log_batch(["3|1|", "2|1|"])
    log.log_batch(["2|5|", "2|6|"])  # the next process reads one chunk of four
    log.discard(1)
    log.persisted("2|1|")
    log.link_lost(5)
    log.begin(acked=True, start=None)
    log.persisted("2|6|")
    for number in (2, 3):
        log.discard(number)
    point = str(log.recovery_point())
    assert point == "3|1|,2|5|"
    store.close()
    assert reopened_at(path) == point


@pytest.mark.parametrize(
    "after",
    [
        [("persisted", "1|7|")],
        [("persisted", "2|5|"), ("discard", 3)],
        [("persisted", "2|9|"), ("discard", 3)],
    ],
)
def test_a_prune_takes_no_recovery_point_back_that_an_ack_moves_later(
    path: Path, after: list[tuple[str, str | int]]
) -> None:
    for pruned_first in (False, True):
        store = LoggedBookmarkStore(path.with_name(f"{pruned_first}"))
        log = store.subscription("s")
        log.begin(acked=True, start=None)
        log.completed("")
        for number in log.log_batch(["1|7|", "1|104|", "3|1|", "2|5|", "1|105|", "2|6|"]):
            if number != 3:
                log.discard(number)
        moves = list(after)
        if not pruned_first and moves[0][1] != "1|7|":  # pruned between the ack and the discard
            log.persisted(str(moves.pop(0)[1]))
        store.prune()
        for name, value in moves:
            getattr(log, name)(value)
        saved = [point.bookmark for point in store.recovery_points()]
        assert saved != [""]
        left = path.with_name(f"left {pruned_first}")  # as a killed process leaves it
        left.write_bytes(store.path.read_bytes())
        reopened = LoggedBookmarkStore(left)
        assert [point.bookmark for point in reopened.recovery_points()] == saved
        reopened.close()
        store.close()


def test_purged_subscriptions_are_dropped_from_the_file(path: Path) -> None:
    store = LoggedBookmarkStore(path)
    store.discard("live", store.log("live", "1|1|"))
    for index in range(50):
        log = store.subscription(f"s{index}")
        log.begin(acked=True, start="0")
        log.discard(log.log("1|2|"))
        store.purge(f"s{index}")
    kept = store.subscription("s7")  # a handle stays good, and its numbers go on
    store.prune()
    first, second = kept.log_batch(["1|3|", "1|4|"])
    kept.discard(first)
    store.close()
    again = LoggedBookmarkStore(path)
    assert set(again.subscriptions) == {"live", "s7"}
    assert again.is_discarded("s7", "1|3|")
    assert [number for number, _, _ in again.entries("s7")] == [second]
    again.purge("s7")
    again.discard("s3", again.log("s3", "1|9|"))
    again.close()
    before = path.stat().st_size
    last = LoggedBookmarkStore(path)
    last.prune()
    assert set(last.subscriptions) == {"live", "s3"}
    assert str(last.most_recent("s3")) == "1|9|"
    assert last._log.file.end < PAGE_BYTES + 16 * 30 <= before
    last.close()
