"""Orders over HTTP, with Flask: one blocking client for all threads of a process.

    AMPS_URI=tcp://127.0.0.1:9007/amps/json flask --app examples.flask_orders run

`POST /orders` answers when the server has persisted the order, `GET /orders/<id>` asks for it by a
query, and `GET /health` is for a readiness probe. The client is opened by the first request of a
process, so that each worker of a server that forks has its own, and is closed when that ends. While
no server can be reached, the answer is 503 after some seconds.

The broker needs a SOW topic `orders` with the key `/id`:

    haclient broker run --sow orders:/id
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

import msgspec
from flask import Flask, Response, abort, jsonify, request

from haclient.blocking import HAClient
from haclient.errors import HAClientError, TimedOut

LIMIT_S = 10.0  # or the requests of a long outage would take all threads
OPEN_LIMIT_S = 5.0  # without a server the request fails; the next one tries again


class Order(msgspec.Struct):
    """An order, as it is published."""

    id: int
    item: str
    px: float


class OneClient:
    """The client of this process, which is opened when it is needed first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: HAClient | None = None
        self._closes_at_end = False

    def get(self) -> HAClient:
        """The client, open; any number of threads may use it."""
        if not self._lock.acquire(timeout=OPEN_LIMIT_S):  # or each would wait for all before it
            raise TimedOut("another request has been opening the client for too long")
        try:
            if self._client is not None and not self._client.health().is_alive:
                self._end()  # it has ended for good, by an error that earlier requests have got
            if self._client is None:
                uri = os.environ.get("AMPS_URI", "tcp://127.0.0.1:9007/amps/json")
                # Each process needs a name of its own. In containers the process ids are equal.
                name = f"orders-web-{socket.gethostname()}-{os.getpid()}"
                client = HAClient.memory_backed(name, servers=[uri])
                self._client = client.open(timeout=OPEN_LIMIT_S)
                if not self._closes_at_end:
                    self._closes_at_end = True
                    threading.Thread(target=self._close_at_end, daemon=True).start()
            return self._client
        finally:
            self._lock.release()

    def _close_at_end(self) -> None:
        # Functions of `atexit` would come too late: Python waits for the client's thread first.
        threading.main_thread().join()
        self.close()

    def close(self) -> None:
        """Close it, if it was opened."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(HAClientError):  # by which it has ended
                client.close()


amps = OneClient()
app = Flask(__name__)


@app.errorhandler(HAClientError)
def unavailable(error: HAClientError) -> tuple[Response, int]:
    """Answer that the server cannot be reached now, instead of a traceback."""
    return jsonify(error=str(error)), 503


@app.post("/orders")
def place() -> tuple[Response, int]:
    """Publish an order, and wait until the server has it on disk."""
    try:
        order = msgspec.json.decode(request.get_data(), type=Order)
    except msgspec.MsgspecError as error:
        abort(422, f"this is no order: {error}")
    body = msgspec.json.encode(order)
    sequence = amps.get().publish_persisted("orders", body, timeout=LIMIT_S)
    return jsonify(sequence=sequence), 201


@app.get("/orders/<int:order_id>")
def find(order_id: int) -> Response:
    """Ask the server for one order."""
    with amps.get().sow("orders", filter=f"/id = {order_id}") as records:
        for record in records:
            return Response(record.data, mimetype="application/json")
    return abort(404, f"there is no order {order_id}")


@app.get("/health")
def health() -> tuple[Response, int]:
    """Whether the client is connected and has recovered everything."""
    found = amps.get().health()
    return jsonify(ready=found.is_ready, alive=found.is_alive), 200 if found.is_ready else 503
