"""The programs that pages show in tabs, run as they stand, but for the port."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from haclient_fake_server.config import BrokerConfig, SowTopic
from support.broker_thread import BrokerThread, broker_thread, publish
from support.documents import FORMS, programs
from support.process import Child

DOCS = Path(__file__).parents[2] / "docs"
SERVER = "tcp://127.0.0.1:9007/amps/json"
ORDERS = [f"{{'id': {number}}}" for number in range(1, 6)]
PRICE = b'{"symbol": "A", "px": 10}'
# The number of the program on its page, and what it prints after five orders and a price.
PAGES = {
    "tutorial.md": (0, ORDERS),
    "index.md": (0, [*ORDERS, "{'id': 1, 'px': 10.5}"]),
    "stores.md": (0, [*ORDERS, "{'id': 1}"]),
    "deltas.md": (0, [f"{PRICE.decode()} -> {{'symbol': 'A', 'px': 10}}"]),
}


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with broker_thread(BrokerConfig(sow_topics=(SowTopic("prices", ("/symbol",)),))) as running:
        publish(running.uri, "orders", [b'{"id": %d}' % number for number in range(1, 6)])
        publish(running.uri, "prices", [PRICE], name="prices")
        yield running


@pytest.mark.parametrize(
    "form", [FORMS[0], *(pytest.param(form, marks=pytest.mark.full) for form in FORMS[1:])]
)
@pytest.mark.parametrize("page", PAGES)
def test_a_program_prints_what_its_page_says_and_ends_in_good_order(
    page: str, form: str, broker: BrokerThread, tmp_path: Path
) -> None:
    number, printed = PAGES[page]
    program = programs((DOCS / page).read_text(encoding="utf-8"), form)[number]
    assert program.count(SERVER) == 1
    (tmp_path / "program.py").write_text(program.replace(SERVER, broker.uri), encoding="utf-8")
    command = ["sh", "-c", f"cd '{tmp_path}' && exec '{sys.executable}' -u program.py"]
    with Child(command) as child:
        assert [child.line() for _ in printed] == printed
        child.stop()
        assert "Traceback" not in child.err
