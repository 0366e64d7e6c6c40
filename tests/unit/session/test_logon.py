from __future__ import annotations

import pytest

from haclient.errors import AuthenticationError, DisconnectedError, HAClientError, NameInUse
from haclient.protocol.messages import Message
from haclient.session.logon import LoggedOn, logon_fields, read_logon_ack, refusal


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
        (None, "", 0, 0),
        (0, "17|0|", 0, 0),
    ],
)
def test_the_answer_tells_what_was_seen_and_what_is_persisted(
    sequence: int | None, bookmark: str, seen: int, persisted: int
) -> None:
    assert read_logon_ack(accepted(sequence, bookmark)) == LoggedOn(
        seen=seen, persisted=persisted, server_version="5.3.5.1", reason="authentication disabled"
    )


@pytest.mark.row("PS7")
@pytest.mark.parametrize("bookmark", ["what?", "20240101T000000Z", "0"])
def test_a_bookmark_that_says_nothing_of_us_trims_nothing(bookmark: str) -> None:
    assert read_logon_ack(accepted(9, bookmark)).persisted == 0


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
