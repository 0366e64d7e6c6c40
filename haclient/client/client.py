"""A client of one server at a time, with stores.

With `Client` each step is a separate call: connect, logon, work, disconnect. It does not reconnect:
after a loss its streams end, calls that wait for an ack raise, and `connect` may be called again;
the stores then replay and resume what they keep. `HAClient` does all of that automatically.
"""

from __future__ import annotations

from typing_extensions import Unpack

from haclient.client.base import BaseClient
from haclient.options import TIMEOUT_S, ClientOptions, Settings, check_names, seconds
from haclient.protocol.codec import encode_frame
from haclient.protocol.uri import Uri
from haclient.servers.auth import Authenticator
from haclient.session.connection_state import Heartbeat, HeartbeatTimers
from haclient.transport.core import Core
from haclient_stores.interfaces import BookmarkStore, PublishStore


class Client(BaseClient):
    """An AMPS client for one server at a time.

    Args:
        name: Identifies this client and its publishes. It must be unique, and the same in every
            run.
        publish_store: Keeps publishes until they are persisted. The client owns it and closes it,
            even if creating the client fails because the other store is refused.
        bookmark_store: Remembers what subscriptions have finished with. Owned and closed likewise.
        authenticator: Provides the credentials for each logon; by default it sends the URI's
            password.
        **options: See `Settings`.

    Raises:
        UsageError: The name or a limit can never work.
        StoreLocked: A store belongs to another client, or is in use by another process.
    """

    def __init__(
        self,
        name: str,
        *,
        publish_store: PublishStore | None = None,
        bookmark_store: BookmarkStore | None = None,
        authenticator: Authenticator | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        check_names(type(self).__name__, options, ClientOptions.__annotations__)
        settings = Settings(
            name=name,
            publish_store=publish_store,
            bookmark_store=bookmark_store,
            authenticator=authenticator,
            **options,
        )
        super().__init__(Core(settings))

    async def connect(self, uri: str | Uri, *, timeout: float | None = TIMEOUT_S) -> None:
        """Open a connection; `logon` comes next.

        Args:
            uri: Where to: `tcp://user:password@host:port/amps/json`, for example.
            timeout: Seconds for all addresses of the host together; `None` waits for as long as
                the system does.

        Raises:
            UsageError: The URI is wrong, or there is a connection already.
            ConnectionRefused: Nobody listens there.
            TimedOut: It took longer than `timeout` seconds.
        """
        await self._core.connect(uri, timeout=seconds(timeout))

    async def logon(self, *, timeout: float | None = TIMEOUT_S) -> None:
        """Log on; then trim and replay the publish store and start the heartbeat.

        Args:
            timeout: Seconds for each answer of the server; `None` waits for as long as it takes.

        Raises:
            AuthenticationError: The server refused user or password.
            NameInUse: The client name belongs to a connection of another user.
            PublishGap: The server lacks what was acknowledged, and the store refuses gaps.
            TimedOut: The server did not answer in time.
        """
        await self._core.logon(timeout=seconds(timeout))

    async def set_heartbeat(self, heartbeat: float | Heartbeat | None) -> None:
        """Send heartbeats, from now on if logged on, else from the next logon.

        Args:
            heartbeat: As the option of this name; `None` stops them.

        Raises:
            UsageError: A limit can never work.
        """
        core = self._core
        core.thread.check_setting("set_heartbeat")
        core.heartbeat = None if heartbeat is None else HeartbeatTimers(heartbeat)
        if core.connection is None or not core.status.is_logged_on:
            return
        if core.heartbeat is None:
            core.connection.set_heartbeat(None)
            # Urgent as the start is, which may follow: else that would overtake it.
            core.connection.writer.send_urgent(encode_frame({"c": "heartbeat", "opts": "stop"}))
        else:
            await core.start_heartbeat(timeout=TIMEOUT_S)
