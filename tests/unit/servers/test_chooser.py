"""Which server next."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import UsageError
from haclient.servers.auth import DefaultAuthenticator
from haclient.servers.chooser import (
    DefaultServerChooser,
    FailureCountServerChooser,
    PriorityServerChooser,
    RandomServerChooser,
)
from support.choosers import ERROR, A, B, C, tried


@pytest.mark.row("SC6", "HA7")
def test_a_failure_moves_on_and_a_success_stays() -> None:
    chooser = DefaultServerChooser([A, B, C])
    assert tried(chooser, 5) == "abcab"
    chooser.report_success({"uri": C})
    assert (chooser.current_uri(), chooser.current_uri()) == (C, C)


@pytest.mark.row("SC1", "SC4")
def test_a_chooser_without_servers_has_an_empty_uri_and_says_why() -> None:
    chooser = DefaultServerChooser()
    assert chooser.current_uri() == ""
    assert "no servers configured" in chooser.error()
    chooser.report_failure(ERROR, {})
    chooser.report_success({})
    assert isinstance(chooser.current_authenticator(), DefaultAuthenticator)


@pytest.mark.row("SC3", "SC4")
def test_the_error_is_that_of_the_last_failure() -> None:
    chooser = DefaultServerChooser([A])
    assert chooser.error() == "no server was tried yet"
    chooser.report_failure(ERROR, {"uri": A})
    assert chooser.error() == "connection refused"


@pytest.mark.row("SC2")
def test_each_server_has_its_own_authenticator() -> None:
    mine = DefaultAuthenticator()
    chooser = DefaultServerChooser([A])
    chooser.add(B, mine)
    assert chooser.current_authenticator() is not mine
    chooser.report_failure(ERROR, {})
    assert chooser.current_authenticator() is mine


@pytest.mark.row("SC6")
@pytest.mark.parametrize(
    ("removed", "failures", "current"),
    [(A, 0, B), (A, 1, B), (C, 2, A), (B, 2, C), (B, 0, A)],
)
def test_a_removed_server_leaves_the_order_of_the_others(
    removed: str, failures: int, current: str
) -> None:
    chooser = DefaultServerChooser([A, B, C])
    for _ in range(failures):
        chooser.report_failure(ERROR, {})
    chooser.remove(removed)
    assert chooser.current_uri() == current


@pytest.mark.row("SC6")
def test_the_failure_of_a_server_that_was_removed_meanwhile_skips_none_of_the_others() -> None:
    chooser = DefaultServerChooser([A, B, C])
    tried_uri = chooser.current_uri()
    chooser.remove(A)
    chooser.report_failure(ERROR, {"uri": tried_uri})
    assert chooser.current_uri() == B
    assert chooser.error() == "connection refused"


def test_a_password_in_a_uri_does_not_keep_a_failure_from_moving_on() -> None:
    chooser = DefaultServerChooser(["tcp://user:secret@a:9007/amps/json", B])
    chooser.report_failure(ERROR, {"uri": "tcp://user@a:9007/amps/json"})
    assert chooser.current_uri() == B


def test_the_last_server_can_be_removed() -> None:
    chooser = DefaultServerChooser([A])
    chooser.remove(A)
    assert chooser.current_uri() == ""


def test_an_unknown_or_malformed_server_is_refused_and_no_password_is_shown() -> None:
    chooser = DefaultServerChooser([A])
    with pytest.raises(UsageError, match="not one of this chooser's servers") as refused:
        chooser.remove("tcp://user:secret@z:9007/amps/json")
    assert "secret" not in str(refused.value)
    with pytest.raises(UsageError):
        chooser.add("nonsense")
    with pytest.raises(UsageError):
        FailureCountServerChooser([A], limit=-1)


@pytest.mark.row("SC7")
def test_a_server_that_failed_too_often_is_skipped_until_all_have() -> None:
    chooser = FailureCountServerChooser([A, B], limit=1)
    assert tried(chooser, 2) == "ab"
    chooser.report_success({"uri": A})  # the first one answers, once
    assert chooser.current_uri() == A
    assert tried(chooser, 2) == "ab"
    chooser.report_success({"uri": A})
    assert tried(chooser, 6) == "aababa"  # B is skipped until A has failed as often
    assert "connection refused" in chooser.error()


@pytest.mark.row("SC7")
def test_unless_told_otherwise_a_server_is_skipped_after_the_sixth_failure() -> None:
    chooser = FailureCountServerChooser([A, B])
    assert tried(chooser, 11) == "abababababa"
    chooser.report_success({"uri": B})
    assert chooser.current_uri() == B  # asked again without a failure: the connection has lasted
    assert tried(chooser, 6) == "bbbbbb"
    assert tried(chooser, 4) == "abab"


@pytest.mark.row("SC7", "DS8")
def test_a_logon_whose_connection_is_lost_at_once_clears_no_failures() -> None:
    chooser = FailureCountServerChooser([A, B], limit=1)
    for uri in (A, B, A):
        assert chooser.current_uri() == uri
        chooser.report_success({"uri": uri})
        chooser.report_failure(ERROR, {"uri": uri})
    chooser.report_success({"uri": B})
    assert tried(chooser, 2) == "bb"  # A has failed twice


@pytest.mark.row("SC4", "SC7")
def test_counting_without_servers() -> None:
    chooser = FailureCountServerChooser()
    chooser.report_failure(ERROR, {})
    assert chooser.current_uri() == ""
    assert "no servers configured" in chooser.error()
    assert isinstance(chooser.current_authenticator(), DefaultAuthenticator)


@pytest.mark.row("SC7")
def test_by_default_a_server_is_skipped_after_its_sixth_failure_in_a_row() -> None:
    chooser = FailureCountServerChooser([A, B])
    hosts = ""
    for _ in range(16):  # A always fails, B works for a while
        uri = chooser.current_uri()
        hosts += uri[6]
        if uri == A:
            chooser.report_failure(ERROR, {"uri": A})
        else:
            chooser.report_success({"uri": B})
            assert chooser.current_uri() == B  # the connection has lasted
            chooser.report_failure(ERROR, {"uri": B})
    assert hosts == "ab" * 6 + "b" * 4


@pytest.mark.row("SC10")
def test_a_chooser_may_end_the_client_when_each_server_was_tried_so_often() -> None:
    chooser = FailureCountServerChooser([A, B], limit=1, ends=True)
    assert tried(chooser, 5) == "abab."
    assert chooser.error() == "connection refused"


@pytest.mark.row("SC9")
@given(st.randoms(use_true_random=False), st.integers(1, 6), st.integers(1, 4))
def test_each_server_comes_once_in_each_random_sweep(
    source: random.Random, servers: int, sweeps: int
) -> None:
    uris = [f"tcp://{host}:9007/amps/json" for host in "abcdef"[:servers]]
    chooser = RandomServerChooser(uris, source=source)
    hosts = tried(chooser, servers * sweeps)
    for first in range(0, len(hosts), servers):
        assert sorted(hosts[first : first + servers]) == list("abcdef"[:servers])


@pytest.mark.row("SC9")
def test_a_server_of_three_times_the_weight_comes_first_three_times_as_often() -> None:
    source = random.Random(7)
    first = [RandomServerChooser({A: 3, B: 1}, source=source).current_uri() for _ in range(4000)]
    assert 2850 < first.count(A) < 3150


@pytest.mark.row("SC9", "SC2")
def test_a_random_chooser_stays_after_a_success_and_has_an_authenticator_for_each_server() -> None:
    mine = DefaultAuthenticator()
    chooser = RandomServerChooser([A], source=random.Random(1))
    chooser.add(B, mine)
    while chooser.current_uri() != B:
        chooser.report_failure(ERROR, {})
    chooser.report_success({})
    assert {chooser.current_uri() for _ in range(5)} == {B}
    assert chooser.current_authenticator() is mine


@pytest.mark.row("SC9", "SC4")
def test_a_random_chooser_says_why_there_is_no_server_and_refuses_weights_that_cannot_be() -> None:
    chooser = RandomServerChooser()
    assert chooser.current_uri() == ""
    assert "no servers configured" in chooser.error()
    assert isinstance(chooser.current_authenticator(), DefaultAuthenticator)
    chooser.report_failure(ERROR, {})
    chooser.add(A)
    assert chooser.error() == "connection refused"
    chooser.report_success({})
    assert chooser.error() == "no server was tried yet"
    for weight in (0, -1, float("nan"), float("inf"), 1e308, 10**400):
        with pytest.raises(
            UsageError, match="weight of tcp://a:9007/amps/json is a number above 0"
        ):
            RandomServerChooser({A: weight})


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
