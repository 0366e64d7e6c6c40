from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from haclient_stores.disk.threads import Gate, ThreadBinding
from haclient_stores.errors import UsageError

LIMIT_S = 300.0  # of a test that hangs


def test_a_store_belongs_to_the_thread_that_first_uses_it_not_to_the_one_that_made_it() -> None:
    binding = ThreadBinding("orders.pub")
    with ThreadPoolExecutor(1, thread_name_prefix="worker") as pool:
        pool.submit(binding.check).result()
        pool.submit(binding.check).result()
        assert binding.ident not in (0, threading.get_ident())
        with pytest.raises(UsageError) as caught:
            binding.check()
        pool.submit(binding.check).result()
    said = str(caught.value)
    assert said.startswith("orders.pub: used by the thread 'worker_0', and called by 'MainThread'")
    assert "others may only sync, prune and close it" in said


def test_a_store_that_was_released_belongs_to_its_next_user() -> None:
    binding = ThreadBinding("memory")
    binding.check()
    binding.release()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(binding.check).result()
        with pytest.raises(UsageError):
            binding.check()


def test_of_threads_that_begin_at_once_one_gets_the_store() -> None:
    for _ in range(50):
        binding = ThreadBinding("memory")
        start = threading.Barrier(4)

        def use(binding: ThreadBinding = binding, start: threading.Barrier = start) -> bool:
            start.wait(LIMIT_S)
            try:
                binding.check()
            except UsageError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sum(future.result() for future in [pool.submit(use) for _ in range(4)]) == 1


def test_nothing_happens_inside_a_standstill() -> None:
    gate = Gate()
    state = {"inside": False, "stop": False, "rounds": 0}

    def work() -> None:
        while not state["stop"]:
            gate.busy = True
            if gate.closed:
                gate.wait()
            try:
                assert not state["inside"]
                state["rounds"] += 1
            finally:
                gate.busy = False

    worker = threading.Thread(target=work)
    worker.start()
    while not state["rounds"]:
        pass
    for _ in range(50):
        with gate.standstill():
            state["inside"] = True
            before = state["rounds"]
            sum(range(1000))
            assert state["rounds"] == before
            state["inside"] = False
    state["stop"] = True
    worker.join(LIMIT_S)
    assert not worker.is_alive()
    assert not gate.closed


def work(gate: Gate, done: list[str], entered: threading.Event) -> None:
    """The worker's side, as it is written out in the stores."""
    entered.set()
    gate.busy = True
    if gate.closed:
        gate.wait()
    try:
        done.append("worked")
    finally:
        gate.busy = False


def test_whoever_closes_the_gate_waits_for_the_worker_to_finish() -> None:
    gate, done = Gate(), list[str]()
    gate.busy = True

    def close() -> None:
        with gate.standstill():
            done.append("stood still")

    closer = threading.Thread(target=close)
    closer.start()
    while not gate.closed:
        pass
    done.append("worked")
    gate.busy = False
    closer.join(LIMIT_S)
    assert done == ["worked", "stood still"]


def test_a_worker_that_finds_the_gate_closed_waits_and_is_busy_afterwards() -> None:
    gate, done, entered = Gate(), list[str](), threading.Event()
    worker = threading.Thread(target=work, args=(gate, done, entered))
    with gate.standstill():
        worker.start()
        assert entered.wait(LIMIT_S)
        done.append("stood still")
    worker.join(LIMIT_S)
    assert done == ["stood still", "worked"]
    assert not gate.busy


def test_an_open_gate_lets_the_worker_pass() -> None:
    gate = Gate()
    gate.busy = True
    gate.wait()
    assert gate.busy


def test_an_error_at_a_standstill_opens_the_gate_again() -> None:
    gate = Gate()
    with pytest.raises(ValueError, match="inside"), gate.standstill():
        raise ValueError("inside")
    assert not gate.closed
    with gate.standstill():
        assert gate.closed
