"""The engine's queues do what the model of a queue says, whatever is interleaved.

Whatever consumers, acknowledgements, time and restarts do: each message of a queue is delivered to
the consumer that the model says and in its order, leaves the queue once, and is there until then.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from haclient_fake_server.engine.queues import message_table
from haclient_fake_server.engine.queues import queue as queue_module
from haclient_fake_server.engine.settings import QueueTopic
from support.lengths import length
from support.queue_model import FILTERS
from support.queue_pair import Job, QueuePair

SHORT = length(100)
STEPS = 50
QUIET = 6
"""So many rules run between two restarts, at least, that have something to restart with."""

filters = st.sampled_from(["", "", "", *FILTERS])
workers = st.integers(0, 2)
which = st.integers(0, 99)


@st.composite
def queue_rules(draw: st.DrawFn, name: str) -> QueueTopic:
    at_most_once = draw(st.sampled_from([False, False, False, True]))
    order = draw(st.sampled_from(["", "", "priority", "barrier"]))
    return QueueTopic(
        name=name,
        topics=() if name == "orders" else (draw(st.sampled_from(["orders", "^ord"])),),
        semantics="at-most-once" if at_most_once else "at-least-once",
        lease_s=draw(st.sampled_from([None, 1.0, 2.5, 5.0])),
        max_backlog=draw(st.sampled_from([None, None, None, 1, 3])),
        max_per_subscription_backlog=draw(st.integers(1, 5)),
        delivery=""
        if at_most_once
        else draw(st.sampled_from(["", "fast", "round-robin", "proportional"])),
        leasing=draw(st.sampled_from(["sublet", "strict"])),
        max_deliveries=draw(st.sampled_from([0, 0, 1, 2, 3])),
        max_cancels=draw(st.sampled_from([0, 0, 1, 2])),
        max_cancels_rule=draw(st.sampled_from(["above", "at"])),
        expiration_s=draw(st.sampled_from([None, None, 1.5, 4.0, 9.0])),
        expiration_model=draw(st.sampled_from(["default", "queue", "latest", "earliest"])),
        priority="/p" if order == "priority" else "",
        barrier="/barrier = 1" if order == "barrier" else "",
        dead_letter=draw(st.sampled_from(["", f"dead.{name}"])),
        file_backed=draw(st.booleans()),
    )


class Queues(RuleBasedStateMachine):
    """Up to three queues over one topic, and up to three consumers."""

    steps = 0

    @initialize(
        rules=st.one_of(
            st.tuples(queue_rules("q1")),
            st.tuples(queue_rules("q1"), queue_rules("q2")),
            st.tuples(queue_rules("q1"), queue_rules("q2"), queue_rules("orders")),
        ),
        backlogs=st.lists(st.integers(1, 4), max_size=3),
    )
    def begin(self, rules: tuple[QueueTopic, ...], backlogs: list[int]) -> None:
        self.pair = QueuePair(*rules)
        self.names = [queue.name for queue in rules]
        self.quiet_steps = 0
        for number, backlog in enumerate(backlogs):
            self.pair.connect(number)
            for queue in self.names:
                self.pair.subscribe(number, queue, backlog=backlog)

    @rule(number=workers, at=which, backlog=st.sampled_from([None, 1, 2, 3, 8]), content=filters)
    def subscribe(self, number: int, at: int, backlog: int | None, content: str) -> None:
        self.pair.connect(number)
        self.pair.subscribe(
            number, self.queue(at), backlog=backlog, content=content, sub="ab"[at % 5 == 0]
        )

    @precondition(lambda self: self.pair.subscribed)
    @rule(at=which)
    def unsubscribe(self, at: int) -> None:
        found = self.pair.subscribed
        self.pair.unsubscribe(*found[at % len(found)])

    @precondition(lambda self: self.pair.consumers)
    @rule(at=which)
    def disconnect(self, at: int) -> None:
        self.pair.disconnect(self.worker(at))

    @rule(
        n=st.integers(0, 2),
        p=st.integers(-1, 3),
        barrier=st.sampled_from([False, False, False, True]),
        expiration_s=st.sampled_from([None, None, 0, 2, 6]),
    )
    def publish(self, *, n: int, p: int, barrier: bool, expiration_s: int | None) -> None:
        self.pair.publish(Job(n, p, barrier, expiration_s))

    @rule(values=st.lists(st.integers(0, 3), min_size=2, max_size=6))
    def publish_some(self, values: list[int]) -> None:
        self.pair.publish(*(Job(value % 3, value) for value in values))

    @precondition(lambda self: self.pair.consumers)
    @rule(
        at=which,
        picks=st.lists(which, min_size=1, max_size=4),
        option=st.sampled_from(["", "cancel", "cancel", "cancel", "expire"]),
        own=st.booleans(),
    )
    def acknowledge(self, at: int, picks: list[int], option: str, *, own: bool) -> None:
        queue = self.queue(at)
        held = self.pair.models[queue].outstanding
        known = held if own and held else list(self.pair.bodies)
        if known:
            chosen = [known[pick % len(known)] for pick in picks]
            number = self.worker(at, queue, chosen[0] if own else "")
            self.pair.acknowledge(number, queue, *chosen, option=option)

    @precondition(lambda self: self.pair.consumers)
    @rule(at=which, content=filters, option=st.sampled_from(["", "cancel", "expire"]))
    def acknowledge_matching(self, at: int, content: str, option: str) -> None:
        self.pair.acknowledge(self.worker(at), self.queue(at), content=content, option=option)

    @precondition(lambda self: self.pair.consumers)
    @rule(at=which, pick=which, seconds=st.sampled_from([1, 3, 6, 30]))
    def extend(self, at: int, pick: int, seconds: int) -> None:
        queue = self.queue(at)
        outstanding = self.pair.models[queue].outstanding
        if outstanding:
            bookmark = outstanding[pick % len(outstanding)]
            number = self.worker(at, queue, bookmark if pick % 4 else "")
            self.pair.acknowledge(number, queue, bookmark, extension_s=seconds)

    @rule(quarters=st.sampled_from([1, 2, 4, 5, 10, 20, 40, 160]))
    def wait(self, quarters: int) -> None:
        self.pair.advance(quarters / 4)

    @precondition(lambda self: self.quiet_steps > QUIET)
    @rule(
        at=which,
        kind=st.sampled_from(["old files", "as it was", "old files", "publish", "acknowledge"]),
    )
    def restart(self, at: int, kind: str) -> None:
        """The broker stops, or is killed at a command; its files may be old, or missing."""
        self.quiet_steps = 0
        queue = self.queue(at)
        known = self.pair.models[queue].outstanding or list(self.pair.bodies)
        if kind == "publish":
            self.pair.publish(Job(), die=True)
        elif kind == "acknowledge" and known and self.pair.consumers:
            self.pair.acknowledge(self.worker(at), queue, known[at % len(known)], die=True)
        elif kind == "old files":
            points, snapshots = self.pair.points, self.pair.snapshots
            self.pair.restart(points[at % len(points)], snapshots[-1 - at % len(snapshots)])
        else:
            self.pair.restart()

    @invariant()
    def count(self) -> None:
        self.quiet_steps += 1
        type(self).steps += 1

    @rule()
    def check(self) -> None:
        self.pair.check()

    @override
    def teardown(self) -> None:
        """After restarts with files and without, one consumer gets all that is left."""
        if not hasattr(self, "pair") or not self.pair.agrees:
            return
        self.pair.check()
        for snapshots in (
            self.pair.snapshots[-1],
            self.pair.snapshots[len(self.pair.points) % 2],
            (),
        ):
            self.pair.restart((), snapshots)
            self.pair.check()
        self.pair.connect(0)
        for queue in self.names:
            self.pair.subscribe(0, queue, backlog=8)
            for _ in range(200):
                outstanding = self.pair.models[queue].outstanding
                self.pair.acknowledge(0, queue, *outstanding)
                if not outstanding:
                    break
        self.pair.check()

    def queue(self, at: int) -> str:
        return self.names[at % len(self.names)]

    def worker(self, at: int, queue: str = "", bookmark: str = "") -> int:
        """The consumer that has a message of a queue; else any."""
        numbers = sorted(self.pair.consumers)
        holder = self.pair.models[queue].holder_of(bookmark) if bookmark else None
        return numbers[at % len(numbers)] if holder is None else holder


@pytest.mark.timeout(36_000)
@pytest.mark.row("QB30")
def test_queues_agree_with_their_models(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_table, "PAGED_ROWS", 3)  # most of what a file-backed queue holds
    monkeypatch.setattr(message_table, "RESIDENT_CHUNKS", 2)
    # What one step may not expire any more may be delivered before the next one; not here.
    monkeypatch.setattr(queue_module, "MAX_REREADS", 1_000_000)
    steps: int = request.config.getoption("--store-steps")
    Queues.steps = 0
    run_state_machine_as_test(
        Queues,
        settings=settings(
            max_examples=max(SHORT, steps // (STEPS // 2)),
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Queues.steps >= max(steps, SHORT * STEPS // 2)
