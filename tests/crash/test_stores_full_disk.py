"""A disk that is truly full, under a process of its own: `StoreFull`, and never a SIGBUS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES
from support.disks import tiny_file_system
from support.publishers import OPEN

FILLER = """
import sys
from pathlib import Path
from haclient.stores import StoreFull
from support.publishers import OPEN
path, kind = Path(sys.argv[1]), sys.argv[2]
store = OPEN[kind](path)
store.open_for("victim")
store.reconcile(seen=0, persisted=0, clock_us=1000)
with (path.parent / "ballast").open("wb", buffering=0) as ballast:
    try:
        while ballast.write(bytes(4096)):
            pass
    except OSError:
        pass  # nothing is left for anybody
full = 0
for turn in range(3):  # being full changes nothing, however often it is tried
    try:
        while True:
            store.append(b'{"s":', b"}", bytes([store.last_sequence % 251]) * 1000)
    except StoreFull:
        full += 1
print(full, store.last_sequence, flush=True)
(path.parent / "ballast").unlink()
store.append(b'{"s":', b"}", b"") if kind != "ring" else None
store.close()
"""


@pytest.mark.row("PS1", "PS13", "PS18", "PS22")
@pytest.mark.parametrize("kind", OPEN)
def test_a_process_survives_a_disk_without_a_single_free_page(kind: str, tmp_path: Path) -> None:
    with tiny_file_system(tmp_path / "tiny", 64 * MIN_SEGMENT_BYTES) as root:
        path = root / "p"
        done = subprocess.run(
            [sys.executable, "-c", FILLER, str(path), kind],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (done.returncode, done.stderr)  # SIGBUS would be -7
        full, last = (int(word) for word in done.stdout.split())
        assert full == 3
        store = OPEN[kind](path)
        expected = last if kind == "ring" else last + 1
        assert [sequence for sequence, _ in store.replay()] == list(range(1001, expected + 1))
        store.close()
