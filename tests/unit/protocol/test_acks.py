from __future__ import annotations

import pytest

from haclient.errors import UsageError
from haclient.protocol.acks import AckType, Status, format_acks, parse_acks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", set()),
        ("none", set()),
        ("processed", {AckType.PROCESSED}),
        ("processed,completed", {AckType.PROCESSED, AckType.COMPLETED}),
        (" processed , none,, stats,", {AckType.PROCESSED, AckType.STATS}),
    ],
)
def test_a_list_of_acks_is_read_with_patience(text: str, expected: set[AckType]) -> None:
    assert parse_acks(text) == expected


def test_an_unknown_ack_type_is_named() -> None:
    with pytest.raises(UsageError, match="'done' is no ack type; there are received, parsed"):
        parse_acks("processed,done")
    with pytest.raises(UsageError, match="'done'"):
        format_acks(["done"])


def test_a_list_is_written_in_one_order_and_each_type_once() -> None:
    assert format_acks(["stats", AckType.PROCESSED, "processed"]) == "processed,stats"
    assert format_acks([]) == ""
    assert parse_acks(format_acks(AckType)) == set(AckType)


def test_the_words_are_those_of_the_wire() -> None:
    assert [str(word) for word in Status] == ["success", "failure", "retry"]
    assert AckType("persisted") is AckType.PERSISTED
