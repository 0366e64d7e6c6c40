from __future__ import annotations

import logging

import pytest

from haclient.protocol.codec import encode_frame
from haclient.transport.wire_log import WireLog, log_state

LOGON = {"c": "logon", "user_id": "me", "pw": 'se"cr\\et'}


@pytest.mark.row("AT12")
def test_headers_are_logged_in_both_directions_without_bodies_and_passwords(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "haclient.wire")
    wire = WireLog.if_enabled("a:1")
    assert wire is not None
    wire.received([b'{"c":"ack","password" : "secret"}', b'{"c":"ack","pw":"secret}'])
    frames = encode_frame(LOGON) + encode_frame({"c": "p", "t": "orders"}, b"payload")
    for position in range(len(frames)):
        wire.sent(frames[position : position + 1])
    log_state("orders-7", "connected")
    assert caplog.messages == [
        '< a:1 {"c":"ack","password" : "***"}',
        '< a:1 {"c":"ack","pw":"***',
        '> a:1 {"c":"logon","user_id":"me","pw":"***"}',
        '> a:1 {"c":"p","t":"orders"}',
        "= orders-7 connected",
    ]


def test_nothing_is_looked_for_while_the_level_is_above_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "haclient.wire")
    assert WireLog.if_enabled("a:1") is None
