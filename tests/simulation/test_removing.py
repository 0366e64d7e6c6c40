"""Removals of old files of a log: what has to be done with, and that seeds have them."""

from __future__ import annotations

from random import Random

import pytest

from simulation import stories
from simulation.checkers import Wants
from simulation.history import Delivered, Discarded, Fact, MessageId
from simulation.planting import Story
from simulation.removing import undone
from simulation.simulator import simulate

pytestmark = pytest.mark.simulation

ONE = MessageId("p", 1)
DONE, GOT = Discarded("s", ONE), Delivered("s", 1, ONE, "7|1|")


@pytest.mark.parametrize(
    ("facts", "is_undone"),
    [([], True), ([GOT], True), ([GOT, DONE], False), ([GOT, DONE, GOT], True)],
)
def test_a_message_is_kept_until_its_subscriptions_are_done(
    facts: list[Fact], *, is_undone: bool
) -> None:
    wants: Wants = {"s": lambda _, topic: topic == "orders"}
    assert undone(facts, wants, {ONE: "orders"}) == is_undone
    assert not undone(facts, wants, {ONE: "state"})


@pytest.mark.parametrize(
    "story", [stories.removed_before_replication, stories.removed_beside_readers]
)
def test_messages_are_removed_and_nobody_lacks_them(story: Story) -> None:
    outcome = simulate(story(1, Random("removing")))
    assert not outcome.failures
    assert outcome.counts.removed > 100
