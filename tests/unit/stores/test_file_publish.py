from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest

from haclient_stores.errors import StoreCorrupt, StoreError, StoreFull, StoreLocked, UsageError
from haclient_stores.file_publish import FilePublishStore
from haclient_stores.segment import MIN_SEGMENT_BYTES


def opened(path: Path, max_bytes: int = 2**30) -> FilePublishStore:
    return FilePublishStore(path, segment_bytes=MIN_SEGMENT_BYTES, max_bytes=max_bytes)


def fill(store: FilePublishStore, count: int, size: int = 1000) -> None:
    for _ in range(count):
        store.append(b'{"s":', b"}", bytes(size))


def send_all(store: FilePublishStore) -> None:
    while store.unsent_bytes:
        store.advance(len(store.peek()))


def numbers(store: FilePublishStore) -> list[int]:
    return [sequence for sequence, _ in store.replay()]


@pytest.mark.row("PS11")
def test_a_store_is_made_when_missing_and_found_again(tmp_path: Path) -> None:
    store = opened(tmp_path / "deep" / "p")
    store.open_for("me")
    store.reconcile(seen=0, persisted=0, clock_us=1000)
    fill(store, 100)
    store.discard_up_to(1040)
    store.close()
    store.close()
    store = opened(tmp_path / "deep" / "p")
    assert store.path == tmp_path / "deep" / "p"
    assert store.client_name == "me"
    assert numbers(store) == list(range(1041, 1101))
    assert store.unsent_bytes == 60 * (4 + 10 + 1000)
    assert store.last_persisted == 1040
    fill(store, 1)
    assert store.last_sequence == 1101
    store.close()


@pytest.mark.row("PS8")
def test_numbers_are_never_used_twice_even_if_nothing_is_stored(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    store.reconcile(seen=0, persisted=0, clock_us=5000)
    store.close()
    store = opened(tmp_path / "p")
    assert store.last_sequence == 5000
    fill(store, 3)
    store.discard_up_to(5003)
    store.reconcile(seen=9000, persisted=5003, clock_us=1)
    store.close()
    store = opened(tmp_path / "p")
    store.reconcile(seen=5003, persisted=5003, clock_us=1)
    fill(store, 1)
    assert numbers(store) == [9001]
    store.close()


@pytest.mark.row("PS12")
def test_a_second_process_is_told_at_once_who_has_the_store(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    with pytest.raises(StoreLocked, match="in use by another process"):
        opened(tmp_path / "p")
    store.open_for("me")
    with pytest.raises(StoreLocked) as caught:
        opened(tmp_path / "p")
    assert caught.value.owner == "me"
    store.close()
    opened(tmp_path / "p").close()


@pytest.mark.row("PS12")
def test_a_client_of_another_name_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    store.open_for("me")
    store.open_for("me")
    store.close()
    store = opened(tmp_path / "p")
    with pytest.raises(StoreLocked, match="belongs to the client 'me'"):
        store.open_for("you")
    store.close()


@pytest.mark.row("PS11")
def test_space_is_used_again_and_the_directory_stays_small(tmp_path: Path) -> None:
    store = opened(tmp_path / "p", max_bytes=4 * MIN_SEGMENT_BYTES)
    for round_number in range(60):
        fill(store, 15)
        send_all(store)
        if round_number % 5 == 0:
            store.sync()
        store.discard_up_to(store.last_sequence)
    assert len(list((tmp_path / "p").glob("*.seg"))) <= 6
    store.close()
    store = opened(tmp_path / "p")
    assert store.last_sequence == 900
    assert numbers(store) == []
    store.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_long_backlog_needs_few_descriptors(tmp_path: Path) -> None:
    before = descriptors()
    store = opened(tmp_path / "p")
    fill(store, 1000)
    assert descriptors() - before < 20
    assert numbers(store) == list(range(1, 1001))
    send_all(store)
    store.rewind(0)
    store.close()
    store = opened(tmp_path / "p")
    assert numbers(store) == list(range(1, 1001))
    send_all(store)
    store.discard_up_to(1000)
    store.close()


def test_a_large_frame_has_a_file_of_its_own_that_is_removed(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    fill(store, 1, size=200_000)
    fill(store, 1)
    files = {file.stat().st_size for file in (tmp_path / "p").glob("*.seg")}
    assert max(files) > 200_000
    send_all(store)
    store.discard_up_to(2)
    assert {file.stat().st_size for file in (tmp_path / "p").glob("*.seg")} == {MIN_SEGMENT_BYTES}
    store.close()


def test_a_full_disk_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path / "p")
    fill(store, 15)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StoreFull):
            fill(store, 30)
    stored = store.last_sequence
    assert len(list((tmp_path / "p").glob("*.seg"))) == 1
    fill(store, 1)
    assert numbers(store) == list(range(1, stored + 2))
    store.close()


def full(*_: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.row("PS20")
def test_sync_tells_how_far_the_store_is_safe(tmp_path: Path) -> None:
    store = FilePublishStore(tmp_path / "p", durability="fsync")
    assert store.durability == "fsync"
    assert not store.needs_sync
    fill(store, 3)
    assert store.needs_sync
    assert store.synced_sequence == 0
    store.sync()
    assert store.synced_sequence == 3
    assert not store.needs_sync
    store.sync()
    store.close()
    with pytest.raises(UsageError, match="durability is one of"):
        FilePublishStore(tmp_path / "q", durability="never")


@pytest.mark.row("PS20")
def test_a_sync_for_each_publish_fills_segments_early_and_loses_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    for _ in range(3):
        for _ in range(400):
            store.append(b'{"s":', b"}", b"")
            store.checkpoint()
    assert len(list((tmp_path / "p").glob("*.seg"))) == 2
    store.close()
    store = opened(tmp_path / "p")
    assert numbers(store) == list(range(1, 1201))
    store.close()


def test_a_closed_store_refuses_work(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    fill(store, 1)
    store.close()
    uses: list[Callable[[], object]] = [
        lambda: fill(store, 1),
        store.sync,
        lambda: store.open_for("me"),
        lambda: store.discard_up_to(1),
        lambda: store.set_note("a", "b"),
    ]
    for use in uses:
        with pytest.raises(UsageError, match="is closed"):
            use()


def use_in_child(store: FilePublishStore, answers: SimpleQueue[str]) -> None:
    uses: list[Callable[[], object]] = [store.sync, store.close, lambda: fill(store, 100)]
    for use in uses:
        try:
            use()
        except UsageError as error:
            answers.put(str(error))


def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    fill(store, 1)
    fork = multiprocessing.get_context("fork")
    answers: SimpleQueue[str] = fork.SimpleQueue()
    child = fork.Process(target=use_in_child, args=(store, answers))
    child.start()
    child.join(30)
    for _ in range(3):
        assert "start workers with spawn" in answers.get()
    fill(store, 1)
    assert numbers(store) == [1, 2]
    store.close()


def test_notes_are_kept_beside_the_messages(tmp_path: Path) -> None:
    store = opened(tmp_path / "p")
    assert store.notes == {}
    store.set_note("base", "17")
    store.set_note("text", 'with "quotes"')
    store.notes["base"] = "changed outside"
    store.close()
    store = opened(tmp_path / "p")
    assert store.notes == {"base": "17", "text": 'with "quotes"'}
    store.close()
    (tmp_path / "p" / "notes.json").write_text("[]")
    with pytest.raises(StoreCorrupt, match="JSON object"):
        opened(tmp_path / "p")


def test_a_path_that_is_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "p").touch()
    with pytest.raises(StoreError, match="cannot create the directory"):
        opened(tmp_path / "p")


@pytest.mark.row("PS21")
def test_a_control_file_that_was_cut_is_corrupt(tmp_path: Path) -> None:
    opened(tmp_path / "p").close()
    control = tmp_path / "p" / "control"
    control.write_bytes(control.read_bytes()[:100])
    with pytest.raises(StoreCorrupt, match="ends within its header"):
        opened(tmp_path / "p")
