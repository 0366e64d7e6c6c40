"""Crashes of a broker whose consumers set guards: one that was confirmed is there, and is right.

Whatever stops the broker, the next one has the guards as they were after the command that was
answered last, or after the one that was going on. Where nothing is synced but `guards.json`, a
loss of power may take the end of the log: then a guard behind it never holds for the messages that
get the same positions afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from haclient.protocol.codec import encode_frame
from haclient_fake_server.config import BrokerConfig, FsyncPolicy
from haclient_fake_server.hub import BrokerFiles, Hub
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.guard_file import GuardFile
from haclient_stores.disk.files import Disk
from support.engine import START_US, decode
from support.recording import Crash, Event, RecordingDisk, kills, power_cuts
from support.silent_session import SilentSession

pytestmark = [pytest.mark.row("TL11", "B17"), pytest.mark.usefixtures("quiet")]

Crashes = Callable[..., Iterator[Crash]]
DIRECTORY: Final = Path("/log")


class Broker:
    """One process, with one client."""

    def __init__(self, disk: Disk, *, start_id: int, is_synced: bool) -> None:
        self.files = JournalFiles(
            DIRECTORY, disk, segment_bytes=4096, instance_id=1, start_id=start_id
        )
        self._guard_file = GuardFile(DIRECTORY, disk)
        self.found = self.guards
        self._hub = Hub(
            BrokerConfig(fsync=FsyncPolicy.BATCH if is_synced else FsyncPolicy.NONE),
            self.files,
            now_us=START_US,
            files=BrokerFiles(guards=self._guard_file),
        )
        self._client = SilentSession(self._hub.next_number())
        self._hub.accepted(self._client, peer="test")
        self._send(c="logon", client_name="query")

    def _send(self, body: bytes = b"", /, **fields: str | int) -> None:
        self._hub.received(self._client, decode(encode_frame(fields, body)))

    def publish(self, count: int) -> int:
        """Publish some messages; the last position."""
        for _ in range(count):
            self._send(b"x" * 500, c="p", t="orders")
        return self.files.next_position - 1

    def guard(self, name: str, after: int) -> None:
        self._send(b'{"name":"%b","after":%d}' % (name.encode(), after), **QUERY)

    def drop(self, name: str) -> None:
        self._send(b'{"name":"%b","drop":true}' % name.encode(), **QUERY)

    @property
    def guards(self) -> dict[str, int]:
        return {each.name: each.after for each in self._guard_file.guards}


QUERY: Final = {"c": "sow", "cid": "1", "t": "/HACLIENT/guards"}


def drive(events: list[Event], *, is_synced: bool) -> list[dict[str, int]]:
    """Use a broker, and note after each command which guards there are."""
    disk = RecordingDisk(events)
    broker = Broker(disk, start_id=1, is_synced=is_synced)
    held: list[dict[str, int]] = [{}]

    def note() -> None:
        held.append(broker.guards)
        disk.note(len(held) - 1)

    for name, is_last in itertools.product(("a", "b", "a", "c", "b"), (False, True)):
        last = broker.publish(2)
        broker.guard(name, last if is_last else last - 1)
        note()
    broker.drop("a")
    note()
    return held


@pytest.mark.parametrize(
    ("crash", "is_synced"), [(kills, False), (kills, True), (power_cuts, True)]
)
async def test_a_guard_that_was_confirmed_is_there_after_any_crash(
    crash: Crashes, every: int, *, is_synced: bool
) -> None:
    events: list[Event] = []
    held = drive(events, is_synced=is_synced)
    seen: set[int] = set()
    for each in itertools.islice(crash(events), 0, None, every):
        at = each.notes[-1] if each.notes else 0
        assert isinstance(at, int)
        broker = Broker(each.disk(), start_id=2, is_synced=True)
        assert broker.guards in held[at : at + 2], each.at
        assert broker.guards == broker.found
        seen.add(at)
        broker.files.close()
    assert len(seen) >= len(held) - 1


def check_lost_ends(every: int) -> None:
    """After each loss of power messages are published, and the process after that is killed."""
    events: list[Event] = []
    drive(events, is_synced=False)
    behind = 0
    for each in itertools.islice(power_cuts(events), 0, None, every):
        later: list[Event] = []
        broker = Broker(each.disk(later), start_id=2, is_synced=False)
        found, end = broker.found, broker.files.next_position - 1
        behind += any(after > end for after in found.values())
        wanted = {name: min(after, end) for name, after in found.items()}
        broker.publish(40)
        for second in [*kills(later, base=each.image, boot=each.boot)][:: 20 * every]:
            again = Broker(second.disk(), start_id=3, is_synced=False)
            assert again.guards == wanted, each.at
            again.files.close()
        broker.files.close()
    assert behind, "a loss of power has taken the end of the log, but no guard"


async def test_a_guard_never_holds_for_messages_with_the_positions_of_lost_ones(every: int) -> None:
    check_lost_ends(8 * every)


async def test_a_guard_that_is_not_moved_back_in_its_file_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write_first(_: Hub) -> None:
        pass

    monkeypatch.setattr(Hub, "_write_first", write_first)
    with pytest.raises(AssertionError):
        check_lost_ends(1)
