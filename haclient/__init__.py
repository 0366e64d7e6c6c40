"""A high-availability AMPS client for Python, built on trio.

Names are loaded when they are first used, so that `import haclient.protocol` loads no trio. Type
checkers read the imports instead; a test compares them with the table of names.
"""
# ruff: noqa: F403  # a star stands for a module of which every name is public here

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from haclient._version import __version__ as __version__

# The application decides what it sees; without this, Python prints warnings to stderr by itself.
logging.getLogger("haclient").addHandler(logging.NullHandler())

_NAMES = {
    "haclient._version": "__version__",
    "haclient.client": "Client HAClient",
    "haclient.codecs": (
        "FIX_DATA_FIELDS Codec CompositeCodec FixCodec JsonCodec MsgpackCodec NvfixCodec "
        "OnDecodeError ProtobufCodec Topic"
    ),
    "haclient.errors": (
        "AuthenticationError BadFilter BadRegexTopic BadSowKey BookmarkNotFound CommandError "
        "ConnectionRefused DecodeError DisconnectedError GraceExpired HAClientError HeartbeatLost "
        "InvalidBookmark InvalidOptions InvalidOrderBy InvalidTopic NameInUse NotEntitled "
        "ProtocolError PublishFailed PublishGap ReconnectGaveUp SlowClient StoreCorrupt StoreError "
        "StoreFull StoreLocked SubIdInUse SubscriptionFull SubscriptionStalled TimedOut UsageError "
        "WorkerError WouldBlock"
    ),
    "haclient.events": "Event EventListener",
    "haclient.live_records": "LiveRecords",
    "haclient.observability.health": "Health",
    "haclient.observability.metrics": "ClientMetrics SubscriptionMetrics",
    "haclient.observability.recovery_explanation": "RecoveryExplanation",
    "haclient.options": "HAOptions",
    "haclient.protocol.commands": "Command",
    "haclient.protocol.identity": "publisher_id",
    "haclient.protocol.messages": "Message",
    "haclient.protocol.options": "Options",
    "haclient.protocol.uri": "Uri",
    "haclient.recovery_points.source": "ResumePoint SourcePosition",
    "haclient.recovery_points.sow": "SOWRecoveryPointAdapter",
    "haclient.servers.auth": "Authenticator DefaultAuthenticator TokenAuthenticator TokenSource",
    "haclient.servers.chooser": (
        "AsyncServerChooser ConnectionInfo DefaultServerChooser FailureCountServerChooser "
        "MovingServerChooser PriorityServerChooser RandomServerChooser ServerChooser"
    ),
    "haclient.servers.delay": (
        "DelayStrategy ExponentialDelayStrategy FixedDelayStrategy SpreadDelayStrategy"
    ),
    "haclient.servers.health": "HealthAwareServerChooser",
    "haclient.service": "run",
    "haclient.session.connection_state": "ConnectionState Heartbeat",
    "haclient.session.dead_letter": "DeadLetter",
    "haclient.session.record_view": "RecordChange apply_delta",
    "haclient.streams": "MessageStream TypedStream",
    "haclient.subscription_manager": (
        "FileSubscriptionManager MemorySubscriptionManager SubscriptionManager"
    ),
    "haclient_stores.bookmark": (
        "EPOCH MOST_RECENT NOW Bookmark BookmarkList BookmarkRange Timestamp"
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __dir__() -> list[str]:
    return sorted(_HOMES)


if TYPE_CHECKING:
    from haclient.client import Client as Client
    from haclient.client import HAClient as HAClient
    from haclient.codecs import *
    from haclient.errors import *
    from haclient.events import Event as Event
    from haclient.events import EventListener as EventListener
    from haclient.live_records import LiveRecords as LiveRecords
    from haclient.observability.health import *
    from haclient.observability.metrics import *
    from haclient.observability.recovery_explanation import *
    from haclient.options import HAOptions as HAOptions
    from haclient.protocol.commands import Command as Command
    from haclient.protocol.identity import publisher_id as publisher_id
    from haclient.protocol.messages import Message as Message
    from haclient.protocol.options import Options as Options
    from haclient.protocol.uri import *
    from haclient.recovery_points.source import *
    from haclient.recovery_points.sow import *
    from haclient.servers.auth import *
    from haclient.servers.chooser import *
    from haclient.servers.delay import *
    from haclient.servers.health import *
    from haclient.service import run as run
    from haclient.session.connection_state import ConnectionState as ConnectionState
    from haclient.session.connection_state import Heartbeat as Heartbeat
    from haclient.session.dead_letter import *
    from haclient.session.record_view import *
    from haclient.streams import MessageStream as MessageStream
    from haclient.streams import TypedStream as TypedStream
    from haclient.subscription_manager import FileSubscriptionManager as FileSubscriptionManager
    from haclient.subscription_manager import MemorySubscriptionManager as MemorySubscriptionManager
    from haclient.subscription_manager import SubscriptionManager as SubscriptionManager
    from haclient_stores.bookmark import EPOCH as EPOCH
    from haclient_stores.bookmark import MOST_RECENT as MOST_RECENT
    from haclient_stores.bookmark import NOW as NOW
    from haclient_stores.bookmark import Bookmark as Bookmark
    from haclient_stores.bookmark import BookmarkList as BookmarkList
    from haclient_stores.bookmark import BookmarkRange as BookmarkRange
    from haclient_stores.bookmark import Timestamp as Timestamp
else:  # type checkers would take every misspelled name for one that it loads
    __all__ = sorted(_HOMES)  # noqa: PLE0605  # it is a list

    def __getattr__(name: str) -> object:
        """Load a public name from its module."""
        if name not in _HOMES:
            raise AttributeError(f"module 'haclient' has no attribute {name!r}")
        if name in {"Client", "HAClient"}:
            # `trio.run` would fail there, with an `AttributeError`, before there is a client.
            import_module("haclient.transport.tasks").check_threads_are_real()
        value: object = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
