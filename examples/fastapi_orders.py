"""Orders over HTTP, with FastAPI: one client of asyncio for the whole application.

    AMPS_URI=tcp://127.0.0.1:9007/amps/json uvicorn examples.fastapi_orders:app

`POST /orders` answers when the server has persisted the order. `GET /orders/{id}` queries it.
`GET /live` streams the present orders to a browser, then each new one. `GET /shipped` returns what
a subscription has received since the start. `GET /health` is for a readiness probe. While no server
can be reached, the answer is 503 after some seconds. In a browser, or on your own page:

    new EventSource("/live").onmessage = event => console.log(JSON.parse(event.data))

The broker needs a SOW topic `orders` with the key `/id`:

    haclient broker run --sow orders:/id
"""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from haclient import Message
from haclient.aio import HAClient
from haclient.contrib.fastapi import EVENT_STREAM, Lifespan
from haclient.errors import HAClientError

LIMIT_S = 10.0  # of a publish, while no server can be reached


class Order(BaseModel):
    """An order, as it is published."""

    id: int
    item: str
    px: float


def make(name: str) -> HAClient:
    """A client, whose name no other process has."""
    uri = os.environ.get("AMPS_URI", "tcp://127.0.0.1:9007/amps/json")
    return HAClient.memory_backed(name, servers=[uri])


async def on_open(client: HAClient) -> None:
    """Subscribe with each client: another one follows if it ends by an error."""
    await client.subscribe("shipped", handler=on_shipped)


def on_shipped(message: Message) -> None:
    """Note what was shipped, in the loop of the application."""
    shipped_orders.append(message.text)


shipped_orders: list[str] = []
amps = Lifespan("orders-api", make, on_open=on_open)
app = FastAPI(lifespan=amps)
Client = Annotated[HAClient, Depends(amps.get)]


@app.exception_handler(HAClientError)
async def unavailable(_request: Request, error: Exception) -> JSONResponse:
    """Answer that the server cannot be reached now, instead of a traceback."""
    return JSONResponse({"error": str(error)}, 503)


@app.post("/orders", status_code=201)
async def place(order: Order, client: Client) -> dict[str, int | None]:
    """Publish an order, and wait until the server has it on disk."""
    body = order.model_dump_json()
    return {"sequence": await client.publish_persisted("orders", body, timeout=LIMIT_S)}


@app.get("/orders/{order_id}")
async def find(order_id: int, client: Client) -> Order:
    """Ask the server for one order."""
    async with client.sow("orders", filter=f"/id = {order_id}") as records:
        async for record in records:
            return Order.model_validate_json(record.data)
    raise HTTPException(404, f"there is no order {order_id}")


@app.get("/live")
async def live(client: Client) -> StreamingResponse:
    """Stream the orders to a browser, until it leaves or the application ends."""
    return StreamingResponse(amps.events(client.sow_and_stream("orders")), media_type=EVENT_STREAM)


@app.get("/shipped")
async def shipped() -> list[str]:
    """What was shipped since the start."""
    return shipped_orders


@app.get("/health")
async def health(client: Client, response: Response) -> dict[str, object]:
    """Whether the client is connected and has recovered everything."""
    found = client.health()
    response.status_code = 200 if found.is_ready else 503
    return {"ready": found.is_ready, "alive": found.is_alive}
