"""The table of a queue's messages against a plain dictionary."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient_fake_server.engine.journal import Cursor
from haclient_fake_server.engine.queues.message_table import (
    AVAILABLE,
    LEASED,
    PAGED_STRETCH,
    REMOVED,
    MessageRow,
    MessageTable,
    RowColumns,
    split_place,
    to_place,
)


def small_table(journal: dict[int, MessageRow] | None = None) -> MessageTable:
    """Chunks of four rows, which are packed when they have more than two.

    Args:
        journal: Where the table reads again what it has paged out.
    """
    if journal is None:
        return MessageTable(has_priorities=True, chunk_rows=4, pack_above=2)

    def reread(positions: Sequence[int]) -> RowColumns:
        rows = [journal[position] for position in positions]
        places, publishers, sequences = zip(
            *((row[3], row[1], row[2]) for row in rows), strict=True
        )
        return array("Q", places), array("Q", publishers), array("Q", sequences)

    return MessageTable(
        has_priorities=True, chunk_rows=4, pack_above=2, reread=reread, resident_chunks=2
    )


class Model:
    """What a table holds, by position: the row, its priority and its state."""

    def __init__(self) -> None:
        self.journal: dict[int, MessageRow] = {}  # what was removed, too
        self.rows: dict[int, MessageRow] = {}
        self.priorities: dict[int, float] = {}
        self.states: dict[int, int] = {}

    def add(self, row: MessageRow, priority: float) -> None:
        self.journal[row.position] = self.rows[row.position] = row
        self.priorities[row.position] = priority
        self.states[row.position] = AVAILABLE

    def add_to_places(self, position: int, start: int) -> None:
        for each, row in self.rows.items():
            if each >= position:
                self.rows[each] = row._replace(place=start + row.place)

    def paged(self, step: str, table: MessageTable) -> MessageTable:
        """Page the table out, or fill another one from it, as a broker that starts does."""
        if step == "page out":
            table.page_out()
            return table
        again = small_table(self.journal)
        again.fill(table.columns())
        self.states = dict.fromkeys(self.rows, AVAILABLE)
        return again

    def of_state(self, state: int) -> list[int]:
        """The positions of a state, in order."""
        return sorted(position for position in self.rows if self.states[position] == state)


def check(table: MessageTable, model: Model, positions: range, bookmarks: int) -> None:
    """Everything that can be asked of the table."""
    available, leased = model.of_state(AVAILABLE), model.of_state(LEASED)
    assert (len(table), table.available, table.leased) == (
        len(model.rows),
        len(available),
        len(leased),
    )
    assert table.first == min(model.rows, default=None)
    assert list(table.positions()) == sorted(model.rows)
    for position in positions:
        assert table.state(position) == model.states.get(position, REMOVED)
        assert table.row(position) == model.rows.get(position)
        later = [each for each in available if each >= position]
        assert table.next_available(position) == (later[0] if later else None)
        if position in model.rows:
            assert table.priority(position) == model.priorities[position]
    held = {row[1:3]: position for position, row in model.rows.items()}
    for publisher in (1, 2, 2**64 - 1):
        for sequence in range(1, bookmarks + 2):
            assert table.find(publisher, sequence) == held.get((publisher, sequence))
    assert table.first_available() == (available[0] if available else None)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([1, 2, 2**64 - 1]), st.integers(1, 3)),
        st.tuples(
            st.sampled_from(["lease", "lease first", "lease some", "release", "remove", "places"]),
            st.integers(0, 30),
            st.just(0),
        ),
        st.tuples(st.sampled_from(["page out", "restart"]), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(steps=STEPS, first=st.integers(1, 5), is_paged=st.booleans())
def test_the_table_is_a_dictionary_in_the_order_of_the_log(
    steps: list[tuple[str, int, int]], first: int, *, is_paged: bool
) -> None:
    model, sequences = Model(), dict[int, int]()
    table, position = small_table(model.journal if is_paged else None), first
    for step, number, distance in steps:
        leased, available = model.of_state(LEASED), model.of_state(AVAILABLE)
        if step == "add":
            position += distance  # other topics have positions, too
            sequence = sequences[number] = sequences.get(number, 0) + distance
            row = MessageRow(position, number, sequence, distance)
            table.add(row, priority=-distance)
            model.add(row, -distance)
        elif step == "lease" and available:
            chosen = available[number % len(available)]
            assert table.lease(chosen) == model.rows[chosen]
            model.states[chosen] = LEASED
        elif step == "lease first" and available:
            chosen = table.first_available() or 0
            assert table.lease(chosen) == model.rows[chosen]
            model.states[chosen] = LEASED
        elif step == "lease some":
            found = table.lease_first(number)
            assert len(found) <= number
            assert found == [model.rows[each] for each in available[: len(found)]]
            assert bool(found) == bool(available and number)
            model.states |= {row.position: LEASED for row in found}
        elif step == "release" and leased:
            chosen = leased[number % len(leased)]
            table.release(chosen)
            model.states[chosen] = AVAILABLE
        elif step == "remove" and model.rows:
            chosen = sorted(model.rows)[number % len(model.rows)]
            table.remove([chosen])
            del model.rows[chosen], model.states[chosen]
        elif step in {"page out", "restart"}:
            table = model.paged(step, table) if is_paged else table
        elif step == "places" and not is_paged:
            chosen = first + number
            table.add_to_places(chosen, 77)
            model.add_to_places(chosen, 77)
        check(table, model, range(position + 2), max(sequences.values(), default=0))


def test_equal_sequences_of_different_publishers_are_different_messages() -> None:
    table = small_table()
    for position in range(1, 31):
        table.add(MessageRow(position, position % 3, (position + 2) // 3, 0))
    assert [table.find(publisher, 4) for publisher in (1, 2, 0)] == [10, 11, 12]
    table.remove([11])
    assert [table.find(publisher, 4) for publisher in (1, 2, 0)] == [10, None, 12]


def test_the_greatest_numbers_fit() -> None:
    table = MessageTable()
    row = MessageRow(2**64 - 1, 2**64 - 1, 2**64 - 1, to_place(Cursor(2**24 - 1, 2**40 - 1)))
    table.add(row)
    assert table.row(row.position) == row
    assert table.find(2**64 - 1, 2**64 - 1) == row.position
    assert split_place(row.place) == (2**24 - 1, 2**40 - 1)


@pytest.mark.parametrize("missing", [0, 1, 3, 5, 9])
def test_what_it_does_not_hold_cannot_be_changed(missing: int) -> None:
    table = MessageTable()
    for position in (2, 3, 4):
        table.add(MessageRow(position, 1, position, 0))
    table.remove([3])
    with pytest.raises(KeyError):
        table.lease(missing)
    with pytest.raises(KeyError):
        table.release(missing)
    with pytest.raises(KeyError):
        table.remove([missing])
    assert (table.state(missing), table.row(missing)) == (REMOVED, None)
    assert len(table) == 2


@pytest.mark.parametrize("kept", [1, 256, 257, 513])
def test_a_chunk_that_is_empty_or_mostly_gone_is_given_back(kept: int) -> None:
    """One message that is never acknowledged does not keep the memory of all others."""
    table = MessageTable(chunk_rows=256, pack_above=16)
    for position in range(1, 514):  # two whole chunks, and a row
        table.add(MessageRow(position, 7, position, 0))
    for position in range(1, 514):
        if position != kept:
            table.remove([position])
    assert (len(table), table.first, table.first_available()) == (1, kept, kept)
    assert table.find(7, kept) == kept
    assert list(table.positions()) == [kept]
    rows = [len(chunk.states) for chunk in table._chunks]
    assert sum(rows) <= 16 + 1


@pytest.mark.row("QB4")
@pytest.mark.parametrize("publishers", [1, 1_000])
def test_a_message_takes_a_few_dozen_bytes(publishers: int) -> None:
    count = 10_000
    tracemalloc.start()
    try:
        table = MessageTable(chunk_rows=6_553)
        for number in range(count):
            table.add(MessageRow(number + 1, number % publishers, number // publishers + 1, number))
        table.find(0, 1)  # which makes an index
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # One publisher: 35 bytes with the index. Many: a small array for each in each chunk, too.
    assert taken / count < (50 if publishers == 1 else 100)


@pytest.mark.row("QB30")
def test_a_paged_table_keeps_a_byte_for_a_message() -> None:
    count, journal = 40_000, range(1, 40_001)

    def reread(positions: Sequence[int]) -> RowColumns:
        column = array("Q", positions)
        return column, array("Q", bytes(8 * len(column))), column[:]

    tracemalloc.start()
    try:
        table = MessageTable(chunk_rows=1_000, reread=reread, resident_chunks=2)
        for number in journal:
            table.add(MessageRow(number, 0, number, number))
            if number % 100 == 0:
                table.page_out()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / count < 4
    assert [table.lease(number) for number in (1, 20_000)] == [
        MessageRow(number, 0, number, number) for number in (1, 20_000)
    ]
    assert (table.find(0, 30_000), table.find(0, count + 1)) == (30_000, None)
    assert table.rereads == 3, "a look-up reads the part that has the message, and no other"


def test_a_paged_chunk_that_ends_with_its_stretch_and_has_no_message_is_dropped() -> None:
    table = MessageTable(reread=lambda _: (array("Q"), array("Q"), array("Q")))
    table.add(MessageRow(1, 1, 1, 0))
    for number in range(1, 5):
        position = number * (PAGED_STRETCH + 1)
        table.add(MessageRow(position, 1, position, 0))
        table.remove((position,))
    assert len(table._chunks) == 2
