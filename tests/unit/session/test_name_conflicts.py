"""Unit tests of `haclient.session.diagnosis`."""

from __future__ import annotations

import pytest

from haclient.session.diagnosis import NameConflicts


@pytest.mark.row("HA28")
def test_a_higher_sequence_at_a_later_logon_is_of_another_client() -> None:
    conflicts = NameConflicts()
    assert not conflicts.note_logon("a", seen=9, highest=0)  # of an earlier process
    assert not conflicts.note_logon("a", seen=12, highest=12)
    assert not conflicts.note_logon("b", seen=99, highest=12)  # the first logon there
    assert not conflicts.note_logon("a", seen=None, highest=12)
    assert not conflicts.note_logon("a", seen=0, highest=0)
    assert not conflicts.note_logon("a", seen=99, highest=12)  # as "b" has said, and replicated
    assert conflicts.note_logon("a", seen=100, highest=12)


@pytest.mark.row("HA28")
def test_a_series_of_short_connections_is_suspicious_once() -> None:
    conflicts = NameConflicts()
    assert [conflicts.note_closed(1.0) for _ in range(5)] == [False, False, True, False, False]


@pytest.mark.row("HA28")
def test_a_connection_that_lasts_ends_the_series() -> None:
    conflicts = NameConflicts()
    assert [conflicts.note_closed(each) for each in (1.0, 0.0, 60.0, 1.0, 1.0)] == [False] * 5
    assert conflicts.note_closed(59.0)
