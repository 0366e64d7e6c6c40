"""Subscriptions to what updates have changed: the part of the public API, and how to apply it.

A delta subscription gets a new record of a State-of-the-World topic whole, and of each later update
the fields that have changed, with the key fields. Where it is not known which records there are,
begin with the query: `sow_and_delta_subscribe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from haclient.protocol.commands import Command
from haclient.protocol.options import Options
from haclient.streams import MessageStream
from haclient.subscribing import Subscriber
from haclient.transport.message_queue import Handler
from haclient.transport.settings import TIMEOUT_S, seconds

__all__ = ["DeltaClient", "apply_delta"]


def apply_delta(record: Mapping[str, object], delta: Mapping[str, object]) -> dict[str, object]:
    """A record as an update has left it.

    Args:
        record: The record before, as parsed; it is not changed.
        delta: The fields that have changed: objects are merged field by field, everything else is
            replaced, `None` removes a field.

    Returns:
        The record after.
    """
    result = dict(record)
    for name, value in delta.items():
        old = result.get(name)
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            before = cast("Mapping[str, object]", old if isinstance(old, Mapping) else {})
            result[name] = apply_delta(before, cast("Mapping[str, object]", value))
        else:
            result[name] = value
    return result


class DeltaClient:
    """The delta subscriptions of a client."""

    _subscriber: Subscriber

    async def delta_subscribe(
        self,
        topic: str,
        *,
        handler: Handler,
        filter: str = "",  # noqa: A002  # the protocol's word
        options: str | Options = "",
        sub_id: str = "",
        timeout: float | None = TIMEOUT_S,
    ) -> str:
        """Subscribe to what updates change; `handler` gets each message, in order, one at a time.

        On a topic without State of the World it is as `subscribe`. The options are those of
        `subscribe`, and `no_empties`, `send_keys` and `oof`: without `oof` a record that comes to
        match the filter again is not sent whole. After a lost connection an `HAClient` subscribes
        again; what has changed meanwhile is missing.

        Args:
            topic: A literal topic or a regular expression.
            handler: A coroutine function or plain function that takes a `Message`.
            filter: Content filter, of the whole message.
            options: Options of the subscription.
            sub_id: Its id; one is chosen where it is empty.
            timeout: Seconds to wait for the server's answer; `None` waits for as long as it takes.

        Returns:
            The subscription id, for `unsubscribe`.

        Raises:
            CommandError: The server refused it.
            SubIdInUse: The id is active on this connection.
            TimedOut: The server did not answer within `timeout` seconds.
        """
        command = Command(
            "delta_subscribe",
            topic=topic,
            filter=filter,
            options=options,
            sub_id=sub_id,
            timeout=seconds(timeout),
        )
        return await self._subscriber.handle(command, handler)

    def delta_stream(
        self,
        topic: str,
        *,
        filter: str = "",  # noqa: A002  # the protocol's word
        options: str | Options = "",
        sub_id: str = "",
        resumes: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> MessageStream:
        """The stream form of `delta_subscribe`; see `stream` for its end and for `resumes`.

        Args:
            topic: A literal topic or a regular expression.
            filter: Content filter, of the whole message.
            options: Options of the subscription.
            sub_id: Its id; one is chosen where it is empty.
            resumes: Whether an `HAClient` subscribes again after each lost connection;
                `messages.gaps` then counts where changes may be missing.
            timeout: Seconds to wait for the server's answer when the stream is opened; `None` waits
                for as long as it takes.

        Returns:
            The stream. Enter it with `async with`; that sends the command.

        Raises:
            UsageError: `resumes`, and this client does not reconnect by itself.
        """
        command = Command(
            "delta_subscribe",
            topic=topic,
            filter=filter,
            options=options,
            sub_id=sub_id,
            timeout=seconds(timeout),
        )
        return self._subscriber.stream(command, resumes=self._subscriber.checked(resumes=resumes))

    async def sow_and_delta_subscribe(  # noqa: PLR0913  # the parts of one command
        self,
        topic: str,
        *,
        handler: Handler,
        filter: str = "",  # noqa: A002  # the protocol's word
        order_by: str = "",
        batch_size: int = 10,
        options: str | Options = "",
        sub_id: str = "",
        timeout: float | None = TIMEOUT_S,
    ) -> str:
        """The handler form of `sow_and_delta_stream`; it also gets `group_begin` and `group_end`.

        Args:
            topic: A literal topic or a regular expression.
            handler: A coroutine function or plain function that takes a `Message`.
            filter: Content filter of both, of the whole message.
            order_by: Order of the records, such as `/px DESC`. With `Options(top_n=10, skip_n=20)`
                the subscription is to a page of them: see docs/broker.md.
            batch_size: Records in one frame.
            options: Options of the command; see `delta_subscribe`.
            sub_id: The id of the subscription; one is chosen where it is empty.
            timeout: Seconds to wait for the server's answer, and for each further part of the
                records; `None` waits for as long as it takes.

        Returns:
            The subscription id, for `unsubscribe`.

        Raises:
            CommandError: The server refused it.
            SubIdInUse: The id is active on this connection.
            TimedOut: The server did not answer within `timeout` seconds.
        """
        command = Command(
            "sow_and_delta_subscribe",
            topic=topic,
            filter=filter,
            order_by=order_by,
            batch_size=batch_size,
            options=options,
            sub_id=sub_id,
            timeout=seconds(timeout),
        )
        return await self._subscriber.handle(command, handler)

    def sow_and_delta_stream(  # noqa: PLR0913  # the parts of one command
        self,
        topic: str,
        *,
        filter: str = "",  # noqa: A002  # the protocol's word
        order_by: str = "",
        batch_size: int = 10,
        options: str | Options = "",
        sub_id: str = "",
        resumes: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> MessageStream:
        """Query, then follow by changes: nothing lost or doubled between the two.

        Args:
            topic: A literal topic or a regular expression.
            filter: Content filter of both, of the whole message.
            order_by: Order of the records, such as `/px DESC`. With `Options(top_n=10, skip_n=20)`
                the subscription is to a page of them: see docs/broker.md.
            batch_size: Records in one frame.
            options: Options of the command; see `delta_subscribe`.
            sub_id: The id of the subscription; one is chosen where it is empty.
            resumes: Whether an `HAClient` sends the command again after each lost connection: the
                stream then delivers all records again, and `messages.gaps` counts how often.
            timeout: Seconds to wait for the server's answer when the stream is opened, and for each
                further part of the result; `None` waits for as long as it takes.

        Returns:
            The stream. Enter it with `async with`; that sends the command.

        Raises:
            UsageError: `resumes`, and this client does not reconnect by itself.
        """
        command = Command(
            "sow_and_delta_subscribe",
            topic=topic,
            filter=filter,
            order_by=order_by,
            batch_size=batch_size,
            options=options,
            sub_id=sub_id,
            timeout=seconds(timeout),
        )
        return self._subscriber.stream(command, resumes=self._subscriber.checked(resumes=resumes))
