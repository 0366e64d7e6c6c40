"""The clocks of machines: what may become of them, and what a process may begin with."""

from __future__ import annotations

from random import Random

import pytest
import trio
from typing_extensions import override

from simulation.nodes import EPOCH_US, Life, Node, Program
from simulation.plans import Links
from simulation.wires import Wires
from support.clock import in_virtual_time

pytestmark = in_virtual_time

HOUR_US = 3_600_000_000


class Idle(Program):
    def __init__(self, *, numbers_from_clock: bool) -> None:
        self.numbers_from_clock = numbers_from_clock

    @override
    async def run(self, life: Life) -> None:
        await trio.sleep_forever()

    @override
    def crashed(self, *, power: bool) -> None:
        pass


def made(*, numbers_from_clock: bool = False) -> Node:
    return Node(
        "n",
        Idle(numbers_from_clock=numbers_from_clock),
        wires=Wires(Links(), Random(1)),
        chance=Random(1),
        trace=lambda _: None,
    )


def wrong_us(node: Node) -> int:
    return node.clock_us() - EPOCH_US - int(trio.current_time() * 1_000_000)


async def test_a_clock_jumps_within_what_the_overlap_allows_for() -> None:
    node = made()
    for _ in range(3):
        node.set_clock(1.0)
    assert wrong_us(node) == pytest.approx(1_500_000, abs=2)
    node.set_clock(-9.0)
    assert wrong_us(node) == pytest.approx(-1_500_000, abs=2)


async def test_who_numbers_from_the_clock_is_not_set_back() -> None:
    node = made(numbers_from_clock=True)
    node.set_clock(1.0)
    node.set_clock(-2.0)
    assert wrong_us(node) == pytest.approx(1_000_000, abs=2)


@pytest.mark.parametrize(
    ("numbers_from_clock", "step_us", "kept_us"),
    [
        (False, HOUR_US, 0),
        (False, -HOUR_US, -HOUR_US),
        (True, HOUR_US, 0),
        (True, -HOUR_US, 0),
    ],
)
async def test_the_next_process_begins_with_a_clock_that_is_not_ahead(
    *, numbers_from_clock: bool, step_us: int, kept_us: int
) -> None:
    node = made(numbers_from_clock=numbers_from_clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.supervise)
        await trio.sleep(1)
        node.stepped_us += step_us
        assert wrong_us(node) == pytest.approx(step_us, abs=2)
        node.crash(power=False, down_s=1.0)
        await trio.sleep(2)
        assert wrong_us(node) == pytest.approx(kept_us, abs=2)
        nursery.cancel_scope.cancel()
