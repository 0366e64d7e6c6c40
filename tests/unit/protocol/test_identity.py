from __future__ import annotations

import pytest

from haclient.protocol.identity import crc64, instance_publisher_id, publisher_id, version_number


@pytest.mark.row("ID1")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pubber", 7094790850998930143),  # a published logon ack of a real server
        ("", 18446744073709551615),
        ("123456789", 0xCAA717168609F281),
        ("publisher-1", 15554923131290836332),
    ],
)
def test_a_publisher_id_is_the_hash_of_the_client_name(name: str, expected: int) -> None:
    assert publisher_id(name) == expected
    assert publisher_id(name.encode()) == expected


@pytest.mark.row("ID3")
def test_an_instance_gives_another_id_to_what_comes_without_a_sequence() -> None:
    assert instance_publisher_id("pubber", "AMPS-Sample") == 16619966516483552159
    assert instance_publisher_id(b"pubber", b"AMPS-Sample") == 16619966516483552159


def test_the_same_checksum_names_topics_in_a_published_journal() -> None:
    assert crc64(b"json\0sample-record") == 10912813577604266571


def test_names_are_bytes_in_the_end() -> None:
    assert publisher_id("gr\u00fcn") == publisher_id(b"gr\xc3\xbcn")
    assert publisher_id("\udcff") == publisher_id(b"\xff")


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("5.3.4.99", 5030499),
        ("5.2.1.17.717892.e742467", 5020117),
        ("5.3.5", 5030500),
        ("5", 5000000),
        ("5.3.4.1000", 5030499),
        ("5.300.4.1", 5990401),
        ("5.0003.4", 5030400),
        ("5.3rc1.9.9", 5030000),
        ("5.x.9", 5000000),
        ("5..9", 5000000),
        ("develop", 0),
        ("", 0),
        ("9" * 5000, 99000000),
        ("\u0665.1", 0),
    ],
)
def test_a_version_becomes_a_number_that_can_be_compared(version: str, number: int) -> None:
    assert version_number(version) == number
