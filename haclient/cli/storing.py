"""What a store holds, as rows and as text for `haclient store`."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from haclient.protocol.codec import MessageDecoder
from haclient.protocol.framing import FrameReader
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.tools.explain import Explanation
from haclient_stores.tools.inspect import BookmarkFile, StoreFile, size_of

__all__ = ["entries_of", "explanations_of", "subscriptions_of", "summary_of"]


def explanations_of(store: BookmarkFile, sub_id: str | None = None) -> Iterator[Explanation]:
    """What would come again, for one subscription or for all.

    Raises:
        UsageError: The store knows no such subscription.
    """
    for name in list(store.subscriptions) if sub_id is None else [sub_id]:
        yield store.explain(name)


def subscriptions_of(store: BookmarkFile) -> Iterator[dict[str, Any]]:
    """One row for each subscription."""
    for sub_id, handle in store.subscriptions.items():
        yield {
            "sub_id": sub_id,
            "recovery_point": str(handle.recovery_point()),
            "undiscarded": handle.undiscarded_count,
        }


def entries_of(store: StoreFile) -> Iterator[dict[str, Any]]:
    """One row for each message that is not finished, or not persisted."""
    if isinstance(store, FilePublishStore):
        yield from _messages(store)
    else:
        for sub_id in store.subscriptions:
            for number, bookmark, discarded in store.entries(sub_id):
                yield {
                    "sub_id": sub_id,
                    "number": number,
                    "bookmark": str(bookmark),
                    "discarded": discarded,
                }


def _messages(store: FilePublishStore) -> Iterator[dict[str, Any]]:
    frames, decoder = FrameReader(), MessageDecoder()
    for sequence, frame in store.replay():
        (message,) = decoder.decode(*frames.feed(frame))
        row: dict[str, Any] = {
            "sequence": sequence,
            "command": message.kind,
            "topic": message.topic,
            "filter": message.filter,
        }
        try:
            row["data"] = message.data.decode()
        except UnicodeDecodeError:
            row["data_base64"] = base64.b64encode(message.data).decode()
        yield row


def summary_of(path: Path, store: StoreFile) -> tuple[dict[str, Any], str]:
    """What a store is and holds, as values and as text."""
    values: dict[str, Any] = {
        "path": str(path),
        "kind": "publish" if isinstance(store, FilePublishStore) else _bookmark_kind(store),
        "owner": store.client_name,
        "bytes": size_of(path),
    }
    owner = f"client {store.client_name!r}" if store.client_name else "nobody yet"
    head = f"{path}: {values['kind']} store of {owner}, {values['bytes']} bytes"
    if isinstance(store, FilePublishStore):
        values |= {
            "unpersisted": store.unpersisted_count,
            "lowest_unpersisted": store.lowest_unpersisted,
            "last_persisted": store.last_persisted,
            "last_sequence": store.last_sequence,
        }
        text = (
            f"  {store.unpersisted_count} unpersisted, the lowest {store.lowest_unpersisted}; "
            f"last persisted {store.last_persisted}, last sequence {store.last_sequence}"
        )
        return values, f"{head}\n{text}"
    rows = list(subscriptions_of(store))
    form = "  {sub_id}: {recovery_point}, {undiscarded} undiscarded"
    lines = [form.format(**row) for row in rows]
    return {**values, "subscriptions": rows}, "\n".join([head, *lines])


def _bookmark_kind(store: BookmarkFile) -> str:
    return "ring bookmark" if isinstance(store, RingBookmarkStore) else "logged bookmark"
