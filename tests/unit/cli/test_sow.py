"""`haclient sow`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import CommandLine

ONE = {"sow-and-subscribe": ("-n", "1")}


@pytest.mark.row("CLI1", "CLI9")
def test_records_are_printed_as_asked(haclient: CommandLine, tmp_path: Path) -> None:
    family = tmp_path / "family"
    family.write_text('{"id":1,"age":40}\n{"id":2,"age":20}\n{"id":1,"age":41}\n')
    haclient("publish", "--topic", "family", "--file", family)
    code, lines, err = haclient("sow", "--topic", "family", "--order-by", "/age")
    assert (code, lines, err) == (0, ['{"id":2,"age":20}', '{"id":1,"age":41}'], "")
    _, lines, _ = haclient("sow", "--topic", "family", "--filter", "/age > 30", "--json")
    assert [json.loads(line)["data"] for line in lines] == ['{"id":1,"age":41}']
    more = ("--top-n", "1", "--batch-size", "1", "--timeout", "10")
    _, lines, _ = haclient("sow", "--topic", "family", "--order-by", "/age", *more)
    assert lines == ['{"id":2,"age":20}']


@pytest.mark.row("CLI9")
def test_a_query_that_is_refused_or_takes_too_long_says_so(haclient: CommandLine) -> None:
    code, _, err = haclient("sow", "--topic", "people", "--filter", "/age >")
    assert code == 1
    assert "filter" in err
    code, _, err = haclient("sow", "--topic", "nosuch")
    assert code == 1
    assert "invalid topic: 'nosuch' has no state of the world: the reference broker" in err
    code, _, err = haclient("sow", "--topic", "people", "--timeout", "0.000001")
    assert code == 3
    assert err.count("\n") == 1


@pytest.mark.row("OP16")
def test_only_the_selected_fields_are_printed(haclient: CommandLine) -> None:
    haclient("publish", "--topic", "people", "-m", '{"id":7,"age":1.50,"name":"x"}')
    where = ("--topic", "people", "--filter", "/id = 7")
    for command in ("sow", "sow-and-subscribe"):
        code, lines, _ = haclient(
            command, *where, "--select", "-/, +/id,+/age", "--timeout", "5", *ONE.get(command, ())
        )
        assert (code, lines) == (0, ['{"id":7,"age":1.50}'])
    code, _, err = haclient("sow", *where, "--select", "age")
    assert code == 2
    assert "'age'" in err


@pytest.mark.row("CC15")
def test_records_are_printed_as_they_were(haclient: CommandLine) -> None:
    where = ("--topic", "people", "--filter", "/group = 'then'")
    haclient("publish", "--topic", "people", "-m", '{"id":70,"group":"then","age":1}')
    replay = ("subscribe", *where, "--bookmark", "epoch", "--exit", "--format", "{bookmark}")
    _, (bookmark,), _ = haclient(*replay)
    haclient("publish", "--topic", "people", "-m", '{"id":70,"group":"then","age":2}')
    assert haclient("sow", *where, "--at", bookmark)[1] == ['{"id":70,"group":"then","age":1}']
    assert haclient("sow", *where, "--at", "0s")[1] == ['{"id":70,"group":"then","age":2}']
    assert haclient("sow", *where, "--at", "2020-01-01") == (0, [], "")
    code, _, err = haclient("sow", *where, "--at", "soon")
    assert code == 2
    assert err.startswith("haclient: error: --at 'soon' is no time: wanted")
    code, _, err = haclient("sow", "--topic", "crowd", "--at", "1h")
    assert code == 1
    assert "invalid bookmark" in err
