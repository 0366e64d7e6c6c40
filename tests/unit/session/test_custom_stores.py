from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from haclient.errors import StoreError, StoreFull
from haclient.session.custom_stores import SendingStore, StoreSubscription
from haclient_stores.interfaces import FrameLog
from support.custom import DictBookmarkStore, DictPublishStore

HEAD, TAIL = b'{"c":"p","t":"orders","s":', b"}"


def frame(sequence: int, body: bytes) -> bytes:
    rest = b"%b%d%b%b" % (HEAD, sequence, TAIL, body)
    return len(rest).to_bytes(4, "big") + rest


def sent(log: FrameLog, count: int) -> bytes:
    """Take up to `count` unsent bytes."""
    taken = b""
    while count > len(taken) and (piece := log.peek()):
        part = bytes(piece[: count - len(taken)])
        log.advance(len(part))
        taken += part
    return taken


@pytest.mark.row("PS1")
def test_a_custom_store_becomes_a_send_queue() -> None:
    store = DictPublishStore()
    log = SendingStore(store)
    assert log.append(HEAD, TAIL, b"a") == 1
    assert log.store(HEAD, TAIL, b"bb") == 2
    assert log.unsent_bytes == len(frame(1, b"a") + frame(2, b"bb"))
    assert sent(log, 10_000) == frame(1, b"a") + frame(2, b"bb")
    assert log.unsent_bytes == 0
    assert not log.peek()
    assert store.frames == {1: frame(1, b"a"), 2: frame(2, b"bb")}


class Copying(DictPublishStore):
    """Takes any buffer."""

    @override
    def store(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        return super().store(head, tail, bytes(body))


def test_a_body_with_steps_is_sent_as_the_store_has_it() -> None:
    log = SendingStore(Copying())
    assert log.append(HEAD, TAIL, memoryview(b"a.b.")[::2]) == 1
    assert sent(log, 10_000) == frame(1, b"ab")


def test_inside_a_frame_the_rest_of_it_is_known() -> None:
    log = SendingStore(DictPublishStore())
    log.append(HEAD, TAIL, b"a")
    assert log.frame_remainder() == 0
    whole = len(log.peek())
    log.advance(5)
    assert log.frame_remainder() == whole - 5
    log.advance(whole - 5)
    assert log.frame_remainder() == 0


@pytest.mark.row("PS7")
def test_after_a_lost_link_everything_unpersisted_is_sent_again_from_a_boundary() -> None:
    log = SendingStore(DictPublishStore())
    for body in (b"a", b"b", b"c"):
        log.append(HEAD, TAIL, body)
    sent(log, len(frame(1, b"a")) + 3)
    log.reconcile(seen=2, persisted=1, clock_us=5)
    log.rewind(log.last_persisted)
    assert log.frame_remainder() == 0
    assert sent(log, 10_000) == frame(2, b"b") + frame(3, b"c")


class Counting(DictPublishStore):
    """Counts what it has replayed."""

    replayed = 0

    @override
    def replay(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        for each in super().replay(after):
            self.replayed += len(each[1])
            yield each


@pytest.mark.row("PS7")
def test_a_long_backlog_is_read_in_pieces_and_only_once_more_for_each_sending() -> None:
    store, mib, count = Counting(), 2**20, 100
    for _ in range(count):
        store.store(HEAD, TAIL, bytes(mib // 10))
    total = store.unpersisted_bytes
    log = SendingStore(store)
    log.reconcile(seen=0, persisted=0, clock_us=5)
    log.rewind(0)
    pieces = 1
    while not log.measure():
        pieces += 1
        assert store.replayed <= pieces * (mib + mib // 5)
    assert pieces >= 9
    assert log.unsent_bytes == total == store.replayed
    log.append(HEAD, TAIL, b"new")
    assert store.replayed == total
    assert len(log.peek()) == mib // 10 + len(frame(1, b""))
    assert store.replayed <= total + mib + mib // 5  # a piece of it
    log.discard_up_to(50)  # what is not in the queue is not sent any more
    assert log.unsent_bytes < total * 0.65
    found = sent(log, 2 * total)
    assert len(found) < total * 0.65
    assert found.endswith(frame(count + 1, b"new"))
    assert log.unsent_bytes == 0
    log.rewind(90)
    before = store.replayed
    assert log.measure()  # nothing is read to know what there is
    assert log.unsent_bytes == len(
        b"".join(found for _, found in DictPublishStore.replay(store, 90))
    )
    assert store.replayed == before


def test_what_is_appended_while_a_backlog_is_measured_counts_once() -> None:
    store = DictPublishStore()
    for _ in range(3):
        store.store(HEAD, TAIL, bytes(2**20))
    log = SendingStore(store)
    log.append(HEAD, TAIL, b"before the logon")
    log.rewind(0)
    pieces = 0
    while not log.measure():
        pieces += 1
        log.append(HEAD, TAIL, b"meanwhile")
        assert log.unsent_bytes <= store.unpersisted_bytes
    assert pieces >= 3
    assert log.unsent_bytes == store.unpersisted_bytes
    assert len(sent(log, 2**23)) == store.unpersisted_bytes
    assert log.unsent_bytes == 0


def test_a_custom_store_that_forgets_what_was_not_discarded_is_named() -> None:
    store = DictPublishStore()
    log = SendingStore(store)
    for body in (b"a", b"b"):
        log.append(HEAD, TAIL, body)
    del store.frames[1]
    log.rewind(0)
    with pytest.raises(StoreError, match="replays message 2 where 1 has to follow"):
        log.peek()


def test_a_full_store_leaves_nothing_in_the_queue() -> None:
    log = SendingStore(DictPublishStore(max_count=0))
    with pytest.raises(StoreFull):
        log.append(HEAD, TAIL, b"a")
    assert log.unsent_bytes == 0


def test_everything_else_is_asked_of_the_store_itself() -> None:
    store = DictPublishStore()
    log = SendingStore(store)
    log.open_for("pub")
    log.append(HEAD, TAIL, b"a")
    log.append(HEAD, TAIL, b"b")
    log.discard_up_to(1)
    log.sync()
    assert (log.client_name, log.gap, store.synced) == ("pub", None, 1)
    assert (log.unpersisted_count, log.lowest_unpersisted) == (1, 2)
    assert (log.last_persisted, log.last_sequence) == (1, 2)
    assert log.unpersisted_bytes == len(frame(2, b"b"))
    assert list(log.replay()) == [(2, frame(2, b"b"))]
    assert log.replay_single(2) == frame(2, b"b")
    log.close()
    assert store.closed


@given(st.lists(st.one_of(st.binary(max_size=30), st.integers(1, 60))))
def test_whatever_the_pieces_the_bytes_are_the_frames_in_order(steps: list[bytes | int]) -> None:
    log = SendingStore(DictPublishStore())
    wire, wanted = b"", b""
    for step in steps:
        if isinstance(step, bytes):
            wanted += frame(log.append(HEAD, TAIL, step), step)
        else:
            wire += sent(log, step)
            assert log.unsent_bytes == len(wanted) - len(wire)
    assert wire + sent(log, 10_000) == wanted


@pytest.mark.row("BS1", "BS11")
def test_a_custom_bookmark_store_works_message_by_message() -> None:
    store = DictBookmarkStore()
    log = StoreSubscription(store, "s")
    assert log.log_batch(["1|1|", "1|2|", "1|1|", ""]) == [1, 2, 0, -1]
    assert log.oldest_undiscarded == 1
    log.discard(2)
    assert log.resume() == "0"
    log.discard(1)
    assert str(log.recovery_point()) == log.resume() == "1|2|"
    assert log.is_discarded("1|1|")
    assert (log.oldest_undiscarded, log.undiscarded_count) == (0, 0)


def test_a_custom_bookmark_store_gets_the_subscribers_persisted_acks() -> None:
    store = DictBookmarkStore()
    log = StoreSubscription(store, "s")
    log.persisted("1|9|")
    log.completed("1|9|")
    log.link_lost(1)
    log.ended()
    log.ended_except({1})
    assert store.acks == [("s", "1|9|")]


def test_an_ack_of_a_conflated_subscription_is_no_recovery_point_of_a_custom_store() -> None:
    store = DictBookmarkStore()
    log = StoreSubscription(store, "s")
    log.begin(acked=True, start=None, conflated=True)
    log.persisted("1|9|")
    assert store.acks == []
    log.begin(acked=True, start=None)
    log.persisted("1|9|")
    assert store.acks == [("s", "1|9|")]


@pytest.mark.row("BS7")
def test_an_explicit_start_forgets_the_subscription_and_a_resume_does_not() -> None:
    store = DictBookmarkStore()
    log = StoreSubscription(store, "s")
    log.log_batch(["1|1|", "1|2|"])
    log.discard_up_to(1)
    log.begin(acked=True, start=None)
    assert log.undiscarded_count == 1
    assert log.resume() == "1|1|"
    log.begin(acked=True, start="0")
    assert log.undiscarded_count == 0
    assert log.resume() == "0"


@pytest.mark.row("BS9")
def test_a_custom_store_that_knows_nothing_resumes_from_the_start_that_was_given() -> None:
    store = DictBookmarkStore()
    log = StoreSubscription(store, "s")
    log.begin(acked=True, start="0|1|", entered_us=3_000_000)
    assert log.resume() == "19700101T000003Z"
    log.completed("7|9|")
    assert log.resume() == "7|9|"
    assert log.resume_elsewhere(1) == ("7|9|,19700101T000003Z", "19700101T000003Z")
    log.discard(log.log("7|10|"))
    assert log.resume_elsewhere(1) == ("7|10|,19700101T000003Z", "7|10|")
    log.begin(acked=True, start="20240131T120000Z")
    assert log.resume() == "20240131T120000Z"


@pytest.mark.row("BS9")
def test_what_comes_again_to_a_custom_store_takes_back_nothing_of_how_far_it_has_got() -> None:
    """Else progress of one server would count as progress in the order of the next."""
    store = DictBookmarkStore()
    log = StoreSubscription(store, "s")
    log.entered("one")
    numbers = log.log_batch(["1|1|", "1|2|", "1|3|"])
    store.entries["s"].pop(2)  # a store that wants what is not discarded again
    numbers += log.log_batch(["1|2|"])
    for number in numbers:
        log.discard(number)
    assert log.arrived() == {1: 3}
    log.entered("two")
    assert not log.in_order


@pytest.mark.row("BS7", "BS9")
def test_what_a_custom_store_knows_and_nobody_has_comes_again_under_its_number() -> None:
    store = DictBookmarkStore()
    log, bookmarks = StoreSubscription(store, "s"), ["1|1|", "2|1|", "1|2|"]
    assert log.log_batch(bookmarks) == [1, 2, 3]
    log.dropped([2, 3])
    assert sorted(log.awaiting_redelivery()) == [1, 2]
    log.discard(3)
    assert [log.is_discarded(each) for each in bookmarks] == [True, False, True]
    assert log.log_batch(bookmarks) == [0, 2, 0]
    log.ended_except({1})  # a handler still works on it
    assert log.log_batch(bookmarks) == [0, 2, 0]
    log.ended()
    assert log.log_batch(bookmarks) == [1, 2, 0]
    store.discard_up_to("s", 2)
    log.ended()
    assert log.log_batch(bookmarks) == [0, 0, 0]
