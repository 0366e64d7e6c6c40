"""Content filters: what an expression selects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conformance.wire import Wire

DOCUMENT = {
    "a": 1,
    "px": 12.5,
    "name": "Acme Corp",
    "quoted": "it's",
    "empty": "",
    "null": None,
    "yes": True,
    "text": "2.000",
    "list": [1, 2, 3],
    "none": [],
    "C": [{"x": 1}, {"x": 2}],
    "deep": {"er": {"value": "v"}},
    "two words": 7,
}


def selects(wire: Wire, topic: str, expression: str, body: bytes) -> bool:
    """Whether a filter selects a message."""
    wire.subscribe(topic, sub_id="all")
    wire.subscribe(topic, sub_id="filtered", filter=expression)
    wire.publish(topic, body)
    sids = wire.next_message().sids
    assert "all" in sids
    return "filtered" in sids


FACTS: dict[str, list[tuple[str, bool]]] = {
    "a path names a field, however deep": [
        ("/a = 1", True),
        ("/deep/er/value = 'v'", True),
        ("/deep/er = 'v'", False),
        ("[/two words] = 7", True),
    ],
    "texts have either quotes and escapes": [
        ("/name = 'Acme Corp'", True),
        ('/name = "Acme Corp"', True),
        (r"/quoted = 'it\'s'", True),
        (r"/name = '\x41cme Corp'", True),
        (r"/name = '\101cme Corp'", True),
        (r"/name = r'Acme Corp'", True),
        (r"/name = r'\101cme Corp'", False),
    ],
    "numbers are integers or floating": [
        ("/px = 12.5", True),
        ("/px = 1.25e1", True),
        ("/a = 1.0", True),
        ("/a < 9223372036854775807", True),
        ("/a < 18446744073709551615", True),
    ],
    "key words have any case": [("/a = 1 and not /a = 2 Or /a = 3", True)],
    "all comparisons": [
        ("/a == 1", True),
        ("/a != 2", True),
        ("/a <> 2", True),
        ("/a < 2", True),
        ("/a <= 1", True),
        ("/a > 0", True),
        ("/a >= 2", False),
    ],
    "texts compare as texts, and a number with a text as numbers": [
        ("/text <> '2.0'", True),
        ("/text = 2", True),
        ("10 < 'abc'", True),
    ],
    "a missing field is null, like an empty text, and compares with nothing": [
        ("/gone = 1", False),
        ("/gone != 1", False),
        ("/gone IS NULL", True),
        ("/empty IS NULL", True),
        ("/null IS NULL", True),
        ("/a IS NOT NULL", True),
        ("/gone NOT IN (1, 2)", True),
    ],
    "null in front of and or or is null, which selects nothing": [
        ("/gone OR /a = 1", False),
        ("/a = 1 OR /gone", True),
        ("/a = 2 OR /gone", False),
        ("/a = 1 AND /gone", False),
        ("NOT /gone", False),
        ("NOT /gone = 1", True),
    ],
    "a text that is no number is not a number in arithmetic": [
        ("/name + 1 IS NAN", True),
        ("/text + 1 = 3", True),
        ("/a + 1 IS NOT NAN", True),
    ],
    "true and false are 1 and 0": [("/yes = 1", True), ("/yes = 0", False)],
    "and, or and not": [
        ("/a = 1 AND /px > 10", True),
        ("/a = 2 OR /px > 10", True),
        ("NOT /a = 2", True),
        ("/a = 2 AND /a = 3 OR /a = 1", True),
        ("/a = 2 AND (/a = 3 OR /a = 1)", False),
    ],
    "arithmetic": [
        ("/a + 2 * 3 = 7", True),
        ("1 / 5 = 0", True),
        ("1.0 / 5 = 0.2", True),
        ("-5 % 3 = -2", True),
        ("5 MOD 3 = 2", True),
        ("/gone + 1 IS NULL", True),
    ],
    "between includes both ends": [("/a BETWEEN 1 AND 2", True), ("/px BETWEEN 13 AND 14", False)],
    "in is exact": [("/name IN ('acme corp', 'x')", False), ("/a IN (3, 1)", True)],
    "like is a pattern that is found anywhere": [
        ("/name LIKE 'me C'", True),
        ("/name LIKE '^me'", False),
        ("/name LIKE '(?i)ACME'", True),
        ("/name NOT LIKE 'x'", True),
    ],
    "begins with and ends with": [
        ("/name BEGINS WITH ('Acme', 'x')", True),
        ("/name BEGINS WITH ('acme')", False),
        ("/name ENDS WITH ('Corp')", True),
        ("/name NOT ENDS WITH ('Corp')", False),
    ],
    "any element of an array may satisfy a comparison": [
        ("/list = 2", True),
        ("/list != 2", True),
        ("/list > 3", False),
        ("3 IN (/list)", True),
        ("/list[0] = 1", True),
        ("/list[9] IS NULL", True),
        ("/none IS NULL", True),
        ("/C/x = 2", True),
        ("/list + 1 = 2", True),
    ],
}
CASES = [(fact, expression, wanted) for fact, all_ in FACTS.items() for expression, wanted in all_]


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        pytest.param(expression, wanted, id=f"{fact}: {expression}")
        for fact, expression, wanted in CASES
    ],
)
def test_a_filter_selects(wire: Wire, plain: str, expression: str, *, wanted: bool) -> None:
    """The language of filters is that of docs/broker.md#filters."""
    assert selects(wire, plain, expression, json.dumps(DOCUMENT).encode()) is wanted


@pytest.mark.parametrize(
    "expression",
    ["/a =", "a = 1", "/a LIKE /name", "/a = 'x", "(/a = 1", "/a ** 2 = 1", "/a LIKE '('"],
)
def test_what_is_no_filter_is_refused(wire: Wire, plain: str, expression: str) -> None:
    """With the reason `bad filter` (docs/protocol.md#acknowledgements)."""
    answer = wire.ask("subscribe", t=plain, filter=expression)
    assert (answer["status"], answer["reason"]) == ("failure", "bad filter")


FUNCTIONS = [
    "UPPER(/name) = 'ACME CORP'",
    "LOWER(/name) = 'acme corp'",
    "SUBSTR('fandango', 5) = 'ango'",
    "INSTR(/name, 'Corp') = 6",
    "CONCAT(/name, '!') = 'Acme Corp!'",
    "COALESCE(/gone, 3) = 3",
    "IF(/a = 1, 2, 3) = 2",
    "ABS(-3) = 3",
    "REPLACE(/name, 'Corp', 'Inc') = 'Acme Inc'",
    "ARRAY_COUNT(/list) = 3",
    "MESSAGE_SIZE() > 0",
]


@pytest.mark.parametrize("expression", FUNCTIONS)
def test_a_function_is_evaluated_or_refused(wire: Wire, plain: str, expression: str) -> None:
    """A server that does not have one says so; it does not take it for something else."""
    answer: dict[str, Any] = wire.ask("subscribe", t=plain, filter=expression).header
    if answer["status"] != "success":
        assert answer["reason"] == "bad filter"
        pytest.skip(f"not applicable: the server has no {expression.partition('(')[0]}")
    assert selects(wire, plain, expression, json.dumps(DOCUMENT).encode())
