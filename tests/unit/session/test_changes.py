"""What the commands that change active subscriptions mean to these."""

from __future__ import annotations

import pytest

from haclient.errors import BadFilter, DisconnectedError, HAClientError
from haclient.protocol.messages import Message
from haclient.session.acks import Change, PendingCommand
from haclient.session.subscriptions import Router, SubscribeRequest, Subscription
from support.sinks import NoQueue


def requested(**fields: str | int) -> SubscribeRequest:
    header = {"c": "subscribe", "t": "orders", "bm": "0", "sub_id": "s", **fields}
    return SubscribeRequest.complete(header, b"", command_id="1", has_store=False)


@pytest.fixture
def router() -> Router:
    return Router()


@pytest.fixture
def active(router: Router) -> Subscription:
    found = Subscription(requested(), NoQueue(), command_id="1")
    router.add(found)
    return found


def answered(
    change: Change, router: Router, *, error: HAClientError | None = None, is_accepted: bool = False
) -> None:
    pending = PendingCommand("2", "change", awaited="processed", wake=lambda: None)
    pending.error = error
    pending.ack = Message(kind="ack") if is_accepted else None
    change.answered(pending, router, 2.0)


@pytest.mark.row("CC23", "SM6")
@pytest.mark.parametrize(
    ("error", "is_accepted", "is_unanswered", "is_paused"),
    [
        (None, True, False, True),
        (BadFilter("refused"), False, False, False),
        (DisconnectedError("lost"), False, True, True),  # it may have been carried out
        (None, False, True, True),
    ],
)
def test_a_pause_is_in_force_as_the_server_answers(
    router: Router,
    active: Subscription,
    error: HAClientError | None,
    *,
    is_accepted: bool,
    is_unanswered: bool,
    is_paused: bool,
) -> None:
    change = Change([active], "pause of s", pauses=True)
    change.sent(1.0)
    assert active.is_paused, "until the answer is known"
    answered(change, router, error=error, is_accepted=is_accepted)
    assert (change.is_unanswered, change.is_accepted) == (is_unanswered, is_accepted)
    assert active.is_paused == is_paused
    assert active.request.is_paused == is_accepted, "it is sent again as the application wants it"


@pytest.mark.row("CC22")
def test_of_two_replacements_the_one_that_was_sent_later_is_in_force(
    router: Router, active: Subscription
) -> None:
    changes = [
        Change(
            [active],
            "replace",
            pauses=None,
            replacement=requested(filter=f"/a = {number}"),
            command_id=str(number),
            order=number,
        )
        for number in (2, 3)
    ]
    for change in changes:
        change.sent(1.0)
    for change in reversed(changes):
        answered(change, router, is_accepted=True)
    assert (active.request.fields["filter"], active.command_id) == ("/a = 3", "3")


@pytest.mark.row("CC22")
def test_a_replacement_of_what_has_ended_changes_nothing(
    router: Router, active: Subscription
) -> None:
    before = active.request
    change = Change([active], "replace", pauses=None, replacement=requested(filter="/a = 1"))
    change.sent(1.0)
    router.remove(active)
    answered(change, router, is_accepted=True)
    assert active.request is before
