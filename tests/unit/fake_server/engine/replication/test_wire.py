"""What brokers say to each other."""

from __future__ import annotations

import pytest

from haclient.errors import ProtocolError
from haclient_fake_server.engine.replication import wire
from support.engine import decode


def test_a_logon_names_the_instance_and_its_credentials_only_if_there_are_any() -> None:
    assert wire.logon("east", user="", password="", beat_interval_s=3.0)[4:] == (
        b'{"c":"replication_logon","client_name":"east","opts":"start,3","version":"2"}'
    )
    word = "x"
    (message,) = decode(wire.logon("east", user="me", password=word, beat_interval_s=0.5))
    assert (message.user_id, message.password, message.options) == ("me", word, "start,0.5")


@pytest.mark.row("RE3")
@pytest.mark.parametrize("vector", [{}, {1: 2}, {2**64 - 1: 2**64 - 1, 5: 1}])
def test_a_vector_survives_the_way(vector: dict[int, int]) -> None:
    (message,) = decode(wire.welcome("west", vector))
    assert (message.client_name, message.status) == ("west", "success")
    assert wire.decode_vector(message.data) == vector


def test_a_torn_vector_is_refused() -> None:
    with pytest.raises(ProtocolError, match="vector of 17 bytes"):
        wire.decode_vector(bytes(17))


def test_records_and_their_ack_carry_the_senders_position() -> None:
    message, ack, refusal = decode(
        wire.records([b"a", b"b"], 2**40), wire.written(2**40), wire.refusal("why")
    )
    assert (message.kind, message.sequence, message.data) == ("replicate", 2**40, b"ab")
    assert (ack.ack_type, ack.sequence) == ("replicated", 2**40)
    assert (refusal.status, refusal.reason) == ("failure", "why")


def test_what_a_receiver_lacks_is_read_back() -> None:
    missing = [wire.Missing(2**64 - 1, 5, 8, 4), wire.Missing(1, 3, 3, 1)]
    (ack,) = decode(wire.written(9, missing))
    assert (ack.ack_type, ack.sequence) == ("replicated", 9)
    assert wire.decode_missing(ack.data) == missing
    with pytest.raises(ProtocolError, match="wanted 32 per publisher"):
        wire.decode_missing(b"123")
    assert "sequence 3" in str(missing[1])


def test_a_body_is_cut_where_the_receiver_reads_no_longer_frames() -> None:
    frames = decode(wire.records([b"abc", b"de"], 7, max_frame_bytes=130))
    assert [(each.data, each.options, each.sequence) for each in frames] == [
        (b"ab", "more", None),
        (b"cd", "more", None),
        (b"e", "", 7),
    ]


@pytest.mark.parametrize("options", ["max_frame=", "max_frame=-1", "max_frame=²"])
def test_a_longest_frame_that_is_no_number_is_refused(options: str) -> None:
    with pytest.raises(ProtocolError, match="a number of bytes"):
        wire.decode_max_frame(options)
