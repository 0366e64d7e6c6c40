from __future__ import annotations

from typing import Any

import pytest

from haclient.errors import UsageError
from haclient.session.logon import MAX_SEEN_SEQUENCE, LoggedOn
from haclient.session.publisher_sequences import PublisherSequences


def after_logon(seen: int | None, persisted: int | None) -> PublisherSequences:
    sequences = PublisherSequences()
    sequences.logged_on(LoggedOn(seen, persisted, "5.3", ""))
    return sequences


def test_before_a_logon_nothing_is_known() -> None:
    sequences = PublisherSequences()
    assert (sequences.seen, sequences.persisted) == (None, None)


@pytest.mark.row("SK4")
def test_what_is_seen_and_not_persisted_may_be_published_again() -> None:
    sequences = after_logon(seen=9, persisted=5)
    with pytest.raises(UsageError, match="persisted this publisher up to 5 and would drop 5"):
        sequences.check(5)
    sequences.check(6)


@pytest.mark.row("SK4")
def test_the_numbers_of_one_connection_rise() -> None:
    sequences = after_logon(seen=0, persisted=0)
    sequences.check(3, 7)
    sequences.last_published = 7
    with pytest.raises(UsageError, match="the server would drop 7 after 7 as a duplicate"):
        sequences.check(7)
    sequences.check(20)  # gaps are legal


def test_another_connection_may_begin_below_the_last_number() -> None:
    sequences = after_logon(seen=0, persisted=0)
    sequences.last_published = 7
    sequences.acknowledged(4)
    sequences.logged_on(LoggedOn(7, 4, "5.3", ""))
    sequences.check(5)


def test_acks_raise_what_is_persisted_and_never_lower_it() -> None:
    sequences = after_logon(seen=0, persisted=None)
    sequences.acknowledged(4)
    sequences.acknowledged(2)
    assert sequences.persisted == 4


@pytest.mark.parametrize("number", [0, -1, MAX_SEEN_SEQUENCE + 1])
def test_a_number_that_no_logon_ack_could_name_is_refused(number: int) -> None:
    with pytest.raises(
        UsageError,
        match=f"a sequence is a whole number from 1 to {MAX_SEEN_SEQUENCE}, not {number}",
    ):
        after_logon(0, 0).check(number)


def test_the_last_number_of_a_batch_is_checked_too() -> None:
    with pytest.raises(UsageError, match="a sequence is a whole number from 1 to"):
        after_logon(0, 0).check(MAX_SEEN_SEQUENCE, MAX_SEEN_SEQUENCE + 1)


@pytest.mark.parametrize("number", ["7", 7.0, True])
def test_a_sequence_is_a_whole_number(number: Any) -> None:  # noqa: ANN401  # what is tested
    with pytest.raises(UsageError, match="a sequence is a whole number"):
        after_logon(0, 0).check(number)
