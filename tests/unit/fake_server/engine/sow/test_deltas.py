"""Delta merges."""

from __future__ import annotations

import pytest

from haclient_fake_server.engine.sow.deltas import merge


@pytest.mark.parametrize(
    ("stored", "delta", "whole"),
    [
        (b'{"a":1}', b'{"b":2}', b'{"a":1,"b":2}'),
        (b'{"a":1}', b'{"a":2}', b'{"a":2}'),
        (b'{"a":1}', b'{"a":null}', b'{"a":1}'),
        (b'{"a":1}', b'{"b":null}', b'{"a":1,"b":null}'),
        (b'{"a":{"x":1,"y":2}}', b'{"a":{"y":3}}', b'{"a":{"x":1,"y":3}}'),
        (b'{"a":[1,2]}', b'{"a":[3]}', b'{"a":[3]}'),
        (b'{"a":{"x":1}}', b'{"a":5}', b'{"a":5}'),
        (b'{"a":"\xc3\xa9"}', b"{}", b'{"a":"\xc3\xa9"}'),
    ],
)
def test_what_a_delta_makes_of_a_message(stored: bytes, delta: bytes, whole: bytes) -> None:
    assert merge(stored, delta) == whole


@pytest.mark.parametrize(
    ("stored", "delta"),
    [
        (b"no json", b'{"a":1}'),
        (b'{"a":1}', b"no json"),
        (b"[1]", b'{"a":1}'),
        (b'{"a":1}', b"[1]"),
        (b'{"a":"\\ud800"}', b'{"b":1}'),
        (b'{"a":1}', b"[" * 200_000),
        (b'{"a":1}', b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ],
)
def test_what_cannot_be_merged_replaces_the_message(stored: bytes, delta: bytes) -> None:
    assert merge(stored, delta) == delta
