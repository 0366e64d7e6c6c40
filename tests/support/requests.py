"""Requests of subscriptions that no command was made for."""

from __future__ import annotations

from haclient.session.subscriptions import SubscribeRequest

__all__ = ["request_of"]


def request_of(
    sub_id: str = "s",
    *,
    query_id: str = "",
    acks: frozenset[str] = frozenset(),
    ends: frozenset[str] = frozenset(),
    **fields: str,
) -> SubscribeRequest:
    """The request of a subscription, or of a command that ends after these acks."""
    if "group_end" in ends:
        command = "sow"
    elif ends:
        command = "sow_delete"
    else:
        command = "sow_and_subscribe" if query_id else "subscribe"
    header = {"c": command, "t": "orders", "a": "processed", **fields}
    return SubscribeRequest(header, b"", sub_id, query_id, acks | (ends - {"group_end"}))
