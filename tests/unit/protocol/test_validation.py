from __future__ import annotations

import pytest

from haclient.errors import UsageError
from haclient.protocol.commands import Command, CommandName
from haclient.protocol.options import Options
from haclient_stores.bookmark import EPOCH, NOW, Bookmark, BookmarkRange, Timestamp


@pytest.mark.parametrize(
    "command",
    [
        Command("publish", topic="t"),
        Command("publish", topic="t", sequence=2**64 - 1, expiration=0, correlation_id="aZ09+/="),
        Command("delta_publish", topic="t", data="x"),
        Command("subscribe", topic="t", ack_type="processed, none,"),
        Command("subscribe", topic="t", bookmark=EPOCH, top_n=5),
        Command("subscribe", topic="t", bookmark=BookmarkRange(EPOCH, NOW)),
        Command("subscribe", topic="t", bookmark=EPOCH, options="bookmark_not_found=fail"),
        Command("subscribe", topic="t", options=Options(oof=True)),
        Command("delta_subscribe", topic="t"),
        Command("sow", topic="t", top_n=0, ack_type="stats", batch_size=10_000),
        Command("sow", topic="t", options="top_n=1,skip_n=1", order_by="/id"),
        Command("sow_and_subscribe", topic="t", bookmark=NOW, top_n=3),
        Command("sow_and_delta_subscribe", topic="t", options="oof"),
        Command("sow_delete", topic="t", filter="1=1"),
        Command("sow_delete", topic="t", sow_keys="1,2"),
        Command("sow_delete", topic="t", data=b"{}"),
        Command("sow_delete", topic="t", bookmark=Bookmark(1, 2), options="cancel"),
        Command("sow_delete", topic="t", bookmark="1|2|,1|3|"),
        Command("unsubscribe", sub_id="all"),
        Command("unsubscribe", query_id="1"),
        Command("flush"),
        Command("heartbeat", options="start,5"),
        Command("logon", client_name="me"),
    ],
    ids=repr,
)
def test_what_a_server_could_carry_out_passes(command: Command) -> None:
    command.validate()


@pytest.mark.row("CC21")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (Command("publish"), "publish needs a topic"),
        (Command("delta_publish"), "delta_publish needs a topic"),
        (Command("subscribe"), "subscribe needs a topic"),
        (Command("sow"), "sow needs a topic"),
        (Command("sow_and_subscribe"), "sow_and_subscribe needs a topic"),
        (Command("sow_delete", filter="1=1"), "sow_delete needs a topic"),
        (Command("subscribe", topic="t", sub_id="a,b"), "has no comma"),
        (Command("sow", topic="t", query_id=" q"), "no blank at its ends"),
        (Command("sow_and_subscribe", topic="t", sub_id="all"), "is not 'all'"),
        (Command("publish", topic="t", bookmark=NOW), "takes no bookmark"),
        (Command("delta_subscribe", topic="t", bookmark=EPOCH), "takes no bookmark"),
        (Command("publish", topic="t", sequence=0), "sequence is 1 to"),
        (Command("publish", topic="t", sequence=2**64), "sequence is 1 to"),
        (Command("publish", topic="t", expiration=-1), "expiration is 0 or more"),
        (Command("sow", topic="t", top_n="3"), "top_n is a whole number, not '3'"),  # type: ignore[arg-type]  # what is tested
        (Command("publish", topic="t", correlation_id="a b"), "'a b'"),
        (Command("publish", topic="t", ack_type="done"), "'done'"),
        (Command("subscribe", topic="t", options="speed"), "'speed'"),
        (Command("subscribe", topic="t", bookmark="soon"), "'soon'"),
        (Command("subscribe", topic="t", top_n=1), "top_n of a subscribe needs a bookmark"),
        (Command("subscribe", topic="t", top_n=1, bookmark=NOW), "other than NOW"),
        (Command("subscribe", topic="t", options="bookmark_not_found=now"), "needs a bookmark"),
        (Command("subscribe", topic="t", options="oof", bookmark=EPOCH), "cannot have the option"),
        (Command("sow", topic="t", batch_size=0), "1 to 10000"),
        (Command("sow", topic="t", batch_size=10_001), "1 to 10000"),
        (Command("sow", topic="t", top_n=-1), "top_n is 0 or more"),
        (Command("sow", topic="t", options="top_n=1,skip_n=1"), "needs order_by"),
        (Command("sow_delete", topic="t"), "found none"),
        (Command("sow_delete", topic="t", filter="1", data="{}"), "found filter and data"),
        (Command("sow_delete", topic="t", bookmark=Timestamp(0)), "acknowledges messages"),
        (Command("sow_delete", topic="t", bookmark=EPOCH), "acknowledges messages"),
        (Command("unsubscribe"), "needs a sub_id"),
        (Command("logon"), "needs a client name"),
    ],
    ids=repr,
)
def test_what_no_server_could_carry_out_is_refused(command: Command, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        command.validate()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", CommandName)
def test_every_command_can_be_validated(name: CommandName) -> None:
    try:
        Command(name).validate()
    except UsageError as error:
        assert "needs" in str(error)
