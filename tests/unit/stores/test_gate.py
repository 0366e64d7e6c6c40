from __future__ import annotations

import threading

from haclient_stores.gate import Gate


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
