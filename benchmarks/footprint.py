"""A million unpersisted messages: what each costs in memory, in collector pauses and in speed.

Memory is only told apart in a process that does nothing else, so the measurement runs in a child:
`python -m benchmarks.footprint URI COUNT` prints its rows as JSON. The far end acknowledges
nothing.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

import trio

from benchmarks.amps_end import NO_ACKS
from benchmarks.blast import TOPIC, Blast, outgoing, payload
from benchmarks.machine import CLIENT_CORE, pin
from benchmarks.scenario import Scenario, Setting, module_process
from haclient import Client
from haclient.stores import MemoryPublishStore

__all__ = ["SCENARIOS"]

_COUNT = 1_000_000
_PART = 5
_SIZE = 100


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class _Pauses:
    """The longest time that a collection held everything up."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._start = 0.0

    def __call__(self, phase: str, _info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._start = now
        else:
            self.worst_s = max(self.worst_s, now - self._start)


async def _publish_part(client: Client, body: bytes, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        await client.publish(TOPIC, body)
    return count / (time.perf_counter() - start)


async def _fill(uri: str, count: int) -> dict[str, float]:
    body, frame_bytes = payload(_SIZE), len(outgoing(Blast(1, _SIZE)))
    async with Client(f"bench-{NO_ACKS}", publish_store=MemoryPublishStore()) as client:
        await client.connect(uri)
        await client.logon()
        gc.collect()
        gc.freeze()  # the imported modules are not what is measured
        before = _resident_bytes()
        rates = [await _publish_part(client, body, count // _PART) for _ in range(_PART)]
        each = (_resident_bytes() - before) / count
        pauses = _Pauses()
        gc.callbacks.append(pauses)
        gc.collect()
        await client.disconnect()  # or leaving would wait for acks that never come
    return {
        "memory per message / frame": each / frame_bytes,
        "bytes per unpersisted message": each,
        "worst collector pause ms": pauses.worst_s * 1e3,
        "rate at the end / at first": rates[-1] / rates[0],
    }


def _rows(setting: Setting) -> dict[str, float]:
    count = max(50_000, int(_COUNT * setting.scale))
    process = module_process("benchmarks.footprint", setting.uri, str(count))
    out, _ = process.communicate(timeout=300)
    rows: dict[str, float] = json.loads(out)
    return rows


def main() -> None:
    """Measure in this process and print the rows."""
    pin(CLIENT_CORE)
    sys.stdout.write(json.dumps(trio.run(_fill, sys.argv[1], int(sys.argv[2]))))


SCENARIOS = [Scenario("footprint", "", _rows)]

if __name__ == "__main__":
    main()
