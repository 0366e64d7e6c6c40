"""Which messages the bookmark of a subscription covers."""

from __future__ import annotations

import pytest

from haclient_fake_server.engine.span import covered_by

pytestmark = pytest.mark.row("CC15")


@pytest.mark.parametrize(
    ("bookmark", "covered"),
    [
        ("0", {}),
        ("0|1|", {}),
        ("7|3|", {}),
        ("20231114T221320Z", {}),
        ("7|3|,9|5|", {7: 3, 9: 5}),
        ("7|5|,7|3|,7|4|", {7: 3}),
        ("7|3|,20231114T221320Z", {7: 3}),
        ("(7|3|,9|5|:9|8|]", {7: 3, 9: 5}),
        ("[7|3|,9|5|:9|8|]", {}),
    ],
)
def test_a_list_covers_what_it_names_and_a_single_place_nothing(
    bookmark: str, covered: dict[int, int]
) -> None:
    assert covered_by(bookmark) == covered
