from __future__ import annotations

from pathlib import Path

import pytest
from typing_extensions import override

from haclient_stores.bookmark_stores.prune_request import PruneRequest
from haclient_stores.disk.files import File, RealDisk
from haclient_stores.errors import StoreError


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    return tmp_path / "s.bm.prune-request"


@pytest.fixture
def asker(tmp_path: Path) -> PruneRequest:
    return PruneRequest(RealDisk(), tmp_path / "s.bm")


@pytest.fixture
def owner(tmp_path: Path) -> PruneRequest:
    return PruneRequest(RealDisk(), tmp_path / "s.bm")


def test_a_request_follows_no_link_that_somebody_has_planted(
    asker: PruneRequest, owner: PruneRequest, request_file: Path
) -> None:
    victim = request_file.with_name("victim")
    victim.write_bytes(b"precious")
    request_file.symlink_to(victim)
    asker.make()
    owner.answer()
    assert asker.take_answer() == ""
    assert victim.read_bytes() == b"precious"


def test_a_request_is_seen_answered_and_leaves_nothing(
    asker: PruneRequest, owner: PruneRequest, request_file: Path
) -> None:
    assert not owner.is_made
    asker.make()
    assert owner.is_made
    assert asker.take_answer() is None
    owner.answer()
    assert not owner.is_made
    assert asker.take_answer() == ""
    assert not request_file.exists()


def test_a_failure_is_told_in_one_line(asker: PruneRequest, owner: PruneRequest) -> None:
    asker.make()
    owner.answer("no room\nfor the new file")
    assert asker.take_answer() == "no room for the new file"


def test_an_answer_that_nobody_has_read_is_overwritten_by_the_next_request(
    asker: PruneRequest, owner: PruneRequest, request_file: Path
) -> None:
    asker.make()
    owner.answer("a reason that is longer than the word of a request")
    asker.make()
    assert request_file.read_bytes().startswith(b"prune ")
    assert owner.is_made


def test_of_two_who_ask_the_one_that_withdraws_does_not_end_the_others_wait(
    asker: PruneRequest, owner: PruneRequest, tmp_path: Path
) -> None:
    other = PruneRequest(RealDisk(), tmp_path / "s.bm")
    asker.make()
    other.make()
    other.withdraw()
    assert asker.take_answer() is None
    assert owner.is_made


@pytest.mark.parametrize("content", [b"", b"pru", b"\xff\xfe", b"prune\nprune\n"])
def test_what_is_no_request_is_none_and_an_asker_repairs_it(
    asker: PruneRequest, owner: PruneRequest, request_file: Path, content: bytes
) -> None:
    request_file.write_bytes(content)
    assert not owner.is_made
    asker.make()
    assert owner.is_made


def test_an_owner_answers_nobody_when_nobody_asks(owner: PruneRequest, request_file: Path) -> None:
    owner.answer()
    assert not request_file.exists()


class ClosedDirectory(RealDisk):
    """Nothing in it can be replaced, as where the sticky bit or another user forbids it.

    Args:
        is_writable: Whether the files that are there can be written to.
    """

    def __init__(self, *, is_writable: bool) -> None:
        self.is_writable = is_writable

    @override
    def replace(self, path: Path, data: bytes) -> None:
        raise StoreError(f"{path}: cannot rename: Operation not permitted")

    @override
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        if writable and not self.is_writable:
            raise StoreError(f"{path}: cannot open: Permission denied")
        return super().open(path, create=create, writable=writable)

    @override
    def remove(self, path: Path) -> None:
        raise StoreError(f"{path}: cannot remove: Operation not permitted")


def test_a_request_that_cannot_be_answered_is_carried_out_once(
    asker: PruneRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner = PruneRequest(ClosedDirectory(is_writable=False), tmp_path / "s.bm")
    asker.make()
    assert owner.is_made
    owner.answer()
    assert "cannot be answered" in caplog.text
    assert not owner.is_made
    assert asker.take_answer() is None
    asker.make()  # another one, later
    assert owner.is_made


@pytest.mark.parametrize("error", ["", "no", "a reason that is longer than the request was"])
def test_an_owner_that_may_not_replace_the_request_writes_its_answer_over_it(
    asker: PruneRequest, tmp_path: Path, error: str
) -> None:
    owner = PruneRequest(ClosedDirectory(is_writable=True), tmp_path / "s.bm")
    asker.make()
    owner.answer(error)
    assert not owner.is_made
    assert asker.take_answer() == error


def test_a_request_of_another_user_that_cannot_be_replaced_is_one_for_this_asker_too(
    asker: PruneRequest, owner: PruneRequest, tmp_path: Path
) -> None:
    other = PruneRequest(ClosedDirectory(is_writable=False), tmp_path / "s.bm")
    with pytest.raises(StoreError, match="Operation not permitted"):
        other.make()
    asker.make()
    other.make()
    assert owner.is_made


def test_a_request_has_the_mode_of_the_log(
    asker: PruneRequest, request_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "s.bm").write_bytes(b"")
    (tmp_path / "s.bm").chmod(0o640)
    asker.make()
    assert request_file.stat().st_mode & 0o777 == 0o640


def test_a_request_that_cannot_be_read_does_not_disturb_the_owner(
    owner: PruneRequest, request_file: Path
) -> None:
    request_file.mkdir()
    assert not owner.is_made
    owner.answer()
