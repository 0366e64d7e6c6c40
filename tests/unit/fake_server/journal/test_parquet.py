"""The export to Parquet where pyarrow may be missing; tests/pyspark has the files themselves."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from haclient.errors import UsageError
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.journal import parquet
from haclient_fake_server.journal.format import Manifest, manifest_name, segment_name
from haclient_fake_server.journal.parquet import (
    check_pyarrow,
    export_segments,
    main,
    parquet_name,
    sealed_segments,
)


@pytest.fixture
def without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        parquet, "find_spec", lambda name: None if name == "pyarrow" else find_spec(name)
    )


MISSING = r"pyarrow, which is not installed: pip install 'haclient\[pyspark\]'"


@pytest.mark.usefixtures("without_pyarrow")
def test_without_pyarrow_one_line_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=MISSING):
        check_pyarrow()
    with pytest.raises(UsageError, match=MISSING):
        export_segments(tmp_path)
    with pytest.raises(UsageError, match=f"broker 'east': Parquet needs {MISSING}"):
        BrokerConfig(name="east", data_dir=tmp_path, parquet=True)
    assert main([str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("haclient-fake-server: Parquet needs pyarrow")


def test_a_broker_without_a_journal_on_disk_cannot_export_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="wanted a data_dir and topics to log"):
        BrokerConfig(parquet=True)
    with pytest.raises(UsageError, match="wanted a data_dir and topics to log"):
        BrokerConfig(parquet=True, data_dir=tmp_path, log_topics=())
    with pytest.raises(UsageError, match="parquet='yes': wanted True or False"):
        BrokerConfig(parquet="yes", data_dir=tmp_path)  # type: ignore[arg-type]  # is the question


def test_segments_with_a_manifest_are_looked_at_the_oldest_first(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        (tmp_path / segment_name(number)).touch()
    for number in (10, 1):
        text = Manifest(number, 1, 1).to_json()
        (tmp_path / manifest_name(number)).write_text(text)
    assert sealed_segments(tmp_path) == [1, 10]
    assert parquet_name(10) == "journal.00000010.parquet"


def test_the_command_takes_one_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: " in capsys.readouterr().err
