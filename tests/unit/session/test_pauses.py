from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.session.pauses import MAX_UNANSWERED, PauseChange, PauseState

pytestmark = pytest.mark.row("CC23", "BS9")


def test_the_last_accepted_command_decides_in_the_order_of_sending() -> None:
    state = PauseState()
    resume = state.sent(pauses=False, by_application=True)
    pause = state.sent(pauses=True, by_application=False)
    state.answered(pause, is_accepted=True)
    state.answered(resume, is_accepted=True)
    assert (state.may_be_paused, state.is_paused_by_application) == (True, False)


def test_an_unanswered_command_may_be_in_force_and_a_refused_one_is_not() -> None:
    state = PauseState()
    pause = state.sent(pauses=True, by_application=True)
    assert (state.may_be_paused, state.may_be_paused_by_application) == (True, True)
    assert (state.is_paused_by_application, state.has_unanswered) == (False, True)
    state.answered(pause, is_accepted=False)
    assert (state.may_be_paused, state.may_be_paused_by_application) == (False, False)
    assert not state.has_unanswered


def test_an_answer_of_an_earlier_connection_counts_no_more() -> None:
    state = PauseState()
    pause = state.sent(pauses=True, by_application=True)
    state.begin(is_paused=False)
    state.answered(pause, is_accepted=True)
    assert not state.may_be_paused


def test_it_begins_as_the_command_of_the_subscription_says() -> None:
    state = PauseState()
    state.begin(is_paused=True)
    assert (state.may_be_paused, state.is_paused_by_application) == (True, True)
    state.begin(is_paused=False)
    assert (state.may_be_paused, state.may_be_paused_by_application) == (False, False)


def test_a_command_without_an_answer_is_overruled_by_a_later_one_that_was_accepted() -> None:
    state = PauseState()
    unanswered = state.sent(pauses=True, by_application=True)
    state.answered(state.sent(pauses=False, by_application=False), is_accepted=True)
    assert (state.may_be_paused, state.may_be_paused_by_application) == (False, True)
    assert state.has_unanswered, "the client's own says nothing about the application"
    state.answered(state.sent(pauses=False, by_application=True), is_accepted=True)
    assert (state.may_be_paused_by_application, state.has_unanswered) == (False, False)
    state.answered(unanswered, is_accepted=True)
    assert (state.may_be_paused, state.is_paused_by_application) == (False, False)


_COMMANDS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=8)


@given(_COMMANDS, st.data())
def test_the_order_of_the_answers_changes_nothing(
    commands: list[tuple[bool, bool, bool]], data: st.DataObject
) -> None:
    """Each is (pauses, by the application, accepted)."""
    state, at_server, wanted = PauseState(), False, False
    sent = [
        state.sent(pauses=pauses, by_application=by_application)
        for pauses, by_application, _ in commands
    ]
    for pauses, by_application, is_accepted in commands:
        if is_accepted:
            at_server = pauses
            wanted = pauses if by_application else wanted
    for number in data.draw(st.permutations(range(len(sent)))):
        assert state.may_be_paused or not at_server
        state.answered(sent[number], is_accepted=commands[number][2])
    found = (state.may_be_paused, state.is_paused_by_application, state.has_unanswered)
    assert found == (at_server, wanted, False)
    assert state.may_be_paused_by_application == wanted


def test_commands_that_are_never_answered_are_remembered_up_to_a_limit() -> None:
    state = PauseState()
    first = state.sent(pauses=True, by_application=True)
    for _ in range(10_000):
        state.sent(pauses=False, by_application=True)
    assert len(state._changes) == MAX_UNANSWERED
    assert (state.may_be_paused, state.may_be_paused_by_application) == (True, True)
    assert (state.is_paused_by_application, state.has_unanswered) == (False, True)
    state.answered(first, is_accepted=True)  # what was forgotten is not remembered again
    assert not state.is_paused_by_application
    state.answered(state.sent(pauses=False, by_application=False), is_accepted=True)
    assert (state.may_be_paused, state.may_be_paused_by_application) == (False, True)
    state.answered(state.sent(pauses=False, by_application=True), is_accepted=True)
    assert (state.may_be_paused_by_application, state.has_unanswered) == (False, False)
    assert not state._changes


def test_a_new_connection_begins_without_what_was_forgotten() -> None:
    state = PauseState()
    for _ in range(2 * MAX_UNANSWERED):
        state.sent(pauses=True, by_application=True)
    state.begin(is_paused=False)
    assert (state.may_be_paused, state.may_be_paused_by_application) == (False, False)
    assert not state.has_unanswered


@pytest.mark.parametrize("seed", range(60))
def test_what_was_forgotten_may_be_in_force_until_it_is_overruled(seed: int) -> None:
    """Only some commands are answered, in any order."""
    chance = random.Random(seed)
    state, at_server, wanted = PauseState(), False, False
    sent = list[tuple[PauseChange, bool]]()
    for _ in range(4 * MAX_UNANSWERED):
        pauses, by_application, is_accepted = chance.choices([True, False], k=3)
        sent.append((state.sent(pauses=pauses, by_application=by_application), is_accepted))
        if is_accepted:
            at_server = pauses
            wanted = pauses if by_application else wanted
        if chance.random() < 0.3:
            change, accepted = sent.pop(chance.randrange(len(sent)))
            state.answered(change, is_accepted=accepted)
        assert len(state._changes) <= MAX_UNANSWERED
        assert state.may_be_paused or not at_server
        assert state.may_be_paused_by_application or not wanted
    state.answered(state.sent(pauses=False, by_application=True), is_accepted=True)
    assert (state.may_be_paused, state.may_be_paused_by_application) == (False, False)
    assert (state.is_paused_by_application, state.has_unanswered) == (False, False)
