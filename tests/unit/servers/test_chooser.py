"""Which server next."""

from __future__ import annotations

import pytest

from haclient.errors import UsageError
from haclient.servers.auth import DefaultAuthenticator
from haclient.servers.chooser import (
    DefaultServerChooser,
    FailureCountServerChooser,
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
