"""One broker for all tests of the sink; each test has a topic of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from haclient_fake_server.testing.processes import BrokerProcess
from support.sink_world import SinkWorld

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the broker keeps its journal."""
    return tmp_path_factory.mktemp("sink")


@pytest.fixture(scope="session")
def broker(journal: Path) -> Generator[BrokerProcess]:
    with BrokerProcess(data_dir=journal) as process:
        yield process


@pytest.fixture
def world(
    spark: SparkSession,
    tmp_path: Path,
    broker: BrokerProcess,
    journal: Path,
    request: pytest.FixtureRequest,
) -> Iterator[SinkWorld]:
    yield SinkWorld(spark, tmp_path, broker.uri, journal, str(request.node.name))
    for query in spark.streams.active:
        query.stop()
