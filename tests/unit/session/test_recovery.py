"""The recovery plan, state by state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import (
    AuthenticationError,
    DisconnectedError,
    HAClientError,
    NameInUse,
    NotEntitled,
    PublishGap,
    ReconnectGaveUp,
    SubscriptionStalled,
    TimedOut,
    UsageError,
)
from haclient.protocol.uri import Uri
from haclient.session.connection_state import ClosedByOwnError, ConnectionStatus
from haclient.session.recovery import (
    MEANINGS,
    NEXT,
    REFUSALS,
    Failure,
    FailureAction,
    FailureLog,
    Failures,
    Move,
    MoveEvent,
    MoveState,
    Recovery,
    RecoveryPlan,
    Refusal,
    StepOutcome,
    check_may_move,
)

ORDER = list(Recovery)
EAST, WEST = (f"tcp://{name}:9007/amps/json" for name in ("east", "west"))
BEFORE_A_SERVER = {Recovery.CHOOSING, Recovery.WAITING}


def plan_in(state: Recovery) -> RecoveryPlan:
    plan = RecoveryPlan()
    plan.state = state
    return plan


@pytest.mark.row("HA3")
def test_the_steps_follow_each_other_in_the_order_of_the_guide() -> None:
    plan = RecoveryPlan()
    assert [plan.state, *(plan.next(StepOutcome.DONE) for _ in ORDER[1:])] == ORDER
    assert (Recovery.LIVE, StepOutcome.DONE) not in NEXT


@pytest.mark.row("HA4", "HA5", "HA23")
@pytest.mark.parametrize("state", ORDER)
def test_a_loss_anywhere_begins_anew(state: Recovery) -> None:
    assert plan_in(state).next(StepOutcome.FAILED) is Recovery.CHOOSING


@pytest.mark.parametrize("state", ORDER)
def test_only_a_live_connection_is_left_for_another_server(state: Recovery) -> None:
    plan = plan_in(state)
    if state is not Recovery.LIVE:
        with pytest.raises(KeyError):
            plan.next(StepOutcome.MOVED)
        return
    plan.attempts = 3
    assert plan.next(StepOutcome.MOVED) is Recovery.CHOOSING
    assert (plan.is_stable, plan.attempts) == (True, 0)


@pytest.mark.row("DS8", "HA4", "HA5", "HA7")
@pytest.mark.parametrize("failure", list(Failure))
@pytest.mark.parametrize("state", ORDER)
def test_what_a_failure_means_follows_from_the_state_and_its_kind(
    state: Recovery, failure: Failure
) -> None:
    actions = MEANINGS[state, failure]
    assert (FailureAction.END in actions) == (failure is Failure.FINAL)
    assert (FailureAction.BLAME in actions) == (failure is Failure.STALLED)
    assert (FailureAction.BLAME_UNLESS_STABLE in actions) == (state not in BEFORE_A_SERVER)
    assert (FailureAction.COUNT in actions) == (state not in {*BEFORE_A_SERVER, Recovery.LIVE})
    is_own = failure is Failure.OWN  # it leaves the block of the client by itself
    tells_attempt = state not in {*BEFORE_A_SERVER, Recovery.LIVE} and not is_own
    assert (FailureAction.REPORT_ATTEMPT in actions) == tells_attempt
    assert (FailureAction.REPORT_LOSS in actions) == (state is Recovery.LIVE and not is_own)


@pytest.mark.row("HA7")
@pytest.mark.parametrize("is_stable", [True, False])
@pytest.mark.parametrize("state", ORDER)
def test_a_server_is_blamed_unless_its_connection_was_stable(
    state: Recovery, *, is_stable: bool
) -> None:
    failures = Failures(raises_gaps=False)
    actions = failures.judge(state, DisconnectedError("lost"), uri=EAST, is_stable=is_stable)
    is_blamed = state not in BEFORE_A_SERVER and not is_stable
    assert (FailureAction.BLAME in actions) == is_blamed
    assert FailureAction.BLAME_UNLESS_STABLE not in actions
    stalled = SubscriptionStalled("s is silent", sub_id="s")
    assert FailureAction.BLAME in failures.judge(state, stalled, uri=EAST, is_stable=True)


def test_an_error_of_the_client_itself_is_not_told_twice() -> None:
    failures = Failures(raises_gaps=False)
    actions = failures.judge(Recovery.LIVE, ClosedByOwnError("a full store"), uri=EAST)
    assert actions == {FailureAction.BLAME}


def judged(
    failures: Failures,
    error: HAClientError,
    *,
    state: Recovery = Recovery.LIVE,
    moving: bool = False,
) -> bool:
    """Whether the client ends."""
    return FailureAction.END in failures.judge(state, error, uri=EAST, is_moving=moving)


def test_only_what_no_attempt_can_help_ends_a_client() -> None:
    failures = Failures(raises_gaps=False)
    assert judged(failures, ReconnectGaveUp(3, "no server"), state=Recovery.CHOOSING)
    ordinary = (DisconnectedError("lost"), TimedOut("late"), PublishGap(2, 1), NotEntitled("no"))
    assert not any(judged(failures, error) for error in ordinary)
    assert not judged(failures, SubscriptionStalled("s is silent", sub_id="s"))
    failures.fatal = NotEntitled("as the application says")
    assert judged(failures, failures.fatal)


def test_a_publish_gap_ends_a_client_that_asks_for_it_but_for_one_that_moves() -> None:
    failures = Failures(raises_gaps=True)
    assert judged(failures, PublishGap(2, 1))
    assert not judged(failures, PublishGap(2, 1), moving=True)


@pytest.mark.row("HA28")
def test_a_name_in_use_ends_a_client_unless_its_own_late_logon_may_have_taken_it() -> None:
    failures = Failures(raises_gaps=False)
    assert judged(failures, NameInUse("taken"))
    for _ in range(2):
        assert not judged(failures, TimedOut("no answer"), state=Recovery.LOGGING_ON)
    assert not judged(failures, NameInUse("taken"))
    assert judged(failures, NameInUse("taken")), "once, however many logons had no answer"
    judged(failures, TimedOut("no answer"), state=Recovery.LOGGING_ON)
    refused = NameInUse("refused")
    refused.__cause__ = NotEntitled("name in use")
    assert judged(failures, refused), "the name belongs to another user"


def test_a_logon_that_the_server_has_answered_comes_late_no_more() -> None:
    failures = Failures(raises_gaps=False)
    judged(failures, DisconnectedError("closed by the server"), state=Recovery.LOGGING_ON)
    judged(failures, TimedOut("no heartbeat"), state=Recovery.HEARTBEAT)
    assert judged(failures, NameInUse("taken"))


WORDS = ("fail", "retry", "drop")
LACKS = NotEntitled("no entitlement")


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("all_were_asked", [True, False])
def test_the_word_of_the_application_counts_once_every_server_was_asked(
    word: str, *, all_were_asked: bool
) -> None:
    failures = Failures(raises_gaps=False, on_refusal=word)
    refusals = [failures.refused("s", uri, LACKS) for uri in (EAST, WEST, EAST)]
    assert refusals[:2] == [Refusal.NEXT_SERVER] * 2
    last = {"fail": Refusal.END, "retry": Refusal.NEXT_SERVER, "drop": Refusal.DROP}[word]
    assert refusals[2] is last
    assert (failures.fatal is LACKS) == (word == "fail")
    assert REFUSALS[all_were_asked, word] is (last if all_were_asked else Refusal.NEXT_SERVER)
    failures.note_live()
    assert failures.refused("s", EAST, LACKS) is Refusal.NEXT_SERVER, "it may take it now"


def test_a_function_decides_only_what_every_server_has_refused() -> None:
    asked: list[tuple[str, HAClientError]] = []

    def policy(sub_id: str, error: HAClientError) -> str:
        asked.append((sub_id, error))
        return "whatever"

    failures = Failures(raises_gaps=False, on_refusal=policy)
    failures.refused("s", EAST, LACKS)
    assert not asked
    with pytest.raises(UsageError, match="'whatever'"):
        failures.refused("s", EAST, LACKS)
    assert asked == [("s", LACKS)]


def refused_by(failures: Failures, uri: str, error: HAClientError) -> None:
    failures.judge(Recovery.LOGGING_ON, error, uri=uri)


def test_credentials_that_every_server_of_a_sweep_refuses_end_a_client() -> None:
    failures = Failures(raises_gaps=False)
    for uri in (EAST, WEST):
        assert failures.refused_credentials(uri) is None
        refused_by(failures, uri, AuthenticationError(f"{uri} refuses"))
    error = failures.refused_credentials(EAST)
    assert error is failures.fatal
    assert "refused by every server" in str(error)


def test_a_server_that_was_down_or_took_the_credentials_ends_no_client() -> None:
    failures = Failures(raises_gaps=False)
    refused_by(failures, EAST, AuthenticationError("refused"))
    failures.judge(Recovery.DIALLING, DisconnectedError("down"), uri=WEST)
    assert failures.refused_credentials(EAST) is None
    refused_by(failures, EAST, AuthenticationError("refused"))
    failures.logged_on()
    refused_by(failures, EAST, AuthenticationError("refused"))
    assert failures.refused_credentials(EAST) is None, "the credentials were right once"


@pytest.mark.row("DS8")
def test_attempts_are_counted_since_the_last_stable_connection() -> None:
    plan = RecoveryPlan()
    for _ in range(3):
        plan.next(StepOutcome.DONE)
        plan.next(StepOutcome.DONE)  # waited: now it is tried
        plan.next(StepOutcome.FAILED)
    assert plan.attempts == 3
    for _ in range(len(ORDER) - 1):
        plan.next(StepOutcome.DONE)
    assert (plan.state, plan.attempts) == (Recovery.LIVE, 4)
    plan.stable()
    assert plan.attempts == 0


@given(st.lists(st.booleans(), max_size=60))
def test_whatever_happens_live_is_reached_only_through_every_step(results: list[bool]) -> None:
    plan, run = RecoveryPlan(), 0
    for success in results:
        if success and plan.state is not Recovery.LIVE:
            plan.next(StepOutcome.DONE)
            run += 1
        else:
            plan.next(StepOutcome.FAILED)
            run = 0
        assert (plan.state is Recovery.LIVE) == (run == len(ORDER) - 1)


def test_failures_are_warned_of_at_once_and_then_at_growing_intervals() -> None:
    failures = FailureLog()
    warned = [now for now in range(2000) if failures.is_due(now, "refused")]
    assert warned == [0, 10, 30, 70, 150, 310, 630, 1230, 1830]
    failures.reset()
    assert failures.is_due(2000, "refused")


def test_a_new_cause_is_warned_of_at_once_and_an_old_one_is_not() -> None:
    failures = FailureLog()
    assert [failures.is_due(0, server) for server in ("east refused", "west refused")] == [True] * 2
    assert not failures.is_due(1, "east refused")
    assert [now for now in range(10, 1000) if failures.is_due(now, "east refused")] == [
        10,
        30,
        70,
        150,
        310,
        630,
    ]
    assert failures.is_due(1001, "east: auth failure")
    assert not failures.is_due(1002, "east refused")
    assert failures.is_due(1012, "east refused"), "the intervals begin anew"


def test_numbers_and_endless_causes_do_not_fill_the_log() -> None:
    failures = FailureLog()
    assert failures.is_due(0, "no answer within 3 s")
    assert not failures.is_due(1, "no answer within 4 s")
    words = (f"error {chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(500))
    assert sum(failures.is_due(2, cause) for cause in words) < 100


# -- planned moves ---------------------------------------------------------------------------------


@pytest.mark.parametrize("event", list(MoveEvent))
@pytest.mark.parametrize("state", list(MoveState))
def test_what_becomes_of_a_move_follows_from_its_state_and_the_event(
    state: MoveState, event: MoveEvent
) -> None:
    following = {
        (MoveState.CHECKING, MoveEvent.CHECKED): MoveState.DRAINING,
        (MoveState.DRAINING, MoveEvent.DRAINED): MoveState.LEFT,
        (MoveState.CHECKING, MoveEvent.GIVEN_UP): MoveState.ENDED,
        (MoveState.DRAINING, MoveEvent.GIVEN_UP): MoveState.ENDED,
        (MoveState.DRAINING, MoveEvent.FAILED): MoveState.ENDED,
        (MoveState.LEFT, MoveEvent.FAILED): MoveState.ENDED,
        (MoveState.LEFT, MoveEvent.LIVE): MoveState.ENDED,
    }.get((state, event), state)
    move, lost = Move(EAST, state), DisconnectedError("lost")
    has_ended = move.next(event, lost if event is MoveEvent.FAILED else None)
    assert move.state is following
    assert has_ended == (following is MoveState.ENDED and state is not MoveState.ENDED)
    if has_ended and event is MoveEvent.FAILED:
        assert isinstance(move.error, DisconnectedError)
        assert move.error.__cause__ is lost
    else:
        assert move.error is None


def test_a_move_is_named_without_its_password() -> None:
    move = Move("tcp://user:secret@localhost:9007/amps/json", MoveState.LEFT)
    move.next(MoveEvent.FAILED, DisconnectedError("no answer"))
    assert "secret" not in f"{move.target} {move.error}"
    assert Move("", MoveState.LEFT).target == "a server of higher priority"


ENDED = Move("", MoveState.ENDED)


def live_at(uri: str) -> ConnectionStatus:
    status = ConnectionStatus(reconnects=True)
    status.connected(Uri.parse(uri).address)
    status.live()
    return status


def test_a_move_may_begin_from_a_live_connection_to_another_server() -> None:
    status = live_at(EAST)
    assert check_may_move(status, WEST, ENDED)
    assert not check_may_move(status, EAST, ENDED), "it is there"
    with pytest.raises(UsageError):
        check_may_move(status, "west", ENDED)


@pytest.mark.parametrize("state", list(MoveState))
def test_one_move_is_under_way_at_a_time(state: MoveState) -> None:
    current = Move("tcp://user:secret@west:9007/amps/json", state)
    if state is MoveState.ENDED:
        assert check_may_move(live_at(EAST), WEST, current)
        return
    with pytest.raises(UsageError, match="is under way") as refused:
        check_may_move(live_at(EAST), WEST, current)
    assert "secret" not in str(refused.value)


def test_a_client_without_a_live_connection_cannot_move() -> None:
    status = live_at(EAST)
    status.lost(DisconnectedError("lost"))
    with pytest.raises(DisconnectedError, match="is reconnecting"):
        check_may_move(status, WEST, ENDED)
    status.stop(DisconnectedError("it was left"))
    with pytest.raises(DisconnectedError, match="it was left"):
        check_may_move(status, WEST, ENDED)
