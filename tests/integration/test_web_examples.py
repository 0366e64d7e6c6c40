"""The examples for web frameworks answer requests, with a real broker behind them."""

from __future__ import annotations

import asyncio  # noqa: TID251  # FastAPI runs in it
import importlib
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from types import ModuleType

import httpx
import pytest
from django.test import Client
from flask import Flask

import haclient.aio
from haclient import Message
from haclient.blocking import HAClient
from haclient.errors import TimedOut, UsageError
from haclient_fake_server.config import BrokerConfig, SowTopic
from support.broker_thread import BrokerThread, broker_thread
from support.process import LIMIT_S

pytestmark = [pytest.mark.row("CC35")]
ORDER = {"id": 7, "item": "tea", "px": 2.5}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Generator[BrokerThread]:
    topic = SowTopic(name="orders", keys=("/id",))
    with broker_thread(BrokerConfig(sow_topics=(topic,))) as running:
        monkeypatch.setenv("AMPS_URI", running.uri)
        yield running


@pytest.fixture
def flask_example(broker: BrokerThread) -> Generator[ModuleType]:
    assert broker.uri
    module = importlib.import_module("examples.flask_orders")
    yield module
    module.amps.close()


@pytest.fixture
def fastapi_example(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    assert broker.uri
    module = importlib.import_module("examples.fastapi_orders")
    monkeypatch.setattr(module.amps, "_open_timeout_s", LIMIT_S)
    module.shipped_orders.clear()
    return module


@asynccontextmanager
async def fastapi_running(example: ModuleType) -> AsyncGenerator[httpx.AsyncClient]:
    """The application of the example, and a browser."""
    transport = httpx.ASGITransport(app=example.app)
    async with (
        asyncio.timeout(LIMIT_S),
        example.app.router.lifespan_context(example.app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as web,
    ):
        yield web


def test_fastapi_places_finds_and_follows_orders(
    fastapi_example: ModuleType, broker: BrokerThread
) -> None:

    async def main() -> None:
        async with fastapi_running(fastapi_example) as web:
            assert (await web.get("/health")).json() == {"ready": True, "alive": True}
            placed = await web.post("/orders", json=ORDER)
            assert placed.status_code == 201
            assert placed.json()["sequence"] > 0
            assert (await web.get("/orders/7")).json() == ORDER
            assert (await web.get("/orders/8")).status_code == 404
            assert (await web.post("/orders", json={"id": "x"})).status_code == 422
            # Many requests at the same time share the client.
            orders = [ORDER | {"id": number} for number in range(20)]
            posts = (web.post("/orders", json=order) for order in orders)
            assert {answer.status_code for answer in await asyncio.gather(*posts)} == {201}
            gets = (web.get(f"/orders/{number}") for number in range(20))
            assert [answer.json() for answer in await asyncio.gather(*gets)] == orders
            await (await fastapi_example.amps.get()).publish("shipped", b"7")
            while (await web.get("/shipped")).json() != ["7"]:  # noqa: ASYNC110  # as a browser would
                await asyncio.sleep(0.001)

    asyncio.run(main())
    with HAClient.memory_backed("reader", servers=[broker.uri]) as reader:
        assert len(list(reader.sow("orders").open())) == 20


def test_flask_places_and_finds_orders(flask_example: ModuleType) -> None:
    app = flask_example.app
    assert isinstance(app, Flask)
    web = app.test_client()
    assert web.get("/health").json == {"ready": True, "alive": True}
    placed = web.post("/orders", json=ORDER)
    assert placed.status_code == 201
    assert placed.json is not None
    assert placed.json["sequence"] > 0
    assert web.get("/orders/7").json == ORDER
    assert web.get("/orders/8").status_code == 404
    for wrong in ('{"id": "x"}', "no json"):
        refused = web.post("/orders", data=wrong)
        assert refused.status_code == 422
        assert "this is no order" in refused.text


def test_django_places_and_finds_orders(broker: BrokerThread) -> None:
    example = importlib.import_module("examples.django_orders")
    web = Client(headers={"host": "localhost"})
    try:
        assert web.get("/health").json() == {"ready": True, "alive": True}
        placed = web.post("/orders", json.dumps(ORDER), "application/json")
        assert placed.status_code == 201
        assert placed.json()["sequence"] > 0
        assert web.get("/orders/7").json() == ORDER
        assert web.get("/orders/8").status_code == 404
        for wrong in ('{"id": "x"}', "no json"):
            refused = web.post("/orders", wrong, "application/json")
            assert refused.status_code == 422
            assert b"this is no order" in refused.content
        assert web.get("/orders").status_code == 405
        first = example.amps.get()
        assert example.amps.get() is first
    finally:
        example.amps.close()
    with HAClient.memory_backed("reader", servers=[broker.uri]) as reader:
        assert [each.json() for each in reader.sow("orders").open()] == [ORDER]


def test_flask_answers_without_a_server_and_when_there_is_one_again(
    flask_example: ModuleType, broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = flask_example.app.test_client()
    with socket.create_server(("127.0.0.1", 0)) as taken:  # it accepts, and says nothing
        monkeypatch.setattr(flask_example.amps, "_open_timeout_s", 0.1)
        monkeypatch.setenv("AMPS_URI", f"tcp://127.0.0.1:{taken.getsockname()[1]}/amps/json")
        failed = web.get("/health")
        assert (failed.status_code, "not logged on" in failed.json["error"]) == (503, True)
    monkeypatch.setattr(flask_example.amps, "_open_timeout_s", LIMIT_S)
    monkeypatch.setenv("AMPS_URI", broker.uri)
    assert web.post("/orders", json=ORDER).status_code == 201


@pytest.mark.parametrize("name", ["flask_orders", "django_orders"])
def test_a_request_does_not_wait_for_all_that_open_the_client_before_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = importlib.import_module(f"examples.{name}")
    monkeypatch.setattr(example.amps, "_open_timeout_s", 0.1)
    with example.amps._lock, pytest.raises(TimedOut, match="another request"):
        example.amps.get()


def test_django_answers_without_a_server(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broker.uri
    example = importlib.import_module("examples.django_orders")
    web = Client(headers={"host": "localhost"})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(example.amps, "_open_timeout_s", 0.1)
        monkeypatch.setenv("AMPS_URI", f"tcp://127.0.0.1:{taken.getsockname()[1]}/amps/json")
        failed = web.get("/health")
    assert (failed.status_code, "not logged on" in failed.json()["error"]) == (503, True)


def test_fastapi_answers_without_a_server_and_when_there_is_one_again(
    fastapi_example: ModuleType, broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with fastapi_running(fastapi_example) as web:
            failed = await web.get("/health")
            assert (failed.status_code, "not logged on" in failed.json()["error"]) == (503, True)
            monkeypatch.setattr(fastapi_example.amps, "_open_timeout_s", LIMIT_S)
            monkeypatch.setenv("AMPS_URI", broker.uri)
            assert (await web.post("/orders", json=ORDER)).status_code == 201

    with socket.create_server(("127.0.0.1", 0)) as taken:  # it accepts, and says nothing
        monkeypatch.setattr(fastapi_example.amps, "_open_timeout_s", 0.1)
        monkeypatch.setenv("AMPS_URI", f"tcp://127.0.0.1:{taken.getsockname()[1]}/amps/json")
        asyncio.run(main())


async def ends_by_error_in_asyncio(client: haclient.aio.HAClient) -> None:
    def fail(_message: Message) -> None:
        raise UsageError("no more")

    await client.subscribe("orders", handler=fail)
    await client.publish("orders", json.dumps(ORDER))
    await asyncio.to_thread(client.__bridge__.thread.join)


@pytest.mark.parametrize("ends", [haclient.aio.HAClient.disconnect, ends_by_error_in_asyncio])
def test_fastapi_replaces_a_client_that_has_ended_for_good(
    fastapi_example: ModuleType, ends: Callable[[haclient.aio.HAClient], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with fastapi_running(fastapi_example) as web:
            amps = fastapi_example.amps
            first = await amps.get()
            await ends(first)
            answers = await asyncio.gather(*(web.post("/orders", json=ORDER) for _ in range(5)))
            assert {answer.status_code for answer in answers} == {201}
            second = await amps.get()
            assert second is not first
            await second.publish("shipped", b"8")
            while (await web.get("/shipped")).json() != ["8"]:  # noqa: ASYNC110  # as a browser would
                await asyncio.sleep(0.001)

    asyncio.run(main())


def test_fastapi_answers_when_the_client_fails_during_a_request(
    fastapi_example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with fastapi_running(fastapi_example) as web:
            client: haclient.aio.HAClient = await fastapi_example.amps.get()

            async def get() -> haclient.aio.HAClient:
                await client.disconnect()
                return client

            amps, overrides = fastapi_example.amps, fastapi_example.app.dependency_overrides
            monkeypatch.setitem(overrides, amps.get, get)
            failed = await web.post("/orders", json=ORDER)
            assert (failed.status_code, list(failed.json())) == (503, ["error"])

    asyncio.run(main())


def test_flask_opens_one_client_for_all_threads(flask_example: ModuleType) -> None:
    first = flask_example.amps.get()
    assert flask_example.amps.get() is first
    flask_example.amps.close()
    assert flask_example.amps.get() is not first


def ends_by_error(client: HAClient) -> None:
    def fail(_message: Message) -> None:
        raise UsageError("no more")

    client.subscribe("orders", handler=fail)
    client.publish("orders", json.dumps(ORDER))
    client.__bridge__.thread.join()


@pytest.mark.parametrize("ends", [HAClient.disconnect, ends_by_error])
@pytest.mark.parametrize("name", ["flask_orders", "django_orders"])
def test_a_client_that_has_ended_for_good_is_replaced(
    broker: BrokerThread, name: str, ends: Callable[[HAClient], None]
) -> None:
    assert broker.uri
    amps = importlib.import_module(f"examples.{name}").amps
    try:
        first = amps.get()
        ends(first)
        assert amps.get() is not first
        assert amps.get().publish_persisted("orders", json.dumps(ORDER), timeout=LIMIT_S) > 0
    finally:
        amps.close()
