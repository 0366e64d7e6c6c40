"""A client of Apache Spark Connect reads, publishes and audits through a real server."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.connect_server import connect_server
from support.pipelines import PROGRAM, check, pipeline
from support.process import python_environment
from support.warm_python import warm_python

pytestmark = pytest.mark.timeout(1800)  # half a minute on a quiet machine


def test_a_program_runs_unchanged_through_spark_connect(
    java: Mapping[str, str],  # noqa: ARG001 - the server starts a JVM
    tmp_path: Path,
) -> None:
    pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")
    with (
        warm_python() as variables,
        connect_server(tmp_path, variables) as address,
        pipeline(tmp_path) as world,
    ):
        client = python_environment({"SPARK_REMOTE": address, "JAVA_HOME": "/a client has no Java"})
        found = world.run([sys.executable, PROGRAM], client)
    check(found)
    assert found.session == "pyspark.sql.connect.session"
