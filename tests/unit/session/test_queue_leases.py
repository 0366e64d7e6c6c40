"""What a server says of backlogs and leases, in all forms that peers use."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.session.queue_leases import LONGEST_LEASE_S, Grant, lease_left_s, parse_grant
from haclient_stores.bookmark import Timestamp

NOON = "20240321T120000.000000Z"
NOON_US = Timestamp.parse(NOON).microseconds


@pytest.mark.row("QC1")
@pytest.mark.parametrize(
    ("options", "grant"),
    [
        ("max_backlog=10", Grant(10)),
        ("timestamp, max_backlog=3,lease=30.0", Grant(3, 30.0)),
        ("max_backlog=2,lease=500ms,unheard_of=[1,2]", Grant(2, 0.5)),
        ("", Grant()),
        ("max_backlog=0", Grant(0)),
        ("max_backlog=many,lease=soon", Grant()),
        ("max_backlog=" + "9" * 5000, Grant()),
        ("lease=-1", Grant()),
        ("lease=1e400", Grant()),
        ("lease=99999999", Grant()),
    ],
)
def test_the_grant_is_read_leniently(options: str, grant: Grant) -> None:
    assert parse_grant(options) == grant


@given(st.text())
def test_no_options_of_a_peer_are_an_error(options: str) -> None:
    backlog, lease_s = parse_grant(options)
    assert backlog is None or backlog > 0
    assert lease_s is None or 0 < lease_s <= LONGEST_LEASE_S


@pytest.mark.row("QC12")
@pytest.mark.parametrize(
    ("lease_period", "left_s"),
    [
        ("", math.inf),
        ("20240321T120030.500000Z", 30.5),
        ("2024-03-21T12:00:30Z", 30.0),
        ("30s", 30.0),
        ("500ms", 0.5),
        ("30", 30.0),
        ("20240321T115959Z", None),  # over before it began
        (NOON, None),
        ("20240421T120000Z", None),  # longer than any lease
        ("0", None),
        ("soon", None),
        ("20241321T120000Z", None),
    ],
)
def test_the_time_left_is_told_in_every_form(lease_period: str, left_s: float | None) -> None:
    assert lease_left_s(lease_period, NOON_US, None) == left_s


@pytest.mark.row("QC12")
@pytest.mark.parametrize("skew_s", [-86_400, 0, 86_400])
def test_a_granted_length_needs_no_clock(skew_s: int) -> None:
    assert lease_left_s(NOON, NOON_US + skew_s * 1_000_000, 30.0) == 30.0
    assert lease_left_s("", NOON_US, 30.0) == math.inf


@given(st.text(), st.integers(0, 2**62))
def test_no_lease_period_of_a_peer_is_an_error(lease_period: str, wall_us: int) -> None:
    left_s = lease_left_s(lease_period, wall_us, None)
    assert left_s is None or left_s > 0
