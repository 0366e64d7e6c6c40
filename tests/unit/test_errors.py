"""One tree of errors, and the server's words choose the class (row CC37)."""

from __future__ import annotations

import pytest

import haclient.errors
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
    PublishFailed,
    ReconnectGaveUp,
    SubIdInUse,
    TimedOut,
    command_error,
)

pytestmark = pytest.mark.row("CC37")


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
