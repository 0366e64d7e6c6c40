"""The texts of the acks' reasons."""

from __future__ import annotations

import pytest

from haclient import compat
from haclient.compat.reason import Reason
from haclient.errors import CommandError
from haclient.protocol.commands import command_error
from haclient_fake_server.engine import acks

pytestmark = pytest.mark.row("B18")
CONSTANTS = {name: text for name, text in vars(Reason).items() if not name.startswith("_")}
# Two are of messages out of focus, and two of what was accepted: no error has them.
NO_ERRORS = {"AuthDisabled", "Deleted", "Duplicate", "Match"}


def test_the_constants_are_what_the_broker_writes() -> None:
    of_broker = {each.name.replace("_", "").lower(): each.value for each in acks.Reason}
    shared = {name for name in CONSTANTS if name.lower() in of_broker}
    assert set(CONSTANTS) - shared == {*NO_ERRORS, "SubscriptionAlreadyExists"}
    assert {name: of_broker[name.lower()] for name in shared} == {
        name: CONSTANTS[name] for name in shared
    }


@pytest.mark.parametrize("name", sorted(set(CONSTANTS) - NO_ERRORS - {"InvalidSubId"}))
def test_an_error_of_its_own_is_raised_for_each(name: str) -> None:
    assert type(command_error("subscribe", CONSTANTS[name])) is not CommandError


def test_the_error_of_a_refusal_carries_its_text(plain: compat.Client) -> None:
    with pytest.raises(compat.InvalidTopicException) as refused:
        plain.sow("orders")
    assert refused.value.reason == compat.Reason.InvalidTopic
