"""A high-availability AMPS client for Python, built on trio.

Names are loaded when they are first used, so that `import haclient.protocol` loads no trio.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from haclient._version import __version__

# The application decides what it sees; without this, Python prints warnings to stderr by itself.
logging.getLogger("haclient").addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from haclient.client import Client, HAClient
    from haclient.codecs import (
        FIX_DATA_FIELDS,
        Codec,
        CompositeCodec,
        FixCodec,
        JsonCodec,
        MsgpackCodec,
        NvfixCodec,
        ProtobufCodec,
        Topic,
    )
    from haclient.errors import (
        AuthenticationError,
        BadFilter,
        BadRegexTopic,
        BadSowKey,
        BookmarkNotFound,
        CommandError,
        ConnectionRefused,
        DecodeError,
        DisconnectedError,
        GraceExpired,
        HAClientError,
        HeartbeatLost,
        InvalidBookmark,
        InvalidOptions,
        InvalidOrderBy,
        InvalidTopic,
        NameInUse,
        NotEntitled,
        ProtocolError,
        PublishFailed,
        PublishGap,
        ReconnectGaveUp,
        SlowClient,
        StoreCorrupt,
        StoreError,
        StoreFull,
        StoreLocked,
        SubIdInUse,
        SubscriptionFull,
        SubscriptionStalled,
        TimedOut,
        UsageError,
        WorkerError,
        WouldBlock,
    )
    from haclient.events import Event, EventListener
    from haclient.live_records import LiveRecords, RecordChange, apply_delta
    from haclient.observability.health import Health
    from haclient.observability.metrics import ClientMetrics, SubscriptionMetrics
    from haclient.observability.recovery_explanation import RecoveryExplanation
    from haclient.protocol.commands import Command
    from haclient.protocol.identity import publisher_id
    from haclient.protocol.messages import Message
    from haclient.protocol.options import Options
    from haclient.protocol.uri import Uri
    from haclient.recovery_points.source import ResumePoint, SourcePosition
    from haclient.recovery_points.sow import SOWRecoveryPointAdapter
    from haclient.servers.auth import Authenticator, DefaultAuthenticator, TokenAuthenticator
    from haclient.servers.chooser import (
        AsyncServerChooser,
        DefaultServerChooser,
        FailureCountServerChooser,
        MovingServerChooser,
        ServerChooser,
    )
    from haclient.servers.delay import (
        DelayStrategy,
        ExponentialDelayStrategy,
        FixedDelayStrategy,
        SpreadDelayStrategy,
    )
    from haclient.servers.health import HealthAwareServerChooser
    from haclient.servers.priority import PriorityServerChooser
    from haclient.servers.random import RandomServerChooser
    from haclient.service import run
    from haclient.session.connection_state import ConnectionState, Heartbeat
    from haclient.session.dead_letter import DeadLetter
    from haclient.streams import MessageStream, TypedStream
    from haclient.subscription_manager import (
        FileSubscriptionManager,
        MemorySubscriptionManager,
        SubscriptionManager,
    )
    from haclient.transport.settings import HAOptions
    from haclient_stores.bookmark import (
        EPOCH,
        MOST_RECENT,
        NOW,
        Bookmark,
        BookmarkList,
        BookmarkRange,
        Timestamp,
    )


__all__ = [
    "EPOCH",
    "FIX_DATA_FIELDS",
    "MOST_RECENT",
    "NOW",
    "AsyncServerChooser",
    "AuthenticationError",
    "Authenticator",
    "BadFilter",
    "BadRegexTopic",
    "BadSowKey",
    "Bookmark",
    "BookmarkList",
    "BookmarkNotFound",
    "BookmarkRange",
    "Client",
    "ClientMetrics",
    "Codec",
    "Command",
    "CommandError",
    "CompositeCodec",
    "ConnectionRefused",
    "ConnectionState",
    "DeadLetter",
    "DecodeError",
    "DefaultAuthenticator",
    "DefaultServerChooser",
    "DelayStrategy",
    "DisconnectedError",
    "Event",
    "EventListener",
    "ExponentialDelayStrategy",
    "FailureCountServerChooser",
    "FileSubscriptionManager",
    "FixCodec",
    "FixedDelayStrategy",
    "GraceExpired",
    "HAClient",
    "HAClientError",
    "HAOptions",
    "Health",
    "HealthAwareServerChooser",
    "Heartbeat",
    "HeartbeatLost",
    "InvalidBookmark",
    "InvalidOptions",
    "InvalidOrderBy",
    "InvalidTopic",
    "JsonCodec",
    "LiveRecords",
    "MemorySubscriptionManager",
    "Message",
    "MessageStream",
    "MovingServerChooser",
    "MsgpackCodec",
    "NameInUse",
    "NotEntitled",
    "NvfixCodec",
    "Options",
    "PriorityServerChooser",
    "ProtobufCodec",
    "ProtocolError",
    "PublishFailed",
    "PublishGap",
    "RandomServerChooser",
    "ReconnectGaveUp",
    "RecordChange",
    "RecoveryExplanation",
    "ResumePoint",
    "SOWRecoveryPointAdapter",
    "ServerChooser",
    "SlowClient",
    "SourcePosition",
    "SpreadDelayStrategy",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "SubIdInUse",
    "SubscriptionFull",
    "SubscriptionManager",
    "SubscriptionMetrics",
    "SubscriptionStalled",
    "TimedOut",
    "Timestamp",
    "TokenAuthenticator",
    "Topic",
    "TypedStream",
    "Uri",
    "UsageError",
    "WorkerError",
    "WouldBlock",
    "__version__",
    "apply_delta",
    "publisher_id",
    "run",
]

_NAMES = {
    "haclient.client": "Client HAClient",
    "haclient.codecs": (
        "Codec CompositeCodec FIX_DATA_FIELDS FixCodec JsonCodec MsgpackCodec NvfixCodec "
        "ProtobufCodec Topic"
    ),
    "haclient.events": "Event EventListener",
    "haclient.live_records": "LiveRecords RecordChange apply_delta",
    "haclient.observability.health": "Health",
    "haclient.observability.metrics": "ClientMetrics SubscriptionMetrics",
    "haclient.protocol.commands": "Command",
    "haclient.protocol.identity": "publisher_id",
    "haclient.protocol.messages": "Message",
    "haclient.protocol.options": "Options",
    "haclient.protocol.uri": "Uri",
    "haclient.observability.recovery_explanation": "RecoveryExplanation",
    "haclient.recovery_points.source": "ResumePoint SourcePosition",
    "haclient.recovery_points.sow": "SOWRecoveryPointAdapter",
    "haclient.servers.auth": "Authenticator DefaultAuthenticator TokenAuthenticator",
    "haclient.servers.chooser": (
        "AsyncServerChooser DefaultServerChooser FailureCountServerChooser "
        "MovingServerChooser ServerChooser"
    ),
    "haclient.servers.delay": (
        "DelayStrategy ExponentialDelayStrategy FixedDelayStrategy SpreadDelayStrategy "
    ),
    "haclient.servers.health": "HealthAwareServerChooser",
    "haclient.servers.priority": "PriorityServerChooser",
    "haclient.servers.random": "RandomServerChooser",
    "haclient.service": "run",
    "haclient.session.connection_state": "ConnectionState Heartbeat",
    "haclient.session.dead_letter": "DeadLetter",
    "haclient.streams": "MessageStream TypedStream",
    "haclient.subscription_manager": (
        "FileSubscriptionManager MemorySubscriptionManager SubscriptionManager"
    ),
    "haclient.transport.settings": "HAOptions",
    "haclient_stores.bookmark": (
        "Bookmark BookmarkList BookmarkRange EPOCH MOST_RECENT NOW Timestamp"
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Load a public name from its module; every other public name is an error class."""
    if name.startswith("_") or name not in __all__:
        raise AttributeError(f"module 'haclient' has no attribute {name!r}")
    if name in {"Client", "HAClient"}:
        # `trio.run` itself would fail there, with an `AttributeError`, before there is a client.
        import_module("haclient.transport.client_thread").check_threads_are_real()
    value: object = getattr(import_module(_HOMES.get(name, "haclient.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
