"""Whatever is lost on the way, replicas end up with the same messages, and no ack was a lie.

Publishers behave as clients with a store do: they keep what was not acknowledged, follow the logon
ack's two numbers, and change over to another instance at any moment. Wires move frame by frame, are
lost with what is in flight, or are cut; instances are killed and started again. Three laws:

* an acknowledged message is, at that moment, on the instance that says so and on all of its
  synchronous destinations, and every instance that says it to a publisher at logon agrees;
* each instance has each publisher's messages in their order, and none twice;
* once all is healed every instance has the same messages, under the same bookmarks.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haclient.protocol.codec import encode_frame
from haclient_fake_server.engine.settings import SowTopic
from support.engine import Peer
from support.lengths import length
from support.replicas import Group

PAIR = {"a": ("b",), "b": ("a",)}
RING = {"a": ("b",), "b": ("c",), "c": ("a",)}
MESH = {"a": ("b", "c"), "b": ("a", "c"), "c": ("a", "b")}
MIXED = {"a": ("b", "~c"), "b": ("a", "~c"), "c": ("~a", "~b")}
CHAIN = {"a": ("b",), "b": ("c",), "c": ()}


DELETES = 7
"""Every so many-th message is a delete by filter. Said again to another instance it removes what
matches there, which may be something else, or nothing: such records are not compared."""


class Publisher:
    """A client with a store."""

    def __init__(self, group: Group, name: str) -> None:
        self.group = group
        self.name = name
        self.peer: Peer | None = None
        self.where = ""
        self.last = 0
        self.acked = 0
        self.acked_by: dict[str, int] = defaultdict(int)
        self.stored: dict[int, bytes] = {}

    def connect(self, where: str) -> None:
        """Log on; an instance that lacks what was acknowledged is refused."""
        self.leave()
        peer = self.group[where].connect()
        peer.send(c="logon", cid="0", client_name=self.name, a="processed")
        (answer,) = peer.take()
        position, seen = answer.position, answer.sequence or 0
        assert position is not None
        assert position.sequence >= self.acked_by[where], "an instance never takes back its word"
        assert position.sequence <= seen
        if seen < self.acked:
            peer.close()
            return
        self.peer, self.where = peer, where
        self.learn(position.sequence)
        self.last = max(self.last, seen)
        for sequence, body in self.stored.items():
            self.send(sequence, body)

    def leave(self) -> None:
        """Let go of the connection."""
        if self.peer is not None:
            self.hear()
            self.peer.close()
            self.peer = None

    def publish(self) -> None:
        """Store, then send."""
        self.last += 1
        self.stored[self.last] = b'{"id":%d}' % (self.last % 3)
        if self.peer is not None:
            self.send(self.last, self.stored[self.last])

    def send(self, sequence: int, body: bytes) -> None:
        assert self.peer is not None
        command = "sow_delete" if sequence % DELETES == 0 else "p"
        topic = ".*" if command == "sow_delete" else f"t{sequence % 2}"
        fields: dict[str, str | int] = {"t": topic, "s": sequence, "a": "persisted"}
        more: dict[str, str | int] = {"filter": "/id = 1"} if command == "sow_delete" else {}
        self.peer.send_all(
            [encode_frame({"c": command, **fields, **more}, body if not more else b"")]
        )

    def hear(self) -> None:
        """Take in acks; a restart of the instance is noticed, too."""
        if self.peer is None:
            return
        for ack in self.peer.acks():
            assert ack.status == "success"
            self.learn(ack.sequence or 0)
        if self.peer.closed:
            self.peer = None

    def learn(self, persisted: int) -> None:
        """Everything up to a sequence is safe, says the present instance: look for yourself."""
        self.acked_by[self.where] = max(self.acked_by[self.where], persisted)
        gone = [sequence for sequence in self.stored if sequence <= persisted]
        for sequence in gone:
            del self.stored[sequence]
        self.acked = max(self.acked, persisted)
        holders = [self.where] + [
            to
            for sender, to in self.group.links
            if sender == self.where and self.group.status(sender, to).mode == "sync"
        ]
        for holder in holders:
            numbers = self.group.sequences(holder, self.name)
            assert {each for each in gone if each % DELETES} <= numbers, (holder, gone, numbers)


ACTIONS = (
    "publish",
    "publish",
    "publish",
    "move",
    "move",
    "move",
    "move",
    "connect",
    "connect",
    "restart",
    "restart",
    "lose",
    "lose",
    "cut",
    "anonymous",
    "dial",
    "heal",
)
actions = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 11), st.integers(1, 3))


class Run:
    """One history."""

    def __init__(self, links: dict[str, tuple[str, ...]], *, homes: str) -> None:
        self.homes = homes
        self.group = Group(links, sow_topics=(SowTopic("t0", ("/id",)), SowTopic("t1", ("/id",))))
        self.publishers = [Publisher(self.group, name) for name in ("p", "q")]
        for publisher in self.publishers:
            publisher.connect(homes[0])
        self.group.settle()

    def step(self, action: str, first: int, second: int) -> None:
        """One thing happens."""
        home = self.homes[first % len(self.homes)]
        match action:
            case "publish":
                for _ in range(second):
                    self.publishers[first % 2].publish()
            case "connect":
                self.publishers[second % 2].connect(home)
            case "anonymous":
                self.group[home].client("anonymous").publish(None)
            case _:
                self._interfere(action, first, home)
        self.group.tick()
        for publisher in self.publishers:
            publisher.hear()

    def _interfere(self, action: str, first: int, home: str) -> None:
        group = self.group
        link = group.links[first % len(group.links)]
        match action:
            case "move":
                group.move(first)
            case "lose":
                group.lose(*link)
            case "cut":
                group.cut(*link)
            case "restart":
                group.restart(home)
            case "dial":
                group.dial()
            case _:
                group.heal()

    def finish(self) -> None:
        """All is healed, and publishers have said all that they had to say."""
        self.group.heal()
        for publisher in self.publishers:
            publisher.hear()
            for home in self.homes:
                if publisher.peer is None:
                    publisher.connect(home)
        self.group.heal()
        for publisher in self.publishers:
            publisher.hear()
            assert not publisher.stored, "nothing waits for ever"
        self.check()

    def check(self) -> None:
        logs = {name: self.group.messages(name) for name in self.group.worlds}
        sets = [sorted(each for each in log if each[1] % DELETES) for log in logs.values()]
        assert all(each == sets[0] for each in sets)
        for name, log in logs.items():
            by_publisher: dict[int, list[int]] = defaultdict(list)
            for publisher_id, sequence, _ in log:
                by_publisher[publisher_id].append(sequence)
            for numbers in by_publisher.values():
                assert numbers == sorted(numbers), name
                plain = [each for each in numbers if each % DELETES]
                assert len(plain) == len(set(plain)), name


@pytest.mark.row("RE1", "RE2", "RE3", "RE4", "RE6", "RE11", "AK6")
@pytest.mark.parametrize("links", [PAIR, RING, MESH], ids=["pair", "ring", "mesh"])
@settings(max_examples=length(150))
@given(steps=st.lists(actions, max_size=25))
def test_replicas_agree_and_acks_are_true(
    links: dict[str, tuple[str, ...]], steps: list[tuple[str, int, int]]
) -> None:
    run = Run(links, homes="".join(links))
    for step in steps:
        run.step(*step)
    run.finish()


@pytest.mark.row("RE1", "RE4", "RE6")
@pytest.mark.parametrize("links", [CHAIN, MIXED], ids=["chain", "mixed"])
@settings(max_examples=length(150))
@given(steps=st.lists(actions, max_size=25))
def test_a_chain_passes_on_and_asynchronous_destinations_catch_up(
    links: dict[str, tuple[str, ...]], steps: list[tuple[str, int, int]]
) -> None:
    run = Run(links, homes="a" if links is CHAIN else "ab")
    for step in steps:
        run.step(*step)
    run.finish()
