"""Servers in a random order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import UsageError
from haclient.servers.auth import DefaultAuthenticator
from haclient.servers.random import RandomServerChooser
from support.choosers import ERROR, A, B, tried


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
