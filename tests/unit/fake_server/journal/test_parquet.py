"""Parquet where pyarrow may be missing; tests/pyspark has the files themselves."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from haclient.errors import UsageError
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.journal import parquet
from haclient_fake_server.journal.parquet import check_pyarrow, parquet_path, sealing_command


@pytest.fixture
def without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        parquet, "find_spec", lambda name: None if name == "pyarrow" else find_spec(name)
    )


MISSING = r"pyarrow, which is not installed: pip install 'haclient\[pyspark\]'"


@pytest.mark.usefixtures("without_pyarrow")
def test_without_pyarrow_one_line_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=MISSING):
        check_pyarrow()
    with pytest.raises(UsageError, match=f"broker 'east': Parquet needs {MISSING}"):
        BrokerConfig(name="east", data_dir=tmp_path, parquet=True)


def test_a_broker_without_a_journal_on_disk_cannot_seal_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="wanted a data_dir and topics to log"):
        BrokerConfig(parquet=True)
    with pytest.raises(UsageError, match="wanted a data_dir and topics to log"):
        BrokerConfig(parquet=True, data_dir=tmp_path, log_topics=())
    with pytest.raises(UsageError, match="parquet='yes': wanted True or False"):
        BrokerConfig(parquet="yes", data_dir=tmp_path)  # type: ignore[arg-type]  # is the question
    with pytest.raises(UsageError, match="parquet_compression='lz4': wanted zstd or none"):
        BrokerConfig(parquet_compression="lz4", data_dir=tmp_path)


def test_the_command_has_the_archive_and_the_compression(tmp_path: Path) -> None:
    command = sealing_command(tmp_path, tmp_path / "old", "none")
    assert command[3:] == [str(tmp_path), str(tmp_path / "old"), "--compression", "none"]
    assert parquet_path(tmp_path, 10) == tmp_path / "parquet" / "journal.00000010.parquet"
