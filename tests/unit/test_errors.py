"""One tree of errors, and the server's words choose the class (row CC37)."""

from __future__ import annotations

import pickle
import re

import pytest

import haclient.errors
import haclient_stores.errors
from haclient.errors import (
    AuthenticationError,
    BadFilter,
    BadRegexTopic,
    BadSowKey,
    BookmarkNotFound,
    CommandError,
    DisconnectedError,
    HAClientError,
    InvalidBookmark,
    InvalidOptions,
    InvalidOrderBy,
    InvalidTopic,
    NameInUse,
    NotEntitled,
    ProtocolError,
    PublishFailed,
    PublishGap,
    ReconnectGaveUp,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    SubIdInUse,
    TimedOut,
    UsageError,
    WouldBlock,
    command_error,
)

pytestmark = pytest.mark.row("CC37")

CLASSES = {
    name: value
    for name, value in vars(haclient.errors).items()
    if isinstance(value, type) and issubclass(value, Exception)
}


def test_every_class_is_exported_and_drawn_in_the_tree() -> None:
    assert set(haclient.errors.__all__) == {*CLASSES, "command_error"}
    assert set(haclient_stores.errors.__all__) <= set(haclient.errors.__all__)
    drawn = f"{haclient.errors.__doc__} {haclient_stores.errors.__doc__}"
    assert set(CLASSES) <= set(re.findall(r"\w+", drawn))
    assert all(kind.__doc__ for kind in CLASSES.values())


def test_misuse_faults_refusals_and_lost_links_are_different_branches() -> None:
    branches = [UsageError, ProtocolError, CommandError, DisconnectedError, StoreError]
    for kind in CLASSES.values():
        assert sum(issubclass(kind, branch) for branch in branches) <= 1


@pytest.mark.parametrize("name", haclient.errors.__all__)
def test_every_error_has_the_one_root(name: str) -> None:
    found = getattr(haclient.errors, name)
    assert found is command_error or issubclass(found, HAClientError)


@pytest.mark.row("AK7")
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("bad filter", BadFilter),
        ("bad regex topic", BadRegexTopic),
        ("bad sow key", BadSowKey),
        ("invalid topic", InvalidTopic),
        ("not entitled", NotEntitled),
        ("auth failure", AuthenticationError),
        ("name in use", NameInUse),
        ("subscription already exists", SubIdInUse),
        ("subid in use", SubIdInUse),
        ("invalid options: hurry", InvalidOptions),
        ("invalid orderby", InvalidOrderBy),
        ("bookmark not found", BookmarkNotFound),
        ("invalid bookmark", InvalidBookmark),
        ("the moon is full", CommandError),
        ("", CommandError),
    ],
)
def test_the_reason_chooses_the_class(reason: str, kind: type[HAClientError]) -> None:
    assert type(command_error("subscribe orders", reason)) is kind


def test_the_case_of_a_reason_does_not_matter() -> None:
    assert isinstance(command_error("sow orders", "Bad Filter near 7"), BadFilter)


def test_a_refusal_keeps_the_servers_words_and_says_what_was_refused() -> None:
    error = command_error("sow orders", "bad filter near 7")
    assert isinstance(error, CommandError)
    assert error.reason == "bad filter near 7"
    assert str(error) == "sow orders: bad filter near 7"


def test_a_refusal_without_a_reason_says_so() -> None:
    assert str(command_error("sow orders", "")) == "sow orders: refused without a reason"


def test_a_command_error_without_a_reason_is_its_own_reason() -> None:
    assert CommandError("no").reason == "no"


def test_a_failed_publish_names_its_sequence() -> None:
    error = PublishFailed("orders: not entitled", reason="not entitled", sequence=7)
    assert (error.sequence, error.reason) == (7, "not entitled")


def test_giving_up_says_after_how_many_attempts_and_why() -> None:
    error = ReconnectGaveUp(3, "no server left")
    assert (error.attempts, error.chooser_error) == (3, "no server left")
    assert str(error) == "gave up after 3 attempts: no server left"
    assert isinstance(error, DisconnectedError)


def test_a_time_out_is_also_the_builtin_one() -> None:
    with pytest.raises(TimeoutError):
        raise TimedOut("too late")


def test_a_store_error_says_which_file_and_where() -> None:
    corrupt = StoreCorrupt("a.log", 48, "bad checksum")
    assert (str(corrupt.path), corrupt.offset, corrupt.what) == ("a.log", 48, "bad checksum")
    assert str(corrupt) == "a.log: corrupt at byte 48: bad checksum"
    locked = StoreLocked("a.log", "orders-7", "held by process 3")
    assert (str(locked.path), locked.owner) == ("a.log", "orders-7")
    assert str(locked) == "a.log: held by process 3"


def test_a_publish_gap_knows_both_ends() -> None:
    gap = PublishGap(9, 5)
    assert (gap.acknowledged, gap.server) == (9, 5)
    assert "sequence 5" in str(gap)


@pytest.mark.parametrize("kind", [UsageError, TimedOut, CommandError, WouldBlock])
def test_plain_errors_survive_pickling(kind: type[Exception]) -> None:
    assert str(pickle.loads(pickle.dumps(kind("why")))) == "why"  # noqa: S301  our own bytes
