"""Removal of the oldest part of the log beside those who are reading it, step by step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from haclient.protocol.identity import publisher_id
from haclient_fake_server.engine import replay
from haclient_fake_server.engine.settings import SowTopic
from haclient_fake_server.engine.sow import history
from haclient_fake_server.journal.files import JournalFiles
from support.engine import Peer, World
from support.recording import RecordingDisk

pytestmark = pytest.mark.row("TL11")

COUNT = 40


def number_of(body: bytes) -> int:
    """The number of a message, from its body."""
    return int(json.loads(body)["text"])


class Log:
    """Forty messages of two keys, in many segments."""

    def __init__(self) -> None:
        self.journal = JournalFiles(
            Path("/log"), RecordingDisk(), segment_bytes=2048, instance_id=1
        )
        self.world = World(
            journal=self.journal, sow_topics=(SowTopic("orders", ("/id",), history=True),)
        )
        publisher = self.world.client()
        for number in range(1, COUNT + 1):
            publisher.publish(number, b'{"id":%d,"text":"%0100d"}' % (number % 2, number))
        while self.journal.has_unsealed:
            self.journal.seal()
        self.peer: Peer = self.world.client("reader")
        self.peer.stalled = True

    def step(self) -> bool:
        """Read a part of the log; whether there is more."""
        self.world.apply(self.world.engine.pump(self.peer.number, self.world.now))
        return self.world.engine.has_backlog(self.peer.number)

    def remove(self) -> str:
        """Remove all that nobody needs; who needs the next segment, or empty at the last one."""
        while True:
            manifest = next(iter(self.journal.segments.values())).manifest
            if not manifest.sealed:
                return ""
            holder = self.world.engine.log_holder(manifest.next_position, (), self.world.now)
            if holder:
                return holder
            self.journal.remove_files(self.journal.forget_oldest())


def test_a_running_replay_holds_what_it_has_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "CHUNK_BYTES", 700)
    log = Log()
    log.peer.subscribe(bm="0")
    received, begins, has_more = list[int](), list[int](), True
    while has_more:
        holder = log.remove()
        assert holder == "" or "replay '1' of client 'reader' needs position" in holder
        begins.append(log.journal.first_position)
        has_more = log.step()
        received += [number_of(each.data) for each in log.peer.take() if each.kind == "p"]
    assert received == list(range(1, COUNT + 1))
    assert begins[0] == 1
    assert len(set(begins)) > 3, "it holds no more than it needs"
    assert log.remove() == ""


@pytest.mark.parametrize("command", ["sow", "sow_and_subscribe"])
def test_a_query_of_the_past_holds_the_whole_log(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(history, "STEP_BYTES", 1)
    log = Log()
    bookmark = f"{publisher_id('pubber')}|{COUNT // 2}|"
    log.peer.send(c=command, cid="1", sub_id="1", t="orders", bm=bookmark, bs=10)
    for _ in range(COUNT // 4):  # so far it only looks for the records
        assert log.remove() == "a query of client 'reader' is being answered"
        assert log.step()
    while log.step():
        pass
    records = [number_of(each.data) for each in log.peer.take() if each.kind == "sow"]
    assert sorted(records) == [COUNT // 2 - 1, COUNT // 2]
    assert log.remove() == ""
