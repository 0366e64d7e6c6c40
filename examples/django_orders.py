"""Orders over HTTP, with Django: one blocking client for all threads of a process.

    AMPS_URI=tcp://127.0.0.1:9007/amps/json python -m examples.django_orders runserver

`POST /orders` answers when the server has persisted the order, `GET /orders/<id>` asks for it by a
query, and `GET /health` is for a readiness probe. The client is opened by the first request of a
process, so that each worker of a server that forks has its own, and is closed when that ends. While
no server can be reached, the answer is 503 after some seconds. A project has `amps` in a module of
an app, and its settings in `settings.py`.

The broker needs a SOW topic `orders` with the key `/id`:

    haclient broker run --sow orders:/id
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import msgspec
from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.http import require_GET, require_POST

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


class UnavailableMiddleware:
    """Answers that the server cannot be reached now, instead of with a traceback."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Pass the request on."""
        return self._get_response(request)

    def process_exception(self, _request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer for the view, if it was a client that has failed."""
        if isinstance(error, HAClientError):
            return JsonResponse({"error": str(error)}, status=503)
        return None


@require_POST
def place(request: HttpRequest) -> HttpResponse:
    """Publish an order, and wait until the server has it on disk."""
    try:
        order = msgspec.json.decode(request.body, type=Order)
    except msgspec.MsgspecError as error:
        return HttpResponse(f"this is no order: {error}", status=422)
    body = msgspec.json.encode(order)
    sequence = amps.get().publish_persisted("orders", body, timeout=LIMIT_S)
    return JsonResponse({"sequence": sequence}, status=201)


@require_GET
def find(_request: HttpRequest, order_id: int) -> HttpResponse:
    """Ask the server for one order."""
    with amps.get().sow("orders", filter=f"/id = {order_id}") as records:
        for record in records:
            return HttpResponse(record.data, content_type="application/json")
    return HttpResponse(f"there is no order {order_id}", status=404)


@require_GET
def health(_request: HttpRequest) -> HttpResponse:
    """Whether the client is connected and has recovered everything."""
    found = amps.get().health()
    answer = {"ready": found.is_ready, "alive": found.is_alive}
    return JsonResponse(answer, status=200 if found.is_ready else 503)


urlpatterns = [
    path("orders", place),
    path("orders/<int:order_id>", find),
    path("health", health),
]

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    MIDDLEWARE=[f"{__name__}.UnavailableMiddleware"],
)
app = get_wsgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
