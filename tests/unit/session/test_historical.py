"""What the consumer of a query of the past has, and the bookmark that says so."""

from __future__ import annotations

import pytest

from haclient.session.historical import MAX_PUBLISHERS, DeliveredMessages

pytestmark = pytest.mark.row("CC15")

START = "19700101T000000.000001Z"


def delivered(*bookmarks: str) -> DeliveredMessages:
    found = DeliveredMessages()
    found.arrived(bookmarks)
    return found


@pytest.mark.parametrize(
    ("start", "covered"),
    [
        ("", ""),
        ("0", f"7|3|,9|2|,{START}"),
        ("0|1|", "0|1|"),
        ("7|1|", "7|3|,9|2|"),
        ("7|5|", "7|5|,9|2|"),
        ("8|4|", "7|3|,9|2|,8|4|"),
        ("20231114T000000Z", "7|3|,9|2|,20231114T000000Z"),
        ("7|1|,20231114T000000Z", "7|3|,9|2|,20231114T000000Z"),
        ("(7|1|:9|8|]", "(7|3|,9|2|:9|8|]"),
        ("[7|1|:9|8|]", "(7|3|,9|2|:9|8|]"),
        ("[8|4|:9|8|)", "(7|3|,9|2|,8|4|:9|8|)"),
        ("[20231114T000000Z:9|8|]", "(7|3|,9|2|,20231114T000000Z:9|8|]"),
        ("[7|1|,8|4|:9|8|]", "[7|1|,8|4|:9|8|]"),
        ("(0:9|8|]", f"(7|3|,9|2|,{START}:9|8|]"),
    ],
)
def test_a_start_names_the_last_message_of_each_publisher(start: str, covered: str) -> None:
    found = delivered("7|1|", "9|2|", "7|3|", "", "no bookmark")
    assert found.cover(start) == covered


def test_what_is_dropped_is_not_covered() -> None:
    found = delivered("7|1|", "7|2|", "9|1|", "7|3|")
    assert found.cover("7|0|", ["7|2|", "7|3|"]) == "7|1|,9|1|", "as it would be"
    found.dropped(["9|1|", "7|3|", "7|2|"])
    assert found.cover("7|0|") == "7|1|"
    found.arrived(["7|2|"])
    assert found.cover("7|0|") == "7|2|"


def test_where_nothing_was_delivered_the_start_stays() -> None:
    assert delivered().cover("7|1|") == "7|1|"
    assert delivered().cover("[7|1|:9|8|]") == "[7|1|:9|8|]"


def test_a_bookmark_names_as_many_publishers_as_a_header_takes() -> None:
    found = delivered(*(f"{number}|1|" for number in range(1, MAX_PUBLISHERS + 1)))
    assert not found.is_over_limit
    assert found.cover("1|0|").count(",") + 1 == MAX_PUBLISHERS
    found.arrived(["9999999|1|", "1|2|"])
    assert found.is_over_limit
    covered = found.cover("1|0|").split(",")
    assert len(covered) == MAX_PUBLISHERS
    assert "1|2|" in covered, "those that it names still advance"
    assert "9999999|1|" not in covered
