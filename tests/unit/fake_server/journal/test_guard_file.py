"""The file of the guards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from haclient_fake_server.engine.guards import Guard
from haclient_fake_server.journal.guard_file import GUARDS_NAME, GuardFile
from haclient_stores.disk.files import RealDisk
from haclient_stores.errors import StoreError

GUARDS = (Guard("reader", 5, 1, 2), Guard("caf\u00e9 \udcff", 2**63, 3, 4))


def opened(directory: Path) -> GuardFile:
    return GuardFile(directory, RealDisk())


def test_what_was_written_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    file = opened(tmp_path)
    assert file.guards == ()
    file.write(GUARDS)
    assert opened(tmp_path).guards == GUARDS
    file.write(())
    assert opened(tmp_path).guards == ()


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"format":1}', b'{"format":1,"guards":[{"name":"x"}]}', b"\xff"]
)
def test_a_damaged_file_is_ignored_with_a_warning(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / GUARDS_NAME).write_bytes(damage)
    file = opened(tmp_path)
    assert file.guards == ()
    (warning,) = caplog.messages
    assert "guards.json: ignored, since it is damaged" in warning
    assert "starts without guards" in warning
    file.write(GUARDS)
    assert opened(tmp_path).guards == GUARDS


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1},
        {"after": None},
        {"after": -1},
        {"after": 1.5},
        {"set_us": True},
        {"set_us": -1},
        {"expires_us": 10**30},
        {"more": 1},
    ],
)
def test_a_guard_that_cannot_be_is_damage(tmp_path: Path, change: dict[str, object]) -> None:
    fields: dict[str, object] = {"name": "x", "after": 0, "set_us": 0, "expires_us": 10**17}
    for guard, is_good in ((fields, True), (fields | change, False)):
        content = {"format": 1, "guards": [guard]}
        (tmp_path / GUARDS_NAME).write_text(json.dumps(content))
        if is_good:
            assert opened(tmp_path).guards == (Guard("x", 0, 0, 10**17),)
        else:
            assert opened(tmp_path).guards == ()


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / GUARDS_NAME).write_text(json.dumps({"format": 2, "other": "fields"}))
    with pytest.raises(StoreError, match="version 2, but this version of haclient reads up to 1"):
        opened(tmp_path)


def test_a_kill_while_it_is_replaced_leaves_the_guards_of_before(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.write(GUARDS)
    (tmp_path / f"{GUARDS_NAME}.new").write_bytes(b"{")
    assert opened(tmp_path).guards == GUARDS
