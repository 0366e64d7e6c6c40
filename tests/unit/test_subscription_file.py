"""Subscriptions in a file: they survive the process, whatever ends it."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient import subscription_manager
from haclient.errors import StoreCorrupt, StoreError, StoreFull, StoreLocked, UsageError
from haclient.subscription_manager import Entry, FileSubscriptionManager, MemorySubscriptionManager
from simulation.disk import SimulatedDisk
from support.lengths import length

pytestmark = pytest.mark.row("SM10")


def entry(sub_id: str, topic: str = "orders", body: bytes = b"") -> Entry:
    return Entry(sub_id, {"c": "subscribe", "t": topic, "top_n": 3}, body)


def opened(path: Path, client: str = "c") -> FileSubscriptionManager:
    manager = FileSubscriptionManager(path)
    manager.open_for(client)
    return manager


def found(path: Path) -> list[Entry]:
    manager = opened(path)
    entries = list(manager.entries())
    manager.close()
    return entries


_ids = st.sampled_from(["a", "b", "ü", 'with "quotes"\n', "x,y"])
_changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), _ids, st.text(max_size=5), st.binary(max_size=5)),
        st.tuples(st.just("remove"), _ids),
        st.tuples(st.just("clear")),
        st.tuples(st.just("restart")),
    ),
    max_size=300,
)


@given(changes=_changes)
def test_it_has_what_one_in_memory_has_after_any_restart(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[object, ...]]
) -> None:
    path = tmp_path_factory.mktemp("subscriptions") / "file"
    model, manager = MemorySubscriptionManager(), opened(path)
    for name, *values in changes:
        match name:
            case "add":
                sub_id, topic, body = values
                for each in (model, manager):
                    each.add(entry(str(sub_id), str(topic), bytes(body)))  # type: ignore[call-overload]  # drawn
            case "remove":
                for each in (model, manager):
                    each.remove(str(values[0]))
            case "clear":
                for each in (model, manager):
                    each.clear()
            case _:
                manager.close()
                manager = opened(path)
        assert list(manager.entries()) == list(model.entries())
    manager.close()
    assert found(path) == list(model.entries())
    assert len(path.read_bytes().splitlines()) <= 2 * len(list(model.entries())) + 66


def test_a_line_that_a_crash_has_cut_off_had_not_happened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    manager = opened(path)
    manager.add(entry("a"))
    whole = path.read_bytes()
    manager.add(entry("b"))
    manager.close()
    both = path.read_bytes()
    for size in range(len(whole) + 1, len(both)):
        path.write_bytes(both[:size])
        assert found(path) == [entry("a")]
        assert path.read_bytes() == whole, "the rest is gone, so that the next line is whole"
    path.write_bytes(both)
    assert found(path) == [entry("a"), entry("b")]


def test_a_file_that_is_cut_off_within_its_first_line_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    opened(path).close()
    whole = path.read_bytes()
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(StoreCorrupt, match="line 1 is cut off: restore it, or remove it"):
            FileSubscriptionManager(path)
        assert path.read_bytes() == whole[:size]
    path.write_bytes(whole)
    assert found(path) == []


class FaultyManager:
    """A manager whose disk fails now and then, beside what it should hold.

    Args:
        chance: Decides when.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.disk = SimulatedDisk()
        self.path = Path("/disk/file")
        self.manager = FileSubscriptionManager(self.path, disk=self.disk)
        self.manager.open_for("c")
        self.model = MemorySubscriptionManager()

    def in_file(self) -> list[Entry]:
        """What the next process finds if this one is killed now."""
        manager = FileSubscriptionManager(self.path, disk=self.disk.after_kill())
        manager.open_for("c")
        return list(manager.entries())

    def change(self, name: str, *values: object) -> None:
        """Make a change, again and again until the disk has taken it."""
        before = list(self.model.entries())
        getattr(self.model, name)(*values)
        if self.chance.random() < 0.3:
            fault = self.chance.choice(["pwrite", "rename", "fsync", "fsync_dir", "open", "pread"])
            self.disk.arm(fault, errno.ENOSPC, times=self.chance.randint(1, 3))
        for _ in range(20):
            try:
                getattr(self.manager, name)(*values)
            except StoreError:
                self.check(self.in_file() in (before, list(self.model.entries())))
            else:
                break
        self.disk.disarm()
        self.check(list(self.manager.entries()) == self.in_file() == list(self.model.entries()))

    def check(self, is_so: object) -> None:
        """Fail unless it is so."""
        assert is_so, (self.in_file(), list(self.model.entries()), list(self.manager.entries()))


@pytest.mark.parametrize("seed", range(length(20)))
def test_a_change_that_could_not_be_written_can_be_made_again(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_manager, "_MIN_DEAD", 4)  # it is written anew often
    chance = random.Random(seed)
    faulty = FaultyManager(chance)
    for number in range(150):
        sub_id = chance.choice("abcd")
        match chance.randrange(40):
            case 0:
                faulty.change("clear")
            case drawn if drawn < 15:
                faulty.change("remove", sub_id)
            case _:
                faulty.change("add", entry(sub_id, f"topic {number}"))


def test_a_file_that_cannot_be_written_anew_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    disk, path = SimulatedDisk(), Path("/disk/file")
    manager = FileSubscriptionManager(path, disk=disk)
    manager.open_for("c")
    disk.arm("rename", errno.EACCES)
    for number in range(100):
        manager.add(entry("a", str(number)))
    assert caplog.text.count("not rewritten") == 1
    assert disk.content(path).count(b"\n") < 64
    again = FileSubscriptionManager(path, disk=disk.after_kill())
    assert list(again.entries()) == [entry("a", "99")]


def test_a_file_that_cannot_be_taken_for_a_client_can_be_taken_later() -> None:
    disk, path = SimulatedDisk(), Path("/disk/file")
    manager = FileSubscriptionManager(path, disk=disk)
    disk.arm("fsync", errno.ENOSPC)
    with pytest.raises(StoreFull):
        manager.open_for("c")
    manager.open_for("c")
    manager.add(entry("a"))
    again = FileSubscriptionManager(path, disk=disk.after_kill())
    with pytest.raises(StoreLocked):
        again.open_for("other")
    assert list(again.entries()) == [entry("a")]


@pytest.mark.parametrize("place", [0, 12, 40, -3])
def test_other_damage_is_an_error_that_names_the_line(tmp_path: Path, place: int) -> None:
    path = tmp_path / "file"
    manager = opened(path)
    manager.add(entry("a"))
    manager.close()
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=r"line [12] cannot be read"):
        FileSubscriptionManager(path)
    path.write_bytes(b"no file of ours\n")
    with pytest.raises(StoreCorrupt, match="line 1 cannot be read"):
        FileSubscriptionManager(path)


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b'9c1f8b9a {"haclient-subscriptions":2,"client":"c"}\n')
    with pytest.raises(StoreCorrupt):
        FileSubscriptionManager(path)


def test_it_belongs_to_one_client_and_one_process(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    manager = opened(path, "mine")
    with pytest.raises(StoreLocked, match="open already in this process"):
        FileSubscriptionManager(path)
    manager.close()
    manager.close()
    with pytest.raises(StoreError, match="is closed"):
        manager.add(entry("a"))
    other = FileSubscriptionManager(path)
    with pytest.raises(StoreLocked, match="belongs to the client 'mine'"):
        other.open_for("other")
    other.close()
    for wrong in ("", 7):
        with pytest.raises(UsageError, match="path is"):
            FileSubscriptionManager(wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_a_link_to_the_file_stays_a_link_to_it(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    target, link = tmp_path / "volume" / "subscriptions", tmp_path / "subscriptions"
    link.symlink_to(target)
    manager = opened(link)
    manager.add(entry("a"))
    assert link.is_symlink()
    with pytest.raises(StoreLocked):
        FileSubscriptionManager(target)
    manager.close()
    assert found(target) == [entry("a")]


def test_the_acks_that_were_asked_for_are_kept(tmp_path: Path) -> None:
    manager = opened(tmp_path / "file")
    entries = [
        Entry("a", {"c": "subscribe"}, acks="completed,stats"),
        Entry("b", {"c": "subscribe"}),
    ]
    for each in entries:
        manager.add(each)
    manager.close()
    assert list(FileSubscriptionManager(tmp_path / "file").entries()) == entries
