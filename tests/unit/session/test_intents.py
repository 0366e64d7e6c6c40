"""What a command of the application asks its client for."""

from __future__ import annotations

import pytest

from haclient.protocol.commands import Command, CommandName
from haclient.session.intents import Intent, intent_of, replaced_by, why_not_streamed
from haclient.session.kept_subscriptions import KeptSubscriptions
from haclient.session.subscriptions import Router, Subscription
from haclient.subscription_manager import MemorySubscriptionManager
from support.requests import request_of
from support.sinks import NoQueue


def kept(*active: str) -> KeptSubscriptions:
    found = KeptSubscriptions(MemorySubscriptionManager(), Router())
    for each in active:
        found.keep(Subscription(request_of(each), NoQueue()))
    return found


@pytest.mark.row("CC18")
@pytest.mark.parametrize("name", list(CommandName))
def test_each_command_has_one_meaning(name: CommandName) -> None:
    known = {
        "publish": Intent.PUBLISH,
        "delta_publish": Intent.PUBLISH,
        "sow_delete": Intent.DELETE,
        "unsubscribe": Intent.UNSUBSCRIBE,
    }
    intent = intent_of(Command(name, topic="t"), kept())
    assert intent is known.get(name, Intent.SEND)
    assert (why_not_streamed(Command(name), intent) is None) is (
        intent in {Intent.SEND, Intent.UNSUBSCRIBE}
    )


def test_a_sow_delete_with_bookmarks_acknowledges_messages() -> None:
    command = Command("sow_delete", topic="work", bookmark="7|1|")
    assert intent_of(command, kept()) is Intent.ACKNOWLEDGE
    assert why_not_streamed(command, Intent.ACKNOWLEDGE) is None


@pytest.mark.row("CC23")
@pytest.mark.parametrize(
    ("options", "sub_ids", "of_unknown", "of_active"),
    [
        ("pause", "a", Intent.SEND, Intent.PAUSE),  # with an unknown id it begins paused
        ("pause", "", Intent.SEND, Intent.SEND),
        ("pause", "a, b", Intent.PAUSE, Intent.PAUSE),  # no subscription has two ids
        ("pause,replace", "a,b", Intent.SEND, Intent.SEND),
        ("resume", "a", Intent.RESUME, Intent.RESUME),
        ("timestamp", "a", Intent.SEND, Intent.SEND),
    ],
)
def test_a_command_pauses_what_it_names_unless_it_begins_a_subscription(
    options: str, sub_ids: str, of_unknown: Intent, of_active: Intent
) -> None:
    command = Command("subscribe", topic="t", options=options, sub_id=sub_ids)
    assert intent_of(command, kept()) is of_unknown
    assert intent_of(command, kept("a", "b")) is of_active
    for intent in {Intent.PAUSE, Intent.RESUME} & {of_active}:
        assert "is active and has its stream" in (why_not_streamed(command, intent) or "")


def test_only_a_lasting_command_that_says_so_replaces_an_active_subscription() -> None:
    found = kept("a")
    replacing = Command("subscribe", topic="t", options="replace", sub_id="a")
    assert replaced_by(replacing, found) is found.find("a")
    for other in (
        Command("subscribe", topic="t", options="replace", sub_id="b"),
        Command("subscribe", topic="t", sub_id="a"),
        Command("sow", topic="t", options="replace", sub_id="a"),
    ):
        assert replaced_by(other, found) is None
