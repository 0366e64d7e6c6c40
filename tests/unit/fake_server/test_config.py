"""Configuration."""

from __future__ import annotations

import pytest

from haclient_fake_server.config import BrokerConfig, LogTopic, SowTopic


@pytest.mark.row("TL2", "TL6")
def test_without_a_word_everything_is_logged_in_memory_on_loopback() -> None:
    config = BrokerConfig()
    assert config.listen == ("tcp://127.0.0.1:0",)
    assert config.data_dir is None
    assert config.log_topics == (LogTopic(".*"),)
    assert config.flush_interval_s == 0.1


def test_the_engine_is_told_what_concerns_it() -> None:
    config = BrokerConfig(
        name="east",
        users={"ann": "secret"},
        log_topics=(),
        sow_topics=(SowTopic("orders", ("/id",)),),
        ack_interval_s=0.5,
        version="5.3.4.0",
    )
    settings = config.engine_settings()
    assert (settings.name, settings.users, settings.version) == (
        "east",
        {"ann": "secret"},
        "5.3.4.0",
    )
    assert (settings.log_topics, settings.ack_interval_s) == ((), 0.5)
    assert settings.sow_topics == config.sow_topics
