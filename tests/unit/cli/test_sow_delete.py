"""`haclient sow-delete`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import CommandLine


@pytest.mark.row("CLI1", "CLI9")
def test_records_are_deleted_by_filter_key_and_message(
    haclient: CommandLine, tmp_path: Path
) -> None:
    guests = tmp_path / "guests"
    guests.write_text("".join(f'{{"id":{number},"age":{number}0}}\n' for number in range(1, 6)))
    haclient("publish", "--topic", "guests", "--file", guests)
    delete = ("sow-delete", "--topic", "guests")
    assert haclient(*delete, "--filter", "/age < 30") == (0, ["deleted 2 records of guests"], "")
    assert haclient(*delete, "-m", '{"id":3}')[1] == ["deleted 1 record of guests"]
    _, lines, _ = haclient("sow", "--topic", "guests", "--filter", "/id = 4", "--format", "{key}")
    _, told, _ = haclient(*delete, "--key", lines[0], "--json")
    assert [json.loads(line) for line in told] == [{"topic": "guests", "deleted": 1}]
    assert haclient("sow", "--topic", "guests")[1] == ['{"id":5,"age":50}']
    assert haclient(*delete, "--filter", "1=1")[1] == ["deleted 1 record of guests"]
    assert haclient(*delete, "--filter", "1=1")[1] == ["deleted 0 records of guests"]


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "one of --filter, --key and --message"),
        (("--filter", "1=1", "--key", "1"), "one of --filter, --key and --message"),
        (("--filter", ""), "one of --filter, --key and --message"),
        (("--key", ""), "'--key': it is empty"),
        (("-m", ""), "'--message': it is empty"),
    ],
)
def test_not_exactly_one_choice_of_records_is_a_mistake(
    haclient: CommandLine, words: tuple[str, ...], why: str
) -> None:
    code, lines, err = haclient("sow-delete", "--topic", "people", *words)
    assert (code, lines, err.count("\n")) == (2, [], 1)
    assert why in err


@pytest.mark.row("CLI9")
def test_what_the_server_refuses_is_exit_code_1(haclient: CommandLine) -> None:
    code, _, err = haclient("sow-delete", "--topic", "people", "--filter", "/age >")
    assert (code, err.count("\n")) == (1, 1)
