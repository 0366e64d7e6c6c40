"""What an `HAClient` takes besides its name and its stores, as one type.

`HAClient.memory_backed` and `HAClient.file_backed` bring the stores and hand everything else on. A
test holds this list against the parameters of `HAClient` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from haclient.chooser import ServerChooser
from haclient.delay import DelayStrategy
from haclient.errors import HAClientError
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.session.connection_state import StateListener
from haclient.subscription_manager import SubscriptionManager
from haclient.transport.handling import HandlerErrorPolicy
from haclient.transport.reconnector import OnPublishGap, OnResubscribeFailure

__all__ = ["HAOptions"]


class HAOptions(TypedDict, total=False):
    """Keyword arguments of `HAClient`, which documents each."""

    servers: Sequence[str]
    server_chooser: ServerChooser | None
    delay_strategy: DelayStrategy | None
    subscription_manager: SubscriptionManager | None
    heartbeat: float | None
    idle_limit: float | None
    connect_timeout: float
    logon_options: str | Options
    on_publish_gap: OnPublishGap
    on_resubscribe_failure: OnResubscribeFailure
    failover_overlap: float
    on_failed_write: Callable[[Message, str], object] | None
    on_duplicate: Callable[[Message], object] | None
    on_last_chance: Callable[[Message], object] | None
    on_disconnect: Callable[[HAClientError], object] | None
    on_state: StateListener | None
    on_handler_error: HandlerErrorPolicy
    max_queued_bytes: int
    max_unpersisted_bytes: int
    exit_timeout: float | None
