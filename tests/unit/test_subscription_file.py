"""Subscriptions in a file: they survive the process, whatever ends it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import StoreCorrupt, StoreError, StoreLocked, UsageError
from haclient.subscription_file import FileSubscriptionManager
from haclient.subscription_manager import Entry, MemorySubscriptionManager

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
    for length in range(len(whole) + 1, len(both)):
        path.write_bytes(both[:length])
        assert found(path) == [entry("a")]
        assert path.read_bytes() == whole, "the rest is gone, so that the next line is whole"
    path.write_bytes(both)
    assert found(path) == [entry("a"), entry("b")]


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
    with pytest.raises(StoreError, match="was closed"):
        manager.add(entry("a"))
    other = FileSubscriptionManager(path)
    with pytest.raises(StoreLocked, match="belongs to the client 'mine'"):
        other.open_for("other")
    other.close()
    for wrong in ("", 7):
        with pytest.raises(UsageError, match="path is"):
            FileSubscriptionManager(wrong)  # type: ignore[arg-type]  # wrong on purpose
