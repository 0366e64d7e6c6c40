"""The official names of exceptions, in both of their spellings, for the errors of `haclient`.

Each is an alias of a class of `haclient.errors`, so either name catches it. The trees differ in one
point: what can never work (a wrong URI, a second connection, an unknown option) raises a
`UsageError` here, a subclass of `AMPSException` but not of `ConnectionException`.
"""

from __future__ import annotations

from haclient.errors import (
    AuthenticationError,
    BadFilter,
    BadRegexTopic,
    BadSowKey,
    CommandError,
    ConnectionRefused,
    DisconnectedError,
    HAClientError,
    InvalidBookmark,
    InvalidOptions,
    InvalidOrderBy,
    InvalidTopic,
    NameInUse,
    NotEntitled,
    ProtocolError,
    PublishGap,
    StoreError,
    SubIdInUse,
    TimedOut,
    UsageError,
)

AMPSException = AMPSError = HAClientError
AlreadyConnectedException = AlreadyConnectedError = UsageError
AuthenticationException = AuthenticationError
BadFilterException = BadFilterError = BadFilter
BadRegexTopicException = BadRegexTopicError = BadRegexTopic
BadSowKeyException = BadSowKeyError = BadSowKey
CommandException = CommandError
ConnectionException = DisconnectedError
ConnectionRefusedException = ConnectionRefused
DisconnectedException = DisconnectedError
InvalidBookmarkException = InvalidBookmarkError = InvalidBookmark
InvalidOptionsException = InvalidOptionsError = InvalidOptions
InvalidOrderByException = InvalidOrderByError = InvalidOrderBy
InvalidSubIdException = InvalidSubIdError = UsageError
InvalidTopicException = InvalidTopicError = InvalidTopic
InvalidTransportOptionsException = InvalidTransportOptionsError = UsageError
InvalidURIException = InvalidURIError = UsageError
MessageTypeException = MessageTypeError = UsageError
NameInUseException = NameInUseError = NameInUse
NotEntitledException = NotEntitledError = NotEntitled
PublishStoreGapException = PublishStoreGapError = PublishGap
RetryOperationException = RetryOperationError = DisconnectedError
StoreException = StoreError
StreamException = StreamError = ProtocolError
SubscriptionAlreadyExistsException = SubscriptionAlreadyExistsError = SubIdInUse
TimedOutException = TimedOutError = TimedOut
UsageException = UsageError

OFFICIAL_NAMES = [
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
    "CommandError",
    "CommandException",
    "ConnectionException",
    "ConnectionRefusedException",
    "DisconnectedError",
    "DisconnectedException",
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
    "MessageTypeError",
    "MessageTypeException",
    "NameInUseError",
    "NameInUseException",
    "NotEntitledError",
    "NotEntitledException",
    "PublishStoreGapError",
    "PublishStoreGapException",
    "RetryOperationError",
    "RetryOperationException",
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
