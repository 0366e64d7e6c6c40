"""Options of `haclient broker run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from haclient.cli.broker import parse_sow, read_users
from haclient.errors import UsageError


def test_users_are_read_with_colons_in_their_passwords(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("# comment\n\nalice:se:cret\nbob:\n", encoding="utf-8")
    assert read_users(file) == {"alice": "se:cret", "bob": ""}


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("text", "told"),
    [("x\n", "line 1"), (":p\n", "line 1"), ("a:1\na:2\n", "line 2 names a user for the second")],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "users"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=told):
        read_users(file)


def test_a_user_file_that_cannot_be_read_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_users(tmp_path / "none")
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="cannot be read"):
        read_users(file)


def test_a_sow_topic_has_keys() -> None:
    assert parse_sow("orders:/id") == ("orders", ("/id",))
    assert parse_sow("a:b:/id,/sub/key") == ("a:b", ("/id", "/sub/key"))


@pytest.mark.parametrize(
    "text", ["orders", ":/id", "orders:", "orders:id", "orders:/id,", "orders:/"]
)
def test_a_sow_topic_without_keys_is_a_mistake(text: str) -> None:
    with pytest.raises(UsageError, match="TOPIC:/key"):
        parse_sow(text)
