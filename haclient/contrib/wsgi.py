"""One client for all threads of a process, for WSGI applications: Flask, Django, Bottle.

::

    amps = ProcessClient("orders-web", lambda name: HAClient.memory_backed(name, servers=SERVERS))

    @app.post("/orders")
    def place():
        amps.get().publish_persisted("orders", request.get_data(), timeout=10.0)

**Processes.** The first `get` of a process opens the client, so each worker of a server that forks
has its own, with `--preload` too: a client that was opened before a fork stays with the parent,
and the child opens another one.

**Ends.** The next `get` replaces a client that an error of a handler or a refused logon has ended.
When the main thread of the process has ended, the client is flushed and closed.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from haclient.blocking import HAClient
from haclient.contrib.process_name import process_name
from haclient.errors import TimedOut

__all__ = ["ProcessClient"]

OPEN_TIMEOUT_S: Final = 5.0


class ProcessClient:
    """The client of this process; the first `get` opens it.

    Args:
        name: The first part of the client's name. Host and process id are appended, since the
            server disconnects a client when another one logs on with its name.
        make: Makes a client with the whole name, not opened.
        on_open: Called with each client that was opened, such as to subscribe; if it raises, the
            client is closed and `get` raises that.
        open_timeout: Seconds for `get` to open the client: the request then fails, and the next
            one tries again.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[str], HAClient],
        *,
        on_open: Callable[[HAClient], object] | None = None,
        open_timeout: float = OPEN_TIMEOUT_S,
    ) -> None:
        self._name = name
        self._make = make
        self._on_open = on_open
        self._open_timeout_s = open_timeout
        self.forget()
        _clients.add(self)

    def forget(self) -> None:
        """Drop the client in a forked process: it belongs to the parent."""
        self._lock = threading.Lock()
        self._client: HAClient | None = None

    def get(self) -> HAClient:
        """The client, open; any number of threads may use it at a time.

        Raises:
            TimedOut: No server has accepted the logon within `open_timeout`, or another thread has
                been opening the client for that long.
            HAClientError: The client cannot be opened.
        """
        if not self._lock.acquire(timeout=self._open_timeout_s):
            raise TimedOut(
                "get: another request has been opening the client for more than "
                f"{self._open_timeout_s:g} s"
            )
        try:
            if self._client is not None and not self._client.health().is_alive:
                self._end()  # it ended by an error that earlier requests have raised
            if self._client is None:
                self._client = self._opened()
            return self._client
        finally:
            self._lock.release()

    def _opened(self) -> HAClient:
        client = self._make(process_name(self._name)).open(timeout=self._open_timeout_s)
        client.__bridge__.thread.closes_at_exit = True
        try:
            if self._on_open is not None:
                self._on_open(client)
        except BaseException:
            with suppress(Exception):  # the caller gets the error of `on_open`
                client.close()
            raise
        return client

    def close(self) -> None:
        """Close the client in order if it was opened; a later `get` opens another one."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):  # any error by which it ended; it was logged
                client.close()


_clients: Final[weakref.WeakSet[ProcessClient]] = weakref.WeakSet()


def _forget_all() -> None:
    for each in _clients:
        each.forget()


os.register_at_fork(after_in_child=_forget_all)
