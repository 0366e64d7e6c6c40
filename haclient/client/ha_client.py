"""The client that stays connected.

`HAClient` manages its connection: it chooses a server, connects, logs on, replays what is not
persisted, resubscribes, and starts over whenever the connection is lost.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Self

import trio
from typing_extensions import Unpack, override

from haclient.client.base import BaseClient
from haclient.client.client import Client
from haclient.errors import HAClientError, TimedOut, UsageError
from haclient.options import (
    TIMEOUT_S,
    ClientOptions,
    HAOptions,
    HASettings,
    check_names,
    seconds,
)
from haclient.servers.auth import Authenticator
from haclient.session.kept_subscriptions import OnOthers, restorable
from haclient.subscription_manager import MemorySubscriptionManager
from haclient.transport.core import Core
from haclient.transport.message_queue import Handler
from haclient.transport.reconnector import Reconnector
from haclient.workers.queue_handlers import QueueHandlerOptions
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import BookmarkStore, PublishStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore


class HAClient(BaseClient):
    """An AMPS client that stays connected to one of several servers.

    Entering the block connects and logs on; leaving it drains and stops. While there is no
    connection, `publish` with a store continues and everything else waits. Handlers and bookmark
    streams continue after a fail-over. Plain streams and queries raise `DisconnectedError` when
    their connection is lost; a plain stream with `resumes=True` continues after a gap.

    Any mix of stores works. Without a publish store nothing is kept: `publish` raises while there
    is no connection, and a publish in flight is lost when a connection is lost. Without a bookmark
    store nothing is remembered: a bookmark subscription starts again from its first position.

    Args:
        name: Identifies this client and its publishes; the same in every run, unlike all others.
        publish_store: Keeps publishes until they are persisted. Owned and closed.
        bookmark_store: Remembers what subscriptions have finished with. Owned and closed.
        **options: See `HASettings`; `servers` or `server_chooser` is needed.

    Raises:
        UsageError: Neither or both of `servers` and `server_chooser` are given, or a value is
            invalid.
        StoreLocked: A store belongs to another client.
    """

    def __init__(
        self,
        name: str,
        *,
        publish_store: PublishStore | None = None,
        bookmark_store: BookmarkStore | None = None,
        **options: Unpack[HAOptions],
    ) -> None:
        known = ClientOptions.__annotations__ | HAOptions.__annotations__
        check_names(type(self).__name__, options, known)
        settings = HASettings(
            name=name, publish_store=publish_store, bookmark_store=bookmark_store, **options
        )
        manager = settings.subscription_manager or MemorySubscriptionManager()
        core = Core(settings, manager)
        # A name of its own, and always the same: servers keep what they know of a name.
        check_name = f"{name}-check-{secrets.token_hex(4)}"
        same: ClientOptions = {
            "exit_timeout": 0,
            "ssl_context": settings.ssl_context,
            "preflight_headers": settings.preflight_headers,
        }
        check = partial(_check, check_name, options=same)
        super().__init__(core)
        self._reconnector = Reconnector(core, self._subscriber, settings, check=check)
        self._manager = manager

    @classmethod
    def memory_backed(cls, name: str, **options: Unpack[HAOptions]) -> Self:
        """A client with both stores in memory: they survive lost links, not the process.

        Args:
            name: The client name.
            **options: Everything else that `HAClient` takes.
        """
        stores = MemoryPublishStore(), MemoryBookmarkStore()
        return cls(name, publish_store=stores[0], bookmark_store=stores[1], **options)

    @classmethod
    def file_backed(
        cls,
        name: str,
        *,
        publish_path: str | Path,
        bookmark_path: str | Path,
        **options: Unpack[HAOptions],
    ) -> Self:
        """A client with both stores in files: the next process continues where this one ends.

        Args:
            name: The client name, for which the files are.
            publish_path: The directory of the publish store; created when it is missing.
            bookmark_path: The file of the bookmark store; created when it is missing.
            **options: Everything else that `HAClient` takes.

        Raises:
            StoreLocked: A store belongs to another client, or is in use by another process.
            StoreCorrupt: A file does not match its checksums.
        """
        with ExitStack() as opened:  # a client that cannot be made must not leave files locked
            publishes = FilePublishStore(publish_path)
            opened.callback(publishes.close)
            bookmarks = LoggedBookmarkStore(bookmark_path)
            opened.callback(bookmarks.close)
            client = cls(name, publish_store=publishes, bookmark_store=bookmarks, **options)
            opened.pop_all()
        return client

    @override
    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            await self._reconnector.connect_and_logon()
        except BaseException:  # `async with` calls `__aexit__` only for a block that was entered
            await self.__aexit__(*sys.exc_info())
            raise
        return self

    @override
    async def disconnect(self) -> None:
        """Stop for good, at once, whatever the recovery is doing; stores keep what they have."""
        self._core.thread.check("disconnect")
        await self._reconnector.disconnect()

    async def move_to(self, uri: str, *, timeout: float | None = TIMEOUT_S) -> None:
        """Leave the server for another one, without loss and without an error.

        First another connection logs on to the new server, under another name: if that fails, the
        client stays where it is. Then the old server has to confirm what was published and
        acknowledged so far; the connection is closed, and the next one is made without a delay.
        What continues after a lost connection continues after a move: publishes, a `publish_flush`
        that waits, handlers, bookmark streams. Plain streams end, unless they resume, and queries
        are cut. Messages of queues that were not handled go back to their queues.

        The chooser is not told: after a loss of the new server the client asks it, as if it were
        still at the old one. A `MovingServerChooser` may move the client again.

        Args:
            uri: The connection string of the new server; it need not be one of the chooser's. The
                client logs on with the authenticator of its present server.
            timeout: Seconds for the check of the new server; `None` waits for as long as it takes.
                Each further step takes `connect_timeout` at most.

        Raises:
            UsageError: The URI is wrong, or another move is under way.
            DisconnectedError: The client is reconnecting. Or the new server cannot be used, or the
                old one does not confirm, and the client has stayed; or the new server has failed
                after the check, and the client reconnects as after any loss.
            TimedOut: The new server did not answer in time; the client has stayed.
        """
        self._core.thread.check("move_to")
        await self._reconnector.moves.move_to(uri, timeout=seconds(timeout))

    async def restore_subscriptions(
        self,
        handlers: Mapping[str, Handler],
        *,
        auto_discard: bool | Collection[str] = False,
        queues: Mapping[str, QueueHandlerOptions] = MappingProxyType({}),
        others: OnOthers = "refuse",
        timeout: float | None = TIMEOUT_S,
    ) -> list[str]:
        """Restore the subscriptions of an earlier process of this client, with these handlers.

        The file of a `FileSubscriptionManager` holds the subscriptions that an earlier process did
        not end with `unsubscribe`. Each is sent unchanged, in the same order. A subscription with a
        bookmark resumes at the recovery point of the bookmark store; if that does not know it, it
        begins where the earlier process began. Active ids are left alone.

        Args:
            handlers: The handler of each subscription by its id; further ids are ignored.
            auto_discard: Whether a message is discarded when its handler has returned, or the ids
                of the subscriptions for which it is.
            queues: How the messages of each queue are handled, by the id of its consumer; `{}` for
                the defaults of `queue_subscribe`, which acknowledges a message when its handler
                has returned. The backlog is the earlier one unless another is given.
            others: What happens to subscriptions without a handler: `"refuse"` raises before
                anything is sent, `"keep"` leaves them in the manager, `"drop"` removes them.
            timeout: Seconds to wait for each answer of the server; `None` for no limit.

        Returns:
            The ids of the subscriptions that were sent, in order.

        Raises:
            UsageError: A subscription has no handler, or consumes a queue and is not in `queues`;
                or `auto_discard` is a string.
            CommandError: The server refused a subscription; those before it are active.
            TimedOut: The server did not answer in time; those before it are active.
        """
        core = self._core
        core.running("restore_subscriptions")
        if isinstance(auto_discard, str):
            raise UsageError(f"auto_discard is a bool or a list of ids, not {auto_discard!r}")
        store = core.settings.bookmark_store
        restored = restorable(
            self._manager, core.kept.ids(), handlers, others, queues=queues, store=store
        )
        for command, start, backlog in restored:
            sub_id = command.sub_id
            command.timeout = seconds(timeout)
            if backlog is not None:
                handling: QueueHandlerOptions = {"max_backlog": backlog, **queues[sub_id]}
                await self._receiver.handle_queue(command, handlers[sub_id], handling)
                continue
            discards = auto_discard if isinstance(auto_discard, bool) else sub_id in auto_discard
            await self._receiver.handle(
                command, handlers[sub_id], auto_discard=discards, first_bookmark=start
            )
        return [each.command.sub_id for each in restored]


async def _check(
    name: str,
    uri: str,
    authenticator: Authenticator,
    timeout: float,
    *,
    options: ClientOptions,
) -> HAClientError | None:
    """Log on to a server under another name, and off again; why that failed, if it did."""
    async with Client(name, authenticator=authenticator, **options) as client:
        try:  # within: a cancellation while the block is left would come as a group with the error
            with trio.move_on_after(timeout):  # with what the authenticator takes
                await client.connect(uri, timeout=timeout)
                await client.logon(timeout=timeout)
                return None
        except HAClientError as error:
            return error
    return TimedOut(f"the check was not logged on within {timeout:g} s")
