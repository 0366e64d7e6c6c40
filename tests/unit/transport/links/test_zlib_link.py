"""Compression: every byte arrives, in any pieces, and nobody has to hold what it unpacks to."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from haclient.transport.links.link import (
    MAX_STORED_BYTES,
    ZLIB_FIRST_BYTE,
    ZLIB_RECEIVE_BYTES,
    ZLIB_SEND_BYTES,
    ZlibLink,
)
from haclient.transport.links.memory_network import link_pair
from support.lengths import length
from support.links import Pieces, receive, send

pytestmark = pytest.mark.row("AT7")


@given(
    sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=6).filter(any),
    bodies=st.lists(st.binary(max_size=50), min_size=1, max_size=8),
    factor=st.sampled_from([1, 100, 30_000]),
    window=st.integers(1, 70_000),
)
@example(sizes=[1], bodies=[bytes(range(50))], factor=100, window=3)
@settings(max_examples=length(30))
def test_every_byte_arrives_in_both_directions_whatever_the_pieces(
    sizes: list[int], bodies: list[bytes], factor: int, window: int
) -> None:
    async def run() -> None:
        ends = link_pair(capacity_bytes=5_000)
        client, server = (ZlibLink(Pieces(end, sizes)) for end in ends)
        data = (b"".join(bodies) * factor)[: 200 * sum(sizes)]
        got: dict[str, bytes] = {}

        async def take(name: str, link: ZlibLink) -> None:
            got[name] = await receive(link, len(data), max(window, len(data) // 500))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, client, data)
                nursery.start_soon(send, server, data[::-1])
                nursery.start_soon(take, "server", server)
                nursery.start_soon(take, "client", client)
        assert got == {"server": data, "client": data[::-1]}

    trio.run(run)


async def test_fewer_bytes_pass_and_what_one_call_sends_can_be_read_at_once() -> None:
    near, far = link_pair()
    client, server = ZlibLink(near), ZlibLink(far)
    frame = b'{"c":"p","t":"orders"}' * 100
    for _ in range(50):
        assert client.try_send(frame) == len(frame)
        assert await receive(server, len(frame)) == frame
    assert near.sending.sent_bytes < 50 * len(frame) / 20
    assert client.try_send(bytes(2 * ZLIB_SEND_BYTES)) == ZLIB_SEND_BYTES


async def test_little_is_sent_as_it_is_and_what_follows_is_compressed() -> None:
    near, far = link_pair()
    client, server = ZlibLink(near), ZlibLink(far)
    for size in (0, 300, MAX_STORED_BYTES - 300):
        assert client.try_send(bytes(size)) == size
        assert await receive(server, size) == bytes(size)
    assert client._compress is None, "it would take 256 KiB"
    assert near.sending.sent_bytes > MAX_STORED_BYTES
    for size in (1, 100_000):
        assert client.try_send(bytes(size)) == size
        assert await receive(server, size) == bytes(size)
    assert near.sending.sent_bytes < 2 * MAX_STORED_BYTES


async def test_the_first_byte_tells_a_compressed_stream_from_a_frame() -> None:
    near, far = link_pair()
    ZlibLink(near).try_send(b"x")
    buffer = memoryview(bytearray(1000))
    count = far.recv_into(buffer) or 0
    assert buffer[0] == ZLIB_FIRST_BYTE
    server = ZlibLink(far, bytes(buffer[:count]))
    assert await receive(server, 1) == b"x"


async def test_a_few_bytes_that_unpack_to_a_lot_are_unpacked_as_they_are_read() -> None:
    near, far = link_pair()
    packed = zlib.compress(bytes(30 * 2**20))  # 30 KB
    near.try_send(packed)
    server, buffer = ZlibLink(far), memoryview(bytearray(64 * 1024))
    tracemalloc.start()
    total = 0
    for _ in range(50):
        total += server.recv_into(buffer) or 0
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == 50 * len(buffer)
    assert most < 4 * (len(buffer) + ZLIB_RECEIVE_BYTES)


async def test_a_damaged_stream_is_a_loss_and_an_ended_one_an_end() -> None:
    buffer = memoryview(bytearray(1000))
    near, far = link_pair()
    near.try_send(b"\x78\x9c" + bytes(range(250)))
    with pytest.raises(OSError, match="the compressed stream is damaged"):
        ZlibLink(far).recv_into(buffer)
    near, far = link_pair()
    near.try_send(zlib.compress(b"last words"))
    server = ZlibLink(far)
    assert server.recv_into(buffer) == len(b"last words")
    assert server.recv_into(buffer) == 0
    near, far = link_pair()
    near.close()
    assert ZlibLink(far).recv_into(buffer) == 0
