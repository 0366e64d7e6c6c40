"""The lists of `fake_server/README.md` are what the broker does."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest

from haclient.protocol.commands import CommandName
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient_fake_server.engine.acks import Reason, Refused
from haclient_fake_server.engine.requests import read_options
from haclient_fake_server.engine.settings import COMPOSITE_PREFIX, MESSAGE_TYPES
from support.engine import World

README: Final = Path(__file__).parents[3] / "fake_server" / "README.md"
VALUES: Final = {
    "ack_conflation": "1s",
    "bookmark_not_found": "now",
    "conflation": "1s",
    "conflation_key": "[/id]",
    "grouping": "[/id]",
    "lease_extension": "1s",
    "max_backlog": "1",
    "projection": "[/id]",
    "rate": "2X",
    "rate_max_gap": "1s",
    "select": "[-/,+/id]",
    "skip_n": "1",
    "top_n": "1",
}
NEEDS: Final = {
    "conflation_key": ",conflation=1s",
    "rate_max_gap": ",rate=2X",
    "skip_n": ",top_n=1",
}


def rows() -> dict[str, str]:
    """The second cells of all tables by the first."""
    found = re.findall(r"^\| (.+?) \| (.+) \|$", README.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(found)


def words(text: str) -> set[str]:
    """What stands in backticks and is one word."""
    return set(re.findall(r"`([a-z_]+)`", text))


@pytest.mark.row("AD12")
@pytest.mark.parametrize("name", ["p", *CommandName])
def test_a_command_is_carried_out_exactly_if_it_is_listed(name: str) -> None:
    peer = World().client()
    peer.send(c=name, cid="1", a="processed")
    reasons = {ack.reason for ack in peer.acks()}
    assert ("unknown command" not in reasons) == (name in words(rows()["commands"]))


@pytest.mark.row("AD12")
@pytest.mark.parametrize("option", [each.name for each in fields(Options)])
def test_an_option_is_accepted_exactly_if_it_is_listed(option: str) -> None:
    listed = words(rows()["options"]) | words(rows()["accepted, without effect here"])
    listed |= words(rows()["replication"])
    value = VALUES.get(option)
    text = (option if value is None else f"{option}={value}") + NEEDS.get(option, "")
    accepted = False
    for command in words(rows()["commands"]):
        try:
            read_options(Message(kind=command, options=text, bookmark="0"))
        except KeyError:  # a command that has no options
            continue
        except Refused as error:
            # Whether it fits the rest of the command is another matter.
            if "not supported with" in error.detail or "bookmark" not in error.detail:
                continue
        accepted = True
    assert accepted == (option in listed)


@pytest.mark.row("AD12")
def test_the_reasons_and_the_message_types_are_those_that_are_listed() -> None:
    text = README.read_text(encoding="utf-8")
    table = text[text.index("| reason | when |") : text.index("## Message queues")]
    cells = [line.split(" | ")[0] for line in table.splitlines()[2:] if line.startswith("|")]
    assert sorted(re.findall(r"`(.+?)`", " ".join(cells))) == sorted(Reason)
    types = rows()["message types"]
    assert words(types.partition("those of")[0]) == MESSAGE_TYPES
    assert f"`{COMPOSITE_PREFIX}`" in types
