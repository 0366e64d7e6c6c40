"""The block that a batch builds."""

from __future__ import annotations

import pytest
from typing_extensions import override

from haclient_fake_server.engine.journal import MemoryJournal
from haclient_fake_server.engine.log_writer import ASSIGNED, NO_EXTRAS, Extras, LogWriter
from haclient_fake_server.engine.publishers import KnownPublisher, KnownPublishers
from haclient_fake_server.engine.routes import Route
from haclient_fake_server.journal.format import (
    MAX_QUEUE_ENTRIES,
    Record,
    RecordCommand,
    RecordFlag,
    RemovalReason,
    read_records,
    read_removals,
)


class _LongerJournal(MemoryJournal):
    @property
    @override
    def next_position(self) -> int:
        return 5


def builder() -> LogWriter:
    log = LogWriter(_LongerJournal(), KnownPublishers("", started_s=0), now_us=77)
    log.topic_known(2)
    return log


def route(topic: str = "orders") -> Route:
    return Route(topic, "json", logged=True, sow=None)


def test_a_batch_without_records_builds_no_block() -> None:
    batch = builder()
    assert batch.build() is None
    assert not batch.has_data


@pytest.mark.row("TL3")
def test_a_block_knows_its_span_its_publishers_and_its_definitions() -> None:
    batch, orders, a, b = builder(), route(), KnownPublisher(1), KnownPublisher(2)
    for publisher, sequence in ((a, 10), (b, 20), (a, 30)):
        batch.append(orders, publisher, sequence, body=b"x", extras=NO_EXTRAS)
    assert batch.has_data
    block = batch.build()
    assert block is not None
    assert (block.first_position, block.next_position) == (5, 8)
    assert (block.first_us, block.last_us) == (77, 77)
    assert block.publishers == {1: (10, 30), 2: (20, 20)}
    assert block.definitions == ((3, "json", "orders"),)
    assert block.assigned == frozenset()
    records = read_records(block.records, 0, len(block.records))
    assert [record.position for record in records] == [0, 5, 6, 7]
    assert (a.noted, a.batch_low) == (30, 0)


def test_a_topic_is_defined_once() -> None:
    batch, orders = builder(), route()
    batch.append(orders, KnownPublisher(1), 1, body=b"", extras=NO_EXTRAS)
    batch.build()
    batch.append(orders, KnownPublisher(1), 2, body=b"", extras=NO_EXTRAS)
    block = batch.build()
    assert block is not None
    assert (block.first_position, block.definitions) == (6, ())


def test_numbers_of_an_earlier_run_are_not_given_again() -> None:
    batch, orders = builder(), route()
    batch.topic_known(9)
    batch.append(orders, KnownPublisher(1), 1, body=b"", extras=NO_EXTRAS)
    assert orders.topic_id == 10


def test_everything_a_publish_may_carry_is_in_its_record() -> None:
    batch = builder()
    extras = Extras(b"key", b"corr", b"\x3c\0\0\0", RecordFlag.USER_KEY)
    batch.append(route(), KnownPublisher(1), 1, body=b"body", extras=extras)
    block = batch.build()
    assert block is not None
    record = list(read_records(block.records, 0, len(block.records)))[1]
    assert record == Record(5, 1, 1, 77, 3, 1, RecordFlag.USER_KEY, b"key", b"corr", 60, b"body")


@pytest.mark.row("ID3")
def test_a_block_names_publishers_whose_sequences_are_assigned() -> None:
    batch = builder()
    batch.append(route(), KnownPublisher(4), 1, body=b"", extras=ASSIGNED)
    block = batch.build()
    assert block is not None
    assert block.assigned == {4}


@pytest.mark.row("ID2")
def test_a_mark_has_its_place_in_the_log_and_is_no_message() -> None:
    batch, publisher = builder(), KnownPublisher(4)
    publisher.noted = publisher.seen = 7
    batch.set_source("west", is_confirmed=False)
    batch.note_seen(publisher, 9)
    block = batch.build()
    assert block is not None
    assert (block.first_position, block.next_position, block.publishers) == (5, 6, {4: (9, 9)})
    (record,) = read_records(block.records, 0, len(block.records))
    assert (record.command, record.sequence, record.position) == (RecordCommand.MARK, 9, 5)
    assert (record.flags, record.is_data) == (RecordFlag.REPLICATED, False)
    assert (publisher.before_batch, publisher.noted, publisher.logged) == (7, 9, -1)


@pytest.mark.row("ID2")
def test_a_mark_after_a_message_of_its_publisher_widens_what_the_block_has_of_it() -> None:
    batch, publisher = builder(), KnownPublisher(4)
    batch.append(route(), publisher, 8, body=b"", extras=NO_EXTRAS)
    batch.note_seen(publisher, 9)
    block = batch.build()
    assert block is not None
    assert (block.next_position, block.publishers) == (7, {4: (8, 9)})
    assert (publisher.before_batch, publisher.logged) == (0, 8)


def test_a_message_of_this_very_batch_can_be_found() -> None:
    batch = builder()
    batch.append(route(), KnownPublisher(4), 9, body=b"", extras=NO_EXTRAS)
    assert batch.find(4, 9) == 5
    assert batch.find(4, 8) is None


@pytest.mark.row("QB31")
def test_removals_from_a_queue_follow_what_was_added_before_and_have_no_position() -> None:
    batch, orders = builder(), route()
    batch.append(orders, KnownPublisher(1), 1, body=b"x", extras=NO_EXTRAS)
    batch.remove_from_queue("größe", "json", [(1, 1, RemovalReason.DELIVERED)])
    batch.append(orders, KnownPublisher(1), 2, body=b"x", extras=NO_EXTRAS)
    block = batch.build()
    assert block is not None
    assert (block.first_position, block.next_position, block.count) == (5, 7, 4)
    records = [*read_records(block.records, 0, len(block.records))]
    assert [record.position for record in records] == [0, 5, 0, 6]
    removals = read_removals(records[2])
    assert removals == ("größe".encode(), b"json", [(1, 1, RemovalReason.DELIVERED)])
    assert records[2].timestamp_us == 77


def test_removals_alone_make_a_block_that_does_not_move_the_end_of_the_log() -> None:
    batch = builder()
    batch.remove_from_queue("work", "json", [])
    assert batch.build() is None
    batch.remove_from_queue("work", "json", [(1, 1, 1)])
    assert not batch.has_data
    block = batch.build()
    assert block is not None
    assert (block.first_position, block.next_position, block.publishers) == (5, 5, {})


def test_many_removals_are_several_records() -> None:
    batch = builder()
    entries = [(1, number, 1) for number in range(2 * MAX_QUEUE_ENTRIES + 1)]
    batch.remove_from_queue("work", "json", entries)
    block = batch.build()
    assert block is not None
    records = [*read_records(block.records, 0, len(block.records))]
    assert [len(read_removals(record).entries) for record in records] == [10_000, 10_000, 1]
    assert [entry for record in records for entry in read_removals(record).entries] == entries
    assert block.count == 3


@pytest.mark.row("TL17")
def test_the_time_of_records_never_falls() -> None:
    it = builder()
    it.begin(51)
    assert it.now_us == 77
    it.begin(78)
    assert it.now_us == 78


def test_the_last_bookmark_of_nothing_is_the_epoch() -> None:
    it = builder()
    assert it.last_bookmark == "0"
    it.append(route(), KnownPublisher(5), 6, body=b"", extras=NO_EXTRAS)
    assert it.last_bookmark == "5|6|"
