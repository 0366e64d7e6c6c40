"""The names of the official Python client, for programs that migrate.

::

    from haclient import compat as AMPS

    client = AMPS.HAClient("orders-7")
    chooser = AMPS.DefaultServerChooser()
    chooser.add("tcp://127.0.0.1:9007/amps/json")
    client.set_server_chooser(chooser)
    client.connect_and_logon()

It is a layer on `haclient.blocking`: the client lives in a thread of its own, and any thread may
call it. Times are milliseconds where the official client has milliseconds. `docs/migration.md`
lists every name with its counterpart, and `python -m haclient.compat FILE...` lists what to change
in programs.
"""

from __future__ import annotations

from haclient.compat.adapters import (
    ConflatingRecoveryPointAdapter,
    RecoveryPoint,
    SOWRecoveryPointAdapter,
)
from haclient.compat.client import Client
from haclient.compat.errors import (
    AlreadyConnectedError,
    AlreadyConnectedException,
    AMPSError,
    AMPSException,
    AuthenticationException,
    BadFilterError,
    BadFilterException,
    BadRegexTopicError,
    BadRegexTopicException,
    BadSowKeyError,
    BadSowKeyException,
    CommandException,
    ConnectionException,
    ConnectionRefusedException,
    DisconnectedException,
    InvalidBookmarkError,
    InvalidBookmarkException,
    InvalidOptionsError,
    InvalidOptionsException,
    InvalidOrderByError,
    InvalidOrderByException,
    InvalidSubIdError,
    InvalidSubIdException,
    InvalidTopicError,
    InvalidTopicException,
    InvalidTransportOptionsError,
    InvalidTransportOptionsException,
    InvalidURIError,
    InvalidURIException,
    MessageTypeError,
    MessageTypeException,
    NameInUseError,
    NameInUseException,
    NotEntitledError,
    NotEntitledException,
    PublishStoreGapError,
    PublishStoreGapException,
    RetryOperationError,
    RetryOperationException,
    StoreException,
    StreamError,
    StreamException,
    SubscriptionAlreadyExistsError,
    SubscriptionAlreadyExistsException,
    TimedOutError,
    TimedOutException,
    UsageException,
)
from haclient.compat.ha import HAClient
from haclient.compat.message_builders import (
    CompositeMessageBuilder,
    CompositeMessageParser,
    FIXBuilder,
    FixShredder,
    NVFIXBuilder,
    NvfixShredder,
)
from haclient.compat.messages import Command, Message
from haclient.compat.policies import (
    ConnectionStateListener,
    DefaultAuthenticator,
    DefaultServerChooser,
    ExponentialDelayStrategy,
    FixedDelayStrategy,
)
from haclient.compat.reason import Reason
from haclient.compat.stores import (
    HybridPublishStore,
    LoggedBookmarkStore,
    MemoryBookmarkStore,
    MemoryPublishStore,
    MMapBookmarkStore,
    PublishStore,
    RingBookmarkStore,
)
from haclient.compat.streams import MessageStream
from haclient.compat.subscription_manager import MemorySubscriptionManager
from haclient.compat.version_info import VersionInfo
from haclient.errors import (
    AuthenticationError,
    CommandError,
    DisconnectedError,
    StoreError,
    UsageError,
)

__all__ = [
    "AMPSError",
    "AMPSException",
    "AlreadyConnectedError",
    "AlreadyConnectedException",
    "AuthenticationError",
    "AuthenticationException",
    "BadFilterError",
    "BadFilterException",
    "BadRegexTopicError",
    "BadRegexTopicException",
    "BadSowKeyError",
    "BadSowKeyException",
    "Client",
    "Command",
    "CommandError",
    "CommandException",
    "CompositeMessageBuilder",
    "CompositeMessageParser",
    "ConflatingRecoveryPointAdapter",
    "ConnectionException",
    "ConnectionRefusedException",
    "ConnectionStateListener",
    "DefaultAuthenticator",
    "DefaultServerChooser",
    "DisconnectedError",
    "DisconnectedException",
    "ExponentialDelayStrategy",
    "FIXBuilder",
    "FixShredder",
    "FixedDelayStrategy",
    "HAClient",
    "HybridPublishStore",
    "InvalidBookmarkError",
    "InvalidBookmarkException",
    "InvalidOptionsError",
    "InvalidOptionsException",
    "InvalidOrderByError",
    "InvalidOrderByException",
    "InvalidSubIdError",
    "InvalidSubIdException",
    "InvalidTopicError",
    "InvalidTopicException",
    "InvalidTransportOptionsError",
    "InvalidTransportOptionsException",
    "InvalidURIError",
    "InvalidURIException",
    "LoggedBookmarkStore",
    "MMapBookmarkStore",
    "MemoryBookmarkStore",
    "MemoryPublishStore",
    "MemorySubscriptionManager",
    "Message",
    "MessageStream",
    "MessageTypeError",
    "MessageTypeException",
    "NVFIXBuilder",
    "NameInUseError",
    "NameInUseException",
    "NotEntitledError",
    "NotEntitledException",
    "NvfixShredder",
    "PublishStore",
    "PublishStoreGapError",
    "PublishStoreGapException",
    "Reason",
    "RecoveryPoint",
    "RetryOperationError",
    "RetryOperationException",
    "RingBookmarkStore",
    "SOWRecoveryPointAdapter",
    "StoreError",
    "StoreException",
    "StreamError",
    "StreamException",
    "SubscriptionAlreadyExistsError",
    "SubscriptionAlreadyExistsException",
    "TimedOutError",
    "TimedOutException",
    "UsageError",
    "UsageException",
    "VersionInfo",
]
