"""What commands change, and what is refused before anything is sent; see also tests/scenarios."""

from __future__ import annotations

from math import inf

import pytest

from haclient.changing import Changer, timeout_of
from haclient.client import Client
from haclient.errors import UsageError
from haclient.protocol.commands import Command
from haclient.transport.core import Core
from haclient.transport.settings import TIMEOUT_S, Settings


@pytest.mark.row("CC23")
@pytest.mark.parametrize(
    ("options", "sub_id", "pauses"),
    [
        ("pause", "a", None),  # begins paused
        ("pause", "", None),
        ("pause", "a,b", True),  # no subscription has two ids
        ("pause,replace", "a,b", None),
        ("resume", "a", False),
        ("timestamp", "a", None),
    ],
)
def test_a_command_pauses_what_it_names_unless_it_begins_a_subscription(
    options: str, sub_id: str, *, pauses: bool | None
) -> None:
    changer = Changer(Core(Settings(name="c")))
    command = Command("subscribe", topic="t", options=options, sub_id=sub_id)
    assert changer.pauses(command) is pauses
    assert changer.pauses(Command("sow", topic="t", options=options)) is None
    assert changer.replaces(command) is None, "nothing is active"


@pytest.mark.row("CC22", "CC23")
async def test_what_is_not_active_is_not_changed() -> None:
    async with Client("c") as client:
        with pytest.raises(UsageError, match="no active subscription 's' to replace"):
            await client.replace("s", filter="/a = 1")
        with pytest.raises(
            UsageError, match="takes active bookmark subscriptions, and 's' is none"
        ):
            await client.pause("s")
        with pytest.raises(UsageError, match="resume needs the id of a subscription"):
            await client.resume([])


def test_a_command_without_a_timeout_has_that_of_every_call() -> None:
    assert timeout_of(Command("flush")) == TIMEOUT_S
    assert timeout_of(Command("flush", timeout=0)) == 0
    assert timeout_of(Command("flush", timeout=inf)) == inf
