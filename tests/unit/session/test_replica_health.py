from __future__ import annotations

import json

import pytest

from haclient.errors import ProtocolError
from haclient.session.replica_health import DestinationReport, ReplicaHealth, parse_replication

EAST, WEST = "east:9007", "west:9007"


def report(**changes: object) -> DestinationReport:
    values: dict[str, object] = {
        "name": "west",
        "address": WEST,
        "is_downgraded": False,
        "is_sync": True,
    }
    values |= {"messages_behind": 7, "messages_missing": 0}
    return DestinationReport(**{**values, **changes})  # type: ignore[arg-type]  # of any field


@pytest.mark.row("SC12")
def test_a_server_that_another_one_has_downgraded_is_refused_until_that_is_taken_back() -> None:
    health = ReplicaHealth()
    assert health.refusal_reason(WEST) is None
    health.note(EAST, "east", [report(is_downgraded=True, is_sync=False)])
    health.note("north:9007", "north", [report()])
    assert health.refusal_reason(WEST) == "east has downgraded it, 7 messages behind"
    assert health.refusal_reason(EAST) is None
    health.note(EAST, "east", [report()])
    assert health.refusal_reason(WEST) is None


@pytest.mark.row("SC12")
def test_the_limit_of_messages_is_for_servers_that_no_acknowledgement_waits_for() -> None:
    health = ReplicaHealth(max_behind=6)
    health.note(EAST, "east", [report()])
    assert health.refusal_reason(WEST) is None
    health.note(EAST, "east", [report(is_sync=False)])
    assert health.refusal_reason(WEST) == "for east it is 7 messages behind, the limit is 6"
    health.note(EAST, "east", [report(is_sync=False, messages_behind=6)])
    assert health.refusal_reason(WEST) is None


@pytest.mark.row("SC12")
def test_a_server_that_will_never_get_some_messages_is_refused_however_little_it_is_behind() -> (
    None
):
    health = ReplicaHealth()
    health.note(EAST, "east", [report(messages_behind=0, messages_missing=2)])
    assert health.refusal_reason(WEST) == "for east it lacks 2 messages for good"


@pytest.mark.row("SC12")
def test_a_server_is_known_by_its_name_behind_another_address() -> None:
    health = ReplicaHealth()
    bad = report(is_downgraded=True, is_sync=False, address="10.0.0.2:9007")
    health.note(EAST, "east", [bad])
    assert health.refusal_reason(WEST) is None
    health.note(WEST, "west", [])
    assert health.refusal_reason(WEST) == "east has downgraded it, 7 messages behind"


def test_the_answer_of_an_admin_interface() -> None:
    west: dict[str, object] = {
        "name": "west",
        "address": f"tcp://{WEST}",
        "configured_type": "sync",
    }
    west |= {"replication_type": "async", "messages_behind": 7}
    for missing in ({}, {"messages_missing": 3}):  # AMPS itself does not count them
        instance = {"name": "east", "replication": [west | missing]}
        body = json.dumps({"amps": {"instance": instance}}).encode()
        wanted = report(is_downgraded=True, is_sync=False, **missing)
        assert parse_replication(body) == ("east", (wanted,))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"amps":{"instance":{"replication":[{}]}}}'])
def test_another_answer_is_an_error(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="did not answer with the state of replication"):
        parse_replication(body)


@pytest.mark.parametrize("behind", ["Infinity", "1e999", "[" * 100_000])
def test_an_answer_that_cannot_be_is_a_protocol_error(behind: str) -> None:
    report = '"configured_type":"sync","replication_type":"sync","messages_behind":' + behind
    body = '{"amps":{"instance":{"name":"a","replication":[{"name":"b","address":"b:1",'
    body += report + "}]}}}"
    with pytest.raises(ProtocolError):
        parse_replication(body.encode())
