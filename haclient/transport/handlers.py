"""Handlers: one task per subscription takes its messages in order and calls the application.

The task is not the reading task, so a slow handler delays its subscription and nothing else.
A plain function or a coroutine function will do. What happens when it raises is a policy: by
default the error leaves the client's `async with`, and the message stays undiscarded, so that it
comes again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Final, Literal, TypeAlias

import trio

from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.transport.message_queue import Delivery

__all__ = ["Handler", "HandlerErrorPolicy", "check_policy", "serve"]

Handler: TypeAlias = Callable[[Message], Awaitable[None] | None]
"""Called with each message, one at a time."""

HandlerErrorPolicy: TypeAlias = (
    Literal["raise", "continue", "discard"] | Callable[[Message, Exception], Awaitable[None] | None]
)
"""What to do when a handler raises; a callable is a dead letter box and may discard."""

_CHECKPOINT_EVERY: Final = 64  # plain functions in a row before other tasks get a turn
_logger = logging.getLogger(__name__)


def check_policy(policy: HandlerErrorPolicy) -> None:
    """Refuse a policy that does not exist.

    Raises:
        UsageError: It is none of the three words and not callable.
    """
    if not callable(policy) and policy not in {"raise", "continue", "discard"}:
        raise UsageError(
            f"on_handler_error is 'raise', 'continue', 'discard' or a callable, not {policy!r}"
        )


async def serve(
    delivery: Delivery,
    handler: Handler,
    policy: HandlerErrorPolicy,
    *,
    discards: bool = False,
) -> None:
    """Call `handler` with every message until the subscription ends.

    Args:
        delivery: Where messages come from.
        handler: Who is called.
        policy: What happens when it raises.
        discards: Whether a message is discarded when the handler has returned.
    """
    delivery.handler = handler
    while (batch := await delivery.next_batch()) is not None:
        if delivery.handler is not None:  # another one may have replaced it
            handler = delivery.handler
        for index, message in enumerate(batch):
            try:
                result = handler(message)
                if isawaitable(result):
                    await result
            except Exception as error:
                if policy == "raise":
                    raise
                await _absorb(policy, message, error)
            else:
                if discards:
                    message.discard()
            if index % _CHECKPOINT_EVERY == _CHECKPOINT_EVERY - 1:
                await trio.lowlevel.checkpoint()


async def _absorb(policy: HandlerErrorPolicy, message: Message, error: Exception) -> None:
    _logger.warning(
        "a handler raised %s for a message of subscription %s on topic %s",
        type(error).__name__,
        message.sub_id,
        message.topic,
    )
    if callable(policy):
        result = policy(message, error)
        if isawaitable(result):
            await result
    elif policy == "discard":
        message.discard()
