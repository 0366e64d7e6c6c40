"""The best server that is healthy."""

from __future__ import annotations

import math
import random

import pytest

from haclient.errors import DisconnectedError, UsageError
from haclient.servers.auth import DefaultAuthenticator
from haclient.servers.priority import PriorityServerChooser

A, B, C = (f"tcp://{host}:9007/amps/json" for host in "abc")
ERROR = DisconnectedError("connection refused")


def on_last(chooser: PriorityServerChooser) -> None:
    """Every server but the last one fails; that one is live."""
    while chooser.current_uri() != C:
        chooser.report_failure(ERROR, {})
    chooser.report_success({})


@pytest.mark.row("SC8")
def test_the_client_moves_to_the_best_server_that_was_healthy_for_long_enough() -> None:
    chooser = PriorityServerChooser([A, B, C], healthy_for=30)
    on_last(chooser)
    assert [uri for uri, _ in chooser.to_check()] == [A, B]
    chooser.report_check(B, None, 100.0)
    chooser.report_check(A, None, 105.0)
    assert not chooser.is_move_due(129.9)
    chooser.report_check(A, ERROR, 129.9)
    assert chooser.is_move_due(130.0)
    assert chooser.current_uri() == C  # until the client has left it
    chooser.report_move()
    assert chooser.current_uri() == B


@pytest.mark.row("SC8")
def test_one_failed_check_starts_the_time_anew() -> None:
    chooser = PriorityServerChooser([A, C], healthy_for=30)
    chooser.report_failure(ERROR, {})
    chooser.report_success({})
    chooser.report_check(A, None, 100.0)
    chooser.report_check(A, ERROR, 125.0)
    chooser.report_check(A, None, 130.0)
    assert not chooser.is_move_due(159.0)
    assert chooser.is_move_due(160.0)


@pytest.mark.row("SC8")
def test_nothing_is_checked_while_the_first_server_is_connected() -> None:
    chooser = PriorityServerChooser([A, B], healthy_for=0)
    chooser.report_success({})
    assert chooser.to_check() == []
    assert not chooser.is_move_due(1e9)
    chooser.report_check(B, None, 0.0)
    assert not chooser.is_move_due(1e9)


@pytest.mark.row("SC8")
@pytest.mark.parametrize(
    ("healthy_for", "wanted"),
    [
        (40, [40, 80, 160, 320, 640, 640, 40]),
        (0, [0, 10, 20, 40, 80, 80, 0]),
    ],
)
def test_a_server_that_fails_after_each_return_has_to_be_healthy_for_longer_and_longer(
    healthy_for: float, wanted: list[float]
) -> None:
    chooser = PriorityServerChooser([A, B], healthy_for=healthy_for, check_every=1)
    chooser.report_failure(ERROR, {})
    now, waits = 0.0, list[float]()
    for round_ in range(7):
        chooser.report_success({"uri": B})
        began = now
        chooser.report_check(A, None, began)
        while not chooser.is_move_due(now):
            now += 5.0
        waits.append(now - began)
        chooser.report_move()
        assert chooser.current_uri() == A
        chooser.report_success({"uri": A})
        if round_ == 5:  # this time it lasts, and is lost much later
            assert chooser.current_uri() == A
        chooser.report_failure(ERROR, {"uri": A})
    assert waits == wanted


@pytest.mark.row("SC8")
def test_clients_of_a_server_do_not_all_move_at_the_same_time() -> None:
    def moved_at(seed: int) -> int:
        chooser = PriorityServerChooser(
            [A, B], healthy_for=10, spread=60, source=random.Random(seed)
        )
        chooser.report_failure(ERROR, {})
        chooser.report_check(A, None, 0.0)
        return next(second for second in range(1000) if chooser.is_move_due(second))

    times = [moved_at(seed) for seed in range(200)]
    assert times == [moved_at(seed) for seed in range(200)]
    assert min(times) >= 10
    assert max(times) <= 71
    assert max(times.count(each) for each in times) < 12


@pytest.mark.row("SC8", "SC4")
def test_a_priority_chooser_says_why_there_is_no_server_and_refuses_times_that_cannot_be() -> None:
    chooser = PriorityServerChooser()
    assert chooser.current_uri() == ""
    assert "no servers configured" in chooser.error()
    assert isinstance(chooser.current_authenticator(), DefaultAuthenticator)
    chooser.report_failure(ERROR, {})
    mine = DefaultAuthenticator()
    chooser.add(A, mine)
    assert (chooser.error(), chooser.current_authenticator()) == ("connection refused", mine)
    for healthy_for, check_every, spread in (
        (-1, 1, 0),
        (1, 0, 0),
        (1, 1, float("nan")),
        (math.inf, 1, 0),
        (1, math.inf, 0),
        (1, 1, math.inf),
    ):
        with pytest.raises(UsageError, match="a finite number of seconds"):
            PriorityServerChooser(
                [A], healthy_for=healthy_for, check_every=check_every, spread=spread
            )


@pytest.mark.row("SC8")
def test_after_a_move_that_did_not_take_place_the_better_server_is_checked_again() -> None:
    chooser = PriorityServerChooser([A, C], healthy_for=30)
    on_last(chooser)
    chooser.report_check(A, None, 100.0)
    assert chooser.is_move_due(130.0)  # and the client stays where it is
    assert [uri for uri, _ in chooser.to_check()] == [A]
    chooser.report_check(A, None, 140.0)
    assert not chooser.is_move_due(169.0)
    assert chooser.current_uri() == C  # after a loss, too, the same server comes first
    assert chooser.is_move_due(170.0)
    chooser.report_move()
    assert chooser.current_uri() == A


@pytest.mark.row("SC8")
def test_a_server_may_be_removed_while_the_client_is_about_to_move_to_it() -> None:
    chooser = PriorityServerChooser([A, B, C], healthy_for=30)
    on_last(chooser)
    chooser.report_check(A, None, 100.0)
    assert chooser.is_move_due(130.0)
    chooser.remove(A)
    chooser.report_move()
    assert chooser.current_uri() == C
    assert [uri for uri, _ in chooser.to_check()] == [B]


@pytest.mark.row("SC8", "HA29")
def test_the_server_that_move_to_has_led_to_is_the_current_one() -> None:
    chooser = PriorityServerChooser([A, B, C], healthy_for=30)
    on_last(chooser)
    chooser.report_success({"uri": B})
    assert [uri for uri, _ in chooser.to_check()] == [A]
    assert chooser.current_uri() == B
    chooser.report_success({"uri": "tcp://elsewhere:1/amps/json"})
    assert chooser.current_uri() == B
    chooser.report_success({"uri": C})
    assert [uri for uri, _ in chooser.to_check()] == [A, B]
