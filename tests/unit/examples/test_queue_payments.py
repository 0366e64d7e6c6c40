"""The verdict of examples/queue_payments.py must be able to be bad."""

from __future__ import annotations

import runpy
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "examples/queue_payments.py"
PAYMENTS = [
    {"account": 1, "amount": 10},
    {"account": 2, "amount": 5},
    {"account": 1, "amount": 7},
]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    # A dataclass with slots looks its module up by name.
    monkeypatch.setitem(sys.modules, "queue_payments", ModuleType("queue_payments"))
    return runpy.run_path(str(SCRIPT), run_name="queue_payments")


@pytest.mark.parametrize(
    ("balances", "booked", "kills", "wrong"),
    [
        ({1: 17, 2: 5}, 3, 1, 0),
        ({1: 17, 2: 5}, 3, 0, 0),  # nobody was killed, so it shows nothing
        ({1: 27, 2: 5}, 4, 1, 1),  # one was booked twice
        ({1: 17}, 2, 1, 1),  # one was not booked
        ({1: 17, 2: 5, 3: 1}, 3, 1, 1),  # nobody has paid this
    ],
)
def test_a_verdict_compares_each_account(
    example: dict[str, Any], balances: dict[int, int], booked: int, kills: int, wrong: int
) -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(example["TABLES"])
        database.executemany("insert into balances values (?, ?)", balances.items())
        database.execute("update counts set number = ? where what = 'booked'", (booked,))
        verdict = example["judge"](database, PAYMENTS, kills=kills, seconds=1.0)
    assert verdict.wrong_accounts == wrong
    assert verdict.is_good == (kills > 0 and not wrong and booked == 3)
