"""The lists of `fake_server/README.md` are what the broker does."""

from __future__ import annotations

import ast
import gc
import json
import re
import tracemalloc
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest
from typing_extensions import override

from haclient.errors import UsageError
from haclient.protocol.codec import encode_frame
from haclient.protocol.commands import CommandName
from haclient.protocol.messages import HEADERS, Message
from haclient.protocol.options import Options
from haclient_fake_server.config import FsyncPolicy, parse_queue
from haclient_fake_server.engine.acks import Reason, Refused
from haclient_fake_server.engine.filters.bodies import COMPOSITE_PREFIX
from haclient_fake_server.engine.patterns import PatternError, compile_search
from haclient_fake_server.engine.requests import read_options
from haclient_fake_server.engine.settings import (
    MESSAGE_TYPES,
    QueueTopic,
    SowTopic,
)
from haclient_fake_server.journal.files import JournalFiles
from haclient_stores.disk.files import RealDisk
from support.engine import World, decode

ROOT: Final = Path(__file__).parents[3]
README: Final = ROOT / "fake_server" / "README.md"
HERE: Final = "tests/unit/fake_server/test_readme.py"
ENGINE: Final = "tests/unit/fake_server/engine"
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


def source_of(test: str) -> str:
    """The source of a test, which is named as pytest names it; fails if there is none."""
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_source_segment(text, node) or ""
    pytest.fail(f"{path} has no {name}")


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
        except KeyError:  # a heartbeat, whose options are of another form
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
    table = text[text.index("| reason | when |") : text.index("### Headers of commands")]
    cells = [line.split(" | ")[0] for line in table.splitlines()[2:] if line.startswith("|")]
    assert sorted(re.findall(r"`(.+?)`", " ".join(cells))) == sorted(Reason)
    types = rows()["message types"]
    assert words(types.partition("those of")[0]) == MESSAGE_TYPES
    assert f"`{COMPOSITE_PREFIX}`" in types


REFUSED: Final[dict[str, dict[str, str | int]]] = {
    "bad filter": {"c": "subscribe", "t": "x", "sub_id": "s", "filter": "/a ="},
    "bad message": {"c": "p", "t": "sow"},
    "bad regex topic": {"c": "subscribe", "t": "x[", "sub_id": "s"},
    "bad sow key": {"c": "sow_delete", "t": "sow"},
    "bookmark not found": {
        "c": "subscribe",
        "t": "x",
        "sub_id": "s",
        "bm": "1|1|",
        "opts": "bookmark_not_found=fail",
    },
    "duplicate logon attempt": {"c": "logon", "client_name": "pubber"},
    "invalid batch size": {"c": "sow", "t": "sow", "bs": 10_001},
    "invalid bookmark": {"c": "subscribe", "t": "x", "sub_id": "s", "bm": "x"},
    "invalid correlation id": {"c": "p", "t": "x", "x": "x" * 70_000},
    "invalid expiration": {"c": "p", "t": "x", "e": 2**32},
    "invalid options": {"c": "subscribe", "t": "x", "sub_id": "s", "opts": "no_such"},
    "invalid orderby": {"c": "sow", "t": "sow", "orderby": "id UP"},
    "invalid subid": {"c": "unsubscribe"},
    "invalid topic": {"c": "sow", "t": "x"},
    "not entitled": {"c": "p", "t": "/AMPS/ClientStatus"},
    "subid in use": {"c": "subscribe", "t": "x", "sub_id": "used"},
    "unknown command": {"c": "no_such"},
}
SHOWN_ELSEWHERE: Final = {
    "auth failure": "test_logon.py::test_wrong_credentials_end_the_connection",
    "invalid message type": "test_logon.py"
    "::test_a_message_type_that_nobody_knows_is_refused_by_name",
    "logon required": "test_logon.py"
    "::test_another_command_before_the_logon_is_refused_and_ends_the_connection",
    "name in use": "test_logon.py::test_another_user_is_refused_and_the_older_connection_stays",
    "too many guards": "test_guards.py"
    "::test_the_number_of_guards_has_a_limit_in_which_ended_ones_do_not_count",
    "too many queries": "test_system_topics.py::test_too_many_unanswered_queries_are_refused",
    "too many subscriptions": "test_subscribing.py"
    "::test_one_connection_has_a_limit_of_subscriptions",
}
"""Reasons that take more than one command to provoke, and whose tests provoke them."""


def full_world() -> World:
    """A broker with everything that a command can be about."""
    return World(
        sow_topics=(SowTopic("sow", ("/id",), history=True), SowTopic("keyed")),
        queues=(QueueTopic(name="jobs"),),
    )


@pytest.mark.parametrize("reason", [*Reason])
def test_each_reason_that_is_listed_is_given(reason: str) -> None:
    if reason in SHOWN_ELSEWHERE:
        assert reason in source_of(f"{ENGINE}/{SHOWN_ELSEWHERE[reason]}")
        return
    peer = full_world().client()
    peer.send(c="subscribe", t="y", sub_id="used")
    peer.send(cid="1", a="processed", **REFUSED[reason])
    assert reason in {ack.reason for ack in peer.acks()}


@pytest.mark.parametrize("option", ["no_such", "oof", "no_such=1", "oof,no_such"])
@pytest.mark.parametrize("name", ["p", *(each for each in CommandName if each != "logon")])
def test_no_command_skips_an_option_that_it_does_not_know(name: str, option: str) -> None:
    if name not in words(rows()["commands"]):
        return
    if option == "oof" and name.endswith("subscribe") and name != "unsubscribe":
        return  # which is one of theirs
    peer = full_world().client()
    peer.send(b"{}", c=name, cid="1", a="processed", t="sow", sub_id="s", opts=option)
    assert [ack.reason for ack in peer.acks()] == ["invalid options"]


class ReadMessage(Message):
    """A command that notes which of its headers are read."""

    @override
    def __getattribute__(self, name: str) -> object:
        _read.add(name)
        return super().__getattribute__(name)


_read: Final[set[str]] = set()
HEADER_NAMES: Final = {header.attribute: header.wire for header in HEADERS}
EVERY_COMMAND: Final = {"c", "cid", "a"}
# What is looked at and means nothing: an ack has it in the other direction, or the refusal of
# options with a bookmark is the same for all commands.
NO_HEADER: Final = {"logon": {"bm"}, "flush": {"bm"}, "unsubscribe": {"bm"}, "publish": {"bm"}}
FORMS: Final[dict[str, list[dict[str, str | int]]]] = {
    "logon": [{"user_id": "joe", "pw": "x", "mt": "json"}],
    "publish": [{"t": "sow"}, {"t": "jobs"}, {"t": "x", "s": 5}, {"t": "x", "opts": "none"}],
    "subscribe": [{"t": "x"}, {"t": "x", "bm": "0"}, {"t": "jobs"}, {"t": "x", "opts": "resume"}],
    "sow": [{"t": "sow"}, {"t": "sow", "bm": "0"}, {"t": "jobs"}],
    "sow_and_subscribe": [{"t": "sow"}, {"t": "sow", "bm": "0"}, {"t": "x"}],
    "sow_delete": [
        {"t": "sow"},
        {"t": "sow", "filter": "/a=1"},
        {"t": "sow", "sow_keys": "1"},
        {"t": "jobs", "bm": "1|1|"},
        {"t": "jobs", "filter": "/a=1"},
    ],
    "unsubscribe": [{"sub_id": "a"}],
    "flush": [{}],
    "heartbeat": [{"opts": "start,1"}],
}


def headers_read(name: str, form: dict[str, str | int]) -> set[str]:
    """The headers that a command reads, by their names on the wire."""
    world = full_world() if name != "logon" else World(users={"joe": "x"})
    peer = world.client() if name != "logon" else world.connect()
    acks = "received,processed,completed,persisted,stats"
    frame = encode_frame({"c": name, "cid": "1", "a": acks, **form}, b'{"id":1}')
    (plain,) = decode(frame, expand_sow=False)
    fields_ = [each for each in Message.__struct_fields__ if each in HEADER_NAMES]
    message = ReadMessage(**{each: getattr(plain, each) for each in fields_}, data=plain.data)
    _read.clear()
    world.deliver(peer, [message])
    return {HEADER_NAMES[each] for each in _read & HEADER_NAMES.keys()}


@pytest.mark.parametrize("name", FORMS)
def test_a_command_reads_exactly_the_headers_that_are_listed(name: str) -> None:
    table = re.search(r"\| command \| other headers.*?\n\n", README.read_text("utf-8"), re.DOTALL)
    assert table is not None
    listed: set[str] = set()
    for line in table[0].splitlines()[2:]:
        commands, _, headers = line.strip("| ").partition(" | ")
        if headers != "the same":
            listed = words(headers)
        if name in words(commands):
            break
    read = set[str]().union(*(headers_read(name, form) for form in FORMS[name]))
    assert read - EVERY_COMMAND - NO_HEADER.get(name, set()) == listed


SHOWN: Final = {
    "commands": f"{HERE}::test_a_command_is_carried_out_exactly_if_it_is_listed",
    "message types": f"{HERE}::test_the_reasons_and_the_message_types_are_those_that_are_listed",
    "options": f"{HERE}::test_an_option_is_accepted_exactly_if_it_is_listed",
    "headers": f"{HERE}::test_a_command_reads_exactly_the_headers_that_are_listed",
    "replay rates": f"{ENGINE}/test_pace.py"
    "::test_a_replay_has_the_rate_and_what_follows_it_is_live",
    "field selection": f"{ENGINE}/test_field_selection.py"
    "::test_each_leaf_is_there_exactly_if_the_longest_directive_wants_it",
    "conflation": f"{ENGINE}/test_conflation.py"
    "::test_only_the_last_message_of_each_record_is_sent_when_the_interval_ends",
    "replication": f"{ENGINE}/replication/test_sender.py"
    "::test_a_persisted_ack_waits_for_every_synchronous_destination_and_for_no_other",
    "accepted, without effect here": f"{HERE}::test_an_option_is_accepted_exactly_if_it_is_listed",
    "bookmarks": "tests/conformance/test_bookmarks.py::test_a_bookmark_says_where_a_replay_begins",
    "acks": "tests/conformance/test_publishing.py::test_each_type_of_ack_is_a_frame_of_its_own",
    "identities": f"{ENGINE}/test_publishers.py::test_a_duplicate_is_still_known_after_a_restart",
    "names": f"{ENGINE}/test_logon.py::test_the_same_user_displaces_the_older_connection",
    "message queues": "tests/conformance/test_queues.py"
    "::test_a_delivery_has_a_bookmark_and_the_end_of_its_lease",
    "state of the world": "tests/conformance/test_sow.py::test_the_answer_to_a_query_is_framed",
}
"""A test of what each row of "What is emulated" says. A new row needs one."""


def table_after(heading: str) -> list[list[str]]:
    """The cells of the first table behind a text of the page, row by row."""
    text = README.read_text(encoding="utf-8").partition(heading)[2]
    lines = iter(text.splitlines())
    found = [next(line for line in lines if line.startswith("|"))]
    for line in lines:
        if not line.startswith("|"):
            break
        found.append(line)
    return [re.split(r" *(?<!\\)\| *", line)[1:-1] for line in found[2:]]


def test_each_row_of_what_is_emulated_has_its_tests() -> None:
    emulated = [cells[0] for cells in table_after("## What is emulated")]
    without = [row for row in emulated if row not in SHOWN]
    assert not without, f"rows without tests: {without}; name the tests in SHOWN"
    for row in emulated:
        assert source_of(SHOWN[row])


def test_a_name_that_has_published_takes_the_memory_that_is_listed(tmp_path: Path) -> None:
    """A new name for each run of a program is a leak, whose size its users must know."""
    names = 400
    found = re.search(r"published, about (\d+) bytes", README.read_text(encoding="utf-8"))
    assert found is not None
    with closing(JournalFiles(tmp_path, RealDisk(), segment_bytes=2**20, instance_id=1)) as journal:
        world = World(journal=journal)

        def publish_once(name: str) -> None:
            publisher = world.client(name)
            publisher.publish(1)
            publisher.close()

        publish_once("first")
        gc.collect()
        tracemalloc.start()
        try:
            for number in range(names):
                publish_once(f"run-{number}")
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert 0.75 < taken / names / int(found[1]) < 1.25


def test_the_settings_of_a_queue_are_those_that_are_listed() -> None:
    table = table_after("A `QueueTopic` has:")
    assert {name for cells in table for name in words(cells[0])} == {
        each.name for each in fields(QueueTopic)
    }
    values = {"semantics": "at-most-once", "delivery": "fast", "leasing": "strict"}
    values |= {"recovery_point": "now", "priority": "/p", "barrier": "/b = 1", "dead_letter": "x"}
    options = {name for cells in table for name in re.findall(r"^`([a-z_]+)`", cells[1])}
    for option in options:
        more = ",delivery=round-robin" if option == "semantics" else ""
        value = "true" if option == "file_backed" else values.get(option, "2")
        assert parse_queue(f"jobs,{option}={value}{more}") != QueueTopic(name="jobs")
    with pytest.raises(UsageError, match="unknown option") as found:
        parse_queue("jobs,no_such=1")
    assert set(str(found.value).partition("the options: ")[2].split(", ")) == options


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (r"(a)\1", "aa", None),
        (r"a(?=b)", "ab", None),
        (r"(?<=a)b", "ab", None),
        (r"(?>a)b", "ab", None),
        (r"a++", "aa", None),
        (r"a\Z", "a", None),
        (r"(?x)a", "a", None),
        (r"a(?#comment)", "a", None),
        (r"^a$", "a\n", False),
        (r"^a\z", "a", True),
        (r"a{1000}", "a" * 1000, True),
        (r"a{1001}", "a" * 1001, None),
        (r"^a{,3}$", "a{,3}", True),
        (r"\s", "\v", False),
        ("(?i)x\xe9", "X\xe9", True),
        ("(?i)x\xe9", "X\xc9", False),
        (r"a" * 4096, "a" * 4096, True),
        (r"a" * 4097, "a" * 4097, None),
    ],
)
def test_patterns_differ_as_the_table_says(
    pattern: str, text: str, *, matches: bool | None
) -> None:
    try:
        found = compile_search(pattern)(text)
    except PatternError:
        assert matches is None
    else:
        assert found is matches


def test_the_policies_of_syncing_are_those_that_are_listed() -> None:
    listed = [next(iter(words(cells[0]))) for cells in table_after("## Durability")]
    assert listed == [*FsyncPolicy]


@pytest.mark.parametrize(
    ("heading", "topic", "body"),
    [
        ("`/HACLIENT/status` needs no", "status", b'{"topics":["x"]}'),
        (
            "`/HACLIENT/publisher` takes",
            "publisher",
            b'{"name":"a","first_counted":1,"last_counted":9}',
        ),
        ("`begins`", "position", b'{"topic":"x"}'),
    ],
)
def test_the_answers_of_its_own_topics_are_those_that_are_listed(
    heading: str, topic: str, body: bytes
) -> None:
    world = full_world()
    publisher = world.client("a")
    publisher.send(b"{}", c="p", t="x", s=1, x="abc")
    publisher.send(b'{"name":"g","after":0}', c="sow", t="/HACLIENT/guards", cid="g")
    publisher.take()
    publisher.send(body, c="sow", t=f"/HACLIENT/{topic}", cid="1", a="processed")
    (record,) = [each for each in publisher.take() if each.kind == "sow"]
    text = README.read_text(encoding="utf-8")
    place = text.rindex("| answer", 0, text.index(heading)) if topic == "position" else 0
    table = table_after(heading) if not place else table_after(text[place - 40 : place])
    listed = {name for cells in table for name in words(cells[0])}
    assert set(json.loads(record.data)) <= listed
    # Only what has happened or was asked for is in an answer.
    absent = {"faults", "unlogged_topics", "timestamp", "identified"}
    assert listed - set(json.loads(record.data)) <= absent
