"""The contract of `PublishStore`, one check for each promise.

Every check gets stores from `make_store`, performs a few operations and compares the results with
what was stored. The last check runs a long seeded sequence of random operations against a
dictionary of frames as the model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final, TypeAlias

from haclient.testing.comparison import expect
from haclient_stores.errors import PublishGap, StoreFull, StoreLocked
from haclient_stores.interfaces import PublishStore

MakeStore: TypeAlias = Callable[[], PublishStore]
Reopen: TypeAlias = Callable[[PublishStore], PublishStore]

_HEAD: Final = b'{"c":"p","s":'
_TAIL: Final = b"}"
_CLOCK_US: Final = 1_000
_WALK_STEPS: Final = 400
_WALK_KEEPS: Final = 40  # messages of up to 8000 bytes: a store has room for that
_FULL_BODY: Final = bytes(4096)


def check_publish_store(
    make_store: MakeStore,
    *,
    reopen: Reopen | None = None,
    fills_at_bytes: int | None = None,
) -> None:
    """Check every promise of `PublishStore` on stores of one class.

    Args:
        make_store: A new, empty store at each call.
        reopen: Called with a closed store; returns the store that the next process would open.
            `None` for a store that does not outlive its process.
        fills_at_bytes: The size in bytes at which a store is full at the latest; `None` for a store
            without a limit.

    Raises:
        AssertionError: The store broke a promise; the text says which.
    """
    for check in PUBLISH_STORE_CHECKS:
        _run(check, make_store)
    if fills_at_bytes is not None:
        _run(partial(_a_full_store_stores_nothing, fills_at_bytes), make_store)
    if reopen is not None:
        _run(partial(_what_is_stored_outlives_the_store, reopen), make_store)


Check: TypeAlias = Callable[[MakeStore], None]


def _run(check: Check, make_store: MakeStore) -> None:
    """Run one check and close the stores that it opened."""
    with ExitStack() as opened:

        def made() -> PublishStore:
            store = make_store()
            opened.callback(store.close)
            return store

        check(made)


def _frame(sequence: int, body: bytes) -> bytes:
    rest = b"%b%d%b%b" % (_HEAD, sequence, _TAIL, body)
    return len(rest).to_bytes(4, "big") + rest


def _filled(make: MakeStore, count: int) -> tuple[PublishStore, dict[int, bytes]]:
    """A store with `count` messages, and their frames by sequence."""
    store = make()
    store.reconcile(seen=0, persisted=0, clock_us=_CLOCK_US)
    return store, _publish(store, count)


def _publish(store: PublishStore, count: int) -> dict[int, bytes]:
    frames: dict[int, bytes] = {}
    for number in range(count):
        body = b"message %d" % number
        sequence = store.store(_HEAD, _TAIL, body)
        frames[sequence] = _frame(sequence, body)
    return frames


def _compare(promise: str, store: PublishStore, frames: dict[int, bytes]) -> None:
    """Check that the store holds exactly these frames."""
    expect([*store.replay()], [*frames.items()], f"{promise}: replay gives every frame, ascending")
    expect(store.unpersisted_count, len(frames), f"{promise}: unpersisted_count")
    expect(store.lowest_unpersisted, min(frames, default=0), f"{promise}: lowest_unpersisted")


# -- the checks -----------------------------------------------------------------------------------


def _a_new_store_is_empty(make: MakeStore) -> None:
    store = make()
    _compare("a new store is empty", store, {})
    numbers = (store.last_sequence, store.last_persisted, store.unpersisted_bytes)
    expect(numbers, (0, 0, 0), "a new store has no numbers and no bytes")
    expect(store.gap, None, "a new store has no gap")


def _numbers_rise_by_one(make: MakeStore) -> None:
    store, frames = _filled(make, 5)
    expect(list(frames), list(range(_CLOCK_US + 1, _CLOCK_US + 6)), "numbers rise by one")
    expect(store.last_sequence, max(frames), "last_sequence is the last number given")


def _frames_are_kept_byte_by_byte(make: MakeStore) -> None:
    store, frames = _filled(make, 0)
    changed = bytearray(b"bytes that change later")
    for body in (b"", b"\0\xff", changed, memoryview(b"a view")):
        sequence = store.store(_HEAD, _TAIL, body)
        frames[sequence] = _frame(sequence, bytes(body))
    changed[:] = b"!" * len(changed)
    _compare("a frame is length, head, digits, tail and body", store, frames)


def _bytes_are_counted(make: MakeStore) -> None:
    store, frames = _filled(make, 20)
    size = sum(map(len, frames.values()))
    if store.unpersisted_bytes < size:
        raise AssertionError(f"unpersisted_bytes: {store.unpersisted_bytes} for {size} bytes")
    store.discard_up_to(store.last_sequence)
    expect(store.unpersisted_bytes, 0, "unpersisted_bytes of an empty store")


def _an_ack_covers_everything_up_to_it(make: MakeStore) -> None:
    store, frames = _filled(make, 10)
    for acked in (_CLOCK_US + 3, _CLOCK_US + 7):
        store.discard_up_to(acked)
        left = {sequence: frame for sequence, frame in frames.items() if sequence > acked}
        _compare("an ack covers everything up to it", store, left)
        expect(store.last_persisted, acked, "last_persisted is the highest ack")
    store.discard_up_to(store.last_sequence)
    _compare("the last ack empties the store", store, {})


def _an_old_ack_changes_nothing(make: MakeStore) -> None:
    store, frames = _filled(make, 4)
    store.discard_up_to(_CLOCK_US + 2)
    for old in (_CLOCK_US + 2, _CLOCK_US + 1, 0):
        store.discard_up_to(old)
    expect(store.last_persisted, _CLOCK_US + 2, "last_persisted never falls")
    left = {sequence: frame for sequence, frame in frames.items() if sequence > _CLOCK_US + 2}
    _compare("an old ack changes nothing", store, left)


def _numbers_go_on_after_everything_is_acked(make: MakeStore) -> None:
    store, frames = _filled(make, 3)
    store.discard_up_to(max(frames))
    sequence = store.store(_HEAD, _TAIL, b"")
    expect(sequence, max(frames) + 1, "numbers go on in an empty store")


def _an_ack_above_the_numbers_moves_them(make: MakeStore) -> None:
    store, _ = _filled(make, 1)
    store.discard_up_to(5_000)
    expect(store.store(_HEAD, _TAIL, b""), 5_001, "an ack above the last number")


def _a_replay_starts_after_a_number(make: MakeStore) -> None:
    store, frames = _filled(make, 6)
    for after in (0, _CLOCK_US, _CLOCK_US + 4, max(frames), max(frames) + 1):
        wanted = [(sequence, frame) for sequence, frame in frames.items() if sequence > after]
        expect(list(store.replay(after)), wanted, f"a replay after {after}")


def _a_replay_leaves_out_what_is_acked_meanwhile(make: MakeStore) -> None:
    store, frames = _filled(make, 6)
    replay = store.replay()
    found = [next(replay)[0]]
    store.discard_up_to(_CLOCK_US + 4)
    found += [sequence for sequence, _ in replay]
    expect(found, [min(frames), _CLOCK_US + 5, _CLOCK_US + 6], "a replay during acks")


def _one_message_is_found(make: MakeStore) -> None:
    store, frames = _filled(make, 4)
    store.discard_up_to(min(frames))
    for sequence in list(frames)[1:]:
        expect(
            store.replay_single(sequence), frames[sequence], "replay_single of a waiting message"
        )
    for other in (0, min(frames), max(frames) + 1):
        expect(store.replay_single(other), None, f"replay_single({other})")


def _the_clock_is_for_a_store_without_history(make: MakeStore) -> None:
    store = make()
    store.number_above(700)
    first = store.store(_HEAD, _TAIL, b"")
    store.number_above(9_000)
    numbers = (first, store.store(_HEAD, _TAIL, b""))
    expect(numbers, (701, 702), "number_above counts only before the first number")


def _a_logon_numbers_above_what_the_server_has_seen(make: MakeStore) -> None:
    for seen, clock, wanted in ((50, 40, 51), (0, 40, 41)):
        store = make()
        store.reconcile(seen=seen, persisted=0, clock_us=clock)
        expect(store.store(_HEAD, _TAIL, b""), wanted, "the first number after a logon")
    store, frames = _filled(make, 3)
    store.reconcile(seen=max(frames) + 10, persisted=0, clock_us=9_999)
    sequence = store.store(_HEAD, _TAIL, b"late")
    expect(sequence, max(frames) + 11, "a later logon numbers above what was seen")
    _compare("and loses nothing", store, {**frames, sequence: _frame(sequence, b"late")})


def _a_logon_trims_what_is_persisted(make: MakeStore) -> None:
    store, frames = _filled(make, 5)
    store.reconcile(seen=max(frames), persisted=_CLOCK_US + 2, clock_us=0)
    left = {sequence: frame for sequence, frame in frames.items() if sequence > _CLOCK_US + 2}
    _compare("a logon trims what the server has persisted", store, left)


def _a_gap_is_noticed(make: MakeStore) -> None:
    store, frames = _filled(make, 3)
    store.discard_up_to(max(frames))
    try:
        store.reconcile(seen=min(frames), persisted=min(frames), clock_us=0)
        gap = store.gap
    except PublishGap as raised:
        gap = raised
    if gap is None:
        raise AssertionError("a server that lacks what was acknowledged: no gap was noticed")
    expect((gap.acknowledged, gap.server), (max(frames), min(frames)), "the gap")
    expect(store.last_persisted, max(frames), "last_persisted never falls at a logon")


def _a_store_belongs_to_one_client(make: MakeStore) -> None:
    store = make()
    for _ in range(2):
        store.open_for("orders-1")
    expect(store.client_name, "orders-1", "client_name")
    try:
        store.open_for("orders-2")
    except StoreLocked as error:
        expect(error.owner, "orders-1", "StoreLocked.owner")
    else:
        raise AssertionError("a client of another name was not refused with StoreLocked")


def _it_may_be_synced_and_closed_at_any_time(make: MakeStore) -> None:
    store, frames = _filled(make, 3)
    for _ in range(2):
        store.sync()
    _compare("a sync changes nothing", store, frames)
    for _ in range(2):
        store.close()


def _a_long_walk_agrees_with_a_dictionary(make: MakeStore) -> None:
    rng = random.Random(1)  # noqa: S311  the same walk each time
    store = _filled(make, 0)[0]
    frames: dict[int, bytes] = {}
    for step in range(_WALK_STEPS):
        match 0 if len(frames) >= _WALK_KEEPS else rng.randrange(5):
            case 0 if frames:
                acked = rng.choice(list(frames))
                store.discard_up_to(acked)
                frames = {each: frame for each, frame in frames.items() if each > acked}
            case 1:
                seen = store.last_sequence + rng.choice((0, 0, 0, 0, 0, 0, 0, 90))
                store.reconcile(seen=seen, persisted=store.last_persisted, clock_us=0)
            case _:
                body = bytes([step % 256]) * rng.choice((0, 10, 1000, 8000))
                sequence = store.store(_HEAD, _TAIL, body)
                frames[sequence] = _frame(sequence, body)
        _compare(f"step {step} of a long walk", store, frames)


def _a_full_store_stores_nothing(limit_bytes: int, make: MakeStore) -> None:
    store, frames = _filled(make, 0)
    for sequence in _until_full(store, limit_bytes):
        frames[sequence] = _frame(sequence, _FULL_BODY)
    expect(store.last_sequence, max(frames), "a full store has used no number")
    _compare("a full store keeps what it has", store, frames)
    store.discard_up_to(store.last_sequence)
    try:
        store.store(_HEAD, _TAIL, _FULL_BODY)
    except StoreFull as error:
        raise AssertionError("acks make room in a full store") from error


def _until_full(store: PublishStore, limit_bytes: int) -> Iterator[int]:
    for _ in range(limit_bytes // len(_FULL_BODY) + 1):
        try:
            yield store.store(_HEAD, _TAIL, _FULL_BODY)
        except StoreFull:
            return
    raise AssertionError(f"a store with a limit is full after {limit_bytes} bytes")


def _what_is_stored_outlives_the_store(reopen: Reopen, make: MakeStore) -> None:
    store, frames = _filled(make, 8)
    store.open_for("orders-1")
    store.discard_up_to(_CLOCK_US + 3)
    store.close()
    again = reopen(store)
    try:
        left = {sequence: frame for sequence, frame in frames.items() if sequence > _CLOCK_US + 3}
        _compare("what is stored outlives the store", again, left)
        known = (again.client_name, again.last_persisted)
        expect(known, ("orders-1", _CLOCK_US + 3), "owner and acks outlive the store")
        if again.store(_HEAD, _TAIL, b"") <= max(frames):
            raise AssertionError("a number was used twice after the store was opened again")
    finally:
        again.close()


PUBLISH_STORE_CHECKS: Final[tuple[Check, ...]] = (
    _a_new_store_is_empty,
    _numbers_rise_by_one,
    _frames_are_kept_byte_by_byte,
    _bytes_are_counted,
    _an_ack_covers_everything_up_to_it,
    _an_old_ack_changes_nothing,
    _numbers_go_on_after_everything_is_acked,
    _an_ack_above_the_numbers_moves_them,
    _a_replay_starts_after_a_number,
    _a_replay_leaves_out_what_is_acked_meanwhile,
    _one_message_is_found,
    _the_clock_is_for_a_store_without_history,
    _a_logon_numbers_above_what_the_server_has_seen,
    _a_logon_trims_what_is_persisted,
    _a_gap_is_noticed,
    _a_store_belongs_to_one_client,
    _it_may_be_synced_and_closed_at_any_time,
    _a_long_walk_agrees_with_a_dictionary,
)
