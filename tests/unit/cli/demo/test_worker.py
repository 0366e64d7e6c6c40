"""What the workers of the demo do by themselves; the demo itself runs them together."""

from __future__ import annotations

from pathlib import Path

import pytest

from haclient.cli.demo.trace import Mark, Step, TraceReader, TraceWriter
from haclient.cli.demo.worker import HELD, HeldMessages, body_of, number_of
from haclient.errors import DisconnectedError
from haclient.events import ConnectionLost
from haclient.protocol.messages import Message

MESSAGES = 2 * HELD + 3


class Store:
    """Looks into the trace whenever a message is discarded."""

    def __init__(self, path: Path) -> None:
        self._reader = TraceReader(path)
        self.trace: list[Step] = []
        self.discarded: list[int] = []

    def read(self) -> list[Step]:
        self.trace += self._reader.read_new()
        return self.trace

    def discard(self, number: int, /) -> None:
        self.discarded.append(number)
        assert self.read()[-1] == (Mark.DISCARDING, number)


def messages(store: Store, count: int = MESSAGES) -> list[Message]:
    found: list[Message] = []
    for number in range(count):
        message = Message(kind="p", topic="orders")
        message.data, message.owner, message.number = body_of(number), store, number
        found.append(message)
    return found


@pytest.mark.parametrize("number", [0, 7, 99_999, 2**30])
def test_a_message_tells_its_number(number: int) -> None:
    assert number_of(body_of(number)) == number


def test_each_discard_stands_between_its_two_marks(tmp_path: Path) -> None:
    store = Store(tmp_path / "trace")
    with TraceWriter.create(tmp_path / "trace", 100) as trace:
        hands = HeldMessages(trace)
        hands.take(messages(store))
        assert len(store.discarded) == 2 * HELD
        hands.discard()
    assert sorted(store.discarded) == list(range(MESSAGES))
    assert store.discarded != sorted(store.discarded)
    for number in range(MESSAGES):
        assert [mark for mark, each in store.read() if each == number] == list(Mark)
    assert [number for mark, number in store.trace if mark is Mark.DELIVERED] == sorted(
        store.discarded
    )


def test_the_first_message_after_a_loss_is_reported_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "trace")
    with TraceWriter.create(tmp_path / "trace", 100) as trace:
        hands = HeldMessages(trace)
        first, second, third = messages(store, 3)
        hands.take([first])
        assert capfd.readouterr().out == ""
        hands.on_event(ConnectionLost("c", 0, "", DisconnectedError("gone")))
        hands.take([second])
        hands.take([third])
    assert capfd.readouterr().out.count("resumed_ns") == 1
