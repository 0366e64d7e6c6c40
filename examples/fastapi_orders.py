"""Orders over HTTP, with FastAPI: one client of asyncio for the whole application.

    AMPS_URI=tcp://127.0.0.1:9007/amps/json uvicorn examples.fastapi_orders:app

`POST /orders` answers when the server has persisted the order, `GET /orders/{id}` asks for it by a
query, `GET /shipped` tells what a subscription has got since the start, and `GET /health` is for a
readiness probe. The client is opened when the application starts, in each worker process, and is
closed in order when that ends. If that fails, or the client has ended by an error, the next request
opens a new one. A request whose caller goes away is cancelled, with its command. While no server
can be reached, the answer is 503 after some seconds.

The broker needs a SOW topic `orders` with the key `/id`:

    haclient broker run --sow orders:/id
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from haclient import Message
from haclient.aio import HAClient
from haclient.errors import HAClientError, TimedOut

LIMIT_S = 10.0  # of a publish, while no server can be reached
OPEN_LIMIT_S = 5.0  # without a server the request fails; the next one tries again


class Order(BaseModel):
    """An order, as it is published."""

    id: int
    item: str
    px: float


class OneClient:
    """The client of the application, which is replaced when it has ended by an error."""

    def __init__(self) -> None:
        self.shipped: list[str] = []
        self._lock = asyncio.Lock()
        self._client: HAClient | None = None

    async def get(self) -> HAClient:
        """The client, open; any number of requests may use it at a time."""
        try:
            async with asyncio.timeout(OPEN_LIMIT_S), self._lock:
                if self._client is not None and not self._client.health().is_alive:
                    await self._end()  # for good, by an error that earlier requests have got
                if self._client is None:
                    self._client = await self._open()
                return self._client
        except TimeoutError as error:
            raise TimedOut(f"the client was not logged on within {OPEN_LIMIT_S:g} s") from error

    async def _open(self) -> HAClient:
        uri = os.environ.get("AMPS_URI", "tcp://127.0.0.1:9007/amps/json")
        # Each process needs a name of its own. In containers the process ids are equal.
        name = f"orders-api-{socket.gethostname()}-{os.getpid()}"
        client = await HAClient.memory_backed(name, servers=[uri]).open()
        try:
            await client.subscribe("shipped", handler=self._handle)
        except BaseException:  # refused, or cancelled with the request
            await client.aclose()
            raise
        return client

    async def _handle(self, message: Message) -> None:  # in the loop of the application
        self.shipped.append(message.text)

    async def close(self) -> None:
        """Close it, if it was opened."""
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(HAClientError):  # by which it has ended
                await client.aclose()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Keep a client open while the application runs."""
    app.state.amps = amps = OneClient()
    with suppress(HAClientError):  # the application starts; requests try again
        await amps.get()
    try:
        yield
    finally:
        await amps.close()


def amps_of(request: Request) -> OneClient:
    """What has the application's client."""
    amps = request.app.state.amps
    assert isinstance(amps, OneClient)  # noqa: S101  # the lifespan has set it
    return amps


async def client_of(request: Request) -> HAClient:
    """The application's client."""
    return await amps_of(request).get()


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
    return list(amps_of(request).shipped)


@app.get("/health")
async def health(client: Client, response: Response) -> dict[str, object]:
    """Whether the client is connected and has recovered everything."""
    found = client.health()
    response.status_code = 200 if found.is_ready else 503
    return {"ready": found.is_ready, "alive": found.is_alive}
