"""A `FaultProxy` in a thread of its own, for tests whose programs do not run on trio.

::

    with ProxyThread(broker.address) as proxy:
        ...                                     # programs connect to proxy.uri
        proxy.apply(Cut(how="reset", direction="up", at_byte=10_000))
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import trio

from haclient_fake_server.testing.faults import LinkFault
from haclient_fake_server.testing.proxy import FaultProxy
from support.process import LIMIT_S

__all__ = ["ProxyThread"]


class ProxyThread:
    """A proxy in front of a broker.

    Args:
        target: Address of the broker, such as `tcp://127.0.0.1:9007`.

    Attributes:
        uri: Where clients connect to, once the block was entered.
    """

    def __init__(self, target: str) -> None:
        self.uri = ""
        self._target = target
        self._ready = threading.Event()
        self._proxy: FaultProxy | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._thread = threading.Thread(target=trio.run, args=(self._run,), daemon=True)

    def apply(self, fault: LinkFault) -> None:
        """Apply a fault; it is in force when this returns."""
        assert self._proxy is not None
        trio.from_thread.run_sync(self._proxy.wire.apply, fault, trio_token=self._token)

    @property
    def waiting(self) -> int:
        """Cuts that have not happened yet."""
        assert self._proxy is not None
        return len(self._proxy.wire.waiting)

    async def _run(self) -> None:
        self._stop = trio.Event()
        async with FaultProxy(self._target) as self._proxy:
            self._token = trio.lowlevel.current_trio_token()
            self.uri = f"{self._proxy.uri}/amps/json"
            self._ready.set()
            await self._stop.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(LIMIT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._stop is not None
        trio.from_thread.run_sync(self._stop.set, trio_token=self._token)
        self._thread.join(LIMIT_S)
