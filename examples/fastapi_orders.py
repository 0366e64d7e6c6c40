"""Orders over HTTP, with FastAPI: one client of asyncio for the whole application.

    AMPS_URI=tcp://127.0.0.1:9007/amps/json uvicorn examples.fastapi_orders:app

`POST /orders` answers when the server has persisted the order, `GET /orders/{id}` asks for it by a
query, `GET /shipped` tells what a subscription has got since the start, and `GET /health` is for a
readiness probe. The client is opened when the application starts, in each worker process, and is
closed in order when that ends. A request whose caller goes away is cancelled, with its command.
While no server can be reached, the answer is 503 after some seconds.

The broker needs a SOW topic `orders` with the key `/id`:

    haclient broker run --sow orders:/id
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from haclient import Message
from haclient.aio import HAClient
from haclient.errors import HAClientError

LIMIT_S = 10.0  # of a request, while no server can be reached


class Order(BaseModel):
    """An order, as it is published."""

    id: int
    item: str
    px: float


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Keep a client open while the application runs."""
    shipped: list[str] = []

    async def handle(message: Message) -> None:  # in the loop of the application
        shipped.append(message.text)

    uri = os.environ.get("AMPS_URI", "tcp://127.0.0.1:9007/amps/json")
    # Each process needs a name of its own. In containers the process ids are equal.
    name = f"orders-api-{socket.gethostname()}-{os.getpid()}"
    async with HAClient.memory_backed(name, servers=[uri]) as client:
        await client.subscribe("shipped", handler=handle)
        app.state.client, app.state.shipped = client, shipped
        yield


def client_of(request: Request) -> HAClient:
    """The application's client."""
    client = request.app.state.client
    assert isinstance(client, HAClient)  # noqa: S101  # the lifespan has set it
    return client


Client = Annotated[HAClient, Depends(client_of)]
app = FastAPI(lifespan=lifespan)


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


@app.get("/shipped")
async def shipped(request: Request) -> list[str]:
    """What was shipped since the start."""
    return list(request.app.state.shipped)


@app.get("/health")
async def health(client: Client, response: Response) -> dict[str, object]:
    """Whether the client is connected and has recovered everything."""
    found = client.health()
    response.status_code = 200 if found.is_ready else 503
    return {"ready": found.is_ready, "alive": found.is_alive}
