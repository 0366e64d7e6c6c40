"""What an engine is when nothing was said."""

from __future__ import annotations

import pytest

from haclient.errors import UsageError
from haclient_fake_server.engine.settings import EngineSettings, LogTopic, ReplicateTo, SowTopic


@pytest.mark.row("TL2")
def test_by_default_every_topic_is_logged_and_none_has_a_state() -> None:
    settings = EngineSettings()
    assert settings.log_topics == (LogTopic(".*"),)
    assert settings.sow_topics == ()
    assert settings.users is None


def test_a_sow_topic_is_of_json_unless_told_otherwise() -> None:
    assert SowTopic("orders", ("/id",)).message_type == "json"


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("tcp://west:9007", "tcp://west:9007"),
        ("tcp://west:9007/", "tcp://west:9007"),
        ("tcp://me:secret@[::1]:9007/amps/json", "tcp://[::1]:9007"),
    ],
)
def test_a_destination_is_called_by_its_address_without_credentials(uri: str, address: str) -> None:
    to = ReplicateTo(uri)
    assert (to.address, to.mode, to.downgrade_after_s) == (address, "sync", None)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"mode": "maybe"}, "mode 'maybe', not sync or async"),
        ({"downgrade_after_s": 0.0}, "downgrade_after_s=0.0, wanted seconds"),
        ({"heartbeat_s": -1.0}, "heartbeat_s=-1.0, wanted seconds"),
    ],
)
def test_a_nonsensical_destination_is_refused(fields: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        ReplicateTo("tcp://west:1", **fields)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(UsageError, match="host and port"):
        ReplicateTo("tcp://west")


def test_destinations_must_differ_and_need_a_log() -> None:
    twice = (ReplicateTo("tcp://west:1"), ReplicateTo("tcp://me:x@west:1", "async"))
    with pytest.raises(UsageError, match="named twice"):
        EngineSettings(replicate_to=twice)
    with pytest.raises(UsageError, match="no topic is logged"):
        EngineSettings(replicate_to=twice[:1], log_topics=())
