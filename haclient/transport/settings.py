"""What a client was made with, in one value (design 4)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from haclient.auth import Authenticator, DefaultAuthenticator
from haclient.errors import HAClientError, UsageError
from haclient.protocol.messages import Message
from haclient.session.connection_state import StateListener
from haclient.session.heartbeat import Heartbeat
from haclient.transport.dispatch import DEFAULT_CAP_BYTES
from haclient.transport.publisher import DEFAULT_MAX_UNPERSISTED_BYTES
from haclient_stores.interfaces import BookmarkStore, PublishStore

__all__ = ["EXIT_TIMEOUT_S", "TIMEOUT_S", "Settings", "seconds", "wall_clock"]

TIMEOUT_S: Final = 10.0
"""How long a command may take unless the call says otherwise, in seconds."""

EXIT_TIMEOUT_S: Final = 5.0
"""How long leaving the block waits for what was published to be persisted, in seconds (HA25)."""


wall_clock: Final[ContextVar[Callable[[], int]]] = ContextVar(
    "wall_clock", default=lambda: time.time_ns() // 1000
)
"""Microseconds since 1970 for the tasks of this context: in a simulation each node has its own."""


def _clock_us() -> int:
    return wall_clock.get()()


def seconds(timeout: float | None) -> float:
    """A timeout of the public API as a number: `None`, no timeout, is infinite."""
    return math.inf if timeout is None else timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a client was made with; `haclient.client.Client` documents each."""

    name: str
    publish_store: PublishStore | None = None
    bookmark_store: BookmarkStore | None = None
    heartbeat: Heartbeat | None = None
    authenticator: Authenticator = field(default_factory=DefaultAuthenticator)
    logon_options: str = ""
    logon_correlation_id: str = ""
    on_failed_write: Callable[[Message, str], object] | None = None
    on_duplicate: Callable[[Message], object] | None = None
    on_last_chance: Callable[[Message], object] | None = None
    on_disconnect: Callable[[HAClientError], object] | None = None
    max_queued_bytes: int = DEFAULT_CAP_BYTES
    max_unpersisted_bytes: int = DEFAULT_MAX_UNPERSISTED_BYTES
    clock_us: Callable[[], int] = _clock_us
    on_state: StateListener | None = None
    exit_timeout_s: float | None = EXIT_TIMEOUT_S

    def __post_init__(self) -> None:
        if self.exit_timeout_s is not None and not self.exit_timeout_s >= 0:
            raise UsageError(
                "exit_timeout is in seconds, 0 to leave at once or None to wait for as long as it "
                f"takes, not {self.exit_timeout_s!r}"
            )
