"""`haclient sow-and-subscribe`."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest

from haclient_fake_server.testing.processes import BrokerProcess
from support.command_line import CommandLine
from support.process import start_haclient


@pytest.mark.row("CLI1", "CLI9")
def test_records_come_first_and_then_what_is_published(
    haclient: CommandLine, broker: BrokerProcess, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    record.write_text('{"id":1,"of":"both"}\n')
    follow = ("--topic", "people", "--filter", '/of = "both"')
    haclient("publish", "--topic", "people", "--file", record)
    with start_haclient("sow-and-subscribe", "--server", broker.uri, *follow) as child:
        assert child.line() == '{"id":1,"of":"both"}'
        record.write_text('{"id":1,"of":"both","n":2}\n{"id":2,"of":"none"}\n')
        haclient("publish", "--topic", "people", "--file", record)
        assert child.line() == '{"id":1,"of":"both","n":2}'
        assert child.stop() == 0
    code, lines, _ = haclient("sow-and-subscribe", *follow, "-n", "1", "--json")
    assert (code, [json.loads(line)["data"] for line in lines]) == (
        0,
        ['{"id":1,"of":"both","n":2}'],
    )
    haclient("sow-delete", *follow)


@pytest.mark.row("CLI9")
def test_silence_ends_it_and_too_few_messages_are_exit_code_3(haclient: CommandLine) -> None:
    nothing = ("sow-and-subscribe", "--topic", "people", "--filter", "/id = -1", "--timeout", "1")
    assert haclient(*nothing) == (0, [], "")
    code, lines, err = haclient(*nothing, "-n", "1", "--format", "{key}")
    assert (code, lines) == (3, [])
    assert err == "haclient: error: 0 of 1 messages came, then none for 1 s\n"


@pytest.mark.row("CLI9", "CC12")
@pytest.mark.parametrize("command", ["sow-and-subscribe", "subscribe"])
def test_updates_come_as_what_they_have_changed(
    haclient: CommandLine, broker: BrokerProcess, tmp_path: Path, command: str
) -> None:
    record = tmp_path / "record"

    def publish(number: int) -> None:
        record.write_text(f'{{"id":8,"of":"delta","n":{number},"m":1}}\n')
        haclient("publish", "--topic", "people", "--file", record)

    publish(0)
    follow = ("--topic", "people", "--filter", '/of = "delta"')
    with start_haclient(command, "--server", broker.uri, *follow, "--delta") as child:
        if command == "sow-and-subscribe":
            assert child.line() == '{"id":8,"of":"delta","n":0,"m":1}'
        numbers = count(1)
        while not child.has_output:  # it may not have subscribed yet
            publish(next(numbers))
        assert set(json.loads(child.line())) == {"n", "id"}
        assert child.stop() == 0
    haclient("sow-delete", *follow)
    code, _, err = haclient("subscribe", "--topic", "people", "--delta", "--since", "1h")
    assert (code, "--delta has no replay" in err) == (2, True)


@pytest.mark.row("CLI9")
def test_mistakes_are_one_line(haclient: CommandLine) -> None:
    assert haclient("sow-and-subscribe", "--topic", "people", "--format", "{x}")[0] == 2
    code, _, err = haclient("sow-and-subscribe", "--topic", "people", "--filter", "/age >")
    assert (code, err.count("\n")) == (1, 1)


@pytest.mark.row("CC15")
def test_a_page_of_the_records_is_printed(haclient: CommandLine) -> None:
    bodies = [f'{{"id":{number},"group":"page","px":{9 - number}}}' for number in range(4)]
    for body in bodies:
        haclient("publish", "--topic", "people", "-m", body)
    page = ("--topic", "people", "--filter", "/group = 'page'", "--top-n", "2", "--skip-n", "1")
    assert haclient("sow", *page, "--order-by", "/px") == (0, [bodies[2], bodies[1]], "")
    follow = ("sow-and-subscribe", *page, "--order-by", "/px DESC", "-n", "2", "--timeout", "5")
    assert haclient(*follow) == (0, [bodies[1], bodies[2]], "")
    assert haclient(*follow, "--delta") == (0, [bodies[1], bodies[2]], "")
    for mistake, told in (
        (("sow", *page), "--order-by"),
        (("sow", "--topic", "people", "--skip-n", "1", "--order-by", "/px"), "--top-n"),
    ):
        code, _, err = haclient(*mistake)
        assert code == 2
        assert told in err


@pytest.mark.row("CC15")
def test_the_records_of_then_come_first_and_then_each_message_since(haclient: CommandLine) -> None:
    bodies = [f'{{"id":{80 + n % 2},"group":"past","n":{n}}}' for n in range(4)]
    for body in bodies:
        haclient("publish", "--topic", "people", "-m", body)
    where = ("--topic", "people", "--filter", "/group = 'past'")
    replay = ("subscribe", *where, "--bookmark", "epoch", "--exit", "--format", "{bookmark}")
    _, marks, _ = haclient(*replay)
    follow = ("sow-and-subscribe", *where, "--timeout", "5", "-n", "3", "--at")
    assert haclient(*follow, marks[0]) == (0, [bodies[0], bodies[1], bodies[2]], "")
    code, lines, _ = haclient("sow-and-subscribe", *where, "--timeout", "1", "--at", "0s")
    assert (code, sorted(lines)) == (0, bodies[2:])
    assert haclient(*follow, "2020-01-01") == (0, bodies[:3], "")
    code, _, err = haclient(*follow, "soon")
    assert (code, "--at 'soon' is no time" in err) == (2, True)
    for more in (["--delta"], ["--top-n", "2", "--skip-n", "1"]):
        code, _, err = haclient(*follow, "1h", *more)
        assert (code, "--at has no deltas and no pages" in err) == (2, True)
    code, _, err = haclient("sow-and-subscribe", "--topic", "crowd", "--at", "1h", "-n", "1")
    assert (code, "invalid bookmark" in err) == (1, True)
    haclient("sow-delete", *where)
