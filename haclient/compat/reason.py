"""The texts that servers write into the reason of an ack, with the official name."""

from __future__ import annotations

from typing import Final


class Reason:
    """What `message.get_reason()` gives, to compare it.

    `Match` and `Deleted` are those of out-of-focus messages, all others those of acks.

    A server may add words of its own: errors are better caught as exceptions, such as
    `BadFilterException`, which are found by these texts.
    """

    AuthDisabled: Final = "authentication disabled"
    AuthFailure: Final = "auth failure"
    BadFilter: Final = "bad filter"
    BadRegexTopic: Final = "bad regex topic"
    BadSowKey: Final = "bad sow key"
    BookmarkNotFound: Final = "bookmark not found"
    Deleted: Final = "deleted"
    Duplicate: Final = "duplicate"
    InvalidBookmark: Final = "invalid bookmark"
    InvalidOptions: Final = "invalid options"
    InvalidOrderBy: Final = "invalid orderby"
    InvalidSubId: Final = "invalid subid"
    InvalidTopic: Final = "invalid topic"
    Match: Final = "match"
    NameInUse: Final = "name in use"
    NotEntitled: Final = "not entitled"
    SubidInUse: Final = "subid in use"
    SubscriptionAlreadyExists: Final = "subscription already exists"
