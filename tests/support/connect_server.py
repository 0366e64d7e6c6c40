"""A server of Apache Spark Connect on loopback, from the pip package, in processes of its own."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from support.standalone_cluster import Daemon, setting_words, spark_environment

__all__ = ["connect_server"]

_SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
_ADDRESS: Final = (
    *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
    *("--conf", "spark.connect.grpc.binding.port=0"),  # a free one
)


@contextmanager
def connect_server(folder: Path, variables: Mapping[str, str]) -> Generator[str]:
    """A server with two threads; yields its address, `sc://127.0.0.1:port`.

    Args:
        folder: Where it writes.
        variables: More environment variables of it and of its workers.
    """
    arguments = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2]", "--class", _SERVER]
    arguments += [*setting_words(), *_ADDRESS, "spark-internal"]
    environment = spark_environment(folder, variables)
    server = Daemon("the Connect server", arguments, environment=environment, folder=folder)
    try:
        address = server.wait_for(r"Spark Connect server started at: (\S+)")[1]
        yield f"sc://{address}"
    finally:
        server.close()
