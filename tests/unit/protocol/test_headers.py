from __future__ import annotations

from haclient.protocol.headers import BY_SPELLING, HEADERS, WIRE_NAMES


def test_no_two_fields_share_a_name() -> None:
    assert len(WIRE_NAMES) == len(set(WIRE_NAMES.values())) == len(HEADERS)
    assert len(BY_SPELLING) == sum(len(header.spellings) for header in HEADERS)


def test_what_we_write_is_among_what_we_read() -> None:
    for header in HEADERS:
        assert BY_SPELLING[header.wire] is header


def test_the_long_and_short_names_of_the_field_table_are_read() -> None:
    pairs = {
        "cmd": "c",
        "cmd_id": "cid",
        "topic": "t",
        "ack_type": "a",
        "o": "opts",
        "f": "filter",
        "bookmark": "bm",
        "batch_size": "bs",
        "expiration": "e",
        "correlation_id": "x",
        "sow_key": "k",
        "seq": "s",
        "msg_len": "l",
        "leaseperiod": "lp",
        "timestamp": "ts",
        "password": "pw",
        "v": "version",
        "message_type": "mt",
    }
    for long, short in pairs.items():
        assert BY_SPELLING[long] is BY_SPELLING[short]


def test_what_the_protocol_writes_without_quotes_is_a_number() -> None:
    numbers = {header.wire for header in HEADERS if header.kind is int}
    assert numbers == {
        *("s", "e", "bs", "top_n", "l", "gseq", "matches", "topic_matches"),
        *("records_returned", "records_inserted", "records_updated", "records_deleted"),
    }
