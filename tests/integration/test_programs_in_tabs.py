"""The programs that pages show in tabs, run as they stand, but for the port."""

from __future__ import annotations

import re
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
BODIES = [f'{{"id": {number}, "px": {number}.5, "qty": 3}}' for number in range(1, 6)]
ORDERS = [body.replace('"', "'") for body in BODIES]
PRICE = '{"symbol": "A", "px": 10}'
PRICED = f" {3 * sum(range(1_000_000))}"  # what the workers compute for each order
SOW_TOPICS = (
    SowTopic("prices", ("/symbol",)),
    SowTopic("/ADMIN/bookmark_store", ("/clientName", "/subId")),
)
# A page, the number of the program on it, and what it prints after five orders and a price.
PRINTED: dict[tuple[str, int], list[str]] = {
    ("tutorial.md", 0): ORDERS,
    ("index.md", 0): [*ORDERS, "{'id': 1, 'px': 10.5}"],
    ("stores.md", 0): [*ORDERS, "{'id': 1}"],
    ("stores.md", 5): ORDERS,
    ("deltas.md", 0): [f"{PRICE} -> {{'symbol': 'A', 'px': 10}}"],
    ("live_records.md", 0): ["1 records {'symbol': 'A', 'px': 10}"],
    ("codecs.md", 0): ["1.5", "2.5", "3.5", "4.5", "5.5", "10.5"],
    ("workers.md", 0): [PRICED] * 5,
    ("errors.md", 0): ["bad filter"],
    ("deployment.md", 0): [f"b'{body}'" for body in BODIES],
    ("broker.md", 1): [f"b'{PRICE}'"],
    ("ha.md", 8): [f"b'{body}'" for body in BODIES],
    ("ha.md", 9): [f"b'{PRICE}'"],
    ("observability.md", 0): ["resubscribed 0 0.0"],
    ("observability.md", 7): [f"b'{body}'" for body in [*BODIES, '{"id": 1}']],
}
# Of a program that prints nothing: the statement that it reaches, and how often.
WAIT = r"(await trio.sleep_forever|(await asyncio|threading).Event\(\).wait)\(\)"
REACHED: dict[tuple[str, int], tuple[str, int]] = {
    ("sources.md", 0): (r"(await )?client.publish_flush\(\)", 1),
    ("guarantees.md", 0): (r"(await )?client.publish\(\"orders\", line, sequence=number\)", 5),
    ("stores.md", 6): (r"message.discard\(\)", 5),
    ("observability.md", 5): (WAIT, 1),
    ("observability.md", 6): (WAIT, 1),
}
EACH_FORM = pytest.mark.parametrize(
    "form", [FORMS[0], *(pytest.param(form, marks=pytest.mark.full) for form in FORMS[1:])]
)


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with broker_thread(BrokerConfig(sow_topics=SOW_TOPICS)) as running:
        publish(running.uri, "orders", [body.encode() for body in BODIES])
        publish(running.uri, "prices", [PRICE.encode()], name="prices")
        yield running


def check(program: str, printed: list[str], broker: BrokerThread, directory: Path) -> None:
    """Run a program, and stop it once it has printed this."""
    assert program.count(SERVER) == 1
    (directory / "orders.jsonl").write_text("\n".join(BODIES), encoding="utf-8")
    (directory / "program.py").write_text(program.replace(SERVER, broker.uri), encoding="utf-8")
    command = ["sh", "-c", f"cd '{directory}' && exec '{sys.executable}' -u program.py"]
    with Child(command) as child:
        assert [child.line() for _ in printed] == printed
        child.stop()
        assert "Traceback" not in child.err


@EACH_FORM
@pytest.mark.parametrize(
    ("page", "number"),
    [
        # Four processes have to start.
        pytest.param(*each, marks=pytest.mark.full) if each == ("workers.md", 0) else each
        for each in PRINTED
    ],
)
def test_a_program_prints_what_its_page_says_and_ends_in_good_order(
    page: str, number: int, form: str, broker: BrokerThread, tmp_path: Path
) -> None:
    program = programs((DOCS / page).read_text(encoding="utf-8"), form)[number]
    check(program, PRINTED[page, number], broker, tmp_path)


@EACH_FORM
@pytest.mark.parametrize(("page", "number"), REACHED)
def test_a_program_that_prints_nothing_does_its_work_and_ends_in_good_order(
    page: str, number: int, form: str, broker: BrokerThread, tmp_path: Path
) -> None:
    program = programs((DOCS / page).read_text(encoding="utf-8"), form)[number]
    program = program.replace("50_000", "10_000")  # a call of each takes its time
    program = program.replace("(9101)", "(0)")  # any free port
    statement, times = REACHED[page, number]
    program, found = re.subn(
        f"^( *)(?={statement}$)", r'\1print("reached")\n\1', program, flags=re.MULTILINE
    )
    assert found == 1
    check(program, ["reached"] * times, broker, tmp_path)
