from __future__ import annotations

from haclient_stores.tracker.entries import MIXED, Chunk, Publishers


def test_publishers_are_numbered_in_the_order_of_their_coming() -> None:
    publishers = Publishers()
    assert publishers.parse("77|5|") == (0, 5)
    assert publishers.parse("0078|6|text") == (1, 6)
    assert publishers.parse("77|7") == (0, 7)
    assert publishers.index(78) == 1
    assert publishers.ids == [77, 78]


def test_what_is_no_bookmark_has_no_sequence() -> None:
    publishers = Publishers()
    for text in ("", "|", "1|", "1|x|", "x|1|", "\u0661|1|", "1|\u0661|", f"{2**64}|1|"):
        assert publishers.parse(text) == (-1, 0)
    assert publishers.ids == []


def test_a_condensed_chunk_keeps_the_last_entry_of_each_publisher_in_their_order() -> None:
    first = Chunk(range(1, 5), MIXED, [1, 1, 2, 3], [7, 8, 7, 8])
    second = Chunk(range(5, 7), 9, [10, 11])
    found = Chunk.condensed([first, second])
    assert list(found.entries()) == [(3, 7, 2), (4, 8, 3), (6, 9, 11)]
    assert list(Chunk.condensed([second]).entries()) == [(6, 9, 11)]


def test_a_chunk_knows_the_last_entry_up_to_a_sequence() -> None:
    same = Chunk(range(1, 4), 7, [10, 20, 30])
    assert [same.last_of(7, sequence) for sequence in (9, 10, 29, 99)] == [0, 1, 2, 3]
    assert same.last_of(8, 99) == 0
    mixed = Chunk(range(1, 5), MIXED, [1, 1, 2, 3], [7, 8, 7, 8])
    assert [mixed.last_of(7, 2), mixed.last_of(8, 2), mixed.last_of(9, 2)] == [3, 2, 0]
    assert mixed.newest() == {7: 2, 8: 3}
    assert mixed.part(1, 3).newest() == {8: 1, 7: 2}


def test_a_number_without_end_is_no_bookmark() -> None:
    publishers = Publishers()
    assert publishers.parse("7|" + "9" * 10_000 + "|") == (-1, 0)
    assert publishers.parse("9" * 10_000 + "|7|") == (-1, 0)
