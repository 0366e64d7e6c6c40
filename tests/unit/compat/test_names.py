"""The table of names against the module, and the page against the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from haclient import compat
from haclient.compat import errors
from haclient.compat.names import NAMES, Name, advice, table

pytestmark = pytest.mark.row("B18")
PAGE = Path(__file__).parents[3] / "docs/migration.md"


def found(official: str) -> bool:
    owner, _, member = official.rpartition(".")
    where = getattr(compat, owner) if owner else compat
    return member in dir(where)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.official)
def test_each_name_is_there_unless_the_table_says_absent(name: Name) -> None:
    assert found(name.official) is (name.status != "absent")
    assert bool(name.note) is (name.status != "same")


def test_no_name_is_in_the_table_twice() -> None:
    officials = [name.official for name in NAMES]
    assert len(officials) == len(set(officials))


def test_a_missing_name_is_explained() -> None:
    assert "use a codec of `haclient`" in advice("FIXBuilder")
    assert "docs/migration.md" in advice("nothing")


def test_the_page_on_migration_has_the_tables() -> None:
    page = PAGE.read_text()
    owners = {name.official.rpartition(".")[0] for name in NAMES}
    for owner in owners:
        assert table(owner) in page, f"docs/migration.md lacks the table of {owner or 'the module'}"


def test_the_page_names_each_exception() -> None:
    page = PAGE.read_text()
    named = set(re.findall(r"`(\w+)`", page))
    assert {name for name in errors.OFFICIAL_NAMES if name.endswith("Exception")} <= named
