"""What an engine is when nothing was said."""

from __future__ import annotations

import pytest

from haclient_fake_server.engine.settings import EngineSettings, LogTopic, SowTopic


@pytest.mark.row("TL2")
def test_by_default_every_topic_is_logged_and_none_has_a_state() -> None:
    settings = EngineSettings()
    assert settings.log_topics == (LogTopic(".*"),)
    assert settings.sow_topics == ()
    assert settings.users is None


def test_a_sow_topic_is_of_json_unless_told_otherwise() -> None:
    assert SowTopic("orders", ("/id",)).message_type == "json"
