from __future__ import annotations

from pathlib import Path

import pytest

from haclient_stores.bookmark_stores.prune_request import PruneRequest
from haclient_stores.disk.files import RealDisk


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    return tmp_path / "s.bm.prune-request"


@pytest.fixture
def asker(tmp_path: Path) -> PruneRequest:
    return PruneRequest(RealDisk(), tmp_path / "s.bm")


@pytest.fixture
def owner(tmp_path: Path) -> PruneRequest:
    return PruneRequest(RealDisk(), tmp_path / "s.bm")


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
    assert request_file.read_bytes() == b"prune\n"
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


def test_a_request_that_cannot_be_read_does_not_disturb_the_owner(
    owner: PruneRequest, request_file: Path
) -> None:
    request_file.mkdir()
    assert not owner.is_made
    owner.answer()
