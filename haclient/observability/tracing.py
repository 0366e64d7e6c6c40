"""OpenTelemetry spans for publishing and for processing messages; needs the extra `otel`.

The trace context of a publish travels with its message, in the correlation id: `W3C/` and the bytes
of a `traceparent` (version, trace id, span id, flags) in Base64, since a correlation id accepts
nothing else. A program that processes the message continues that trace. A client whose program does
not use this module is not affected.
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final

from haclient.protocol.messages import Message

try:
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        TraceFlags,
        Tracer,
        get_tracer,
        set_span_in_context,
        use_span,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "haclient.observability.tracing needs opentelemetry-api: pip install 'haclient[otel]'",
        name=error.name,
    ) from error

__all__ = ["Tracing", "context_of"]

_PREFIX: Final = "W3C/"
_VERSION: Final = b"\0"
_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8
_BYTES: Final = 1 + _TRACE_BYTES + _SPAN_BYTES + 1


class Tracing:
    """Creates the spans of one program.

    Args:
        tracer: Creates the spans; by default the tracer `haclient` of the global provider.
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer or get_tracer("haclient")

    @contextmanager
    def sending(self, topic: str) -> Generator[str]:
        """Open a span around the publish of one message.

        Args:
            topic: The topic of the publish.

        Yields:
            The correlation id that carries the trace context: pass it to the publish. Empty if no
            provider is configured, so that the span belongs to no trace.
        """
        attributes = _attributes("send", topic)
        with self._tracer.start_as_current_span(
            f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            yield _encoded(span.get_span_context())

    @contextmanager
    def processing(self, message: Message) -> Generator[Span]:
        """Open a span around the processing of a message, in the trace of its publish if any.

        Args:
            message: The message.
        """
        with self._of_message("process", SpanKind.CONSUMER, message, context_of(message)) as span:
            yield span

    @contextmanager
    def settling(self, message: Message) -> Generator[Span]:
        """Open a span around `discard` or `ack` of a message, in the current trace.

        Args:
            message: The message.
        """
        with self._of_message("settle", SpanKind.CLIENT, message, None) as span:
            yield span

    def handler(
        self, handler: Callable[[Message], Awaitable[None] | None]
    ) -> Callable[[Message], Awaitable[None] | None]:
        """Return a handler that opens a span around the processing of each message.

        Args:
            handler: A plain function, a coroutine function, or a function that returns what is to
                be awaited, such as `Topic.handler` gives: the span is that of all its work.
        """
        if inspect.iscoroutinefunction(handler):  # it stays one, for those who ask

            async def traced_task(message: Message) -> None:
                with self.processing(message):
                    await handler(message)

            return traced_task

        def traced(message: Message) -> Awaitable[None] | None:
            span = self._begin("process", SpanKind.CONSUMER, message, context_of(message))
            try:
                with use_span(span):
                    result = handler(message)
            except BaseException:
                span.end()
                raise
            if inspect.isawaitable(result):  # a function that returns a coroutine: work is to come
                return _finish(span, result)
            span.end()
            return result

        return traced

    @contextmanager
    def _of_message(
        self, operation: str, kind: SpanKind, message: Message, context: Context | None
    ) -> Generator[Span]:
        with use_span(self._begin(operation, kind, message, context), end_on_exit=True) as span:
            yield span

    def _begin(
        self, operation: str, kind: SpanKind, message: Message, context: Context | None
    ) -> Span:
        attributes = _attributes(operation, message.topic)
        attributes["messaging.message.body.size"] = len(message.data)
        if message.bookmark:
            attributes["messaging.message.id"] = message.bookmark
        if message.sub_id:
            attributes["messaging.destination.subscription.name"] = message.sub_id
        return self._tracer.start_span(
            f"{operation} {message.topic}", context=context, kind=kind, attributes=attributes
        )


async def _finish(span: Span, work: Awaitable[None]) -> None:
    """Await work in its span, which may be in another task than the one that has begun the span."""
    with use_span(span, end_on_exit=True):
        await work


def context_of(message: Message) -> Context | None:
    """The trace context in the correlation id of a message, for spans of your own; `None` if none.

    Args:
        message: The message.
    """
    if not message.correlation_id.startswith(_PREFIX):
        return None
    try:
        data = base64.b64decode(message.correlation_id.removeprefix(_PREFIX), validate=True)
    except ValueError:  # an id of the application with the same prefix; or text that is no ASCII
        return None
    if len(data) != _BYTES or data[:1] != _VERSION:
        return None
    remote = SpanContext(
        trace_id=int.from_bytes(data[1 : 1 + _TRACE_BYTES], "big"),
        span_id=int.from_bytes(data[1 + _TRACE_BYTES : -1], "big"),
        is_remote=True,
        trace_flags=TraceFlags(data[-1]),
    )
    return set_span_in_context(NonRecordingSpan(remote)) if remote.is_valid else None


def _encoded(context: SpanContext) -> str:
    if not context.is_valid:
        return ""
    data = (
        _VERSION
        + context.trace_id.to_bytes(_TRACE_BYTES, "big")
        + context.span_id.to_bytes(_SPAN_BYTES, "big")
        + bytes([context.trace_flags])
    )
    return _PREFIX + base64.b64encode(data).decode()


def _attributes(operation: str, topic: str) -> dict[str, str | int]:
    return {
        "messaging.system": "amps",
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
    }
