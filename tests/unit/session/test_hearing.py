from __future__ import annotations

import pytest

from haclient.session.hearing import Hearing, catching_up


def test_a_link_that_is_empty_has_told_everything() -> None:
    hearing = Hearing(10.0)
    hearing.empty(10.5)
    assert hearing.heard_at == 10.5
    hearing.arrived(60.0)
    hearing.empty(60.25)
    assert hearing.heard_at == 60.25


def test_a_silent_link_tells_nothing() -> None:
    hearing = Hearing(10.0)
    hearing.empty(11.0)
    assert hearing.heard_at == 11.0  # however late it is when the link is found to be dead


@pytest.mark.row("BS9")
def test_who_reads_slowly_may_read_what_is_old() -> None:
    """The server was held up for 20 s, and may have written what is 20 s old."""
    hearing = Hearing(10.0)
    hearing.empty(10.0)
    hearing.arrived(10.0)
    hearing.empty(30.0)
    assert hearing.heard_at == 10.0
    hearing.arrived(40.0)  # so long it had nothing to say: it has made up for some of it
    assert hearing.heard_at == 40.0 - 19.0
    hearing.arrived(40.0 + 190.0)
    assert hearing.heard_at == 230.0


def test_it_catches_up_slowly_and_not_beyond_the_present() -> None:
    assert catching_up(5.0, 10.0) == 4.0
    assert catching_up(5.0, 100.0) == 0.0
