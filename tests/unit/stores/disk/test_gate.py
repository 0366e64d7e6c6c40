from __future__ import annotations

import threading

import pytest

from haclient_stores.disk.gate import Gate


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
    for _ in range(50):
        with gate.standstill():
            state["inside"] = True
            before = state["rounds"]
            sum(range(1000))
            assert state["rounds"] == before
            state["inside"] = False
    state["stop"] = True
    worker.join(10)
    assert state["rounds"] > 0
    assert not gate.closed


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
