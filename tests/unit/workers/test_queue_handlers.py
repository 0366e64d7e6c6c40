"""What handlers do to their messages, without a server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from typing_extensions import override

from haclient.errors import NotEntitled, UsageError
from haclient.protocol.messages import Message, MessageLease
from haclient.session.connection_state import ConnectionStatus
from haclient.session.dead_letter import DeadLetter
from haclient.session.leases import QueueAcks, QueueLeases
from haclient.session.session import Session
from haclient.transport.ack_sender import AckSender
from haclient.transport.message_queue import Handler, MessageQueue
from haclient.transport.tasks import ClientThread
from haclient.workers.queue_handlers import QueueHandling, serve_queue
from support.clock import in_virtual_time
from support.reporting import unheard

pytestmark = in_virtual_time


class NotedLease(MessageLease):
    """A lease that notes what happens to its messages."""

    def __init__(self, *, is_held: bool = True, ends_at: float | None = None) -> None:
        self.acknowledged: list[tuple[str, str]] = []
        self.extended: list[tuple[str, float, float]] = []
        self._is_held = is_held
        self._ends_at = ends_at

    @override
    def is_deliverable(self, message: Message, /) -> bool:
        return self._is_held

    @override
    def acknowledge(self, message: Message, option: str, /) -> None:
        message.lease = None
        self.acknowledged.append((message.text, option))

    @override
    def extend(self, message: Message, seconds: float, /) -> None:
        self.extended.append((message.text, seconds, trio.current_time()))

    @override
    def deadline(self, message: Message, /) -> float | None:
        return self._ends_at


def leases(backlog: int = 4) -> QueueLeases:
    thread = ClientThread()
    thread.bind()
    acks = QueueAcks(ConnectionStatus())
    sender = AckSender(acks, Session(), thread, clock_us=lambda: 0)
    return sender.leases("work", is_queue=True, asked=backlog)


def messages(lease: MessageLease, *texts: str, lp: str = "") -> list[Message]:
    return [
        Message(topic="work", bookmark=f"7|{n}|", data=text.encode(), lease=lease, lease_period=lp)
        for n, text in enumerate(texts, 1)
    ]


async def handle(
    handler: Handler,
    handling: QueueHandling,
    given: list[Message],
    publish: Callable[[str, bytes, str], None] = lambda *_: None,
) -> None:
    """Handle messages until there are no more."""
    delivery = MessageQueue(raises=False)
    for message in given:
        delivery.put([message], len(message.data))
    delivery.end()

    async def publish_persisted(topic: str, data: bytes, correlation_id: str) -> None:
        await trio.sleep(1)
        publish(topic, data, correlation_id)

    await serve_queue(
        delivery,
        handler,
        handling,
        leases=leases(),
        publish=publish_persisted,
        reporter=unheard(),
    )


def failing(message: Message) -> None:
    raise ValueError(message.text)


@pytest.mark.row("QC10")
@pytest.mark.parametrize("workers", [1, 3])
async def test_a_message_is_acknowledged_when_its_handler_has_returned(workers: int) -> None:
    lease = NotedLease()

    async def handler(message: Message) -> None:
        await trio.sleep(1)
        assert message.lease is lease

    await handle(handler, QueueHandling(workers=workers), messages(lease, "a", "b"))
    assert sorted(lease.acknowledged) == [("a", ""), ("b", "")]


@pytest.mark.row("QC10")
@pytest.mark.parametrize("workers", [1, 3])
async def test_without_auto_ack_nothing_is_acknowledged(workers: int) -> None:
    lease = NotedLease()
    handling = QueueHandling(auto_ack=False, workers=workers)
    await handle(lambda _: None, handling, messages(lease, "a"))
    assert lease.acknowledged == []


@pytest.mark.row("QC11")
@pytest.mark.parametrize("workers", [1, 3])
async def test_an_error_that_is_raised_is_the_handlers_own(workers: int) -> None:
    lease = NotedLease()
    handling = QueueHandling(on_handler_error="raise", workers=workers)
    with pytest.raises(ValueError, match="a"):
        await handle(failing, handling, messages(lease, "a"))
    assert lease.acknowledged == []


async def test_the_place_of_a_failure_is_in_the_log_for_debugging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "haclient")
    message = Message(topic="work", bookmark="7|1|", data=b"secret")
    leases().received([message], trio.current_time())
    await handle(failing, QueueHandling(), [message])
    warning, trace = caplog.records
    text = warning.getMessage()
    assert text.startswith("a handler raised for message 7|1| of the queue work (failure 1): Value")
    assert text.endswith("(at DEBUG: its traceback)")
    assert warning.exc_info is None
    assert trace.levelname == "DEBUG"
    assert "in failing" in caplog.text


@pytest.mark.row("QC11")
@pytest.mark.parametrize("workers", [1, 3])
async def test_an_error_of_a_policy_acknowledges_nothing(workers: int) -> None:
    lease = NotedLease()

    def policy(_: Message, __: Exception) -> None:
        raise ZeroDivisionError

    handling = QueueHandling(on_handler_error=policy, workers=workers)
    with pytest.raises(ZeroDivisionError):
        await handle(failing, handling, messages(lease, "a"))
    assert lease.acknowledged == []


@pytest.mark.row("QC14")
@pytest.mark.parametrize("workers", [1, 3])
async def test_a_message_that_may_not_be_handed_out_is_not_handled(workers: int) -> None:
    lease = NotedLease(is_held=False)
    await handle(
        failing, QueueHandling(on_handler_error="raise", workers=workers), messages(lease, "a")
    )


@pytest.mark.row("QC11")
async def test_a_dead_letter_delays_no_other_message_and_is_finished() -> None:
    lease, letters, order = NotedLease(), [("", b"")], list[str]()

    def handler(message: Message) -> None:
        order.append(message.text)
        if message.text == "bad":
            failing(message)

    def publish(topic: str, data: bytes, _: str) -> None:
        letters.append((topic, data))
        assert ("bad", "") not in lease.acknowledged

    handling = QueueHandling(on_handler_error=DeadLetter("dead"))
    await handle(handler, handling, messages(lease, "bad", "good"), publish)
    assert order == ["bad", "good"]
    assert letters[1:] == [("dead", b"bad")]
    assert lease.acknowledged == [("good", ""), ("bad", "")]


@pytest.mark.row("QC11")
async def test_a_dead_letter_that_fails_acknowledges_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lease = NotedLease()

    def publish(_: str, __: bytes, ___: str) -> None:
        raise NotEntitled("not entitled")

    handling = QueueHandling(on_handler_error=DeadLetter("dead"))
    await handle(failing, handling, messages(lease, "a"), publish)
    assert lease.acknowledged == []
    assert "could not be sent to dead and is given back: not entitled" in caplog.text


@pytest.mark.row("QC12")
async def test_a_message_whose_lease_is_over_is_not_handled() -> None:
    lease = NotedLease(ends_at=trio.current_time())
    handling = QueueHandling(cancel_at_lease_end=True, on_handler_error="raise")
    (message,) = messages(lease, "a")
    await handle(failing, handling, [message])
    assert (lease.acknowledged, message.lease) == ([], None)


@pytest.mark.parametrize(
    "options",
    [
        {"on_handler_error": "retry"},
        {"on_handler_error": None},
        {"workers": 0},
        {"extend_lease": -1},
    ],
)
def test_a_value_that_can_never_work_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        QueueHandling(**options)  # type: ignore[arg-type]  # on purpose
