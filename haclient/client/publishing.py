"""The publishing half of the client's public API."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Sequence
from types import FunctionType
from typing import Final, Literal, TypeVar, cast

import trio

from haclient.client.connected import ConnectedClient
from haclient.codecs import JsonCodec
from haclient.errors import TimedOut, UsageError
from haclient.options import TIMEOUT_S, seconds
from haclient.protocol.codec import Payload, as_bytes
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.transport.core import Core
from haclient.transport.publisher import on_disk
from haclient_stores.checks import check_count, check_texts, check_word

_F = TypeVar("_F", bound=Callable[..., object])

_JSON: Final = JsonCodec(object)
_WIRE_COMMANDS: Final = {
    "publish": "p",
    "delta_publish": "delta_publish",
    "sow_delete": "sow_delete",
}


def _awaitable(function: _F) -> _F:
    """Have a plain function that returns a coroutine count as a coroutine function.

    So `unittest.mock.create_autospec` makes it awaitable, like the methods beside it.
    """
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    # Python 3.11 has no other mark that needs no import of asyncio. Running the function does not
    # look at it: a coroutine is made by an instruction of its code.
    plain = cast("FunctionType", function)
    code = plain.__code__
    plain.__code__ = code.replace(co_flags=code.co_flags | inspect.CO_COROUTINE)
    return function


class PublishingClient(ConnectedClient):
    """A client with the methods that publish."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        # Looked up once: `publish` is the hot path.
        self._publish = core.publisher.publish
        self._publish_nowait = core.publisher.publish_nowait

    @_awaitable
    def publish(  # noqa: PLR0913  # the parts of one wire frame
        self,
        topic: str,
        data: Payload,
        *,
        expiration: int | None = None,
        correlation_id: str = "",
        sow_key: str = "",
        sequence: int | None = None,
        delta: bool = False,
    ) -> Coroutine[object, None, int]:
        """Publish one message; returns when it is stored and on its way, not when acked.

        With a store, a lost connection is not an error: the message is sent after the next logon.
        Without one, what is not persisted is lost with the connection: `publish_flush` and
        `wait_persisted` say so.
        A `Client` without a store may number its messages itself, to publish the same message under
        the same number again after a crash: the server drops the second one.

        Args:
            topic: A literal topic.
            data: The body; text is sent as UTF-8.
            expiration: Lifetime of the SOW record in seconds.
            correlation_id: Passed on to subscribers; characters of the Base64 alphabet.
            sow_key: The key, for topics that want one from the publisher.
            sequence: The number of the message, on a `Client` without a store: above those
                published before on this connection and above `persisted_sequence` at the logon.
                Then every publish of the connection needs one.
            delta: Whether `data` is only what changed of a SOW record: the changed fields, and
                those that the key is made of.

        Returns:
            The sequence number under which it is stored, for `wait_persisted`.

        Raises:
            DisconnectedError: There is no store and no connection; or the store is at its cap and
                no ack can come.
            StoreFull: The store has no room; nothing was stored.
            UsageError: `data` is neither bytes nor text, or the topic cannot be written; or the
                server would drop `sequence` as a duplicate, or this client takes none.
        """
        if expiration is None and sequence is None and not (correlation_id or sow_key or delta):
            return self._publish(topic, data)  # the coroutine itself: one await less per message
        return self._core.publisher.publish_with(
            topic,
            data,
            command=_WIRE_COMMANDS["delta_publish" if delta else "publish"],
            expiration=expiration,
            correlation_id=correlation_id,
            sow_key=sow_key,
            sequence=sequence,
        )

    async def publish_many(  # noqa: PLR0913  # what a message has, for all of them
        self,
        topic: str | Sequence[str],
        bodies: Sequence[Payload],
        *,
        first_sequence: int | None = None,
        command: Literal["publish", "delta_publish", "sow_delete"] = "publish",
        expiration: int | Sequence[int | None] | None = None,
        correlation_ids: Sequence[str] = (),
        sow_keys: Sequence[str] = (),
    ) -> int:
        """Publish several messages, in order; otherwise like `publish`.

        One call for many messages is for callers to whom each call costs something: other threads
        and event loops, a store with the durability `fsync`, which is synced once, and callers who
        number their messages. A cancelled call may have stored the first messages of the list: the
        `last_sequence` of the store before and after it says how many.

        Args:
            topic: A literal topic, or one for each message.
            bodies: The bodies; text is sent as UTF-8. All are checked before the first is stored.
            first_sequence: The number of the first message, as the `sequence` of `publish`; the
                others follow it.
            command: What each message is; a `sow_delete` deletes the record that its body would
                update.
            expiration: Lifetime of the SOW records in seconds, `None` for no limit; one for all
                messages, or one for each.
            correlation_ids: One for each message, or none.
            sow_keys: The key of each message, for topics without key fields, or none.

        Returns:
            The sequence number of the last message, for `wait_persisted`; without a message, that
            of the last publish before, or 0.

        Raises:
            DisconnectedError: As for `publish`. A note of the error says how many messages were
                accepted; those before them are stored, or on their way.
            StoreFull: As for `publish`, with the same note.
            UsageError: As for `publish`, or the lists differ in length; nothing was stored.
        """
        check_word("the command of a batch", command, tuple(_WIRE_COMMANDS))
        return await self._core.publisher.publish_many(
            topic,
            bodies,
            first_sequence=first_sequence,
            command=_WIRE_COMMANDS[command],
            expiration=expiration,
            correlation_ids=correlation_ids,
            sow_keys=sow_keys,
        )

    async def publish_persisted(
        self, topic: str, data: Payload, *, timeout: float | None = None
    ) -> int:
        """Publish one message and wait until it, and all before it, is persisted.

        It takes as long as the server's ack conflation. To wait for many messages, publish them
        first, and wait for the last one with `wait_persisted`.

        Args:
            topic: A literal topic.
            data: The body; text is sent as UTF-8.
            timeout: Seconds; `None` waits for as long as it takes.

        Returns:
            The sequence number under which it is stored.

        Raises:
            PublishFailed: The server refused it.
            TimedOut: It took longer; the message is sent all the same.
            DisconnectedError: The connection was lost; the message stays in the store if there is
                one.
            StoreFull: The store has no room; nothing was stored.
            UsageError: As for `publish`.
        """
        return await self._core.flusher.publish_persisted(topic, data, timeout=seconds(timeout))

    async def publish_json(
        self, topic: str, value: object, *, expiration: int | None = None, sow_key: str = ""
    ) -> int:
        """Publish a value as JSON.

        Args:
            topic: A literal topic.
            value: Objects, lists, text, numbers, booleans, `None`; also dataclasses, dates, UUIDs,
                decimals, enums and structs of msgspec.
            expiration: Lifetime of the SOW record in seconds.
            sow_key: The key, for topics that want one from the publisher.

        Returns:
            As `publish`.

        Raises:
            UsageError: The value cannot be written as JSON, such as an infinite number.
            DisconnectedError: As for `publish`.
            StoreFull: As for `publish`.
        """
        body = _JSON.encode(value)
        return await self.publish(topic, body, expiration=expiration, sow_key=sow_key)

    def publish_nowait(self, topic: str, data: Payload) -> int:
        """Like `publish`, without ever suspending.

        Args:
            topic: A literal topic.
            data: The body; text is sent as UTF-8.

        Returns:
            The sequence number under which it is stored.

        Raises:
            WouldBlock: It would have to wait for room; nothing was stored.
            StoreFull: The store has no room; nothing was stored.
            DisconnectedError: There is no store and no connection.
            UsageError: The store's durability is `fsync`, `data` is neither bytes nor text, or
                another thread than the client's calls it. Nothing was stored.
        """
        return self._publish_nowait(topic, data)

    async def publish_flush(self, *, timeout: float | None = None, durable: bool = False) -> None:
        """Wait until everything published so far is persisted, or refused.

        Args:
            timeout: Seconds; `None` waits for as long as it takes.
            durable: Wait for this machine's disk instead of the server: what was published so far
                is then in the store even after a loss of power, connected or not.

        Raises:
            TimedOut: It took longer than `timeout` seconds; what is left stays in the store.
            DisconnectedError: There is no connection. Or, without a store, publishes were lost with
                one; each of them is reported once.
            UsageError: `durable`, and there is no store with files.
        """
        self._core.thread.check("publish_flush")
        if not durable:
            await trio.lowlevel.checkpoint()  # as `wait_persisted`: it must not hold the loop
            await self._core.flusher.persisted(timeout=seconds(timeout))
            return
        with trio.move_on_after(seconds(timeout)):
            await on_disk(self._core.publisher.store)
            return
        raise TimedOut(f"publish_flush: the store is not on disk after {timeout:g} s")

    async def wait_persisted(self, sequence: int, *, timeout: float | None = None) -> None:
        """Wait until one publish, and all before it, is persisted.

        Unlike `publish_flush` it does not ask the server for an early ack: the ack comes as late as
        the server's ack conflation allows.

        Args:
            sequence: What `publish` returned.
            timeout: Seconds; `None` waits for as long as it takes.

        Raises:
            PublishFailed: The server refused it.
            TimedOut: It took longer; the message stays in the store if there is one.
            DisconnectedError: The connection was lost, without a store the publish with it. Or more
                than 65 536 others were refused since, and the result is not known any more.
            UsageError: Nothing was published under so high a sequence.
        """
        self._core.thread.check("wait_persisted")
        check_count("sequence", sequence)
        await self._core.flusher.wait_persisted(sequence, timeout=seconds(timeout))

    async def flush(
        self,
        *,
        timeout: float | None = TIMEOUT_S,
        ack: Literal["processed", "persisted"] = "processed",
    ) -> None:
        """Wait until the server has processed every command sent so far.

        Args:
            timeout: Seconds; `None` waits for as long as it takes.
            ack: What the server answers: `persisted` once every publish so far is persisted, on its
                synchronous replicas too, or refused.

        Raises:
            TimedOut: The server has not answered within `timeout` seconds.
            DisconnectedError: There is no connection, or it was lost; or as for `publish_flush`.
            UsageError: `ack` is neither.
        """
        self._core.thread.check("flush")
        check_word("ack", ack, ("processed", "persisted"))
        await self._core.flusher.flush(timeout=seconds(timeout), ack=ack)

    async def sow_delete(
        self,
        topic: str,
        *,
        filter: str = "",  # noqa: A002  # the protocol's word
        keys: Sequence[str] = (),
        data: Payload = b"",
        options: Options | str = "",
        timeout: float | None = TIMEOUT_S,
    ) -> Message:
        """Delete SOW records by filter, by keys or by data, exactly one of them.

        Args:
            topic: A literal topic, or a regular expression with `filter`.
            filter: Content filter of the records to delete.
            keys: SOW keys of the records to delete.
            data: A message whose key is the key of the record to delete.
            options: Options of the command, passed to the server as they are.
            timeout: Seconds; `None` waits for as long as it takes.

        Returns:
            The `stats` ack: `records_deleted`, `matches`, `topic_matches`. The counts are missing
            when the connection was lost after the server had carried it out.

        Raises:
            UsageError: Not exactly one of the three was given, or a key has a comma.
            CommandError: The server refused it.
            TimedOut: The server has not answered within `timeout` seconds. With a store the delete
                is kept, and sent again after a lost connection.
            DisconnectedError: There is no connection, or it was lost before the answer.
        """
        self._core.thread.check("sow_delete")
        body = as_bytes(data)
        if sum(map(bool, (filter, keys, body))) != 1:
            raise UsageError("sow_delete takes exactly one of filter, keys and data")
        command = Command(
            "sow_delete",
            topic=topic,
            filter=filter,
            sow_keys=_joined_keys(keys),
            options=options,
            timeout=timeout,
        )
        return await self._core.flusher.sow_delete(
            command.to_fields(), body, timeout=seconds(timeout)
        )


def _joined_keys(keys: Sequence[str]) -> str:
    """The keys of a `sow_delete` as it sends them.

    Raises:
        UsageError: It is not a list of texts, or a server would read another list.
    """
    if isinstance(keys, str):
        raise UsageError(f"keys is a list of SOW keys: keys=[{keys!r}]")
    texts = check_texts("keys", keys)
    for key in texts:
        if not key or "," in key or key != key.strip():
            raise UsageError(
                f"keys are sent as a list with commas, in which {key!r} would be another key or "
                "several: delete the record by filter or by data"
            )
    return ",".join(texts)
