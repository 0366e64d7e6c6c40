"""Which publish ends each connection that it is sent on."""

from __future__ import annotations

import pytest

from haclient.session.diagnosis import MAX_LOSSES, RejectedFrames

BIG_BYTES = 2**21


def after(*losses: tuple[int, int, float]) -> RejectedFrames:
    """After losses: sequence, size, and how long after the first publish."""
    rejected = RejectedFrames()
    for sequence, size, after_s in losses:
        rejected.note_loss(sequence, size, after_s=after_s)
    return rejected


def test_the_publish_of_three_lost_connections_in_a_row_is_rejected() -> None:
    loss = (7, BIG_BYTES, 0.1)
    assert MAX_LOSSES == 3
    assert not after(loss).suspects(7)
    assert after(loss, loss).suspects(7)
    assert not after(loss, loss).is_rejected
    assert after(loss, loss, loss).is_rejected


@pytest.mark.parametrize(
    "innocent",
    [
        (8, BIG_BYTES, 0.1),  # the one before was acknowledged
        (0, 0, 0.1),  # everything was
        (7, 100, 0.1),  # no server has so low a limit
        (7, BIG_BYTES, 5.1),  # the server has had it for long
    ],
)
def test_any_other_loss_starts_the_count_anew(innocent: tuple[int, int, float]) -> None:
    loss = (7, BIG_BYTES, 0.1)
    rejected = after(loss, loss, innocent)
    assert not rejected.is_rejected
    assert not rejected.suspects(7)
    assert not after(loss, loss, innocent, loss, loss).is_rejected


def test_the_next_publish_is_not_suspected_of_what_the_last_one_did() -> None:
    loss = (7, BIG_BYTES, 0.1)
    assert not after(loss, loss).suspects(8)
    assert after(loss, loss, loss, (8, BIG_BYTES, 0.1), (8, BIG_BYTES, 0.1)).suspects(8)
