from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from haclient.errors import ConnectionRefused, ProtocolError, TimedOut, UsageError
from haclient.servers.health import MAX_ANSWER_BYTES, check_url, http_get


@asynccontextmanager
async def answering_with(answer: bytes | None) -> AsyncIterator[str]:
    """A server that gives every request one answer, or none."""

    async def serve(stream: trio.SocketStream) -> None:
        request = await stream.receive_some()
        assert request.startswith(b"GET /x HTTP/1.0\r\nHost: 127.0.0.1:")
        if answer is None:
            await trio.sleep_forever()
        try:
            await stream.send_all(answer or b"")
            await stream.aclose()
        except trio.BrokenResourceError:  # the answer was too long for the client
            return

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}/x"
        nursery.cancel_scope.cancel()


async def test_the_body_of_an_answer() -> None:
    async with answering_with(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nbody") as url:
        assert await http_get(url, 10.0) == b"body"


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 404 Not Found\r\n\r\n", b"x" * (MAX_ANSWER_BYTES + 1)]
)
async def test_another_answer_is_an_error(answer: bytes) -> None:
    async with answering_with(answer) as url:
        with pytest.raises(ProtocolError, match=r"wanted an answer 200|exceeds"):
            await http_get(url, 10.0)


@pytest.mark.usefixtures("autojump_clock")
async def test_silence_has_a_limit() -> None:
    async with answering_with(None) as url:
        with pytest.raises(TimedOut, match="no answer within 3 s"):
            await http_get(url, 3.0)


async def test_a_server_that_is_down_and_a_url_of_another_kind() -> None:
    async with answering_with(b"") as url:
        pass
    with pytest.raises(ConnectionRefused):
        await http_get(url, 10.0)
    with pytest.raises(UsageError, match="wanted http://HOST:PORT"):
        await http_get("ftp://x", 10.0)


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8085",
        "https://a:1/x",
        "",
        "http://a:x/",
        "http://[::1/",
        "http://:1/",
        "http://a:0/",
        f"http://{'a' * 70}:1/",
        "http://a..b:1/",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_before_it_is_tried(url: str) -> None:
    with pytest.raises(UsageError, match="wanted http://HOST:PORT"):
        check_url(url)


def test_a_url_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(UsageError, match="takes no user and no password") as caught:
        check_url("http://ops:secret@a:1/")
    assert "secret" not in str(caught.value)
