"""The names of the official Python client, for programs that migrate.

::

    from haclient import compat as AMPS

    client = AMPS.HAClient("orders-7")
    chooser = AMPS.DefaultServerChooser()
    chooser.add("tcp://127.0.0.1:9007/amps/json")
    client.set_server_chooser(chooser)
    client.connect_and_logon()

It is a layer on `haclient.blocking`: the client lives in a thread of its own, and any thread may
call it. Times are milliseconds where the official client has milliseconds. `docs/migration.md` has
every name with what it is here, and `python -m haclient.compat FILE...` lists what to change in
programs.
"""

from __future__ import annotations

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
from haclient.compat.messages import Command, Message
from haclient.compat.policies import (
    ConnectionStateListener,
    DefaultAuthenticator,
    DefaultServerChooser,
    ExponentialDelayStrategy,
    FixedDelayStrategy,
)
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
from haclient.errors import (
    AuthenticationError,
    CommandError,
    DisconnectedError,
    StoreError,
    UsageError,
)
from haclient.subscription_manager import MemorySubscriptionManager

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
    "ConnectionException",
    "ConnectionRefusedException",
    "ConnectionStateListener",
    "DefaultAuthenticator",
    "DefaultServerChooser",
    "DisconnectedError",
    "DisconnectedException",
    "ExponentialDelayStrategy",
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
    "NameInUseError",
    "NameInUseException",
    "NotEntitledError",
    "NotEntitledException",
    "PublishStore",
    "PublishStoreGapError",
    "PublishStoreGapException",
    "RetryOperationError",
    "RetryOperationException",
    "RingBookmarkStore",
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
]
