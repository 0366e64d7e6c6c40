"""The options of the sink and the columns that they need; nothing here needs a session."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from haclient.errors import UsageError
from haclient.pyspark.amps import AmpsDataSource
from haclient.pyspark.sink.settings import SinkSettings

ROWS = StructType([StructField("data", BinaryType())])
LANES = StructType([*ROWS.fields, StructField("_lane", IntegerType())])
GIVEN = {"uri": "tcp://h:1/amps/json", "topic": "t"}
LANED = {**GIVEN, "guarantee": "exactly-once", "lanes": "2"}
STAGED = {**LANED, "guarantee": "exactly-once-staged"}


@pytest.mark.parametrize(
    ("text", "uris"),
    [
        (
            "tcp://a:1/amps/json, tcp://b:2/amps/json,",
            ["tcp://a:1/amps/json", "tcp://b:2/amps/json"],
        ),
        (
            "tcp://bob:s3,cret@h:1/amps,tcps://i:1/amps",
            ["tcp://bob:s3,cret@h:1/amps", "tcps://i:1/amps"],
        ),
    ],
)
def test_a_comma_before_a_scheme_is_between_two_servers(text: str, uris: list[str]) -> None:
    assert list(SinkSettings({**GIVEN, "uri": text}, ROWS).target.uris) == uris


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" , ", "the option uri names no server: set it, such as tcp://127.0.0.1:9007/amps/json"),
        ("tcp://a:1/amps/json,tcp://bob:s3cret", "found as number 2: not shown, it may hold a"),
        ("tcp://bob:s3cret,tcp://h:1/amps/json", "found as number 1: not shown, it may hold a"),
        ("tcp://bob:s3cret@h:port/amps/json", "found as number 1: .*@h:.*host and port"),
        ("tcp://a:1/amps/json,b:2/amps/json", "found as number 1: .*one message type"),
    ],
)
def test_a_wrong_uri_is_named_and_no_password_is_shown(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        SinkSettings({**GIVEN, "uri": text}, ROWS)
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_exactly_once_needs_the_checkpoint_among_the_options() -> None:
    with pytest.raises(
        UsageError, match=r'add \.option\("checkpointLocation", \.\.\.\); the setting'
    ):
        AmpsDataSource(LANED).streamWriter(LANES, overwrite=False)
    AmpsDataSource(GIVEN).streamWriter(ROWS, overwrite=False)
    AmpsDataSource(LANED).writer(LANES, overwrite=False)


@pytest.mark.row("SK6")
def test_topic_and_command_of_a_checkpoint_cannot_change(tmp_path: Path) -> None:
    given = {**LANED, "checkpointLocation": str(tmp_path)}
    AmpsDataSource(given).streamWriter(LANES, overwrite=False)
    for name, value in {"topic": "u", "command": "sow_delete"}.items():
        for source in (AmpsDataSource.streamWriter, AmpsDataSource.writer):
            with pytest.raises(UsageError, match=f"{name} is {value} and was .* when this"):
                source(AmpsDataSource({**given, name: value}), LANES, overwrite=False)


@pytest.mark.row("SK9")
def test_the_lanes_share_the_rate_and_a_flush_has_a_time_limit() -> None:
    options = {**LANED, "maxRowsPerSecond": "100", "flushTimeoutMs": "2500"}
    target = SinkSettings(options, LANES).target
    assert (target.rows_per_second, target.timeout_s) == (50.0, 2.5)
    options = {**GIVEN, "maxRowsPerSecond": "100"}
    target = SinkSettings(options, ROWS).target
    assert (target.rows_per_second, target.timeout_s) == (100.0, 10.0)
    with pytest.raises(UsageError, match="maxRowsPerSecond has to be a whole number from 1 on"):
        SinkSettings({**options, "maxRowsPerSecond": "0"}, ROWS)


@pytest.mark.row("SK7")
@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_an_expiration_that_every_server_refuses_is_an_error(guarantee: str) -> None:
    given = {"uri": "tcp://h:1/amps/json", "topic": "t", "guarantee": guarantee}
    with pytest.raises(UsageError, match="expiration has to be 1 to 4294967295 seconds"):
        SinkSettings({**given, "expiration": "4294967296"}, ROWS)


def test_expirations_are_whole_numbers() -> None:
    text = StructType([*ROWS.fields, StructField("expiration", StringType())])
    with pytest.raises(UsageError, match="expiration has to be INT or BIGINT, found string"):
        SinkSettings(GIVEN, text)


def test_staging_is_within_the_checkpoint_unless_it_is_elsewhere(tmp_path: Path) -> None:
    def settings(**options: str) -> SinkSettings:
        return SinkSettings({**STAGED, "checkpointLocation": f"{tmp_path}/", **options}, LANES)

    assert settings().staging == str(tmp_path / "haclient-staging")
    assert settings(stagingLocation="s3://x/y").staging == "s3://x/y"
    assert not SinkSettings({**LANED, "checkpointLocation": "c"}, LANES).staging
    with pytest.raises(UsageError, match="stagingLocation needs guarantee=exactly-once-staged"):
        settings(guarantee="exactly-once", stagingLocation="x")


def test_staging_is_for_streams_that_publish_stream_has_made(tmp_path: Path) -> None:
    data_source = AmpsDataSource({**STAGED, "checkpointLocation": str(tmp_path)})
    for make in (data_source.streamWriter, data_source.writer):
        with pytest.raises(UsageError, match="exactly-once-staged is for streams: start what"):
            make(LANES, overwrite=False)
    assert list(tmp_path.iterdir()) == []
