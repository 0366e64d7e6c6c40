"""The heads of an HTTP upgrade: made, checked and answered without a link."""

from __future__ import annotations

import pytest

from haclient.errors import ConnectionRefused, ProtocolError, UsageError
from haclient.protocol.http_upgrade import (
    check_granted,
    check_preflight_headers,
    granting_answer,
    is_whole_head,
    upgrade_request,
)
from haclient.protocol.uri import Uri

URI = Uri.parse("tcp://a:9007/amps/json")


def test_a_server_grants_what_a_client_asks_for_and_the_client_takes_it() -> None:
    request = upgrade_request(URI, {"X-Desk": "7"})
    assert request.startswith(b"GET /amps/json HTTP/1.1\r\nHost: a:9007\r\nX-Desk: 7\r\n")
    assert is_whole_head(bytearray(request), b"GET /")
    check_granted(URI, granting_answer(request))


def test_a_head_is_whole_at_its_blank_line_and_refused_when_it_begins_wrongly() -> None:
    assert not is_whole_head(bytearray(b"HTTP/1.1 101 OK\r\n"), b"HTTP/1.")
    assert is_whole_head(bytearray(b"HTTP/1.1 101 OK\r\n\r\n"), b"HTTP/1.")
    with pytest.raises(ProtocolError, match="wanted the head of an HTTP upgrade"):
        is_whole_head(bytearray(b"SSH"), b"HTTP/1.")


def test_a_page_is_no_upgrade() -> None:
    with pytest.raises(ConnectionRefused, match="found a page"):
        check_granted(URI, b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"": "x"}, "'' can be no name"),
        ({"X Desk": "x"}, "'X Desk' can be no name"),
        ({"X-Desk:": "x"}, "can be no name"),
        ({"X-Desk": "secret\r\nHost: other"}, "the value of X-Desk has characters"),
        ({"X-Desk": "secret €"}, "the value of X-Desk has characters"),
        ({"Upgrade": "websocket"}, "Upgrade is set by the handshake itself"),
        ({"content-length": "7"}, "content-length is set by the handshake itself"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused_without_their_values(
    headers: dict[str, str], why: str
) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        check_preflight_headers(headers)
    assert "secret" not in str(caught.value)
