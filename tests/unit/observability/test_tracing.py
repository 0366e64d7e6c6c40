"""Spans of publishes and of the work on messages."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import trio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer, SpanKind, get_current_span

from haclient import EPOCH, HAClient, Message, Topic
from haclient.observability.tracing import Tracing, context_of
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.broker import running_broker

pytestmark = pytest.mark.row("OB6")


class Spans:
    """A program that is traced, and the spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(provider.get_tracer("haclient"))

    def clear(self) -> None:
        self._exporter.clear()

    @property
    def ended(self) -> dict[str, ReadableSpan]:
        return {each.name: each for each in self._exporter.get_finished_spans()}


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_the_trace_of_a_publish_goes_on_where_its_message_is_processed(
    spans: Spans,
    is_coroutine: bool,  # noqa: FBT001  # a parameter
) -> None:
    done = trio.Event()

    def plainly(message: Message) -> None:
        with spans.tracing.settling(message):
            message.discard()
        done.set()

    async def later(message: Message) -> None:
        await trio.lowlevel.checkpoint()
        plainly(message)

    async with running_broker() as server:
        uri = f"{server.uris[0]}/amps/json"
        async with HAClient("c", servers=[uri], bookmark_store=MemoryBookmarkStore()) as client:
            await client.bookmark_subscribe(
                "orders",
                sub_id="s",
                bookmark=EPOCH,
                handler=spans.tracing.handler(later if is_coroutine else plainly),
            )
            with spans.tracing.sending("orders") as correlation_id:
                await client.publish("orders", b"12345", correlation_id=correlation_id)
            with trio.fail_after(60):
                await done.wait()
    sent, processed = spans.ended["send orders"], spans.ended["process orders"]
    settled = spans.ended["settle orders"]
    assert sent.context is not None
    assert processed.context is not None
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id
    assert processed.context.trace_id == sent.context.trace_id
    assert settled.parent is not None
    assert settled.parent.span_id == processed.context.span_id
    found = dict(processed.attributes or {})
    assert found["messaging.system"] == "amps"
    assert found["messaging.destination.name"] == "orders"
    assert found["messaging.destination.subscription.name"] == "s"
    assert found["messaging.message.body.size"] == 5
    assert str(found["messaging.message.id"]).endswith("|")


def test_an_error_of_a_handler_is_that_of_its_span(spans: Spans) -> None:
    def fail(_: Message) -> None:
        raise LookupError("no such order")

    with pytest.raises(LookupError):
        spans.tracing.handler(fail)(Message(topic="orders"))
    span = spans.ended["process orders"]
    assert not span.status.is_ok
    assert span.events[0].name == "exception"
    assert span.parent is None  # the message has brought no context


async def test_the_span_of_a_function_that_returns_a_coroutine_is_that_of_its_work(
    spans: Spans,
) -> None:
    found: list[bool] = []

    async def work(value: object, _: Message) -> None:
        await trio.lowlevel.checkpoint()
        found.append(get_current_span().get_span_context().is_valid)
        assert not spans.ended
        if value:
            raise LookupError("no such order")

    handler = spans.tracing.handler(Topic("orders", int).handler(work))
    for body, is_ok in ((b"0", True), (b"1", False)):
        result = handler(Message(topic="orders", data=body))
        assert result is not None
        assert not get_current_span().get_span_context().is_valid
        with nullcontext() if is_ok else pytest.raises(LookupError):
            await result
        assert spans.ended["process orders"].status.is_ok == is_ok
        spans.clear()
    assert found == [True, True]


@pytest.mark.parametrize(
    "correlation_id",
    [
        "",
        "mine",
        "W3C/",
        "W3C/====",
        "W3C/AAAA",
        "W3C/\u00e9",
        "W3C/\udcff",  # a byte that is not UTF-8
        "W3C/" + "A" * 35 + "=",  # zeros: no trace
        "W3C/AQ" + "B" * 33 + "=",  # of another version
    ],
)
def test_a_correlation_id_of_the_application_is_no_context(correlation_id: str) -> None:
    assert context_of(Message(correlation_id=correlation_id)) is None


def test_without_a_provider_nothing_goes_along() -> None:
    with Tracing(NoOpTracer()).sending("orders") as correlation_id:
        assert correlation_id == ""
