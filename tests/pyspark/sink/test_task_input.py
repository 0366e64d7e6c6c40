"""Rows that end too early, as a worker of Spark gets them: with real sockets."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator

import pytest

from haclient.errors import DisconnectedError
from haclient.pyspark.sink.task_input import all_rows

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=["unix", "tcp"])
def pair(request: pytest.FixtureRequest) -> Generator[Pair]:
    """What Spark writes to, and what the worker reads."""
    if request.param == "unix":
        spark, worker = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            spark = socket.create_connection(listener.getsockname())
            worker, _ = listener.accept()
    with spark, worker:
        yield spark, worker


def received(spark: socket.socket, worker: socket.socket, *, ends: bool) -> Iterator[bytes]:
    """Three batches; then Spark has no more of them, or it ends what it sends."""
    for _ in range(3):
        spark.sendall(b"a batch ")
        yield worker.recv(100)
    if ends:
        spark.shutdown(socket.SHUT_WR)
        assert worker.recv(1) == b""


@pytest.mark.row("SK4")
def test_rows_that_end_with_what_spark_sends_are_not_all(pair: Pair) -> None:
    spark, worker = pair
    found: list[bytes] = []
    with pytest.raises(DisconnectedError, match="Spark stopped sending the rows of this task"):
        found.extend(all_rows(received(spark, worker, ends=True)))


@pytest.mark.row("SK4")
def test_rows_of_an_executor_that_was_killed_are_not_all(pair: Pair) -> None:
    spark, worker = pair

    def batches() -> Iterator[bytes]:
        yield from received(spark, worker, ends=False)
        spark.close()
        assert worker.recv(1) == b""

    with pytest.raises(DisconnectedError):
        list(all_rows(batches()))


def test_rows_are_all_while_spark_goes_on_writing(pair: Pair) -> None:
    spark, worker = pair
    batches = list(all_rows(received(spark, worker, ends=False)))
    assert b"".join(batches) == b"a batch " * 3
    assert list(all_rows(list[bytes]())) == []


def test_another_connection_that_ended_before_does_not_count(pair: Pair) -> None:
    other, ended = socket.socketpair()
    with ended:
        other.close()
        spark, worker = pair
        assert list(all_rows(received(spark, worker, ends=False)))
