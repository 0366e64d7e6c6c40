from __future__ import annotations

import pytest

from haclient.errors import (
    AuthenticationError,
    DisconnectedError,
    HAClientError,
    NameInUse,
    ProtocolError,
    UsageError,
)
from haclient.protocol.messages import Message
from haclient.session.connection_state import (
    LoggedOn,
    LogStart,
    check_client_name,
    logon_fields,
    read_logon_ack,
    refusal,
)


def test_a_logon_says_only_what_is_known() -> None:
    fields = logon_fields("0", "pub")
    assert list(fields) == ["c", "cid", "client_name", "a", "version"]
    assert fields["a"] == "processed"


@pytest.mark.row("CC4")
def test_a_logon_carries_credentials_type_options_and_correlation_id() -> None:
    fields = logon_fields(
        "0",
        "pub",
        message_type="json",
        user="me",
        password="pw",  # noqa: S106  # a test's
        options="ack_conflation=100ms",
        correlation_id="abc",
    )
    assert (fields["mt"], fields["user_id"], fields["pw"]) == ("json", "me", "pw")
    assert (fields["opts"], fields["x"]) == ("ack_conflation=100ms", "abc")


def accepted(sequence: int | None, bookmark: str) -> Message:
    return Message(
        kind="ack",
        ack_type="processed",
        status="success",
        sequence=sequence,
        bookmark=bookmark,
        version="5.3.5.1",
        reason="authentication disabled",
    )


@pytest.mark.row("CC5", "PS8")
@pytest.mark.parametrize(
    ("sequence", "bookmark", "seen", "persisted"),
    [
        (9, "17|7|", 9, 7),
        (9, "", 9, 9),
        (None, "", None, None),
        (None, "17|7|", None, None),
        (0, "17|0|", 0, 0),
        (9, "0", 9, 0),
        (2**62 - 1, "", 2**62 - 1, 2**62 - 1),
    ],
)
def test_the_answer_tells_what_was_seen_and_what_is_persisted(
    sequence: int | None, bookmark: str, seen: int | None, persisted: int | None
) -> None:
    assert read_logon_ack(accepted(sequence, bookmark)) == LoggedOn(
        seen=seen, persisted=persisted, server_version="5.3.5.1", reason="authentication disabled"
    )


@pytest.mark.row("PS9")
@pytest.mark.parametrize(
    ("seen", "persisted", "found"),
    [
        (9, 9, 9),
        (5, 3, 5),  # not told yet that its replicas have 4 and 5
        (9, 3, 5),  # what lies above was acknowledged by nobody
        (4, 3, 4),
        (0, 0, 0),
        (None, None, 5),
        (9, None, 5),
    ],
)
def test_a_server_has_what_it_has_seen_of_what_was_acknowledged(
    seen: int | None, persisted: int | None, found: int
) -> None:
    server = LoggedOn(seen=seen, persisted=persisted, server_version="", reason="")
    assert server.has_of(5) == found


@pytest.mark.row("PS7")
@pytest.mark.parametrize("bookmark", ["what?", "20240101T000000Z"])
def test_a_bookmark_that_says_nothing_of_us_is_unknown(bookmark: str) -> None:
    assert read_logon_ack(accepted(9, bookmark)).persisted is None


@pytest.mark.row("AT14", "PS8")
@pytest.mark.parametrize(
    ("sequence", "bookmark"),
    [
        (2**62, ""),
        (2**63 - 1, ""),
        (2**63, ""),
        (2**64 - 1, ""),
        (2**64 - 1, "17|7|"),
        (9, f"17|{2**63}|"),
    ],
)
def test_a_number_that_leaves_no_room_above_it_is_a_fault_of_the_server(
    sequence: int, bookmark: str
) -> None:
    with pytest.raises(ProtocolError, match="no room to number above it"):
        read_logon_ack(accepted(sequence, bookmark))


def test_the_starts_of_the_servers_log_are_read_oldest_first() -> None:
    ack = accepted(0, "")
    assert read_logon_ack(ack).log_starts == ()
    ack.log_starts = "1f@0,ffffffffffffffff@4711"
    assert read_logon_ack(ack).log_starts == (LogStart(0x1F, 0), LogStart(2**64 - 1, 4711))


@pytest.mark.parametrize("text", ["1f", "1f@", "xyz@1", "1f@0@2", "1f@a"])
def test_starts_that_cannot_be_read_are_a_fault_of_the_server(text: str) -> None:
    ack = accepted(0, "")
    ack.log_starts = text
    with pytest.raises(ProtocolError, match="malformed log_starts"):
        read_logon_ack(ack)


@pytest.mark.row("CC37")
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("auth failure", AuthenticationError),
        ("not entitled", AuthenticationError),
        ("name in use", NameInUse),
        ("duplicate logon attempt", DisconnectedError),
        ("", DisconnectedError),
    ],
)
def test_a_refusal_is_an_error_by_its_reason(reason: str, kind: type[HAClientError]) -> None:
    assert type(refusal(reason)) is kind
    with pytest.raises(kind):
        read_logon_ack(Message(kind="ack", status="failure", reason=reason))


@pytest.mark.row("CC1")
def test_a_name_is_printable_and_not_empty() -> None:
    assert check_client_name("orders-7 \N{EURO SIGN}") == "orders-7 \N{EURO SIGN}"
    for name in ("", "a\tb", "[a]", "\x7f"):
        with pytest.raises(UsageError):
            check_client_name(name)
