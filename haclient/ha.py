"""The client that stays connected (seed S4; rows HA1-HA14, HA17-HA23).

`HAClient` is a `Client` whose connection looks after itself: it chooses a server, connects, logs
on, replays what is not persisted, enters the subscriptions again, and starts over whenever the
connection is lost. Nothing else changes: every method of `Client` works on it, but for `connect`
and `logon`, which it does by itself, and `set_heartbeat`, which comes too late in the block (HB5).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn, Self

from typing_extensions import Unpack, override

from haclient.chooser import DefaultServerChooser, ServerChooser
from haclient.client import Client
from haclient.delay import DelayStrategy, ExponentialDelayStrategy
from haclient.errors import HAClientError, UsageError
from haclient.ha_options import HAOptions
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.protocol.uri import Uri
from haclient.session.connection_state import StateListener
from haclient.session.heartbeat import Heartbeat
from haclient.subscription_manager import MemorySubscriptionManager, SubscriptionManager
from haclient.transport.core import Core
from haclient.transport.dispatch import DEFAULT_CAP_BYTES
from haclient.transport.handling import HandlerErrorPolicy, check_policy
from haclient.transport.publisher import DEFAULT_MAX_UNPERSISTED_BYTES
from haclient.transport.reconnector import (
    HASettings,
    OnPublishGap,
    OnResubscribeFailure,
    Reconnector,
)
from haclient.transport.settings import EXIT_TIMEOUT_S, TIMEOUT_S, Settings
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import BookmarkStore, PublishStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore

__all__ = ["HAClient"]


class HAClient(Client):
    """An AMPS client that stays connected to one of several servers.

    Entering the block connects and logs on; leaving it drains and stops. While there is no
    connection, `publish` with a store goes on and everything else waits. Handlers and bookmark
    streams continue after a fail-over. Plain streams and queries raise `DisconnectedError` when
    their connection is lost; a plain stream with `resumes=True` goes on after a gap.

    Any mix of stores will do (HA10). Without a publish store nothing is kept: `publish` raises when
    there is no connection, and what was on its way is lost. Without a bookmark store nothing is
    remembered: a bookmark subscription is entered again where it began (HA13).

    Args:
        name: Identifies this client and its publishes; the same in every run, unlike all others.
        servers: Connection strings, best first; or give a `server_chooser`.
        server_chooser: Chooses the server of each attempt.
        delay_strategy: Decides the waits between attempts; exponential by default.
        publish_store: Keeps publishes until they are persisted. Owned and closed.
        bookmark_store: Remembers what subscriptions have finished with. Owned and closed.
        subscription_manager: Remembers what to enter again.
        heartbeat: Seconds between beats; `None` for none.
        idle_limit: Silence in seconds after which a server is given up; two beats by default.
        connect_timeout: Seconds for each step of an attempt.
        logon_options: Options of the logon; `ack_conflation=100ms` unless told otherwise.
        on_publish_gap: What to do with a server that lacks what was acknowledged to us: try the
            next one (`"refuse"`), go on, or raise.
        on_resubscribe_failure: What becomes of a subscription that no server takes back (SM8). Each
            server is asked once; when one refuses it again, `"fail"` ends the block with the error,
            `"drop"` ends this subscription with it, `"retry"` goes on for as long as the delay
            strategy allows. A callable gets id and error and answers with one of these.
        failover_overlap: How many seconds before a server was heard last the replay on another one
            begins: more than the clocks differ, and than replication takes.
        on_failed_write: Called with the message and the reason when a publish is refused.
        on_duplicate: Called with each message that a bookmark store filtered out.
        on_last_chance: Called with each message that belongs to no subscription.
        on_disconnect: Called with the reason of each lost connection.
        on_state: The first state listener; see `add_state_listener` (HA20).
        on_handler_error: See `Client`.
        max_queued_bytes: How much a subscription may hold before reading stops.
        max_unpersisted_bytes: Where `publish` begins to wait for acks, connected or not (HA18).
        exit_timeout: How many seconds leaving the block waits for what was published to be
            persisted, connected or not, before it warns and leaves it to the store; `None` waits
            for as long as it takes, 0 not at all (HA25).

    Raises:
        UsageError: Neither or both of `servers` and `server_chooser`, or a value that cannot be.
        StoreLocked: A store belongs to another client.
    """

    def __init__(  # noqa: PLR0913  # the extension points of seed S4, all by keyword
        self,
        name: str,
        *,
        servers: Sequence[str] = (),
        server_chooser: ServerChooser | None = None,
        delay_strategy: DelayStrategy | None = None,
        publish_store: PublishStore | None = None,
        bookmark_store: BookmarkStore | None = None,
        subscription_manager: SubscriptionManager | None = None,
        heartbeat: float | None = 10.0,
        idle_limit: float | None = None,
        connect_timeout: float = TIMEOUT_S,
        logon_options: str | Options = "ack_conflation=100ms",
        on_publish_gap: OnPublishGap = "refuse",
        on_resubscribe_failure: OnResubscribeFailure = "fail",
        failover_overlap: float = 5.0,
        on_failed_write: Callable[[Message, str], object] | None = None,
        on_duplicate: Callable[[Message], object] | None = None,
        on_last_chance: Callable[[Message], object] | None = None,
        on_disconnect: Callable[[HAClientError], object] | None = None,
        on_state: StateListener | None = None,
        on_handler_error: HandlerErrorPolicy = "raise",
        max_queued_bytes: int = DEFAULT_CAP_BYTES,
        max_unpersisted_bytes: int = DEFAULT_MAX_UNPERSISTED_BYTES,
        exit_timeout: float | None = EXIT_TIMEOUT_S,
    ) -> None:
        _check_servers(servers, server_chooser)
        check_policy(on_handler_error)  # before anything is taken
        manager = subscription_manager or MemorySubscriptionManager()
        settings = HASettings(
            chooser=server_chooser or DefaultServerChooser(servers),
            delay=delay_strategy or ExponentialDelayStrategy(),
            manager=manager,
            connect_timeout_s=connect_timeout,
            on_publish_gap=on_publish_gap,
            on_resubscribe_failure=on_resubscribe_failure,
            failover_overlap_s=failover_overlap,
        )
        settings.check_store(publish_store)
        core = Core(
            Settings(
                name=name,
                publish_store=publish_store,
                bookmark_store=bookmark_store,
                heartbeat=None if heartbeat is None else Heartbeat(heartbeat, idle_limit),
                logon_options=str(logon_options),
                on_failed_write=on_failed_write,
                on_duplicate=on_duplicate,
                on_last_chance=on_last_chance,
                on_disconnect=on_disconnect,
                on_state=on_state,
                max_queued_bytes=max_queued_bytes,
                max_unpersisted_bytes=max_unpersisted_bytes,
                exit_timeout_s=exit_timeout,
            ),
            manager,
        )
        self._reconnector = Reconnector(core, settings)
        self._compose(core, on_handler_error)

    @classmethod
    def memory_backed(cls, name: str, **options: Unpack[HAOptions]) -> Self:
        """A client with both stores in memory: they survive lost links, not the process (HA11).

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
        """A client with both stores in files: the next process goes on where this one ends (HA11).

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

    @classmethod
    def create_memory_backed(cls, name: str, **options: Unpack[HAOptions]) -> Self:
        """The same as `memory_backed`, under the name that other AMPS clients use."""
        return cls.memory_backed(name, **options)

    @classmethod
    def create_file_backed(
        cls,
        name: str,
        *,
        publish_path: str | Path,
        bookmark_path: str | Path,
        **options: Unpack[HAOptions],
    ) -> Self:
        """The same as `file_backed`, under the name that other AMPS clients use."""
        return cls.file_backed(
            name, publish_path=publish_path, bookmark_path=bookmark_path, **options
        )

    @override
    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            await self._reconnector.connect_and_logon()
        except BaseException:
            await self.__aexit__(*sys.exc_info())
            raise
        return self

    @property
    def disconnected(self) -> bool:
        """Whether there is no connection that has logged on right now (HA19)."""
        return not self._core.status.is_logged_on

    @override
    async def connect(self, uri: str | Uri, *, timeout: float | None = TIMEOUT_S) -> NoReturn:
        """Refused: the server chooser decides where to connect (HA9)."""
        raise UsageError("an HAClient connects by itself: add the server to its chooser")

    @override
    async def logon(self, *, timeout: float | None = TIMEOUT_S) -> NoReturn:
        """Refused: entering the block logs on."""
        raise UsageError("an HAClient logs on by itself: enter it with async with")

    @override
    async def disconnect(self) -> None:
        """Stop for good, at once, whatever the recovery is doing; stores keep what they have."""
        await self._reconnector.disconnect()

    @override
    async def set_heartbeat(self, interval: float | None, idle_limit: float | None = None) -> None:
        """Beat every `interval` seconds; only before the block is entered (HB5).

        Raises:
            UsageError: The block was entered, or a limit can never work.
        """
        if self._core.entered:
            raise UsageError("an HAClient takes its heartbeat before it connects: heartbeat=...")
        await super().set_heartbeat(interval, idle_limit)


def _check_servers(servers: Sequence[str], chooser: ServerChooser | None) -> None:
    if isinstance(servers, str):
        raise UsageError("servers is a list of connection strings: servers=[...]")
    if bool(servers) == (chooser is not None):
        raise UsageError("give either servers=[...] or a server_chooser")
