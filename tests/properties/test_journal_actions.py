"""Subscribers of a log on disk while its files are archived, compressed, removed and damaged.

Two clients publish, others replay the log at their own pace, pause, lose their connections and go
on after the last message that they had. Meanwhile files of the log are archived, compressed and
removed, one is damaged, and the broker is started again or killed within such an action. Each
subscriber has to receive the messages of the log in order, without gap or duplicate, from where it
began up to the end or up to a refusal with a reason.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from haclient.protocol.messages import Message
from haclient_fake_server.engine import replay
from haclient_fake_server.journal.files import JournalFiles
from haclient_stores.errors import StoreCorrupt
from support.engine import Peer, World
from support.lengths import length
from support.recording import Killed, RecordingDisk

pytestmark = pytest.mark.row("TL4", "TL8", "TL9", "TL10", "TL11")

LOG, ARCHIVE = Path("/log"), Path("/archive")
CHUNK_BYTES = 700  # two blocks

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["publish"] * 4,
                *["subscribe"] * 2,
                *["step"] * 3,
                *["pause", "resume", "lose"],
                *["archive", "compress", "copy", "use", "remove", "remove"],
                *["restart", "kill", "damage"],
            ]
        ),
        st.integers(0, 7),
    ),
    min_size=10,
    max_size=50,
)


class Subscriber:
    """One replay, over as many connections as it takes.

    Attributes:
        received: The numbers of the messages that it has received.
        refusal: Why it ended, if it did: a message that was removed before it subscribed again, or
            damage.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._bookmark = "0"
        self._next = 0
        self._is_removed = False
        self.received: list[int] = []
        self.refusal = ""
        self.connect()

    def connect(self) -> None:
        """Subscribe after the last message that was received."""
        self._peer: Peer = self._world.client(self._name)
        self._peer.stalled = True
        first = self._world.journal.first_position  # which is the number of its message
        self._is_removed = bool(self.received) and self.received[-1] < first
        self._next = self.received[-1] + 1 if self.received else first
        options = "bookmark_not_found=fail"
        self._peer.subscribe("s", bm=self._bookmark, opts=options, a="processed")
        self.take()

    def take(self) -> None:
        """Look at what has come."""
        for message in self._peer.take():
            self._take(message)
        if self._peer.closed and self._peer.closed != "restart":
            self.refusal = self.refusal or self._peer.closed

    def _take(self, message: Message) -> None:
        if message.kind == "p":
            assert int(message.data) == self._next, "a removal waits for those who read"
            self._next += 1
            self.received.append(self._next - 1)
            self._bookmark = message.bookmark
        elif message.status == "failure":
            self.refusal = message.reason
            assert self.refusal != "bookmark not found" or self._is_removed

    def act(self, action: str) -> None:
        """Read a chunk, pause, go on, or lose the connection."""
        match action:
            case "step":
                self._step()
            case "lose":
                self.take()
                self._peer.close()
                self.connect()
            case _:
                self._ask(action)

    def _step(self) -> None:
        if not self._peer.closed and self._world.engine.has_backlog(self._peer.number):
            self._world.apply(self._world.engine.pump(self._peer.number, self._world.now))
        self.take()

    def _ask(self, options: str) -> None:
        if not self._peer.closed:
            self._peer.send(c="subscribe", cid="p", sub_id="s", opts=options)
        self.take()

    def finish(self) -> None:
        """Read up to the end of the log."""
        self._ask("resume")
        if not self._peer.closed:
            self._peer.stalled = False
            self._world.replay_backlog(self._peer)
        self.take()


class Broker:
    """A broker on a disk in memory, its clients, and what they should see."""

    def __init__(self) -> None:
        self.disk = RecordingDisk()
        self.journal = self._open()
        self.world = World(journal=self.journal)
        self.subscribers: list[Subscriber] = []
        self.published = 0
        self.is_damaged = False
        self._copies: list[tuple[int, Path]] = []
        self._connect_publishers()

    def _open(self) -> JournalFiles:
        return JournalFiles(
            LOG,
            self.disk,
            segment_bytes=2048,
            instance_id=1,
            archive=ARCHIVE,
            preallocated_files=2,
        )

    def _connect_publishers(self) -> None:
        self._publishers = [self.world.client("one"), self.world.client("two")]

    def act(self, action: str, number: int) -> None:
        """Carry out one of the actions; raises `StoreCorrupt` when a damaged log is refused."""
        self.world.advance(0.1)
        match action:
            case "publish":
                self._publish(number)
            case "subscribe" if len(self.subscribers) < 4:
                self.subscribers.append(Subscriber(self.world, f"s{len(self.subscribers)}"))
            case "step" | "pause" | "resume" | "lose":
                self._let_act(action, number)
            case "archive" | "compress" | "copy":
                self._copy(number, compress=action != "archive", now=action != "copy")
            case "use":
                self._use_copies()
            case "remove":
                self._remove()
            case "restart" | "kill":
                self._end(action, number)
                self._restart()
            case "damage":
                self._damage(number)
            case _:
                pass

    def _let_act(self, action: str, which: int) -> None:
        for each in self.subscribers[which % 4 : which % 4 + 1]:
            if not each.refusal:
                each.act(action)

    def _publish(self, count: int) -> None:
        for _ in range(count):
            self.published += 1
            publisher = self._publishers[self.published % 2]
            publisher.publish(self.published, b"%0200d" % self.published)
        while self.journal.has_unsealed:
            self.journal.seal()

    def _sealed(self) -> list[int]:
        return [n for n, each in self.journal.segments.items() if each.manifest.sealed]

    def _copy(self, which: int, *, compress: bool, now: bool) -> None:
        """What one thread does, and the event loop some time later."""
        journal = self.journal
        done = journal.is_compressed if compress else journal.is_archived
        left = [each for each in self._sealed() if not done(each)]
        if self._copies or not left:
            return
        number = left[which % len(left)]
        self._copies.append((number, journal.copy_sealed(number, compress=compress)))
        if now:
            self._use_copies()

    def _use_copies(self) -> None:
        while self._copies:
            number, path = self._copies.pop()
            self.journal.use_copy(number, path)
            self.journal.finish_copy(number)

    def _remove(self) -> None:
        self._use_copies()  # one action after the other
        if not self._sealed():
            return
        end = next(iter(self.journal.segments.values())).manifest.next_position
        holder = self.world.engine.log_holder(end, self.world.queue_points, self.world.now)
        event("held" if holder else "removed")
        if not holder:
            self.journal.remove_files(self.journal.forget_oldest())

    def _restart(self) -> None:
        for each in self.subscribers:
            each.take()
        self.disk.restart()
        self._copies.clear()
        self.journal = self.world.journal = self._open()
        self.world.restart()
        self._connect_publishers()
        for each in self.subscribers:
            if not each.refusal:
                each.connect()

    def _end(self, how: str, after: int) -> None:
        """Stop, or be killed within an action."""
        if how == "restart":
            self.journal.close()
            return
        self.disk.kill_after(after)
        with contextlib.suppress(Killed):
            self._copy(after, compress=bool(after % 2), now=True)
            self._remove()

    def _damage(self, which: int) -> None:
        sealed = self._sealed()
        if self.is_damaged or not sealed:
            return
        number = sealed[which % len(sealed)]
        file = self.disk.open(self.journal.file_of(number))
        at = 100 + (which * 97) % (file.size() - 100)
        if not self.journal.is_compressed(number):
            at = min(at, self.journal.segments[number].end - 1)
        (byte,) = file.pread(1, at)
        file.pwrite(bytes([byte ^ 0x40]), at)
        self.is_damaged = True

    def check(self, *, is_over: bool) -> None:
        """Check what everybody has received."""
        for each in self.subscribers:
            if is_over:
                each.finish()
            got = each.received
            if is_over and not each.refusal:
                assert got or not self.published or self.journal.first_position > self.published
                assert not got or got[-1] == self.published
            assert self.is_damaged or each.refusal in {"", "bookmark not found"}


@settings(max_examples=length(300))
@given(ACTIONS)
def test_each_subscriber_gets_the_order_of_the_log_or_a_reason(
    actions: list[tuple[str, int]],
) -> None:
    broker = Broker()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "CHUNK_BYTES", CHUNK_BYTES)
        try:
            for action, number in actions:
                broker.act(action, number)
                broker.check(is_over=False)
        except StoreCorrupt as error:
            assert broker.is_damaged, error
            event("the log was refused")
            return
        broker.check(is_over=True)
