"""What one kind of publish store has closed, another kind opens, of another size (PS11)."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from haclient_stores.disk.files import Disk
from haclient_stores.errors import StoreFull
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.hybrid import HybridPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.ring import RingPublishStore
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES as SMALL
from support.frames import put, take_all
from support.lengths import length
from support.publish_model import PublishModel
from support.recording import RecordingDisk

PATH = Path("/stores/p")


def file(disk: Disk, size: int, *, truncate: bool) -> PublishLog:
    return FilePublishStore(PATH, segment_bytes=SMALL * size, disk=disk, truncate_on_close=truncate)


def hybrid(disk: Disk, size: int, *, truncate: bool) -> PublishLog:
    return HybridPublishStore(
        PATH,
        segment_bytes=SMALL * size,
        memory_bytes=2 * SMALL * size,
        disk=disk,
        truncate_on_close=truncate,
    )


def ring(disk: Disk, size: int, *, truncate: bool) -> PublishLog:
    return RingPublishStore(PATH, 8 * SMALL * size, disk=disk, truncate_on_close=truncate)


KINDS: list[Callable[..., PublishLog]] = [file, hybrid, ring]


@pytest.mark.row("PS11", "PS13", "PS18", "PS24")
@pytest.mark.parametrize("seed", range(length(10)))
def test_every_message_goes_through_all_kinds_and_sizes(seed: int) -> None:
    rng = random.Random(seed)
    disk = RecordingDisk()
    model = PublishModel()
    for _ in range(8):
        store = rng.choice(KINDS)(disk, rng.choice([1, 2, 5]), truncate=rng.random() < 0.5)
        assert store.last_sequence >= model.last
        model = replace(model, last=store.last_sequence)  # a hybrid store may have skipped numbers
        model.compare(store)
        store.rewind(0)
        if not model.last:
            store.reconcile(seen=0, persisted=0, clock_us=1000)
            model = model.logged_on(0, 0, 1000)
        for _ in range(rng.randrange(60)):
            model = step(rng, store, model)
        store.close()


def step(rng: random.Random, store: PublishLog, model: PublishModel) -> PublishModel:
    match rng.choice(["publish"] * 8 + ["send", "ack", "sync"]):
        case "publish":
            body = bytes([rng.randrange(1, 256)]) * rng.choice([0, 100, 3000, 12_000])
            with contextlib.suppress(StoreFull):
                return model.stored(put(store, body), body)
        case "ack" if model.waiting:
            sequence = rng.randint(model.persisted, model.last)
            store.discard_up_to(sequence)
            return model.acked(sequence)
        case "send":
            take_all(store)
        case _:
            store.sync()
    return model
