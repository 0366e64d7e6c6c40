"""The sending side: what is sent, what is passed over, and what an ack of it means."""

from __future__ import annotations

import struct

import pytest

from haclient.errors import ProtocolError
from haclient.protocol.messages import Message
from haclient_fake_server.engine.journal import Block, MemoryJournal
from haclient_fake_server.engine.log_writer import NO_EXTRAS, Extras, LogWriter
from haclient_fake_server.engine.publishers import KnownPublisher, KnownPublishers
from haclient_fake_server.engine.replication.destination import (
    CHUNK_BYTES,
    FRAME_BYTES,
    MAX_NAME_CHARACTERS,
    Destination,
)
from haclient_fake_server.engine.replication.durability import (
    DestinationProgress,
    ReplicationProgress,
)
from haclient_fake_server.engine.routes import Routes
from haclient_fake_server.engine.settings import EngineSettings, ReplicateTo
from haclient_fake_server.journal.format import RecordCommand, RecordFlag, read_records
from support.engine import decode


class Log:
    """A log that grows by batches, and a destination that reads it."""

    def __init__(self, mode: str = "sync") -> None:
        self.journal = MemoryJournal()
        self.log = LogWriter(self.journal, KnownPublishers("", started_s=0), now_us=10**15)
        self.routes = Routes(EngineSettings(), self.journal)
        to = ReplicateTo("tcp://west:1", "sync" if mode == "sync" else "async")
        self.destination = Destination(to)
        self.publishers = {number: KnownPublisher(number) for number in (7, 8)}

    def write(self, *records: tuple[int, int], body: bytes = b"{}", source: str = "") -> Block:
        """A batch of records, `(publisher id, sequence)`."""
        route = self.routes["json"].route("orders")
        extras = Extras(flags=RecordFlag.REPLICATED) if source else NO_EXTRAS
        for publisher_id, sequence in records:
            publisher = self.publishers[publisher_id]
            self.log.append(route, publisher, sequence, body=body, extras=extras)
        block = self.log.build()
        assert block is not None
        self.routes.close_batch(block)
        self.journal.append(block)
        self.destination.written(
            block.first_position, block.next_position, block.publishers, source=source
        )
        return block

    @property
    def end(self) -> int:
        return self.log.position

    def restore(self, acknowledged: int, *, confirmed: int | None = None) -> None:
        """An earlier run of the broker was told that `west` has the log up to a position."""
        known = (DestinationProgress("tcp://west:1", "west", acknowledged),) if acknowledged else ()
        self.destination.restore(ReplicationProgress(confirmed, known), end=self.end)

    def link(
        self, vector: dict[int, int] | None = None, now: float = 0.0, *, instance: str = "west"
    ) -> None:
        """The other side answers a logon."""
        data = b"".join(struct.pack("<QQ", *entry) for entry in (vector or {}).items())
        message = Message(kind="ack", client_name=instance)
        message.data = data
        self.destination.welcome(message, self.journal, end=self.end, now=now)

    def sent_sequences(self) -> list[list[int]]:
        """The sequences in each of the next frames."""
        frames = self.destination.pump(self.journal, self.routes.by_id)
        return [
            [
                record.sequence
                for record in read_records(message.data, 0, len(message.data))
                if record.command != RecordCommand.TOPIC
            ]
            for message in decode(*frames)
        ]


@pytest.mark.row("RE3")
def test_only_what_the_other_side_lacks_is_sent() -> None:
    log = Log()
    log.write((7, 1), (8, 1), (7, 2))
    log.write((7, 3), (8, 2))
    log.restore(3)
    log.link({7: 2, 8: 1})
    assert log.sent_sequences() == [[3, 2]]
    assert log.sent_sequences() == []
    log.write((7, 4))
    assert log.sent_sequences() == [[4]]


@pytest.mark.row("RE3")
def test_records_that_the_other_side_has_are_not_sent() -> None:
    log = Log()
    for sequence in (1, 2):
        log.write((7, sequence), body=bytes(CHUNK_BYTES * 2 // 3))
    log.write((7, 3))
    log.restore(2)
    log.link({7: 2})
    assert (log.destination.position, log.destination.acked) == (1, 0)
    assert log.sent_sequences() == [[]]  # removals of the earlier run may be before them
    assert log.destination.position == 2
    log.destination.acknowledge(1)
    assert log.destination.acked == 1
    assert log.sent_sequences() == [[3]]


@pytest.mark.row("RE3")
def test_when_nothing_is_missing_nothing_is_read() -> None:
    log = Log()
    log.write((7, 1))
    log.restore(1)
    log.link({7: 9})
    assert (log.destination.position, log.destination.acked) == (2, 1)


@pytest.mark.row("RE3", "RE4")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_at_a_first_contact_the_vector_proves_nothing(mode: str) -> None:
    log = Log(mode)
    log.write((7, 1), (7, 2))
    log.write((8, 1), source="west")
    log.write((8, 2), source="south")
    log.write((7, 3))
    log.restore(0, confirmed=5)
    log.link({7: 2, 8: 2})
    assert log.destination.acked == 0
    assert log.sent_sequences() == [[1, 2, 3]], "the other side may have gone on to 2 without 1"
    log.destination.acknowledge(5)
    assert log.destination.acked == 5
    log.destination.leave()
    log.link({7: 3, 8: 2})
    assert log.sent_sequences() == [], "once is enough"


@pytest.mark.row("RE3", "RE4")
def test_another_instance_at_the_same_address_has_acknowledged_nothing() -> None:
    log = Log()
    log.write((7, 1), (7, 2))
    log.restore(2)
    log.link({7: 2}, instance="north")
    assert log.sent_sequences() == [[1, 2]]
    assert log.destination.progress == DestinationProgress("tcp://west:1", "north", 0)


@pytest.mark.row("RE3", "RE4")
def test_from_the_first_record_that_the_other_side_has_lost_again_its_acks_prove_nothing() -> None:
    log = Log()
    log.write((7, 1), (8, 1), (7, 2), (8, 2), (7, 3))
    log.write((7, 4), source="south")
    log.restore(6)
    log.link({7: 9, 8: 1})
    assert log.sent_sequences() == [[2, 3]], (
        "8 has lost its 2, and 7 may have gone on without its 3"
    )
    assert log.destination.progress == DestinationProgress("tcp://west:1", "west", 3)
    log.destination.leave()
    log.link({7: 9, 8: 2})
    assert log.sent_sequences() == [[2, 3]], "until it has acknowledged them once more"
    log.destination.acknowledge(5)
    assert log.destination.progress == DestinationProgress("tcp://west:1", "west", 6)


@pytest.mark.row("RE3", "RE4")
def test_what_is_removed_from_the_log_is_not_waited_for() -> None:
    log = Log()
    log.write((7, 1), (7, 2), (7, 3))
    log.journal.live.manifest.first_position = 3
    log.link()
    assert log.destination.acked == 2
    assert log.sent_sequences() == [[3]]


@pytest.mark.row("RE3")
def test_the_first_frame_of_a_connection_defines_its_topics_once() -> None:
    log = Log()
    log.write((7, 1), (7, 2))
    for _ in range(2):
        log.link()
        (frame,) = log.destination.pump(log.journal, log.routes.by_id)
        (message,) = decode(frame)
        definition, *rest = read_records(message.data, 0, len(message.data))
        assert (definition.command, definition.payload) == (RecordCommand.TOPIC, b"orders")
        assert [record.sequence for record in rest] == [1, 2]


@pytest.mark.row("RE4", "RE7")
def test_an_ack_covers_what_was_passed_over_behind_it() -> None:
    log = Log()
    log.link()
    log.write((7, 1), (7, 2))
    log.sent_sequences()
    log.write((7, 3))
    log.sent_sequences()
    log.write((8, 1), source="west")
    destination = log.destination
    assert (destination.position, destination.acked) == (5, 0)
    destination.acknowledge(2)
    assert destination.acked == 2
    destination.acknowledge(3)
    assert destination.acked == 4
    with pytest.raises(ProtocolError, match="never sent"):
        destination.acknowledge(5)


@pytest.mark.row("RE6")
def test_what_came_from_there_is_not_sent_back() -> None:
    log = Log()
    log.link()
    log.write((8, 1), source="west")
    assert (log.destination.position, log.destination.acked) == (2, 1)
    log.write((7, 1))
    log.write((8, 2), source="west")
    log.write((7, 2), source="south")
    assert log.sent_sequences() == [[1, 2]]
    log.destination.acknowledge(4)
    assert log.destination.acked == 4


@pytest.mark.row("RE6")
def test_what_came_from_an_instance_that_is_cut_off_is_known_to_be_there() -> None:
    log = Log()
    log.link()
    log.destination.leave()
    log.write((8, 1), source="west")
    assert log.destination.acked == 1
    log.write((7, 1))
    log.write((8, 2), source="west")
    assert log.destination.acked == 1


def test_a_lost_connection_owes_again_what_was_not_acknowledged() -> None:
    log = Log()
    log.link()
    log.write((7, 1), (7, 2))
    log.write((7, 3))
    assert log.sent_sequences() == [[1, 2, 3]]
    log.destination.leave()
    log.link({7: 2})
    assert log.sent_sequences() == [[1, 2, 3]], "the other side may have gone on to 2 without 1"
    assert log.destination.acked == 0
    log.destination.acknowledge(3)
    assert log.destination.acked == 3
    assert log.destination.links == 2


def test_long_frames_are_cut_between_sequences() -> None:
    log = Log()
    log.link()
    big = bytes(FRAME_BYTES // 2 + 1)
    log.write((7, 1), (7, 2), (7, 2), (7, 3), (7, 4), body=big)
    assert log.sent_sequences() == [[1, 2, 2], [3, 4]]
    log.destination.acknowledge(3)
    assert log.destination.acked == 3
    log.destination.acknowledge(5)
    assert log.destination.acked == 5


@pytest.mark.row("RE5")
def test_a_downgraded_destination_is_synchronous_again_when_it_has_caught_up() -> None:
    log = Log()
    destination = log.destination
    log.link()
    log.write((7, 1))
    assert destination.downgrade(stay=False)
    assert not destination.downgrade(stay=False)
    assert not destination.consider_upgrade(end=log.end, now=1.0)
    log.sent_sequences()
    log.write((7, 2))
    log.sent_sequences()
    destination.acknowledge(1)
    assert not destination.consider_upgrade(end=log.end, now=9.0), "that was the end long ago"
    log.write((7, 3))
    destination.acknowledge(2)
    assert destination.consider_upgrade(end=log.end, now=9.5), "that was the end just now"
    assert destination.is_sync


@pytest.mark.row("RE5")
def test_a_destination_that_was_downgraded_by_hand_stays_so_until_it_is_allowed_back() -> None:
    log = Log()
    log.link()
    log.destination.downgrade(stay=True)
    assert not log.destination.consider_upgrade(end=1, now=0.0)
    log.destination.allow_upgrade()
    assert log.destination.consider_upgrade(end=1, now=0.0)


def test_an_asynchronous_destination_never_becomes_synchronous() -> None:
    log = Log("async")
    log.link()
    assert not log.destination.consider_upgrade(end=1, now=0.0)
    status = log.destination.status(1)
    assert (status.mode, status.is_sync, status.is_connected) == ("async", False, True)
    assert (status.address, status.instance, status.behind) == ("tcp://west:1", "west", 0)
    assert (log.destination.mode_text, Log().destination.mode_text) == (
        "asynchronous",
        "synchronous",
    )


@pytest.mark.row("RE3")
def test_removals_from_queues_are_sent_and_again_after_a_lost_link() -> None:
    log = Log()
    log.write((7, 1))
    log.log.remove_from_queue("work", "json", [(7, 1, 1)])
    log.write((7, 2))
    log.log.remove_from_queue("work", "json", [(7, 2, 1)])
    log.write()
    log.link()
    assert log.sent_sequences() == [[1, 0, 2, 0]]
    assert not log.destination.has_removals
    log.destination.acknowledge(2)
    assert log.destination.status(log.end).behind == 0
    log.destination.leave()
    log.link({7: 2})
    assert log.destination.has_removals
    assert log.sent_sequences() == [
        [0, 0]
    ]  # it may lack those after its last record; earlier ones do no harm
    assert not log.destination.has_removals
    log.destination.acknowledge(2)
    assert log.sent_sequences() == []


def test_removals_of_an_earlier_run_are_sent_again_to_a_destination_that_was_never_known() -> None:
    log = Log()
    log.write((7, 1), source="west")
    for _ in range(3000):  # a chunk of their own
        log.log.remove_from_queue("work", "json", [(7, 1, 1)])
    log.write()
    log.write((7, 2), body=bytes(CHUNK_BYTES), source="west")
    log.destination.restore(None, end=log.end)
    for _ in range(2):  # with a link that is lost before anything is acknowledged
        log.link({7: 2})
        sent = [frame for _ in range(4) for frame in log.sent_sequences()]
        assert [0] * 3000 in sent
        log.destination.leave()


def test_a_removal_is_acknowledged_with_the_records_that_are_not_sent_with_it() -> None:
    log = Log()
    log.write((7, 1), source="west")
    log.log.remove_from_queue("work", "json", [(7, 1, 1)])
    log.write((7, 2), source="west")
    log.link({7: 2})
    assert log.sent_sequences() == [[0]]
    assert log.destination.acked == 0
    log.destination.acknowledge(2)
    assert log.destination.acked == 2


def test_an_instance_name_that_is_too_long_for_the_file_of_the_progress_is_malformed() -> None:
    log = Log()
    with pytest.raises(ProtocolError, match="an instance name of 16384 characters"):
        log.link(instance="x" * (MAX_NAME_CHARACTERS + 1))
    assert log.destination.progress is None
