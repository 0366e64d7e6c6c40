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

import msgspec
from flask import Flask, Response, abort, jsonify, request

from haclient.blocking import HAClient
from haclient.contrib.wsgi import ProcessClient
from haclient.errors import HAClientError

LIMIT_S = 10.0  # or the requests of a long outage would take all threads


class Order(msgspec.Struct):
    """An order, as it is published."""

    id: int
    item: str
    px: float


def make(name: str) -> HAClient:
    """A client, whose name no other process has."""
    uri = os.environ.get("AMPS_URI", "tcp://127.0.0.1:9007/amps/json")
    return HAClient.memory_backed(name, servers=[uri])


amps = ProcessClient("orders-web", make)
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
