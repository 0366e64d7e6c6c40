"""Plain frames for the publish stores, and what a store should give back of them."""

from __future__ import annotations

from haclient_stores.interfaces import PublishStore
from haclient_stores.publish_stores.publish_log import PublishLog

__all__ = ["BASE", "HEAD", "TAIL", "fill", "frame_of", "kept", "put", "put_until_full", "take_all"]

HEAD = b'{"c":"p","s":'
TAIL = b"}"
BASE = 1000  # the clock at the first logon: the first publish is 1001


def frame_of(sequence: int, body: bytes) -> bytes:
    """The frame that a store makes of `body`, written another way."""
    rest = HEAD + str(sequence).encode() + TAIL + body
    return len(rest).to_bytes(4, "big") + rest


def put(store: PublishStore, body: bytes = b"body") -> int:
    """Store one frame."""
    return store.store(HEAD, TAIL, body)


def fill(store: PublishStore, count: int, body: bytes = b"body") -> list[int]:
    """Store so many frames."""
    return [put(store, body) for _ in range(count)]


def kept(store: PublishStore) -> list[int]:
    """The sequences that a replay gives."""
    return [sequence for sequence, _ in store.replay()]


def take_all(store: PublishLog) -> bytes:
    """What a kernel would have taken that takes everything."""
    taken: list[bytes] = []
    while shown := bytes(store.peek()):
        taken.append(shown)
        store.advance(len(shown))
    return b"".join(taken)


def put_until_full(store: PublishStore, body: bytes, *, at_most: int = 10_000) -> Exception | None:
    """Store frames until the store refuses one: its error."""
    for _ in range(at_most):
        try:
            put(store, body)
        except Exception as error:
            return error
    return None
