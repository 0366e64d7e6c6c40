from __future__ import annotations

import threading

import pytest

from haclient_stores.gate import Gate

LIMIT_S = 10.0


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


def test_nobody_ever_works_during_a_standstill() -> None:
    gate, halves = Gate(), [0, 0]
    rounds = 3000

    def worker() -> None:
        for _ in range(rounds):
            gate.busy = True
            if gate.closed:
                gate.wait()
            try:
                halves[0] += 1
                halves[1] += 1
            finally:
                gate.busy = False

    thread = threading.Thread(target=worker)
    thread.start()
    seen: list[tuple[int, int]] = []
    while thread.is_alive():
        with gate.standstill():
            seen.append((halves[0], halves[1]))
    thread.join(LIMIT_S)
    assert halves == [rounds, rounds]
    assert all(first == second for first, second in seen)
